//! The messages between a driver and an agent.
//!
//! They travel only between processes of the same build (over ssh the agent is the driver's own program) or of the same
//! version (agents that dial in), so there is nothing to negotiate.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Carried;
use crate::doctor::{Answer, Question};
use crate::ending::Ending;
use crate::gpus::mps::{self, Service};
use crate::gpus::{Gpus, Looking};
use crate::label::Stream;
use crate::probe::{Attempt, Interface, Target};

/// Both ends must have the same.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How many bytes of one stream of a rank may be on their way to the user: what the driver holds for a terminal that
/// does not read is at most this for every stream.
pub(crate) const WINDOW: usize = 128 << 10;

/// From the driver.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToAgent {
    /// The answer to [`Hello`]: you are part of this job.
    Welcome(Welcome),
    /// Try to reach these hosts, and say how it went.
    Reach(Vec<Target>),
    /// Look which GPUs this host has.
    LookAtGpus(Looking),
    /// Look whether this Python package is here; its path on the driver's machine, and the hash of its contents.
    Package { path: String, hash: String },
    /// Bytes of something that was asked for or announced.
    File { name: Attachment, path: String, executable: bool, bytes: Vec<u8> },
    /// All files have been sent.
    AllSent,
    /// Start NVIDIA's MPS for the ranks to come, in this folder, or in one of the agent's own.
    StartMps { service: Service, folder: Option<PathBuf> },
    /// Start the ranks.
    Start(Box<Start>),
    /// Send this signal to every rank that runs.
    Signal(i32),
    /// Kill everything.
    Kill,
    /// So many bytes of a stream have been shown: as many more may be sent.
    Credit { rank: usize, stream: Stream, bytes: usize },
    /// About connections that are carried along.
    Carried(Carried),
    /// I am there.
    Beat,
    /// Answer a question of the doctor's.
    Examine(Question),
    /// Kill what is left, send what is left, and say [`FromAgent::Bye`].
    Conclude,
}

/// What an agent must know of the job before anything is started.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// The job's secret, as digits.
    pub(crate) secret: String,
    /// What this agent proves itself by when others try to reach it.
    pub(crate) identity: u64,
    /// How long the driver may be silent before it counts as lost.
    pub(crate) lost_after: Duration,
    /// The ports that may be listened at.
    pub(crate) ports: Option<RangeInclusive<u16>>,
    /// The network interfaces that may be used; all if none is named.
    pub(crate) interfaces: Vec<String>,
    /// Whether there are other hosts, so that addresses matter.
    pub(crate) others: bool,
}

/// What the driver sends besides messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Attachment {
    /// A file of the Python package.
    Package,
    /// The call that every rank makes.
    Payload,
    /// A file the user wants to be there.
    Shipped,
}

/// Everything needed to start the ranks of one host.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    /// The program and its arguments.
    pub(crate) command: Vec<Vec<u8>>,
    /// Where to run.
    pub(crate) folder: Vec<u8>,
    /// The driver's environment, where the agent does not have it already.
    pub(crate) environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// Variables that every rank gets, whatever the host has.
    pub(crate) variables: Vec<(String, String)>,
    /// Where the rendezvous is; if not given, the agent carries connections to it.
    pub(crate) rendezvous: Option<String>,
    /// The ranks.
    pub(crate) ranks: Vec<RankStart>,
    /// Whether ranks make a call and give a result.
    pub(crate) task: bool,
}

/// One rank to be started.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RankStart {
    pub(crate) rank: usize,
    /// Its own variables.
    pub(crate) variables: Vec<(String, String)>,
}

/// The first thing an agent says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) version: String,
    /// What the machine calls itself, or what it was told to be called.
    pub(crate) name: String,
    /// How many ranks it takes, where it was told.
    pub(crate) slots: Option<usize>,
    /// Where connections for its ranks can enter, if it publishes a port.
    pub(crate) advertise: Option<String>,
    /// Its clock, in nanoseconds since 1970.
    pub(crate) clock: i128,
}

/// Why something could not be done on a host, as the user should read it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Problem {
    pub(crate) text: String,
    pub(crate) hint: Option<String>,
}

/// From an agent.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromAgent {
    /// First message.
    Hello(Hello),
    /// Answer to [`ToAgent::Welcome`]: this host's addresses, and where it answers those who try to reach it.
    /// Connections for ranks that this host cannot reach may enter at `relay`.
    Reachable { interfaces: Vec<Interface>, port: u16, relay: Option<SocketAddr> },
    /// Answer to [`ToAgent::Reach`].
    Attempts(Vec<Attempt>),
    /// Answer to [`ToAgent::LookAtGpus`].
    Gpus(Gpus),
    /// Answer to [`ToAgent::StartMps`]: the variables by which ranks find it.
    Mps(Result<Vec<(String, String)>, mps::Problem>),
    /// Answer to [`ToAgent::Package`]: whether it has to be sent.
    PackageWanted(bool),
    /// Answer to [`ToAgent::AllSent`]: everything is in its place.
    Stored,
    /// Answer to [`ToAgent::Start`]: the process of every rank, in order.
    Started { pids: Vec<i32> },
    /// Answer to [`ToAgent::Examine`].
    Examination(Answer),
    /// Something that was asked for cannot be done; nothing of this job will run here.
    Refused(Problem),
    /// Something the user may want to know.
    Note { verbose: bool, text: String },
    /// Output of a rank.
    Output { rank: usize, stream: Stream, bytes: Vec<u8> },
    /// A rank's result, in pieces; the last is empty.
    Result { rank: usize, bytes: Vec<u8> },
    /// A rank's process ended; whether the kernel killed processes for memory meanwhile.
    Ended { rank: usize, ending: Ending, out_of_memory: bool },
    /// About connections that are carried along.
    Carried(Carried),
    /// I am there.
    Beat,
    /// This agent is about to end everything here, though the driver did not ask for it.
    Leaving { why: String },
    /// Last message: everything here has ended, except for these processes, which could not be killed.
    Bye { left: Vec<i32> },
}

impl From<Carried> for ToAgent {
    fn from(carried: Carried) -> ToAgent {
        ToAgent::Carried(carried)
    }
}

impl From<Carried> for FromAgent {
    fn from(carried: Carried) -> FromAgent {
        FromAgent::Carried(carried)
    }
}
