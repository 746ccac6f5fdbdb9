//! NVIDIA's MPS, which lets processes compute side by side on one GPU instead of taking turns.
//!
//! What follows from how many ranks and GPUs the machines have, whether MPS runs there, and whether `--mps` was given is
//! decided here in values: who starts a service of their own, what ranks are told of it, and what the user is told. The
//! agent starts it (`agent/mps.rs`); whether one answers is found out here, by knocking at its socket.
//!
//! **Which GPUs the service has.** It numbers those it was given anew for its clients, so a service that was started with
//! `CUDA_VISIBLE_DEVICES=2,3` and a rank with the same value would not understand each other. UUIDs mean the same to both.
//! So it gets the ranks' choice where that is by UUID, and otherwise none: then it serves all GPUs of the host, and numbers
//! mean to ranks what they always do.

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde::{Deserialize, Serialize};

use super::{Gpus, Machine, Place, machines};
use crate::Error;
use crate::ending::Ending;
use crate::report::counted;

/// The program that is the service, and that speaks with one.
pub(crate) const PROGRAM: &str = "nvidia-cuda-mps-control";
/// The variable by which CUDA finds the service.
pub(crate) const PIPES: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// The variable by which the service knows where to write its logs.
pub(crate) const LOGS: &str = "CUDA_MPS_LOG_DIRECTORY";
/// Where CUDA looks for the service without the variable.
const USUAL_PIPES: &str = "/tmp/nvidia-mps";

/// How long the name of a service's folder may be: names of sockets fit 107 bytes, of which the service needs up to 24.
const LONGEST: usize = 80;

/// Names a folder for a service of this host; it is not made yet. Whoever may have to remove it must know the name before
/// there is anything to be killed.
pub(crate) fn folder() -> Result<PathBuf, Error> {
    let mut random = [0; 8];
    getrandom::fill(&mut random)
        .map_err(|error| Error::system("name a folder")(std::io::Error::other(error.to_string())))?;
    let name = format!("ronde-{:016x}-mps", u64::from_ne_bytes(random));
    Ok(for_sockets(&std::env::temp_dir(), &name))
}

/// A folder of this name among temporary files, or in `/tmp` where its path would be too long for sockets or is no text.
fn for_sockets(temporary: &Path, name: &str) -> PathBuf {
    let folder = temporary.join(name);
    let fits = folder.to_str().is_some_and(|text| text.len() <= LONGEST);
    if fits { folder } else { Path::new("/tmp").join(name) }
}

/// Whether a service answers in this folder, or where programs of this host look for one. A socket that a killed service
/// left behind does not count.
pub(crate) fn runs_here(pipes: Option<&str>) -> bool {
    let set = || std::env::var_os(PIPES).map(PathBuf::from);
    answers(&pipes.map(PathBuf::from).or_else(set).unwrap_or_else(|| USUAL_PIPES.into()))
}

/// Whether a service answers in a folder.
pub(crate) fn answers(pipes: &Path) -> bool {
    let Ok(address) = SocketAddrUnix::new(pipes.join("control")) else { return false };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let Ok(socket) = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None) else {
        return false;
    };
    // Again: so many knock that ours has to wait, so there is somebody.
    matches!(connect(&socket, &address), Ok(()) | Err(Errno::AGAIN))
}

/// What a service is started with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Service {
    /// The GPUs it has, by UUID; all of the host if not given.
    pub(crate) mask: Option<String>,
}

/// How the ranks of a place use GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Company {
    /// No two on one GPU.
    Apart,
    /// Several on one GPU, which take turns.
    InTurns,
    /// Several on one GPU, side by side by a service that runs there anyway.
    Running,
    /// Side by side by a service that this place starts.
    Starts(Service),
    /// Side by side by the service of that other place, which is the same machine by another name.
    Shares(usize),
}

