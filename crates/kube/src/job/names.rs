//! What things are called: objects, labels, annotations. Every name that crosses from one file to another is here.

use std::fmt;

use crate::fingerprint::fingerprint;

/// On everything that is made here.
pub(crate) const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The value of [`MANAGED_BY`].
pub(crate) const RONDE: &str = "ronde";
/// The job's name.
pub(crate) const JOB: &str = "ronde.dev/job";
/// The uid of the root object: a job that is made again under the same name is another job.
pub(crate) const JOB_UID: &str = "ronde.dev/job-uid";
/// Which set of pods a pod belongs to.
pub(crate) const ATTEMPT: &str = "ronde.dev/attempt";
/// `chief` or `worker`.
pub(crate) const ROLE: &str = "ronde.dev/role";
/// What the root object is: `rondejob`, `configmap` or `pod`.
pub(crate) const ROOT: &str = "ronde.dev/root";
/// What the pod's whole set claims, as JSON: `{"node-1":5,"node-3":1}`.
pub(crate) const CLAIM: &str = "ronde.dev/claim";
/// When the scheduler was let at the pod.
pub(crate) const PLACED: &str = "ronde.dev/placed";
/// How long pods may take from then until all run, in seconds.
pub(crate) const START_DEADLINE: &str = "ronde.dev/start-deadline";
/// Why a pod was ended before its time: the job's reason, or [`DONE`].
pub(crate) const ENDED: &str = "ronde.dev/ended";
/// The value of [`ENDED`] if the pod's training had ended, and other containers had not.
pub(crate) const DONE: &str = "done";
/// How long the job is kept when it has ended, in seconds.
pub(crate) const TTL: &str = "ronde.dev/ttl";
/// How many more attempts the job may make after one has failed.
pub(crate) const RETRIES: &str = "ronde.dev/retries";
/// What the job asks for, as a number, where the root object does not say it.
pub(crate) const SPEC: &str = "ronde.dev/spec";
/// Keeps the scheduler off a pod until its set's claim is safe.
pub(crate) const GATE: &str = "ronde.dev/claim";
/// The label by which Kueue finds its queue.
pub(crate) const QUEUE: &str = "kueue.x-k8s.io/queue-name";
/// The container that trains.
pub(crate) const TRAIN: &str = "train";
/// The container that brings our program.
pub(crate) const DELIVER: &str = "ronde";

/// The longest name of a job, so that everything named after it stays a host name.
pub(crate) const LONGEST: usize = 40;

/// What a pod is to its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Runs the launcher, and its own ranks.
    Chief,
    /// Runs an agent that dials the chief; counted from 0.
    Worker(usize),
}

impl Role {
    /// As it stands in [`ROLE`].
    pub(crate) fn label(self) -> &'static str {
        match self {
            Role::Chief => "chief",
            Role::Worker(_) => "worker",
        }
    }
}

/// The name of a pod: `mnist-chief`, `mnist-worker-3`; from the second set on with its number, `mnist-chief-r1`.
///
/// The launcher orders its hosts by name, so the chief comes first. Every set has names of its own, since the last one's
/// pods may still be ending.
pub(crate) fn pod(job: &str, attempt: u32, role: Role, workers: usize) -> String {
    struct Set(u32);
    impl fmt::Display for Set {
        fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            if self.0 > 0 { write!(out, "-r{}", self.0) } else { Ok(()) }
        }
    }
    let digits = workers.saturating_sub(1).to_string().len();
    match role {
        Role::Chief => format!("{job}-chief{}", Set(attempt)),
        Role::Worker(index) => format!("{job}-worker-{index:0digits$}{}", Set(attempt)),
    }
}

/// The headless service, which gives pods their names.
pub(crate) fn service(job: &str) -> String {
    job.to_owned()
}

/// The service by which a set's agents find their chief, whose pod this is. DNS servers remember the address of an
/// earlier job's service for a while, so a job that is made again under the same name must have another.
pub(crate) fn chief_service(chief: &str, uid: &str) -> String {
    format!("{chief}-{}", letters(uid))
}

/// The job's secret. Nobody may read secrets here, so one that is left of an earlier job of the same name could not be
/// told from this job's: a few letters of the job's uid are in its name.
pub(crate) fn secret(job: &str, uid: &str) -> String {
    format!("{job}-secret-{}", letters(uid))
}

/// A few letters that tell jobs of the same name from each other.
fn letters(uid: &str) -> String {
    let letters: String = uid.chars().filter(char::is_ascii_alphanumeric).take(6).collect();
    letters.to_ascii_lowercase()
}

