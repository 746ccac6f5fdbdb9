//! Why a job could not be started, and what to do about it.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::report::counted;
use crate::ssh::Refusal;

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
    /// The file of hosts cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    HostfileUnreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A line of the file of hosts makes no sense.
    #[error("{}:{line}: cannot read {text:?}: {problem}", path.display())]
    BadHostfile {
        /// The file.
        path: PathBuf,
        /// The line's number, counted from 1.
        line: usize,
        /// What stands there.
        text: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A file of hosts without hosts.
    #[error("{} names no host", path.display())]
    EmptyHostfile {
        /// The file.
        path: PathBuf,
    },
    /// More ranks than the hosts have slots.
    #[error("{np} ranks do not fit: {arithmetic}")]
    TooFewSlots {
        /// How many ranks were asked for.
        np: usize,
        /// How the slots add up.
        arithmetic: String,
    },
    /// A host with fewer GPUs than its ranks are to have.
    #[error(
        "{host} has {there}; --gpus-per-rank {each} needs {} for {}",
        each.saturating_mul(*ranks),
        counted(*ranks, "rank")
    )]
    TooFewGpus {
        /// The host.
        host: String,
        /// Whether it is the only one of the job.
        alone: bool,
        /// What it has: `3 GPUs`.
        there: String,
        /// How many ranks it would run.
        ranks: usize,
        /// How many GPUs each is to have.
        each: usize,
        /// For how many ranks its GPUs are enough.
        enough_for: usize,
    },
    /// NVIDIA's MPS was asked for and is not to be had on a host.
    #[error("{text}")]
    NoMps {
        /// What is wrong, on which host.
        text: String,
        /// What may help.
        hint: String,
    },
    /// A host could not be logged in to.
    #[error("{0}")]
    Ssh(Box<Refusal>),
    /// A host whose machine cannot run our program.
    #[error("{host} is a machine of another kind ({machine}) than this one ({own})")]
    OtherMachine {
        /// The host.
        host: String,
        /// What it is.
        machine: String,
        /// What this machine is.
        own: String,
    },
    /// Our program could not be stored or run on a host.
    #[error("{host} has no ronde of this build, and it cannot be put there: {reason}")]
    CannotSend {
        /// The host.
        host: String,
        /// What the host said.
        reason: String,
    },
    /// A host's agent ended before the job began.
    #[error("lost {host} while the job was being started: {why}")]
    AgentLost {
        /// The host.
        host: String,
        /// What is known about it.
        why: String,
    },
    /// A host's agent is of another version.
    #[error("{host} runs ronde {version}, not {}", env!("CARGO_PKG_VERSION"))]
    OtherVersion {
        /// The host.
        host: String,
        /// Its version.
        version: String,
    },
    /// Something that was asked for cannot be done on a host.
    #[error("{text}")]
    Refused {
        /// What.
        text: String,
        /// What may help.
        hint: Option<String>,
    },
    /// A host that was not ready in time.
    #[error("{host} was not ready within {} s: {doing}", limit.as_secs_f64())]
    Late {
        /// The host.
        host: String,
        /// The limit that was set.
        limit: Duration,
        /// What took so long.
        doing: String,
    },
    /// Fewer agents than were waited for.
    #[error("only {} of {wanted} agents came within {} s: {}", here.len(), limit.as_secs_f64(), here.join(", "))]
    TooFewAgents {
        /// How many were waited for.
        wanted: usize,
        /// Those that came.
        here: Vec<String>,
        /// The limit that was set.
        limit: Duration,
        /// Where they were waited for.
        address: SocketAddr,
    },
    /// The port for agents cannot be listened at.
    #[error("cannot listen for agents at {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// Told to end before the job began.
    #[error("interrupted")]
    Interrupted {
        /// By this signal.
        signal: i32,
    },
    /// Something could not be stored on a host.
    #[error("cannot store {}: {source}", path.display())]
    Store {
        /// What.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A file that is to be sent to hosts cannot be read.
    #[error("cannot send {} to the hosts: {source}", path.display())]
    Ship {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A message that makes sense only after others.
    #[error("the driver and the agent do not understand each other")]
    NotWelcome,
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
    /// The network cannot be listened to.
    #[error("{0}")]
    Network(String),
    /// The system refused something ordinary.
    #[error("cannot {doing}: {source}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

impl From<crate::listening::Error> for Error {
    fn from(error: crate::listening::Error) -> Error {
        Error::Network(error.to_string())
    }
}

impl Error {
    /// What the user can do about it, if anything in particular.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Error::NoRanks => "start two with -np 2".to_owned(),
            Error::BadHost { .. } => "write hosts as name:slots, for example -H localhost:2".to_owned(),
            Error::BadHostfile { .. } | Error::EmptyHostfile { .. } => {
                "write one host a line, for example: gpu1 slots=4".to_owned()
            }
            Error::TooFewSlots { np, .. } => {
                format!("lower -np, or give more slots, for example -H localhost:{np}")
            }
            Error::TooFewGpus { host, alone, enough_for, .. } => {
                let fewer = match enough_for {
                    0 if *alone => {
                        return Some(
                            "leave --gpus-per-rank out; then ranks may share a GPU, or use none".to_owned(),
                        );
                    }
                    0 => format!("leave {host} out of -H"),
                    some if *alone => format!("start fewer ranks (-np {some})"),
                    some => format!("give it fewer slots (-H …,{host}:{some})"),
                };
                format!("{fewer}, or leave --gpus-per-rank out: ranks may share a GPU")
            }
            Error::Ssh(refusal) => return Some(refusal.hint()).filter(|hint| !hint.is_empty()),
            Error::OtherMachine { .. } => "use hosts of one kind in a job".to_owned(),
            Error::CannotSend { host, .. } => {
                format!("make room or see to the rights of ~/.cache on {host}, or set XDG_CACHE_HOME there")
            }
            Error::OtherVersion { host, .. } => format!("install the same version on {host}"),
            Error::Refused { hint, .. } => return hint.clone(),
            Error::Late { host, .. } => {
                format!("give it more time (--start-timeout), or look: ronde doctor -H {host}")
            }
            Error::TooFewAgents { address, .. } => {
                format!("start the others: ronde agent --connect HOST:{} --secret-file FILE", address.port())
            }
            Error::Store { .. } => {
                "make room there, or set XDG_CACHE_HOME to a folder that has some".to_owned()
            }
            Error::NoCommand => {
                "write it after the flags, for example: ronde run -np 2 python train.py".to_owned()
            }
            Error::NoMps { hint, .. } | Error::NotFound { hint, .. } | Error::NotExecutable { hint, .. } => {
                hint.clone()
            }
            Error::OutputFolder { .. } => "give a folder you may write to with --output-filename".to_owned(),
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
