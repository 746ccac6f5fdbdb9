//! Jobs that something else than our launcher started: mpirun, mpiexec, srun, torchrun, or a task of Kubernetes, Ray or
//! Spark that sets the usual variables.
//!
//! Environment in, description out: nothing here opens a file or a connection, so every launcher is a table in
//! `tests.rs`. `meeting.rs` makes a meeting of the description. The first of these that is there counts, since whoever is
//! nearest to the process knows best: our own variables, torchrun's, Open MPI's, PMI's, those of a Slurm step.

mod mpi;
mod slurm;
mod torch;

pub use slurm::tasks_per_node;

use crate::spec::{own_place, position, variable};
use crate::{Error, Place};

/// Names of the variables that other launchers set, and of ours that go with them.
pub(crate) mod name {
    /// The port of the rendezvous, where the one that would be taken cannot be.
    pub(crate) const RENDEZVOUS_PORT: &str = "RONDE_RENDEZVOUS_PORT";
    pub(crate) const MASTER_ADDR: &str = "MASTER_ADDR";
    pub(crate) const MASTER_PORT: &str = "MASTER_PORT";
}

/// What PyTorch takes for `MASTER_PORT` where it is not set.
const USUAL_MASTER_PORT: u16 = 29500;
/// Ports that are made of a job's key: below those that the system gives out by itself.
const DERIVED_PORTS: std::ops::Range<u16> = 20000..32000;

/// Who started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Launcher {
    /// Somebody who set `HOROVOD_RANK` and `HOROVOD_SIZE`.
    Hand,
    Torchrun,
    /// Anything that sets `RANK` and `WORLD_SIZE`.
    Tasks,
    OpenMpi,
    /// MPICH, Intel MPI and relatives.
    Hydra,
    Slurm,
}

impl Launcher {
    /// How a message about such a process begins.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Launcher::Hand => "started with HOROVOD_RANK and HOROVOD_SIZE",
            Launcher::Torchrun => "started by torchrun",
            Launcher::Tasks => "started with RANK and WORLD_SIZE",
            Launcher::OpenMpi => "started by Open MPI's mpirun",
            Launcher::Hydra => "started by mpiexec (PMI)",
            Launcher::Slurm => "started by srun",
        }
    }

    /// How the names of files begin.
    fn word(self) -> &'static str {
        match self {
            Launcher::Hand | Launcher::Tasks => "tasks",
            Launcher::Torchrun => "torchrun",
            Launcher::OpenMpi => "mpirun",
            Launcher::Hydra => "mpiexec",
            Launcher::Slurm => "srun",
        }
    }
}

/// What the process can know of its surroundings.
pub(crate) struct Surroundings<'a> {
    /// The environment.
    pub(crate) var: &'a dyn Fn(&str) -> Option<String>,
    /// What this host calls itself.
    pub(crate) host: String,
    /// The process that set a variable: the nearest ancestor that does not have it.
    pub(crate) setter: &'a dyn Fn(&'static str) -> u32,
}

impl Surroundings<'_> {
    /// A variable; an empty one is as good as none.
    fn get(&self, name: &str) -> Option<String> {
        (self.var)(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// A rank and its size, of which both are there or neither.
    fn pair(&self, rank: &'static str, size: &'static str) -> Result<Option<(usize, usize)>, String> {
        match (self.get(rank), self.get(size)) {
            (None, None) => Ok(None),
            (Some(rank_text), Some(size_text)) => {
                let both = position((rank, &rank_text), (size, &size_text));
                both.map(Some).map_err(|error| error.to_string())
            }
            (Some(_), None) => Err(format!("{rank} is set but {size} is not")),
            (None, Some(_)) => Err(format!("{size} is set but {rank} is not")),
        }
    }

    fn port(&self, name: &'static str) -> Result<Option<u16>, String> {
        let Some(text) = self.get(name) else { return Ok(None) };
        match text.parse() {
            Ok(port) if port > 0 => Ok(Some(port)),
            _ => Err(format!("{name}={text:?} is no port")),
        }
    }
}

/// A process's job, as its environment describes it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Description {
    /// There is nothing, or a job of one: no need to meet anybody.
    Alone,
    /// By our own launcher, or `ronde rendezvous`: somebody else serves.
    Launched,
    /// By somebody else: rank 0 serves.
    Foreign(Foreign),
}

/// A job that something else started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Foreign {
    pub(crate) launcher: Launcher,
    pub(crate) place: Place,
    pub(crate) address: Address,
    /// Names the job among those of this user, on all hosts that take part alike. Fit for a file name.
    pub(crate) key: String,
}

/// Where the ranks meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// The host of rank 0.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Whether somebody asked for this port, so that no other will do.
    pub(crate) fixed: bool,
    /// Whether all ranks are on this host.
    pub(crate) local: bool,
    /// Whether it comes from `RONDE_RENDEZVOUS`, where something else may serve.
    pub(crate) named: bool,
}

/// What one launcher says, before the address is known.
struct Said {
    launcher: Launcher,
    place: Place,
    /// Whether the local ranks were said, rather than assumed.
    knows_host: bool,
    /// What tells this job from others of the same launcher.
    identity: Vec<String>,
    /// The host of rank 0, where the launcher says it.
    host: Option<String>,
}

