//! Why a machine cannot take part in a job over ssh, and what to do about it.

use std::io;
use std::path::PathBuf;

/// Why a machine cannot take part.
#[derive(Debug, thiserror::Error)]
pub enum OverSshError {
    /// No launcher has started this.
    #[error("this is run by `ronde run`, on every machine of a job over ssh")]
    NotARank,
    /// There is nothing to run.
    #[error("it is not said what to run")]
    NoCommand,
    /// A file cannot be read or written.
    #[error("cannot {doing} {}: {source}", path.display())]
    File {
        /// What was tried.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The image lacks a program.
    #[error("the image has no {program}")]
    NoProgram {
        /// What it is called.
        program: &'static str,
        /// What Debian calls the package that has it.
        package: &'static str,
    },
    /// Ssh lets only users in that have names.
    #[error("user number {uid} has no name in the image, and ssh knows users by their names")]
    NoUser {
        /// The number.
        uid: u32,
    },
    /// A server did not come up.
    #[error("the ssh server of {host} does not answer at {address}: {source}")]
    NoServer {
        /// Whose.
        host: String,
        /// Where it should be.
        address: String,
        /// What was met there last.
        source: io::Error,
    },
    /// A program could not be started.
    #[error("cannot run {program}: {source}")]
    NotRun {
        /// What was to be run.
        program: String,
        /// The system's reason.
        source: io::Error,
    },
}

impl OverSshError {
    /// What to do about it, if anything in particular.
    fn hint(&self) -> Option<String> {
        match self {
            OverSshError::NoProgram { package, .. } => {
                Some(format!("install it into the image: apt-get install {package}"))
            }
            OverSshError::NoUser { uid } => Some(format!(
                "add one to the image (useradd --uid {uid} NAME), or run as one that it has (--run-as-user, runAsUser)"
            )),
            _ => None,
        }
    }

    /// The error and its hint as the user sees them, each on its line.
    pub fn render(&self) -> String {
        let hint = self.hint().map(|hint| format!("hint: {hint}\n")).unwrap_or_default();
        format!("error: {self}\n{hint}")
    }
}
