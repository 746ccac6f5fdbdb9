//! Which variables of the launcher's environment its ranks on other hosts get.
//!
//! Users expect theirs to be there: a virtual environment, tuning variables, credentials. What describes the launcher's
//! own machine, session or place in another job would mislead there. They travel inside the connection, so nobody sees
//! them in a list of processes.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// What belongs to the machine or the login session.
const OF_THE_MACHINE: [&str; 16] = [
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "HOSTNAME",
    "PWD",
    "OLDPWD",
    "MAIL",
    "SHLVL",
    "_",
    "TMPDIR",
    "TTY",
    "XDG_CACHE_HOME",
    "XDG_RUNTIME_DIR",
    "XDG_SESSION_ID",
    "_HOROVOD_SECRET_KEY",
];

/// Variables that begin like this do too (services of the machine are among them), or are functions of a shell.
const OF_THE_SESSION: [&str; 4] = ["BASH_FUNC_", "SSH_", "DBUS_", "CUDA_MPS_"];

/// What places a process in a job.
const OF_A_JOB: [&str; 9] = [
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_LOCAL_RANK",
    "HOROVOD_LOCAL_SIZE",
    "HOROVOD_CROSS_RANK",
    "HOROVOD_CROSS_SIZE",
    "HOROVOD_HOSTNAME",
    "RONDE_RENDEZVOUS",
    "RONDE_SECRET_FILE",
];

/// What agents in containers get: those have an environment of their own, which was made on purpose.
const FOR_CONTAINERS: [&str; 4] = ["HOROVOD_", "RONDE_", "NCCL_", "PYTHONHASHSEED"];

/// How the host's agent came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Started by ssh: the host is like ours, or will be told if it is not.
    Host,
    /// It dialled in.
    Container,
}

/// The variables to send.
pub(crate) fn forwarded(
    variables: impl Iterator<Item = (OsString, OsString)>,
    place: Place,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    variables
        .filter(|(name, _)| is_forwarded(name, place))
        .map(|(name, value)| (name.into_vec(), value.into_vec()))
        .collect()
}

/// Whether a variable places a process in a job, so that one that belongs to none must not find it.
pub(crate) fn places(name: &OsStr) -> bool {
    OF_A_JOB.iter().any(|other| *other == name)
}

fn is_forwarded(name: &OsStr, place: Place) -> bool {
    let bytes = name.as_bytes();
    let begins = |list: &[&str]| list.iter().any(|start| bytes.starts_with(start.as_bytes()));
    let is_one = |list: &[&str]| list.iter().any(|other| *other == name);
    // Which devices there are differs from host to host.
    let devices = bytes.ends_with(b"CUDA_VISIBLE_DEVICES");
    let misleading = is_one(&OF_THE_MACHINE) || places(name) || begins(&OF_THE_SESSION) || devices;
    !misleading && (place == Place::Host || begins(&FOR_CONTAINERS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_variables_travel_and_those_of_the_machine_do_not() {
        let on_hosts = |name: &str| is_forwarded(OsStr::new(name), Place::Host);
        for name in [
            "PATH",
            "PYTHONPATH",
            "VIRTUAL_ENV",
            "HOROVOD_CYCLE_TIME",
            "AWS_SECRET",
            "LD_LIBRARY_PATH",
            "LANG",
        ] {
            assert!(on_hosts(name), "{name}");
        }
        for name in [
            "HOME",
            "PWD",
            "SSH_AUTH_SOCK",
            "BASH_FUNC_x%%",
            "CUDA_VISIBLE_DEVICES",
            "CUDA_MPS_PIPE_DIRECTORY",
            "HOROVOD_RANK",
            "_",
        ] {
            assert!(!on_hosts(name), "{name}");
        }
        let in_containers = |name: &str| is_forwarded(OsStr::new(name), Place::Container);
        assert!(in_containers("NCCL_DEBUG") && in_containers("HOROVOD_TIMELINE"));
        assert!(!in_containers("PATH") && !in_containers("HOROVOD_SIZE"));
    }
}