/// Reads the variables of whoever started this process.
pub(crate) fn describe(around: &Surroundings<'_>) -> Result<Description, Error> {
    use variable::{RANK, RENDEZVOUS, SECRET_FILE, SIZE};
    let own = around.has(RANK) || around.has(SIZE);
    if own && around.has(RENDEZVOUS) && around.has(SECRET_FILE) {
        return Ok(Description::Launched);
    }
    let said = if own {
        let complete = around.has(RANK) && around.has(SIZE);
        if !complete || !(around.has(RENDEZVOUS) || around.has(name::MASTER_ADDR)) {
            // What is missing there is said by whoever reads it.
            return Ok(Description::Launched);
        }
        let place = own_place(around.var)?;
        let knows_host = around.has(variable::LOCAL_SIZE);
        Some(Said { launcher: Launcher::Hand, place, knows_host, identity: Vec::new(), host: None })
    } else {
        let readers: [Reader; 4] = [
            (torch::launcher(around), torch::tasks),
            (Launcher::OpenMpi, mpi::open_mpi),
            (Launcher::Hydra, mpi::hydra),
            (Launcher::Slurm, slurm::step),
        ];
        let mut found = None;
        for (launcher, read) in readers {
            found =
                read(around).map_err(|problem| Error::Launcher { launcher: launcher.title(), problem })?;
            if found.is_some() {
                break;
            }
        }
        found
    };
    match said {
        None if around.has(RENDEZVOUS) => Ok(Description::Launched),
        None => Ok(Description::Alone),
        Some(said) if said.place.size == 1 => Ok(Description::Alone),
        Some(said) => {
            let launcher = said.launcher.title();
            meet_at(around, said)
                .map(Description::Foreign)
                .map_err(|problem| Error::Launcher { launcher, problem })
        }
    }
}

type Reader = (Launcher, fn(&Surroundings<'_>) -> Result<Option<Said>, String>);

/// The usual layout: ranks fill one host after the other, all of which have equally many. Without local ranks every rank
/// has a host to itself.
fn in_blocks((rank, size): (usize, usize), local: Option<(usize, usize)>) -> Result<Place, String> {
    let (local_rank, local_size) = local.unwrap_or((0, 1));
    if local_size > size || local_rank > rank {
        return Err(format!(
            "rank {rank} of {size} cannot be rank {local_rank} of {local_size} on its host: the variables contradict \
             each other"
        ));
    }
    let (cross_rank, cross_size) = ((rank - local_rank) / local_size, size.div_ceil(local_size));
    Ok(Place { rank, size, local_rank, local_size, cross_rank, cross_size })
}

fn meet_at(around: &Surroundings<'_>, said: Said) -> Result<Foreign, String> {
    let place = said.place;
    let master = around.get(name::MASTER_ADDR);
    let master_port = around.port(name::MASTER_PORT)?;
    let wanted_port = around.port(name::RENDEZVOUS_PORT)?;
    let named = around.get(variable::RENDEZVOUS);
    let (host, named_port) = match &named {
        Some(text) => {
            let (host, port) = split_address(text).ok_or_else(|| {
                format!(
                    "{}={text:?} is not host:port (an IPv6 address goes in brackets)",
                    variable::RENDEZVOUS
                )
            })?;
            (Some(host), Some(port))
        }
        None => (master.clone().or(said.host), None),
    };
    let all_here = said.knows_host && place.local_size == place.size;
    let host = match host {
        Some(host) => host,
        None if all_here => "127.0.0.1".to_owned(),
        None => {
            return Err(format!(
                "the job has ranks on several hosts, and the one of rank 0 is not known: pass its address to all \
                 ranks, with `mpirun -x {0}=HOST` or `mpiexec -genv {0} HOST`, or start the job with `horovodrun -H`",
                name::MASTER_ADDR
            ));
        }
    };
    let local = is_loopback(&host) || (all_here && named.is_none());

    let mut identity = vec![said.launcher.word().to_owned(), place.size.to_string()];
    identity.extend(said.identity);
    match said.launcher {
        Launcher::Hand | Launcher::Tasks => identity.push(format!("{host}:{named_port:?}:{master_port:?}")),
        _ => {}
    }
    if local {
        // Hosts may share a home folder without sharing this job.
        identity.push(around.host.clone());
    }
    let number = fingerprint(identity.join("\n").as_bytes());
    let derived = || match (&master, master_port) {
        (None, None) => {
            let width = u64::from(DERIVED_PORTS.end - DERIVED_PORTS.start);
            // Less than the width of the range, which fits.
            DERIVED_PORTS.start + (number % width) as u16
        }
        // The port itself is taken by PyTorch's own store.
        (_, port) => beside(port.unwrap_or(USUAL_MASTER_PORT)),
    };
    let port = named_port.or(wanted_port);
    Ok(Foreign {
        launcher: said.launcher,
        place,
        key: format!("{}-{number:016x}", said.launcher.word()),
        address: Address {
            // What the launcher calls this host need not lead to it.
            host: if local && named.is_none() { "127.0.0.1".to_owned() } else { host },
            port: port.unwrap_or_else(derived),
            fixed: port.is_some(),
            local,
            named: named.is_some(),
        },
    })
}

/// The next port, or the one before the last.
fn beside(port: u16) -> u16 {
    port.checked_add(1).unwrap_or(port - 1)
}

fn split_address(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    Some((host.to_owned(), port.parse().ok()?)).filter(|(host, _)| !host.is_empty())
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// A number for a text, the same on every host and in every build (FNV-1a).
pub(crate) fn fingerprint(text: &[u8]) -> u64 {
    text.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests;
