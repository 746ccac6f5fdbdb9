//! How a process ended, in the words and numbers people know from their shell.

use std::fmt;

use rustix::process::WaitStatus;
use serde::{Deserialize, Serialize};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ending {
    /// It exited with this status.
    Exited(i32),
    /// This signal killed it.
    Killed(i32),
}

impl Ending {
    /// Whether somebody else ended the process. Other signals are a program's own faults, which may follow from what
    /// happened to other ranks.
    pub(crate) fn is_from_outside(self) -> bool {
        self == Ending::Killed(libc::SIGKILL)
    }

    /// From what `wait` says; `None` if the process was only stopped or continued.
    pub(crate) fn from_wait(status: WaitStatus) -> Option<Ending> {
        let exited = status.exit_status().map(Ending::Exited);
        exited.or_else(|| status.terminating_signal().map(Ending::Killed))
    }

    /// The same of a process that the standard library waited for.
    pub(crate) fn from_exit(status: std::process::ExitStatus) -> Option<Ending> {
        use std::os::unix::process::ExitStatusExt;
        status.code().map(Ending::Exited).or_else(|| status.signal().map(Ending::Killed))
    }

    pub(crate) fn is_failure(self) -> bool {
        self != Ending::Exited(0)
    }

    /// The status a shell would show: 128 and the signal's number for signals.
    pub(crate) fn status(self) -> u8 {
        let status = match self {
            Ending::Exited(status) => status,
            Ending::Killed(signal) => 128 + signal,
        };
        // What does not fit must not turn into success.
        u8::try_from(status).unwrap_or(u8::MAX)
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Exited(status) => write!(f, "exit status {status}"),
            Ending::Killed(signal) => match signal_hook::low_level::signal_name(*signal) {
                Some(name) => write!(f, "killed by signal {signal} ({name})"),
                None => write!(f, "killed by signal {signal}"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Ending;

    #[test]
    fn endings_read_as_in_a_shell() {
        for (ending, text, status) in [
            (Ending::Exited(0), "exit status 0", 0),
            (Ending::Exited(3), "exit status 3", 3),
            (Ending::Killed(9), "killed by signal 9 (SIGKILL)", 137),
            (Ending::Killed(11), "killed by signal 11 (SIGSEGV)", 139),
            (Ending::Killed(40), "killed by signal 40", 168),
        ] {
            assert_eq!((ending.to_string().as_str(), ending.status()), (text, status));
            assert_eq!(ending.is_failure(), status != 0);
        }
    }
}
