//! Reaching other hosts with the user's own `ssh`, and saying what its failures mean.
//!
//! The user's `ssh` does the talking, so that their configuration, their agent and their jump hosts count. It never asks
//! a question (`command.rs`). When it fails, all it leaves is a few lines of text; `refusal.rs` makes of them, without
//! touching anything, one of its known failures, and `attempt.rs` puts that into words: what happened, to which host, and
//! the next command. What that needs to know besides the text is found out only after a failure: `target.rs` asks `ssh`
//! what its configuration says about the host, `keys.rs` asks the host which keys it has.

mod attempt;
mod command;
mod keys;
mod refusal;
mod target;

pub(crate) use attempt::quoted;
pub(crate) use command::{asking_command, command};
pub(crate) use keys::{HostKey, scan};
pub(crate) use refusal::between;
pub use refusal::{Refusal, RefusalKind};
pub(crate) use target::{Target, home, is_locked, shown};

use attempt::Attempt;

use crate::plan::Ssh;

/// Explains why `ssh` to `host` failed: `said` is what it wrote to its standard error, `status` its exit status, if it
/// was not killed. Asks `ssh` and, where host keys are in question, the host for what the text leaves out, so it may take
/// a few seconds.
pub(crate) fn explain(options: &Ssh, host: &str, said: &str, status: Option<i32>) -> Refusal {
    let target = Target::ask(options, host);
    let kind = refusal::classify(said, status, target.proxied);
    let about_keys = matches!(kind, RefusalKind::UnknownHostKey | RefusalKind::ChangedHostKey);
    // A host behind a jump host cannot be asked directly, and another host may have its address.
    let host_keys =
        if about_keys && !target.proxied { scan(&target).unwrap_or_default() } else { Vec::new() };
    let keys = match kind {
        RefusalKind::KeyRefused => target.keys(),
        _ => Vec::new(),
    };
    let address = target.address();
    Attempt { host, options, target: &target, address, keys, host_keys, said, status }.refusal()
}

/// What to do about a refusal, in one line: the command that helps, or the first thing to look at.
pub(crate) fn one_line(refusal: &Refusal) -> Option<String> {
    refusal.command.clone().or_else(|| refusal.fix.first().cloned())
}

/// Explains why `ssh` could not be started.
pub(crate) fn explain_start(error: &std::io::Error) -> Refusal {
    refusal::cannot_start(&command::program().to_string_lossy(), error)
}
