//! What to do as ranks end and signals come, and who failed first: decided in values.
//!
//! The agent feeds what happens, with the time, and carries out the [`Order`]s. While all is well
//! a rank that exits with 0 is simply done. The first failure starts the end: everybody else is
//! told to terminate, and killed after a time of grace.
//!
//! Who failed *first* is not always who exited first. A rank that raises an exception closes its
//! connections while Python winds down, its peers fail on that and may well exit before it does.
//! So a failing exit is held for up to [`SETTLE`] if another rank, still running, had parted from
//! the rendezvous before; and ranks are compared by the earliest sign of their end. Only who was killed
//! is first whatever came to us before: nobody but us kills ranks because another has failed.
//!
//! In a job that is *led* the others only stand by for rank 0: when it has ended well, so has the job.

use std::ops::Range;
use std::time::Duration;

use crate::ending::Ending;

/// How long a rank that parted may take to end before another is named in its stead.
pub(crate) const SETTLE: Duration = Duration::from_millis(500);
/// An orderly goodbye belongs to an exit only if it came this shortly before.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Something that happened.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A rank's process ended.
    Ended { rank: usize, ending: Ending },
    /// A host is gone, and with it those of its ranks that had not ended.
    HostLost { host: usize, ranks: Range<usize>, why: String },
    /// The user wants the job to end: SIGINT, SIGTERM or SIGHUP.
    Signal(i32),
    /// Nobody reads our output any more.
    OutputClosed,
    /// Time passed.
    Tick,
}

/// What the agent has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Send this signal to every rank that still runs.
    Signal(i32),
    /// Kill everything.
    Kill,
}

/// A rank's connection to the rendezvous ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parting {
    pub(crate) rank: usize,
    pub(crate) at: Duration,
    pub(crate) orderly: bool,
}

/// Why the job ended before all ranks were done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Failure(Failure),
    /// A host was lost; when, and how many ranks ran elsewhere then.
    HostLost {
        host: usize,
        why: String,
        at: Duration,
        others: usize,
    },
    Signal(i32),
    OutputClosed,
}

/// The rank that failed first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) rank: usize,
    /// How its process ended; `None` if it still runs and only lost its connection to the job.
    pub(crate) ending: Option<Ending>,
    /// The exit status of the launcher.
    pub(crate) status: u8,
    /// When the first sign of it was seen.
    pub(crate) at: Duration,
    /// How many other ranks were still running then.
    pub(crate) others: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Running,
    /// A rank failed; a rank that parted before it may turn out to be the cause.
    Settling {
        until: Duration,
    },
    /// Ranks have been asked to end.
    Ending {
        kill_at: Duration,
    },
    Killed,
}

/// The course of one job.
#[derive(Debug)]
pub(crate) struct Course {
    /// How long ranks have between the request to end and being killed.
    grace: Duration,
    /// Whether the job is over when rank 0 has ended well.
    led: bool,
    endings: Vec<Option<(Ending, Duration)>>,
    stage: Stage,
    cause: Option<Cause>,
}

impl Course {
    pub(crate) fn new(size: usize, grace: Duration) -> Course {
        Course { grace, led: false, endings: vec![None; size], stage: Stage::Running, cause: None }
    }

    /// The same, with rank 0 in the lead or not.
    pub(crate) fn led(self, led: bool) -> Course {
        Course { led, ..self }
    }

    /// Takes in one event, with the partings that the rendezvous has seen so far.
    pub(crate) fn handle(&mut self, now: Duration, event: Event, partings: &[Parting]) -> Vec<Order> {
        match event {
            Event::Ended { rank, ending } => {
                self.endings[rank] = Some((ending, now));
                if self.led && rank == 0 && !ending.is_failure() && self.stage == Stage::Running {
                    self.stage = Stage::Ending { kill_at: now + self.grace };
                    return vec![Order::Signal(libc::SIGTERM)];
                }
            }
            Event::HostLost { host, ranks, why } => return self.host_lost(now, host, ranks, why, partings),
            Event::Signal(signal) => return self.signalled(now, signal),
            Event::OutputClosed => {
                return self.end_for(now, Cause::OutputClosed, libc::SIGTERM);
            }
            Event::Tick => {}
        }
        match self.stage {
            Stage::Running if self.first_failing_exit().is_some() => {
                if self.somebody_may_be_the_cause(partings) {
                    self.stage = Stage::Settling { until: now + SETTLE };
                    return Vec::new();
                }
                self.fail(now, partings)
            }
            Stage::Settling { until } => {
                if now < until && self.somebody_may_be_the_cause(partings) {
                    return Vec::new();
                }
                self.fail(now, partings)
            }
            Stage::Ending { kill_at } if now >= kill_at => {
                self.stage = Stage::Killed;
                vec![Order::Kill]
            }
            _ => Vec::new(),
        }
    }