/// Hostfile and plan, for those who look.
pub(crate) fn plan(job: &str) -> String {
    format!("{job}-plan")
}

/// The files that were shipped.
pub(crate) fn files(job: &str) -> String {
    format!("{job}-files")
}

/// What is wrong with a job's name, if something is.
pub fn check(name: &str) -> Result<(), String> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let starts = name.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase());
    if !starts || name.ends_with('-') || !name.bytes().all(fits) {
        return Err(format!(
            "{name:?} cannot be a job's name: it needs small letters, digits and dashes, with a letter in front"
        ));
    }
    if name.len() > LONGEST {
        return Err(format!("{name:?} is too long for a job's name: at most {LONGEST} letters"));
    }
    Ok(())
}

/// A name made of that of the pod which makes the job: the same one if it fits, and always the same for the same pod.
pub fn in_pod(pod: &str) -> String {
    match check(pod) {
        Ok(()) => pod.to_owned(),
        Err(_) => invent(&[pod.to_owned()], fingerprint(pod.bytes())),
    }
}

/// A name made of what the command runs, and a few random letters: `train-x7k2`.
pub fn invent(command: &[String], random: u64) -> String {
    let script = command.iter().find(|word| word.ends_with(".py")).or_else(|| command.first());
    let stem =
        script.map(|word| word.rsplit('/').next().unwrap_or(word).trim_end_matches(".py")).unwrap_or("");
    let plain: String =
        stem.to_ascii_lowercase().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let plain: String = plain.trim_matches(|c: char| !c.is_ascii_lowercase()).chars().take(24).collect();
    let plain = plain.trim_end_matches('-');
    let plain = if plain.is_empty() { "job" } else { plain };
    // Without letters that make words or look like digits.
    const LETTERS: &[u8; 25] = b"bcdfghjkmnpqrstvwxz234567";
    let tail: String =
        (0..4).map(|place| LETTERS[(random >> (8 * place)) as usize % LETTERS.len()] as char).collect();
    format!("{plain}-{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_called_like_its_pod_as_far_as_that_fits_and_always_the_same() {
        assert_eq!(in_pod("trainer-0"), "trainer-0");
        let pod = "nightly-training-of-everything-29381760-x7k2p";
        let name = in_pod(pod);
        assert_eq!((check(&name), &name), (Ok(()), &in_pod(pod)));
        assert!(name.starts_with("nightly-training-of-ever"), "{name}");
        assert_ne!(name, in_pod("nightly-training-of-everything-29381760-abcde"));
        assert_eq!(check(&in_pod("0.trainer")), Ok(()));
    }

    #[test]
    fn pods_sort_as_their_ranks_do() {
        let mut names: Vec<String> = (0..12).map(|index| pod("mnist", 0, Role::Worker(index), 12)).collect();
        names.insert(0, pod("mnist", 0, Role::Chief, 12));
        let mut sorted = names.clone();
        sorted.sort();
        assert_eq!(names, sorted);
        assert_eq!(names[..3], ["mnist-chief", "mnist-worker-00", "mnist-worker-01"]);
        assert_eq!(pod("mnist", 2, Role::Worker(1), 2), "mnist-worker-1-r2");
    }

    #[test]
    fn a_job_that_is_made_again_has_another_chiefs_service() {
        let (first, again) = ("0aF1-22-33", "0af1-23-33");
        assert_eq!(chief_service("mnist-chief-r1", first), "mnist-chief-r1-0af122");
        assert_ne!(chief_service("mnist-chief", first), chief_service("mnist-chief", again));
        let longest = pod(&"a".repeat(LONGEST), 9999, Role::Chief, 0);
        assert!(chief_service(&longest, first).len() <= 63, "a name of DNS");
    }

    #[test]
    fn names_are_checked_and_invented() {
        for good in ["a", "mnist-x7k", "j2"] {
            assert_eq!(check(good), Ok(()));
        }
        for wrong in ["", "Mnist", "2job", "job-", "a_b", &"a".repeat(41)] {
            assert!(check(wrong).is_err(), "{wrong}");
        }
        for (command, start) in [
            ("python -u /code/Train_MNIST.py", "train-mnist-"),
            ("./run", "run-"),
            ("123", "job-"),
            ("", "job-"),
        ] {
            let command: Vec<String> = command.split(' ').map(str::to_owned).collect();
            let name = invent(&command, 0x0102_0304);
            assert!(name.starts_with(start), "{name}");
            assert_eq!(check(&name), Ok(()));
        }
    }
}
