//! What ssh and Ansible say of machines, and what that means.
//!
//! Only what a failed task gives as its reason is looked at, not its name, and the way to a machine counts only where it
//! was not reached: logs of builds are full of words that mean something else elsewhere.

use crate::ansible::Failure;
use crate::cause::{Cause, Rule, explained};

/// Whose the machines are, on which it depends where things are set right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Terraform has made them.
    Cloud,
    /// They were there.
    Given,
}

/// Why ssh was not let in, wherever the machine is.
const REFUSED: [Rule; 2] = [
    Rule {
        any: &["permission denied (", "too many authentication failures"],
        all: &[],
        what: "the machine does not accept any key of this login",
        fix: "load the private key that it knows: ssh-add FILE (ssh-add -l lists what is loaded), and check the user that \
              it is for (ssh_user of the cluster, or ansible_user of an inventory)",
    },
    Rule {
        any: &["host key verification failed", "host identification has changed"],
        all: &[],
        what: "a machine has another host key than before",
        fix: "if it was made anew, remove the old key, which is in the line that ssh calls offending: \
              ssh-keygen -R ADDRESS -f FILE",
    },
];

/// What stands in the way of everything on a machine.
const IN_GENERAL: [Rule; 2] = [
    Rule {
        any: &[
            "missing sudo password",
            "incorrect sudo password",
            "a password is required",
            "a terminal is required to read the password",
        ],
        all: &["sudo"],
        what: "sudo asks for a password there",
        fix: "let the user do everything without one: echo \"$USER ALL=(ALL) NOPASSWD: ALL\" | sudo tee \
              /etc/sudoers.d/ronde on the machine",
    },
    Rule {
        any: &["no space left on device", "enough free space", "disk quota exceeded"],
        all: &[],
        what: "a disk is full",
        fix: "df -h on the machine shows which; sudo docker image prune --all and sudo docker builder prune free what \
              earlier images and builds have left, and a larger disk lasts longer",
    },
];

/// What goes wrong in tasks.
const IN_TASKS: [Rule; 5] = [
    Rule {
        any: &["could not get lock", "failed to lock", "unable to acquire the dpkg frontend lock"],
        all: &[],
        what: "another program installs packages on the machine",
        fix: "wait until it has ended (ps -C apt-get,dpkg,unattended-upgr shows it), then run it again",
    },
    Rule {
        any: &["no package matching", "unable to locate package", "has no installation candidate"],
        all: &[],
        what: "a package is in none of the package sources",
        fix: "the roles are for Debian and Ubuntu, with their main sources enabled: see /etc/apt/sources.list and \
              sources.list.d",
    },
    Rule {
        any: &[
            "pull access denied",
            "manifest unknown",
            "unauthorized: ",
            "no basic auth credentials",
            "toomanyrequests",
            "requested access to the resource is denied",
        ],
        all: &[],
        what: "the registry does not give out the image",
        fix: "check the image's name; if the registry asks who you are: docker login REGISTRY on the master, as whoever \
              may use Docker there, or give an archive that docker save wrote instead of a name",
    },
    Rule {
        any: &[
            "failed to fetch",
            "failed to update apt cache",
            "temporary failure resolving",
            "temporary failure in name resolution",
            "could not resolve host: ",
            "dial tcp",
        ],
        all: &[],
        what: "something cannot be downloaded from there",
        fix: "machines need names and a way to packages and images, and the name of a registry has to be right; mirrors and \
              proxies: /etc/apt on the machine, and image_build_options for what the image is built from",
    },
    Rule {
        any: &[
            "ansible-playbook: not found",
            "ansible-playbook: command not found",
            "ansible-playbook: no such file",
            "couldn't resolve module/action",
        ],
        all: &[],
        what: "Ansible, or a part of it that the roles need, is not installed here",
        fix: "pip install -r ansible/requirements.txt",
    },
];

/// What failed tasks mean. What went wrong in the same way on several machines is told once.
pub(crate) fn of_failures(failures: &[Failure], place: Place) -> Vec<Cause> {
    let mut groups: Vec<(&Failure, Vec<&str>)> = Vec::new();
    for failure in failures {
        let is_same = |other: &Failure| (&other.task, &other.message) == (&failure.task, &failure.message);
        match groups.iter_mut().find(|(first, _)| is_same(first)) {
            Some((_, machines)) => machines.push(&failure.machine),
            None => groups.push((failure, vec![&failure.machine])),
        }
    }
    groups.into_iter().map(|(failure, machines)| of_failure(failure, &machines.join(", "), place)).collect()
}

fn of_failure(failure: &Failure, machines: &str, place: Place) -> Cause {
    let words = format!("{} on {machines}: {}", failure.task, failure.message);
    match failure.is_unreachable {
        true => unreached(&failure.message, &words, place),
        false => of_text(&failure.message, &words),
    }
}

/// What a program has printed that works on machines; these words of it are shown.
pub(crate) fn of_text(text: &str, words: &str) -> Cause {
    explained(IN_GENERAL.iter().chain(&IN_TASKS), text, words)
}

