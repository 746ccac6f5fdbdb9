//! Why a command line is refused before anything starts, and what to do about it.

use std::io;
use std::path::PathBuf;

use crate::status::Status;

/// Why a command line is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
    #[error(transparent)]
    Launch(#[from] ronde_launch::Error),
    #[error("it is not said which hosts")]
    NoHosts,
    #[error("it is not said how many ranks to start")]
    NoCount,
    #[error("it is not said how many ranks the {agents} agents are to run")]
    NoCountForAgents { agents: usize },
    #[error("{flags}: elastic jobs are not in this version, which starts jobs of a fixed size")]
    Elastic { flags: String },
    #[error("cannot read {}: {source}", path.display())]
    ConfigUnreadable { path: PathBuf, source: io::Error },
    #[error("{}:{line}: {problem}", path.display())]
    ConfigFile { path: PathBuf, line: usize, problem: String },
    #[error("cannot pass on {name}: it is not set here")]
    NotSet { name: String },
    #[error("cannot read the hosts of this {system} job: {problem}")]
    Allocation { system: &'static str, problem: String },
    #[error("{flag} is missing")]
    AgentLacks { flag: &'static str, variable: &'static str },
    #[error("{name}={value}: {problem}")]
    BadVariable { name: &'static str, value: String, problem: String },
}

impl Problem {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Problem::Launch(error) => return error.hint(),
            Problem::NoCount => {
                "start two with -np 2 (--num-proc 2), or name hosts: -H gpu1:4,gpu2:4".to_owned()
            }
            Problem::NoHosts => "name them: -H gpu1,gpu2, or in a file: --hostfile FILE".to_owned(),
            Problem::NoCountForAgents { agents } => format!("for one on each: -np {agents}"),
            Problem::Elastic { .. } => {
                "name the hosts with -H or --hostfile, and leave these flags out".to_owned()
            }
            Problem::NotSet { name } => format!("give it a value: --env {name}=VALUE"),
            Problem::Allocation { .. } => "name the hosts yourself with -H or --hostfile".to_owned(),
            Problem::AgentLacks { flag, variable } => format!("give {flag}, or set {variable}"),
            Problem::ConfigUnreadable { .. } | Problem::ConfigFile { .. } | Problem::BadVariable { .. } => {
                return None;
            }
        };
        Some(hint)
    }

    /// The problem and its hint as the user sees them, each on its line.
    pub(crate) fn render(&self) -> String {
        match self.hint() {
            Some(hint) => format!("error: {self}\nhint: {hint}\n"),
            None => format!("error: {self}\n"),
        }
    }

    /// What to exit with.
    pub(crate) fn status(&self) -> Status {
        match self {
            Problem::NoHosts
            | Problem::NoCount
            | Problem::NoCountForAgents { .. }
            | Problem::AgentLacks { .. } => Status::Usage,
            _ => Status::Failure,
        }
    }
}
