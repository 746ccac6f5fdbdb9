//! From what the user asked for to what will be started, with every check that can be made before.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::hosts::is_this_machine;
use crate::program;
use crate::{Error, Host, Labels, Seat, assign, parse_hosts};

/// How much the launcher says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Talk {
    /// Errors only.
    Quiet,
    /// Errors, and who is waited for.
    Sparing,
    /// The header line as well.
    Normal,
    /// Processes and settings as well.
    Verbose,
}

/// What the user asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// How many ranks.
    pub np: usize,
    /// The hosts, as written; this machine if not given.
    pub hosts: Option<String>,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// What stands in front of each line of output.
    pub labels: Labels,
    /// Whether the time stands there too.
    pub timestamps: bool,
    /// A folder for each rank's output, besides showing it.
    pub output_folder: Option<PathBuf>,
    /// How long `init()` waits for all ranks; its own default if not given.
    pub start_timeout: Option<Duration>,
    /// How much to say.
    pub talk: Talk,
}

/// What will be started.
pub(crate) struct Plan {
    pub(crate) request: Request,
    pub(crate) program: PathBuf,
    pub(crate) seats: Vec<Seat>,
    /// For every rank, the files that take its standard output and error.
    pub(crate) files: Vec<Option<RankFiles>>,
}

/// Where one rank's output goes besides the terminal.
pub(crate) struct RankFiles {
    pub(crate) stdout: File,
    pub(crate) stderr: File,
}

impl Plan {
    pub(crate) fn make(request: Request) -> Result<Plan, Error> {
        let hosts = match &request.hosts {
            Some(list) => parse_hosts(list)?,
            None => vec![Host { name: "localhost".to_owned(), slots: request.np }],
        };
        let seats = assign(&hosts, request.np)?;
        let here = rustix::system::uname().nodename().to_string_lossy().into_owned();
        if let Some(other) = hosts.iter().find(|host| !is_this_machine(&host.name, &here)) {
            return Err(Error::OtherHost { host: other.name.clone(), here });
        }
        let name = request.command.first().ok_or(Error::NoCommand)?;
        let program = program::find(name, std::env::var_os("PATH").as_deref())?;
        let files = match &request.output_folder {
            Some(folder) => open_files(folder, request.np)?,
            None => (0..request.np).map(|_| None).collect(),
        };
        Ok(Plan { request, program, seats, files })
    }

    /// How many different hosts take part.
    pub(crate) fn hosts(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.seats.iter().map(|seat| seat.host.as_str()).collect();
        names.dedup();
        names
    }
}

/// The folder that takes one rank's output: `rank.03` in a job of 10 or more.
pub(crate) fn rank_folder(folder: &Path, rank: usize, np: usize) -> PathBuf {
    let width = np.saturating_sub(1).to_string().len();
    folder.join(format!("rank.{rank:0width$}"))
}

fn open_files(folder: &Path, np: usize) -> Result<Vec<Option<RankFiles>>, Error> {
    let open = |rank| {
        let folder = rank_folder(folder, rank, np);
        fs::create_dir_all(&folder).map_err(|source| Error::OutputFolder { path: folder.clone(), source })?;
        let create = |name| {
            let path = folder.join(name);
            File::create(&path).map_err(|source| Error::OutputFolder { path, source })
        };
        Ok(Some(RankFiles { stdout: create("stdout")?, stderr: create("stderr")? }))
    };
    (0..np).map(open).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_ranks_sort_by_number() {
        for (rank, np, name) in [(0, 1, "rank.0"), (9, 10, "rank.9"), (9, 11, "rank.09")] {
            assert_eq!(rank_folder(Path::new("logs"), rank, np), Path::new("logs").join(name));
        }
    }
}