/// What an ssh has printed that failed.
pub(crate) fn of_ssh(said: &str, place: Place) -> Cause {
    unreached(said, said, place)
}

/// What to do if ssh got to a machine, and was then refused.
pub(crate) fn refusal(said: &str) -> Option<String> {
    explained(REFUSED.iter().chain(&IN_GENERAL), said, said).fix
}

/// A machine that ssh got no answer from, or was refused by.
fn unreached(said: &str, words: &str, place: Place) -> Cause {
    let refused = explained(REFUSED.iter().chain(&IN_GENERAL), said, words);
    if refused.fix.is_some() {
        return refused;
    }
    let fix = match place {
        Place::Cloud => {
            "admin_cidr in resources.auto.tfvars must hold the address that this machine has to the cloud, the machine must \
             run (openstack server list), and the private key must be loaded (ssh-add -l); then ronde cluster up goes on \
             from here"
        }
        Place::Given => {
            "look whether the machine is on, and whether ansible_host, ansible_port and ansible_ssh_common_args of the \
             inventory lead to it from here; then ronde cluster up goes on from here"
        }
    };
    Cause { what: format!("a machine cannot be reached by ssh\n{words}"), fix: Some(fix.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(task: &str, message: &str) -> Failure {
        Failure {
            task: task.to_owned(),
            machine: "ronde-worker-1".to_owned(),
            is_unreachable: false,
            message: message.to_owned(),
        }
    }

    fn unreachable(message: &str) -> Failure {
        Failure { is_unreachable: true, ..failure("Gathering Facts", message) }
    }

    fn fix(failure: Failure, place: Place) -> String {
        of_failures(&[failure], place)[0].fix.clone().unwrap_or_default()
    }

    #[test]
    fn failed_tasks_name_task_machines_and_fix() {
        let timed_out =
            "Failed to connect to the host via ssh: connect to host 10.0.0.11 port 22: Connection timed out";
        let one = unreachable(timed_out);
        let other = Failure { machine: "ronde-worker-2".to_owned(), ..one.clone() };
        let causes = of_failures(&[one.clone(), other], Place::Cloud);
        let [cause] = causes.as_slice() else { panic!("{causes:?}") };
        assert!(cause.what.contains("Gathering Facts on ronde-worker-1, ronde-worker-2"), "{cause:?}");
        assert!(cause.fix.as_ref().is_some_and(|fix| fix.contains("admin_cidr")));
        let given = fix(one, Place::Given);
        assert!(given.contains("ansible_host") && !given.contains("tfvars"), "{given}");
        let missing = "/bin/sh: 1: ansible-playbook: not found";
        assert!(of_text(missing, missing).fix.is_some_and(|fix| fix.contains("pip")));
    }

    #[test]
    fn what_goes_wrong_on_machines_comes_with_its_fix() {
        for (message, words) in [
            ("Missing sudo password", "NOPASSWD"),
            ("non-zero return code\nsudo: a password is required", "NOPASSWD"),
            ("write /var/lib/docker/x: no space left on device", "docker image prune --all"),
            (
                "Error pulling image: Get \"https://r.exmple/v2/\": dial tcp: lookup r.exmple: no such host",
                "registry",
            ),
            ("E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (apt-get)", "wait"),
            ("No package matching 'docker-buildx' is available", "sources.list"),
            ("Error pulling image: pull access denied for private/ronde, repository does not exist", "login"),
            ("unauthorized: authentication required", "docker login"),
            ("E: Failed to fetch http://mirror/debian/x.deb  403  Forbidden [IP: 10.0.0.1 80]", "mirrors"),
        ] {
            let fix = fix(failure("image : Build the image", message), Place::Cloud);
            assert!(fix.contains(words), "{message}: {fix}");
        }
        assert!(fix(unreachable("u@m: Permission denied (publickey)."), Place::Cloud).contains("ssh-add"));
        assert!(fix(unreachable("Host key verification failed."), Place::Given).contains("ssh-keygen -R"));
    }

    #[test]
    fn words_that_mean_something_in_a_cloud_mean_nothing_in_a_log() {
        for message in [
            "#12 4.010 Collecting numpy==1.26.401\n#12 error: subprocess-exited-with-error, see code 403",
            "sha256:40140340f7 exited with code 1",
            "ERROR: failed to solve: /dist/ronde.whl: not found",
            "curl: (28) Connection timed out after 10001 milliseconds; quota of tries exceeded",
        ] {
            let cause = &of_failures(&[failure("image : Build the image", message)], Place::Cloud)[0];
            assert_eq!(cause.fix, None, "{cause:?}");
            assert_eq!(cause.what, format!("image : Build the image on ronde-worker-1: {message}"));
        }
    }

    #[test]
    fn a_failed_ssh_is_explained_by_what_it_ran_or_by_the_way_there() {
        assert!(of_ssh("sudo: a password is required", Place::Given).what.starts_with("sudo asks"));
        assert!(of_ssh("ssh: connect to host a port 22: No route to host", Place::Given).fix.is_some());
        assert_eq!(refusal("channel 0: open failed: connect failed: No route to host"), None);
        assert!(refusal("u@m: Permission denied (publickey).").is_some());
    }
}
