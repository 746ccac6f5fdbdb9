//! From what the user asked for to what will be started, with every check that can be made before.

use std::ffi::OsString;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Error, Host, Labels, Seat, assign};

/// How much the launcher says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Talk {
    /// Errors only.
    Quiet,
    /// Errors, and who is waited for.
    Sparing,
    /// The header line as well.
    Normal,
    /// Processes, settings and addresses as well.
    Verbose,
}

/// What the user asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// How many ranks.
    pub np: usize,
    /// The hosts; this machine with `np` slots if not given.
    pub hosts: Option<Vec<Host>>,
    /// How many GPUs each rank gets of its own; if not given, all ranks of a host see all that are visible there.
    pub gpus_per_rank: Option<usize>,
    /// Whether hosts whose ranks share GPUs start NVIDIA's MPS for them.
    pub mps: bool,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// What stands in front of each line of output.
    pub labels: Labels,
    /// Whether the time stands there too.
    pub timestamps: bool,
    /// A folder for each rank's output, besides showing it.
    pub output_folder: Option<PathBuf>,
    /// How long hosts and `init()` are waited for; their own defaults if not given.
    pub start_timeout: Option<Duration>,
    /// How much to say.
    pub talk: Talk,
    /// Set for every rank, from flags and the configuration file.
    pub variables: Vec<(String, String)>,
    /// How to reach other hosts.
    pub ssh: Ssh,
    /// The network interfaces that may be used; all if none is named.
    pub interfaces: Vec<String>,
    /// The ports that ranks and agents may listen at; any if not given.
    pub ports: Option<RangeInclusive<u16>>,
    /// How long a host may be silent before it counts as lost.
    pub lost_after: Duration,
    /// How long ranks have between the request to end and being killed.
    pub grace: Duration,
    /// Whether the job ends when rank 0 has ended well, because the others only stand by for it.
    pub led: bool,
    /// Agents that dial in, instead of hosts that are dialled.
    pub waiting: Option<Waiting>,
    /// A function call for every rank, from Python.
    pub task: Option<Task>,
    /// Files and folders that every host gets a copy of, in the folder where its ranks run.
    pub ship: Vec<PathBuf>,
}

/// How to reach hosts by ssh.
#[derive(Clone, Debug, Default)]
pub struct Ssh {
    /// The port; ssh's own choice if not given.
    pub port: Option<u16>,
    /// The private key; ssh's own choice if not given.
    pub identity: Option<PathBuf>,
    /// More arguments for ssh.
    pub arguments: Vec<String>,
    /// Whether host keys seen for the first time are accepted and recorded.
    pub accept_new_keys: bool,
}

/// Agents that dial in.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// How many to wait for.
    pub agents: usize,
    /// Where they dial to.
    pub listen: SocketAddr,
    /// The secret that they and we know.
    pub secret_file: PathBuf,
    /// This machine, if it has ranks of its own besides: what it is called, and how many.
    pub own: Option<Host>,
}

/// A call that every rank makes, and where its results go.
#[derive(Clone, Debug)]
pub struct Task {
    /// The file that every rank is given.
    pub payload: PathBuf,
    /// The folder that takes `rank.N` for every rank that gave a result.
    pub results: PathBuf,
}

/// Who runs where, once the hosts are known.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seats: Vec<Seat>,
    /// The hosts that have ranks, in order, each with its ranks.
    pub(crate) shares: Vec<Share>,
}

/// The ranks of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) host: String,
    pub(crate) ranks: std::ops::Range<usize>,
}

impl Plan {
    /// Gives every rank its place.
    pub(crate) fn make(hosts: &[Host], np: usize) -> Result<Plan, Error> {
        let seats = assign(hosts, np)?;
        let mut shares: Vec<Share> = Vec::new();
        for (rank, seat) in seats.iter().enumerate() {
            match shares.last_mut() {
                Some(share) if share.host == seat.host => share.ranks.end = rank + 1,
                _ => shares.push(Share { host: seat.host.clone(), ranks: rank..rank + 1 }),
            }
        }
        Ok(Plan { seats, shares })
    }

    /// The names of the hosts that take part.
    pub(crate) fn hosts(&self) -> Vec<&str> {
        self.shares.iter().map(|share| share.host.as_str()).collect()
    }

    /// The index of the host that a rank runs on.
    pub(crate) fn host_of(&self, rank: usize) -> usize {
        self.shares.iter().position(|share| share.ranks.contains(&rank)).unwrap_or_default()
    }
}

/// Where one rank's output goes besides the terminal, until that fails.
pub(crate) struct RankFiles {
    pub(crate) stdout: Option<File>,
    pub(crate) stderr: Option<File>,
}

/// The folder that takes one rank's output: `rank.03` in a job of more than 10.
pub(crate) fn rank_folder(folder: &Path, rank: usize, np: usize) -> PathBuf {
    let width = np.saturating_sub(1).to_string().len();
    folder.join(format!("rank.{rank:0width$}"))
}

/// Opens the files for every rank's output.
pub(crate) fn open_files(folder: &Path, np: usize) -> Result<Vec<RankFiles>, Error> {
    let open = |rank| {
        let folder = rank_folder(folder, rank, np);
        fs::create_dir_all(&folder).map_err(|source| Error::OutputFolder { path: folder.clone(), source })?;
        let create = |name| {
            let path = folder.join(name);
            File::create(&path).map_err(|source| Error::OutputFolder { path, source })
        };
        Ok(RankFiles { stdout: Some(create("stdout")?), stderr: Some(create("stderr")?) })
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

    #[test]
    fn hosts_without_ranks_take_no_part() {
        let host = |name: &str, slots| Host { name: name.to_owned(), slots };
        let plan = Plan::make(&[host("a", 2), host("b", 4), host("c", 1)], 5).expect("fits");
        let share = |host: &str, ranks| Share { host: host.to_owned(), ranks };
        assert_eq!(plan.shares, [share("a", 0..2), share("b", 2..5)]);
        assert_eq!((plan.host_of(1), plan.host_of(4)), (0, 1));
    }
}