/// For every place, how its ranks use GPUs; `asked`: whether MPS is wanted.
pub(crate) fn company(places: &[Place<'_>], asked: bool) -> Vec<Company> {
    let mut all = vec![Company::Apart; places.len()];
    for machine in machines(places).iter().filter(|machine| machine.is_crowded()) {
        let first = machine.places.first().copied().unwrap_or_default();
        for &number in &machine.places {
            all[number] = match (machine.gpus.mps, asked) {
                (true, _) => Company::Running,
                (false, false) => Company::InTurns,
                (false, true) if number == first => Company::Starts(Service { mask: mask(machine.gpus) }),
                (false, true) => Company::Shares(first),
            };
        }
    }
    all
}

/// The choice of GPUs that means the same to the service and to ranks, if the user made one.
fn mask(gpus: &Gpus) -> Option<String> {
    gpus.mask.as_ref()?;
    let by_uuid = gpus.visible.iter().all(|name| name.parse::<usize>().is_err());
    by_uuid.then(|| gpus.visible.join(","))
}

/// What is to be said where ranks outnumber GPUs, and about `--mps` if it was asked for.
pub(crate) fn notes(places: &[Place<'_>], asked: bool) -> Vec<String> {
    let machines = machines(places);
    let (crowded, others): (Vec<&Machine<'_>>, Vec<&Machine<'_>>) =
        machines.iter().partition(|machine| machine.is_crowded());
    let mut notes = Vec::new();
    if !crowded.is_empty() {
        let shown: Vec<String> = crowded.iter().map(|machine| machine.crowd()).collect();
        let in_turns = crowded.iter().any(|machine| !machine.gpus.mps);
        let manner = match (in_turns, asked) {
            (true, true) => ", side by side by NVIDIA's MPS",
            (true, false) => ". NVIDIA's MPS lets them compute side by side: --mps",
            (false, _) => "",
        };
        notes.push(format!(
            "note: {}: GPUs will be shared; scripts choose theirs by local_rank() % number of GPUs{manner}",
            shown.join(", ")
        ));
    }
    if asked {
        let names =
            |list: Vec<&Machine<'_>>| list.iter().map(|m| m.names.as_str()).collect::<Vec<_>>().join(", ");
        let (running, _): (Vec<&Machine<'_>>, Vec<&Machine<'_>>) =
            crowded.into_iter().partition(|machine| machine.gpus.mps);
        if !running.is_empty() {
            let hosts = names(running);
            notes.push(format!("note: NVIDIA's MPS runs on {hosts} already, and is used as it is"));
        }
        if !others.is_empty() {
            notes.push(format!("note: --mps does nothing on {}: no ranks share a GPU there", names(others)));
        }
    }
    notes
}

impl Machine<'_> {
    /// `gpu1 has 2 GPUs for 4 ranks`.
    fn crowd(&self) -> String {
        let seen = counted(self.gpus.visible.len(), "GPU");
        let only = if self.gpus.visible.len() < self.gpus.present { "only shows" } else { "has" };
        format!("{} {only} {seen} for {} ranks", self.names, self.ranks)
    }
}

/// Why there is no service on a host that should have started one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Problem {
    /// The program is not there.
    NoProgram,
    /// The system refused something.
    Refused(String),
    /// It ended before it answered; what it said last.
    Ended(Ending, Vec<String>),
    /// It did not answer within so many seconds; what it said last.
    Silent(u64, Vec<String>),
}

impl Problem {
    /// The whole of it, for a host of this name.
    pub(crate) fn text(&self, host: &str) -> String {
        let said = |lines: &[String]| match lines {
            [] => "it said nothing".to_owned(),
            lines => format!("it said: {}", lines.join("; ")),
        };
        match self {
            Problem::NoProgram => format!("{host} has no {PROGRAM}, which --mps starts"),
            Problem::Refused(why) => format!("NVIDIA's MPS cannot be started on {host}: {why}"),
            Problem::Ended(how, lines) => {
                format!("NVIDIA's MPS ended on {host} before it was ready ({how}); {}", said(lines))
            }
            Problem::Silent(seconds, lines) => {
                format!("NVIDIA's MPS did not answer on {host} within {seconds} s; {}", said(lines))
            }
        }
    }

    /// What may help.
    pub(crate) fn hint(&self) -> String {
        let without = "leave --mps out: ranks that share a GPU then take turns";
        match self {
            Problem::NoProgram => format!(
                "it comes with NVIDIA's driver (package nvidia-compute-utils-… of the driver's version on Ubuntu, \
                 nvidia-cuda-mps on Debian, nvidia-driver-cuda on RHEL and Fedora); or {without}"
            ),
            _ => format!("try {PROGRAM} -f there; or {without}"),
        }
    }
}

#[cfg(test)]
mod tests;
