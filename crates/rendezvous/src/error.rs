//! Why a rank could not join its job, or lost it.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::{Loss, Ranks};

/// Why a rank could not join its job, or lost it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Some of the variables that describe the job are set, but not all.
    #[error(
        "{present} is set but {missing} is not: a rank needs both (start it with `ronde run`, or set \
         both by hand)"
    )]
    Incomplete {
        /// A variable that is there.
        present: &'static str,
        /// The one that should be.
        missing: &'static str,
    },
    /// A variable holds something that makes no sense.
    #[error("{name}={value:?} {problem}")]
    Variable {
        /// Its name.
        name: &'static str,
        /// What it holds.
        value: String,
        /// What is wrong with it.
        problem: String,
    },
    /// What another launcher left in the environment does not make a job.
    #[error("{launcher}: {problem}")]
    Launcher {
        /// Who started this process, as a sentence begins: "started by srun".
        launcher: &'static str,
        /// What is wrong or missing, and what to do.
        problem: String,
    },
    /// Rank 0, which serves the jobs of other launchers, did not come in time.
    #[error(
        "{launcher}: timed out after {} s waiting for rank 0 to serve the job: {reason}; raise RONDE_START_TIMEOUT \
         if it needs longer", .waited.as_secs_f64().round()
    )]
    NobodyServes {
        /// Who started this process, as a sentence begins: "started by srun".
        launcher: &'static str,
        /// How long this rank waited.
        waited: Duration,
        /// What it waited for.
        reason: String,
    },
    /// The file with the job's secret gave none.
    #[error(transparent)]
    Secret(ronde_trust::Error),
    /// The file through which the ranks find each other cannot be used.
    #[error("cannot {doing} {}: {source}", .path.display())]
    File {
        /// Read or write.
        doing: &'static str,
        /// Which file.
        path: PathBuf,
        /// What is in the way.
        source: io::Error,
    },
    /// Nobody answers at the rendezvous' address.
    #[error("the job's rendezvous at {server} cannot be reached: {reason}")]
    Unreachable {
        /// The address, as it was given.
        server: String,
        /// What the last attempt met.
        reason: String,
    },
    /// Somebody answers there, but not with our secret.
    #[error(
        "the rendezvous at {server} rejected our secret: it serves another job (is \
         RONDE_SECRET_FILE the file that job was started with?)"
    )]
    SecretRejected {
        /// The address, as it was given.
        server: String,
    },
    /// The server would not have this rank.
    #[error("the rendezvous refused rank {rank}: {reason}")]
    Refused {
        /// Who asked.
        rank: usize,
        /// Why not.
        reason: String,
    },
    /// Not all ranks came in time.
    #[error(
        "timed out after {} s waiting for {} to call init(); raise RONDE_START_TIMEOUT if they \
         need longer", .waited.as_secs_f64().round(), .missing
    )]
    StartTimeout {
        /// How long this rank waited.
        waited: Duration,
        /// Who is missing.
        missing: Ranks,
    },
    /// A rank, or the rendezvous itself, is gone.
    #[error("{0}")]
    Lost(Loss),
    /// An exchange cannot complete.
    #[error("exchange {tag:?} failed: {reason}")]
    Exchange {
        /// Which one.
        tag: String,
        /// Why.
        reason: String,
    },
    /// What this rank wants to say does not fit in one message.
    #[error("{what} of {length} bytes is longer than the {max} allowed")]
    TooLong {
        /// Card or exchange.
        what: &'static str,
        /// Its length.
        length: usize,
        /// The limit.
        max: usize,
    },
    /// The caller said to stop waiting.
    #[error("interrupted")]
    Interrupted,
    /// The server cannot listen where it was told to.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// The system refused something ordinary, such as a thread.
    #[error("cannot {doing}: {source}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}
