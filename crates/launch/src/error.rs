//! Why a job could not be started, and what to do about it.

use std::io;
use std::path::PathBuf;

/// Why a job could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A job without ranks.
    #[error("a job needs at least 1 rank, not 0")]
    NoRanks,
    /// The list of hosts makes no sense.
    #[error("cannot read the host {entry:?} in {list:?}: {problem}")]
    BadHost {
        /// The entry.
        entry: String,
        /// The list it is in.
        list: String,
        /// What is wrong with it.
        problem: String,
    },
    /// More ranks than the hosts have slots.
    #[error("{np} ranks do not fit: {arithmetic}")]
    TooFewSlots {
        /// How many ranks were asked for.
        np: usize,
        /// How the slots add up.
        arithmetic: String,
    },
    /// A host that is not this machine.
    #[error("{host} is not this machine ({here}): this version runs ranks on this machine only")]
    OtherHost {
        /// The host.
        host: String,
        /// What this machine calls itself.
        here: String,
    },
    /// No command was given.
    #[error("no command was given to run")]
    NoCommand,
    /// The command is not to be found.
    #[error("cannot find the command {name:?}")]
    NotFound {
        /// As it was given.
        name: String,
        /// What may help.
        hint: String,
    },
    /// The command is there but cannot be executed.
    #[error("{} cannot be executed: {problem}", path.display())]
    NotExecutable {
        /// The file.
        path: PathBuf,
        /// Why.
        problem: String,
        /// What may help.
        hint: String,
    },
    /// The folder for the ranks' output cannot be used.
    #[error("cannot write the ranks' output to {}: {source}", path.display())]
    OutputFolder {
        /// The folder or file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A rank could not be started.
    #[error("cannot start rank {rank}: {source}")]
    Start {
        /// Which.
        rank: usize,
        /// The system's reason.
        source: io::Error,
    },
    /// The rendezvous could not be started.
    #[error(transparent)]
    Rendezvous(#[from] ronde_rendezvous::Error),
    /// No secret could be made.
    #[error(transparent)]
    Trust(#[from] ronde_trust::Error),
    /// The system refused something ordinary.
    #[error("cannot {doing}: {source}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

impl Error {
    /// What the user can do about it, if anything in particular.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Error::NoRanks => "start two with -np 2".to_owned(),
            Error::BadHost { .. } => "write hosts as name:slots, for example -H localhost:2".to_owned(),
            Error::TooFewSlots { np, .. } => {
                format!("lower -np, or give more slots, for example -H localhost:{np}")
            }
            Error::OtherHost { .. } => "leave -H out, or write -H localhost:N".to_owned(),
            Error::NoCommand => {
                "write it after the flags, for example: ronde run -np 2 python train.py".to_owned()
            }
            Error::NotFound { hint, .. } | Error::NotExecutable { hint, .. } => hint.clone(),
            Error::OutputFolder { .. } => "give a folder you may write to with --output-filename".to_owned(),
            Error::Start { source, .. } if source.raw_os_error() == Some(libc::ENOEXEC) => {
                "is it a script without a first line such as #!/bin/sh?".to_owned()
            }
            _ => return None,
        };
        Some(hint)
    }

    /// The error and its hint as the user sees them, each on its line.
    pub fn render(&self) -> String {
        match self.hint() {
            Some(hint) => format!("error: {self}\nhint: {hint}\n"),
            None => format!("error: {self}\n"),
        }
    }

    /// For `map_err` on calls that fail only when the system is out of something.
    pub(crate) fn system<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Error {
        move |source| Error::System { doing, source: source.into() }
    }
}
