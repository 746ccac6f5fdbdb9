//! What a process remembers of the meeting it took part in: where it was, its secret and, in rank 0, the server itself.
//!
//! Scripts may call `shutdown()` and `init()` again, so all of this belongs to the process and not to one stay in the job.
//! It ends with the process: rank 0 stays at the exit until the others have left as well, since a rendezvous that is gone
//! is a loss to them.

use std::io::Write;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use ronde_trust::Secret;

use crate::server::End;
use crate::{Ranks, Server};

/// A meeting that took place, or is about to.
pub(crate) struct Known {
    pub(crate) key: String,
    pub(crate) server: String,
    pub(crate) secret: Secret,
    process: u32,
    serving: Option<Server>,
}

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

/// After how long at the exit rank 0 says what it stays for.
const SILENT: Duration = Duration::from_secs(5);

impl Known {
    pub(crate) fn new(key: &str, server: String, secret: Secret, serving: Option<Server>) -> Known {
        Known { key: key.to_owned(), server, secret, process: std::process::id(), serving }
    }
}

/// Remembers a meeting, instead of an earlier one.
pub(crate) fn remember(known: Known) {
    static AT_EXIT: Once = Once::new();
    if known.serving.is_some() {
        // SAFETY: the handler is a plain function that neither unwinds nor needs anything that the exit has taken down.
        AT_EXIT.call_once(|| unsafe {
            libc::atexit(stay_until_all_have_left);
        });
    }
    let earlier = lock().replace(known);
    drop_here(earlier);
}

/// Where the meeting of this name is, if this process has been there.
pub(crate) fn recall(key: &str) -> Option<(String, Secret)> {
    let known = lock();
    let known = known.as_ref().filter(|known| known.key == key && known.process == std::process::id())?;
    Some((known.server.clone(), known.secret.clone()))
}

/// Forgets a meeting that came to nothing, once the others have heard of that.
pub(crate) fn forget() {
    let known = lock().take();
    if let Some(server) = known.as_ref().and_then(|known| known.serving.as_ref()) {
        server.see_off(End::FailedStart, SILENT, |_| {});
    }
    drop_here(known);
}

/// The descriptors of the rendezvous that this process's parent serves, for a forked child to close: while it holds them,
/// nobody sees the parent's death. Empty where nothing is served, or somebody was just changing that.
pub fn hosted_descriptors() -> Vec<RawFd> {
    let Ok(known) = KNOWN.try_lock() else { return Vec::new() };
    known.as_ref().and_then(|known| known.serving.as_ref()).map(Server::descriptors).unwrap_or_default()
}

fn lock() -> MutexGuard<'static, Option<Known>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A forked child must not end its parent's server.
fn drop_here(known: Option<Known>) {
    match known {
        Some(inherited) if inherited.process != std::process::id() => std::mem::forget(inherited),
        ours => drop(ours),
    }
}

extern "C" fn stay_until_all_have_left() {
    let Ok(known) = KNOWN.try_lock() else { return };
    let Some(known) = known.as_ref().filter(|known| known.process == std::process::id()) else { return };
    if let Some(server) = &known.serving {
        server.see_off(End::Exit, SILENT, |others: &Ranks| {
            let _ = writeln!(
                std::io::stderr(),
                "rank 0 has ended; its process stays for {others}, whose rendezvous it serves"
            );
        });
    }
}
