//! The process that the user started: it stands guard over the agent and everything below it.
//!
//! It has one thread and does four things: it passes signals on, waits for the agent, ends
//! whatever the agent leaves behind, and exits with the agent's status. The agent holds the
//! reading end of a pipe whose writing end only this process has, so that the kernel itself tells
//! the agent when the guardian is gone, however it went.

use std::collections::HashSet;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, getpid, kill_process, setpgid};

use crate::Error;
use crate::descendants::{adopt_orphans, children, kill_all, reap};
use crate::ending::Ending;
use crate::fork::{Forked, fork};
use crate::signals::Signals;

/// After so many Ctrl-C the guardian no longer leaves the killing to the agent.
const LOST_PATIENCE: usize = 3;

/// What, besides a signal, tells the guardian to end the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lifeline {
    /// Nothing.
    None,
    /// The end of whoever holds the other end of our standard input.
    Stdin,
}

/// Runs `agent` in a child process, which is called `who`, and guards it; returns the status to exit with.
pub(crate) fn guard(who: &str, lifeline: Lifeline, agent: impl FnOnce(OwnedFd) -> u8) -> Result<u8, Error> {
    // Children that were there before us, through exec, are no part of the job.
    let spared = children();
    adopt_orphans()?;
    let (watch, guard) = pipe_with(PipeFlags::CLOEXEC).map_err(Error::system("make a pipe"))?;
    match fork().map_err(Error::system("fork"))? {
        Forked::Child => {
            drop(guard);
            // Out of the terminal's foreground group: Ctrl-C reaches the ranks once, through us,
            // and whoever kills our group does not kill both of us at a time.
            let _ = setpgid(None, Some(getpid()));
            std::process::exit(i32::from(agent(watch)));
        }
        Forked::Parent(agent) => {
            drop(watch);
            stand_guard(who, agent, &guard, &spared, lifeline)
        }
    }
}

/// In a process that is guarded: waits so long for word from the guardian, and returns the status to exit with if it says
/// so or is gone.
pub(crate) fn told_to_end(guardian: &OwnedFd, limit: Duration) -> Option<u8> {
    let limit = Timespec::try_from(limit).ok();
    let mut waits = [PollFd::new(guardian, PollFlags::IN)];
    let _ = poll(&mut waits, limit.as_ref());
    if waits[0].revents().is_empty() {
        return None;
    }
    let mut signal = [0];
    match rustix::io::read(guardian, &mut signal) {
        Ok(1) => Some(Ending::Killed(signal[0].into()).status()),
        _ => Some(1),
    }
}

/// In a process that is guarded: whether the guardian is gone.
pub(crate) fn is_gone(guardian: &OwnedFd) -> bool {
    // That the writing end is closed is always told.
    let mut waits = [PollFd::new(guardian, PollFlags::empty())];
    let _ = poll(&mut waits, Some(&Timespec::default()));
    waits[0].revents().contains(PollFlags::HUP)
}

fn stand_guard(
    who: &str,
    agent: Pid,
    pipe: &OwnedFd,
    spared: &HashSet<Pid>,
    mut lifeline: Lifeline,
) -> Result<u8, Error> {
    let passed_on = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
    let heard = [libc::SIGCHLD, libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
    let signals = Signals::listen(&heard)?;
    let mut interrupts = 0;
    let ending = loop {
        let mut ending = None;
        // The agent may have ended before we listened, so look before the first wait.
        reap(&mut |pid, status| {
            if pid == agent {
                ending = Ending::from_wait(status);
            }
        });
        if let Some(ending) = ending {
            break ending;
        }
        let mut waits: Vec<PollFd<'_>> = signals.poll_fds().collect();
        let stdin = rustix::stdio::stdin();
        if lifeline == Lifeline::Stdin {
            // That the other end is closed is always told; what it says is nobody's business.
            waits.push(PollFd::new(&stdin, PollFlags::empty()));
        }
        // Interrupted or not, everything is looked at again.
        let _ = poll(&mut waits, None);
        if lifeline == Lifeline::Stdin && waits.last().is_some_and(|wait| !wait.revents().is_empty()) {
            lifeline = Lifeline::None;
            let _ = rustix::io::write(pipe, &[libc::SIGTERM as u8]);
        }
        for signal in signals.take() {
            if passed_on.contains(&signal) {
                // Signal numbers fit a byte. An agent that is gone shows in the next round.
                let _ = rustix::io::write(pipe, &[signal as u8]);
            }
            interrupts += usize::from(signal == libc::SIGINT);
        }
        if interrupts >= LOST_PATIENCE {
            let _ = kill_process(agent, Signal::KILL);
        }
    };
    // Empty, unless the agent was killed: then its orphans are ours.
    let left = kill_all(spared, |_, _| {});
    if let Ending::Killed(_) = ending {
        let fate = match left.len() {
            0 => "all ranks were stopped".to_owned(),
            some => format!("{some} processes could not be stopped"),
        };
        let message = match interrupts >= LOST_PATIENCE {
            true => format!("interrupted {interrupts} times; {fate}"),
            false => format!("the {who} was {ending}; {fate}"),
        };
        let _ = writeln!(std::io::stderr(), "error: {message}");
        if interrupts >= LOST_PATIENCE {
            return Ok(Ending::Killed(libc::SIGINT).status());
        }
    }
    Ok(ending.status())
}

#[cfg(test)]
mod tests {
    use super::is_gone;

    #[test]
    fn a_guardian_that_spoke_is_not_gone_until_its_pipe_is_closed() {
        let (watch, guard) = rustix::pipe::pipe().expect("a pipe");
        assert!(!is_gone(&watch));
        rustix::io::write(&guard, &[15]).expect("a byte");
        assert!(!is_gone(&watch));
        drop(guard);
        assert!(is_gone(&watch), "although its last word was not read");
    }
}
