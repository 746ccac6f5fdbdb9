//! The agent: one on every host, parent of that host's ranks.
//!
//! It speaks with one driver (`serve.rs`), over the standard streams that ssh or the driver itself gave it, or over a
//! connection that it opened to a launcher that waits for agents (`dial.rs`). Whatever ends that connection ends the
//! ranks. A guardian stands over it as over the driver, so that its own death leaves nothing behind either.
//!
//! `ranks.rs` starts the processes, `pump.rs` carries their output, `doors.rs` connections that they cannot
//! make themselves, `storage.rs` keeps what the driver sends, `mps.rs` has ranks share GPUs side by side.

mod dial;
mod doors;
mod mps;
mod pump;
mod ranks;
mod scratch;
mod serve;
mod storage;

pub(crate) use ranks::environment;
pub(crate) use serve::BEAT;

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use scratch::Scratch;

use crate::guardian::Lifeline;
use crate::wire::{Incoming, Outgoing, announce};
use crate::{Error, guardian};

/// How an agent finds its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentRequest {
    /// Over standard input and output.
    Stdio,
    /// By dialling a launcher that waits for agents.
    Dial {
        /// Its `host:port`.
        launcher: String,
        /// The secret that it and we know.
        secret_file: PathBuf,
        /// How many ranks to take; as many as the launcher wants if not given.
        slots: Option<usize>,
        /// A port to listen at for connections to our ranks, where other ports cannot be reached.
        data_port: Option<u16>,
        /// Where that port is reached from outside: `host:port`.
        advertise: Option<String>,
        /// What to be called; the machine's own name if not given.
        name: Option<String>,
        /// The network interfaces that may be used; all if none is named.
        interfaces: Vec<String>,
        /// Whether to end after one job, instead of waiting for the next.
        once: bool,
        /// How long to wait for a launcher; for ever if not given.
        patience: Option<Duration>,
    },
}

/// Runs an agent and returns the status to exit with.
///
/// Must be called while the process has a single thread, since it forks.
pub fn agent(request: AgentRequest) -> Result<u8, Error> {
    match request {
        AgentRequest::Stdio => {
            let scratch = Scratch::name()?;
            let given = scratch.clone();
            let status = guardian::guard("agent", Lifeline::None, |guardian| match stdio() {
                Ok((incoming, outgoing)) => {
                    serve::serve(incoming, outgoing, serve::Post::default(), given, guardian)
                }
                Err(error) => crate::fail(&error),
            });
            // If the agent was killed, it could not.
            scratch.remove();
            status
        }
        AgentRequest::Dial {
            launcher,
            secret_file,
            slots,
            data_port,
            advertise,
            name,
            interfaces,
            once,
            patience,
        } => {
            let post = serve::Post { name, slots, data_port, advertise, interfaces };
            let launcher = dial::Launcher { address: launcher, secret_file, patience };
            dial::keep_dialling(&launcher, &post, once)
        }
    }
}

/// Takes standard input and output for frames, and leaves nothing there for others to write to or read from.
fn stdio() -> Result<(Incoming, Outgoing), Error> {
    let duplicate = |descriptor| {
        rustix::io::fcntl_dupfd_cloexec(descriptor, 3)
            .map(File::from)
            .map_err(Error::system("take over the standard streams"))
    };
    let incoming = duplicate(rustix::stdio::stdin())?;
    let mut outgoing = duplicate(rustix::stdio::stdout())?;
    let nowhere =
        File::options().read(true).write(true).open("/dev/null").map_err(Error::system("open /dev/null"))?;
    rustix::stdio::dup2_stdin(&nowhere).map_err(Error::system("take over the standard streams"))?;
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())
        .map_err(Error::system("take over the standard streams"))?;
    announce(&mut outgoing).map_err(Error::system("speak to the driver"))?;
    Ok((Incoming::Pipe(incoming), Outgoing::Pipe(outgoing)))
}
