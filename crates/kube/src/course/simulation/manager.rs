//! A job's manager, one action at a time, as `manager.rs` of the crate goes about it.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::world::{Answer, World};
use crate::cluster::OwnPods;
use crate::course::{Action, Observed, Setback, answer, decide};
use crate::job::{Job, JobStatus};

/// How long it waits after it found the API server busy.
const PAUSE: SignedDuration = SignedDuration::from_secs(2);

pub(super) struct Manager {
    pub(super) job: Job,
    pub(super) status: JobStatus,
    /// Whether the status is written down, as the controller does, or forgotten when the manager is killed.
    pub(super) writes: bool,
    ahead: Vec<Action>,
    listed: bool,
    setback: Option<(Action, Setback)>,
    rests_until: Option<Timestamp>,
    /// What it was answered and has not seen otherwise yet, and how much had been written then.
    answered: Vec<(u64, Pod)>,
    /// Whether there was nothing to do for a job that is over.
    pub(super) done: bool,
}

impl Manager {
    pub(super) fn new(job: Job, writes: bool) -> Manager {
        Manager {
            job,
            status: JobStatus::default(),
            writes,
            ahead: Vec::new(),
            listed: false,
            setback: None,
            rests_until: None,
            answered: Vec::new(),
            done: false,
        }
    }

    /// Does the next action, or decides what they are; returns whether it acted.
    pub(super) fn step(&mut self, world: &mut World) -> bool {
        if self.rests_until.is_some_and(|until| until > world.now) {
            return false;
        }
        let Some(action) = self.ahead.pop() else {
            self.decide(world);
            return false;
        };
        if action == Action::List {
            self.listed = true;
            self.ahead.clear();
            return true;
        }
        match world.act(&self.job, &action) {
            Ok(written) => {
                self.status.swept |= action == Action::Sweep;
                self.answered.extend(written.map(|pod| (world.written, pod)));
            }
            Err(Answer::Gone) => {}
            Err(Answer::Busy) => {
                self.ahead.clear();
                self.rests_until = world.now.checked_add(PAUSE).ok();
            }
            Err(Answer::Setback(setback)) => {
                self.ahead.clear();
                self.setback = Some((action, setback));
            }
        }
        true
    }

    fn decide(&mut self, world: &mut World) {
        let mut ledger = world.seen.clone();
        self.answered.retain(|(then, _)| *then > world.seen_until);
        self.answered.iter().for_each(|(_, pod)| ledger.note_answer(pod));
        let listed = std::mem::take(&mut self.listed);
        if listed {
            world.look();
            let mut list = OwnPods::default();
            list.version = world.written;
            list.add(world.pods.values());
            ledger.replace_own(list);
        }
        let seen = Observed {
            job: &self.job,
            status: &self.status,
            ledger: &ledger,
            listed,
            turn: Ok(()),
            now: world.now,
        };
        let setback = self.setback.take();
        let decision = match &setback {
            None => decide(&seen),
            Some((action, setback)) => answer(&seen, action, setback),
        };
        if setback.is_some() && decision.actions.is_empty() {
            self.rests_until = decision.wake.and_then(|wake| world.now.checked_add(wake).ok());
        }
        self.status = decision.status;
        self.ahead = decision.actions;
        self.ahead.reverse();
        self.done = self.status.phase.is_final() && self.ahead.is_empty() && setback.is_none();
    }

    /// Killed, and started anew: it knows what it wrote down, and nothing else.
    pub(super) fn is_killed(&mut self) {
        let status = if self.writes { self.status.clone() } else { JobStatus::default() };
        *self = Manager { status, ..Manager::new(self.job.clone(), self.writes) };
    }
}