    /// Whether every rank's process has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.endings.iter().all(Option::is_some)
    }

    /// When the next [`Event::Tick`] is due.
    pub(crate) fn next_tick(&self) -> Option<Duration> {
        match self.stage {
            Stage::Settling { until } => Some(until),
            Stage::Ending { kill_at } => Some(kill_at),
            Stage::Running | Stage::Killed => None,
        }
    }

    pub(crate) fn cause(&self) -> Option<&Cause> {
        self.cause.as_ref()
    }

    /// The ranks whose processes have not ended.
    pub(crate) fn running(&self) -> impl Iterator<Item = usize> {
        let ranks = self.endings.iter().enumerate();
        ranks.filter(|(_, ending)| ending.is_none()).map(|(rank, _)| rank)
    }

    fn signalled(&mut self, now: Duration, signal: i32) -> Vec<Order> {
        match self.stage {
            Stage::Killed => Vec::new(),
            Stage::Ending { .. } if signal == libc::SIGINT => {
                self.stage = Stage::Killed;
                vec![Order::Kill]
            }
            Stage::Ending { .. } => Vec::new(),
            Stage::Running | Stage::Settling { .. } => self.end_for(now, Cause::Signal(signal), signal),
        }
    }

    fn end_for(&mut self, now: Duration, cause: Cause, signal: i32) -> Vec<Order> {
        // What comes after the beginning of the end follows from it.
        if !matches!(self.stage, Stage::Running | Stage::Settling { .. }) {
            return Vec::new();
        }
        self.cause = Some(cause);
        self.stage = Stage::Ending { kill_at: now + self.grace };
        vec![Order::Signal(signal)]
    }

    /// The ranks of a lost host count as killed. If a rank had failed before, that was first.
    fn host_lost(
        &mut self,
        now: Duration,
        host: usize,
        ranks: Range<usize>,
        why: String,
        partings: &[Parting],
    ) -> Vec<Order> {
        let orders = match self.first_failing_exit() {
            Some(_) => self.fail(now, partings),
            None => {
                let elsewhere = self.running().filter(|rank| !ranks.contains(rank)).count();
                let cause = Cause::HostLost { host, why, at: now, others: elsewhere };
                self.end_for(now, cause, libc::SIGTERM)
            }
        };
        for rank in ranks {
            self.endings[rank].get_or_insert((Ending::Killed(libc::SIGKILL), now));
        }
        orders
    }

    fn fail(&mut self, now: Duration, partings: &[Parting]) -> Vec<Order> {
        let Some((exited, ending, _)) = self.first_failing_exit() else {
            return Vec::new();
        };
        let failing = self.endings.iter().enumerate().filter_map(|(rank, ended)| {
            let (ending, at) = (*ended)?;
            let sign = first_sign(rank, at, partings);
            ending.is_failure().then_some((sign, rank, Some(ending)))
        });
        let lost = partings
            .iter()
            .filter(|parting| !parting.orderly && self.endings[parting.rank].is_none())
            .map(|parting| (parting.at, parting.rank, None));
        let first = failing
            .chain(lost)
            .min_by_key(|(sign, _, how)| (!how.is_some_and(Ending::is_from_outside), *sign));
        let (at, rank, how) = first.unwrap_or((now, exited, Some(ending)));
        let others = self
            .endings
            .iter()
            .enumerate()
            .filter(|(other, ended)| *other != rank && ended.is_none_or(|(_, ended_at)| ended_at > at));
        let failure =
            Failure { rank, ending: how, status: how.unwrap_or(ending).status(), at, others: others.count() };
        self.end_for(now, Cause::Failure(failure), libc::SIGTERM)
    }

    fn first_failing_exit(&self) -> Option<(usize, Ending, Duration)> {
        let ended = self.endings.iter().enumerate();
        let failed = ended.filter_map(|(rank, ended)| {
            let (ending, at) = (*ended)?;
            ending.is_failure().then_some((rank, ending, at))
        });
        failed.min_by_key(|(.., at)| *at)
    }

    /// Whether a rank that still runs parted from the job shortly before the first failing exit.
    fn somebody_may_be_the_cause(&self, partings: &[Parting]) -> bool {
        let Some((_, _, failed_at)) = self.first_failing_exit() else {
            return false;
        };
        partings.iter().any(|parting| {
            self.endings[parting.rank].is_none()
                && parting.at <= failed_at
                && parting.at + LAST_WORDS >= failed_at
        })
    }
}

/// When a rank that exited at `exit` began to end, as far as anybody could see.
fn first_sign(rank: usize, exit: Duration, partings: &[Parting]) -> Duration {
    partings
        .iter()
        .filter(|parting| parting.rank == rank)
        .filter(|parting| !parting.orderly || parting.at + LAST_WORDS >= exit)
        .map(|parting| parting.at)
        .fold(exit, Duration::min)
}

#[cfg(test)]
mod tests;
