//! Jobs over ssh, the classic way: the command is run once, in the chief, and starts its processes itself.
//!
//! For images that need `mpirun` or `horovodrun`. The launcher and its agents run as ever, with one rank a pod: the chief's
//! becomes the user's command, the workers' the ssh server of their image (`ronde over-ssh`). So workers end unaided as
//! they do without ssh, and whatever was started in them with them. Keys are made for each job and are in its secret,
//! which all its pods have; none is in an image, and nobody else can read them.

use ssh_key::private::{Ed25519Keypair, PrivateKey};
use ssh_key::{LineEnding, public::PublicKey};

use super::names;
use super::{Gang, Job, Surroundings};

/// The names that `ronde over-ssh` knows the keys by: the one that opens all pods, and the one that they show.
const KEYS: [&str; 2] = ["ssh-key", "ssh-host-key"];

/// Fresh keys, as files of the secret; an error says why there are none.
pub(crate) fn keys() -> Result<Vec<(String, String)>, String> {
    let mut files = Vec::new();
    for name in KEYS {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(|error| error.to_string())?;
        let key = PrivateKey::from(Ed25519Keypair::from_seed(&seed));
        let public = PublicKey::from(&key).to_openssh().map_err(|error| error.to_string())?;
        let private = key.to_openssh(LineEnding::LF).map_err(|error| error.to_string())?;
        files.push((name.to_owned(), private.to_string()));
        files.push((format!("{name}.pub"), format!("{public}\n")));
    }
    Ok(files)
}

/// What a pod's one rank runs: `ronde over-ssh`, with the user's command behind it.
pub(super) fn command(
    job: &Job,
    gang: &Gang,
    around: &Surroundings,
    program: &str,
    keys: &str,
    folder: &str,
) -> Vec<String> {
    let hosts: Vec<String> =
        gang.members.iter().map(|member| format!("{}:{}", member.pod, member.gpus)).collect();
    // The dot at the end keeps the resolver from trying the search domains first.
    let domain = format!("{}.{}.svc.{}.", names::service(&job.name), job.namespace, around.cluster_domain);
    let patience = job.spec.start_deadline_seconds.to_string();
    let (hosts, verb) = (hosts.join(","), "over-ssh");
    let words = [program, verb, "--keys", keys, "--folder", folder, "--hosts", &hosts, "--domain", &domain];
    let words = words.into_iter().chain(["--patience", &patience, "--"]).map(str::to_owned);
    words.chain(job.spec.command.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_has_keys_of_its_own_that_fit_each_other() {
        let (one, other) = (keys().expect("keys"), keys().expect("keys"));
        let names: Vec<&str> = one.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["ssh-key", "ssh-key.pub", "ssh-host-key", "ssh-host-key.pub"]);
        for (pair, foreign) in one.chunks(2).zip(other.chunks(2)) {
            let private = PrivateKey::from_openssh(&pair[0].1).expect("a private key");
            let public = PublicKey::from_openssh(&pair[1].1).expect("a public key");
            assert_eq!(private.public_key().key_data(), public.key_data());
            assert_ne!(pair[1], foreign[1]);
        }
        assert_ne!(one[1].1, one[3].1);
    }
}
