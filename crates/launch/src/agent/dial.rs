//! An agent that waits for work: it dials a launcher, serves its job, and dials again.
//!
//! The launcher need not be there yet, its name need not resolve yet, and the last one may have just ended; each of these
//! is said once and tried again. Every attempt is a child process of its own, so that a job leaves nothing behind in the
//! process that stays.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ronde_trust::{Role, Sealed, Secret};
use rustix::net::sockopt;

use super::scratch::Scratch;
use super::serve::{self, Post};
use crate::guardian::Lifeline;
use crate::wire::{Incoming, Outgoing, PURPOSE};
use crate::{Error, guardian};

/// How long to wait before the next attempt.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a launcher may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where a launcher is, and how it and we know each other.
pub(super) struct Launcher {
    pub(super) address: String,
    pub(super) secret_file: PathBuf,
    /// How long to wait for one that answers; for ever if not given.
    pub(super) patience: Option<Duration>,
}

/// What an agent ends with that no launcher answered in time.
const GAVE_UP: u8 = 69;

/// Dials, serves and dials again, until told to end, or until one job is over if `once` is enough.
pub(super) fn keep_dialling(launcher: &Launcher, post: &Post, once: bool) -> Result<u8, Error> {
    // Read here as well, so that a wrong file is an error now and not a complaint for ever.
    Secret::read_file(&launcher.secret_file)?;
    let mut stderr = std::io::stderr();
    let _ = writeln!(stderr, "waiting for a launcher at {}", launcher.address);
    loop {
        let scratch = Scratch::name()?;
        let status = guardian::guard("agent", Lifeline::None, |guardian| {
            attend(launcher, post.clone(), scratch.clone(), guardian)
        });
        scratch.remove();
        let status = status?;
        // The guardian passes on what it is told.
        if status >= 128 || once || launcher.patience.is_some() && status == GAVE_UP {
            return Ok(status);
        }
        let _ = writeln!(stderr, "the job is over; waiting for the next at {}", launcher.address);
    }
}

/// Tries until a launcher answers, then serves it.
fn attend(launcher: &Launcher, post: Post, scratch: Scratch, guardian: OwnedFd) -> u8 {
    let mut told = String::new();
    let started = Instant::now();
    loop {
        match connect(launcher) {
            Ok(sealed) => {
                return match sealed.into_split() {
                    Ok((reader, writer)) => serve::serve(
                        Incoming::Sealed(reader),
                        Outgoing::Sealed(writer),
                        post,
                        scratch,
                        guardian,
                    ),
                    Err(error) => crate::fail(&error.into()),
                };
            }
            Err(problem) if problem != told => {
                let mut line = String::new();
                let _ = writeln!(line, "no launcher at {} yet: {problem}", launcher.address);
                crate::last_words(&line);
                told = problem;
            }
            Err(_) => {}
        }
        if let Some(limit) = launcher.patience.filter(|limit| started.elapsed() >= *limit) {
            let seconds = limit.as_secs();
            crate::last_words(&format!("no launcher at {} within {seconds} s\n", launcher.address));
            return GAVE_UP;
        }
        if let Some(status) = guardian::told_to_end(&guardian, PAUSE) {
            return status;
        }
    }
}

fn connect(launcher: &Launcher) -> Result<Sealed<TcpStream>, String> {
    let secret = Secret::read_file(&launcher.secret_file).map_err(|error| error.to_string())?;
    // Resolved anew each time: a name that was not there a moment ago may be now.
    let addresses = launcher.address.to_socket_addrs().map_err(|error| error.to_string())?;
    let mut met = "its name has no address".to_owned();
    for address in addresses {
        let started = Instant::now();
        let opened = TcpStream::connect_timeout(&address, PATIENCE).and_then(|stream| {
            stream.set_nodelay(true)?;
            sockopt::set_socket_keepalive(&stream, true)?;
            Ok(stream)
        });
        let limit = PATIENCE.saturating_sub(started.elapsed()).max(Duration::from_secs(1));
        match opened {
            Ok(stream) => match Sealed::open_within(stream, &secret, Role::Dialer, PURPOSE, limit) {
                Ok(sealed) => return Ok(sealed),
                Err(error) => met = error.to_string(),
            },
            Err(error) => met = error.to_string(),
        }
    }
    Err(met)
}
