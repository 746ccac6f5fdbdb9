//! A whole cluster in memory, and managers that are killed after every single action.
//!
//! Pods are the real objects. A scheduler binds what is not gated, kubelets start what is bound, chiefs train for a while
//! and end, deleted pods take their time. Managers see the world as it was a while ago, except where they list. Each of
//! their actions is a step of its own, between which anybody else's steps may come; after any of them a manager may be
//! killed, which forgets what it knew.
//!
//! What must hold whatever happens: the scheduler is never let at more GPUs of a node than it has; every job ends well;
//! all GPUs are free in the end.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::{Action, Observed, decide};
use crate::cluster::{Ledger, OwnPod};
use crate::job::{Job, JobStatus, Phase, examples, names, pod};

/// Random numbers that are the same every time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit.max(1)
    }

    fn one_in(&mut self, chance: usize) -> bool {
        self.below(chance) == 0
    }
}

/// How long a chief trains and a deleted pod lingers.
const TRAINING: i64 = 20;
const LINGERING: i64 = 3;

struct World {
    now: Timestamp,
    written: u64,
    nodes: Vec<Node>,
    pods: BTreeMap<String, Pod>,
    /// What managers see, a while behind, and how much had been written then.
    seen: Vec<Pod>,
    seen_until: u64,
}

impl World {
    fn new(gpus: &[u32]) -> World {
        let node = |(index, gpus): (usize, &u32)| {
            let node = json!({
                "metadata": {"name": format!("node-{}", index + 1)},
                "status": {
                    "allocatable": {"nvidia.com/gpu": gpus.to_string(), "cpu": "64", "memory": "64Gi", "pods": "110"},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            });
            serde_json::from_value(node).expect("a node")
        };
        World {
            now: "2026-01-01T00:00:00Z".parse().expect("a time"),
            written: 0,
            nodes: gpus.iter().enumerate().map(node).collect(),
            pods: BTreeMap::new(),
            seen: Vec::new(),
            seen_until: 0,
        }
    }

    fn write(&mut self, mut pod: Pod) {
        self.written += 1;
        pod.metadata.resource_version = Some(self.written.to_string());
        self.pods.insert(pod.metadata.name.clone().unwrap_or_default(), pod);
    }

    fn look(&mut self) {
        self.seen = self.pods.values().cloned().collect();
        self.seen_until = self.written;
    }

    fn own(pod: &Pod) -> OwnPod {
        OwnPod::read(pod, pod.spec.as_ref().expect("a spec")).expect("one of ours")
    }

    fn allocatable(&self, node: &str) -> u32 {
        let found = self.nodes.iter().find(|one| one.metadata.name.as_deref() == Some(node)).expect("a node");
        let gpus = &found.status.as_ref().and_then(|status| status.allocatable.as_ref()).expect("resources")
            ["nvidia.com/gpu"];
        gpus.0.parse().expect("a number")
    }

    /// GPUs of a node held by pods that fit.
    fn held(&self, node: &str, fits: impl Fn(&OwnPod) -> bool) -> u32 {
        let pods = self.pods.values().map(World::own);
        pods.filter(|own| own.pinned == node && !own.is_finished() && fits(own)).map(|own| own.gpus).sum()
    }

    /// Does what a manager asks for, and tells the pod that was written; an error is what the API server would answer.
    fn act(&mut self, job: &Job, action: &Action) -> Result<Option<Pod>, &'static str> {
        match action {
            Action::CreatePod { gang, member } => {
                let mut made =
                    pod(job, gang, &gang.members[*member], &examples::surroundings()).expect("a pod");
                let name = made.metadata.name.clone().unwrap_or_default();
                if self.pods.contains_key(&name) {
                    return Err("already exists");
                }
                made.metadata.uid = Some(format!("pod-{}", self.written));
                let second = Timestamp::from_second(self.now.as_second()).expect("a time");
                made.metadata.creation_timestamp = Some(Time(second));
                self.write(made);
                return Ok(self.pods.get(&name).cloned());
            }
            Action::Ungate { pod, uid } => {
                let mut found = self
                    .pods
                    .get(pod)
                    .filter(|it| it.metadata.uid.as_ref() == Some(uid))
                    .cloned()
                    .ok_or("not found")?;
                let gates =
                    found.spec.as_mut().and_then(|spec| spec.scheduling_gates.as_mut()).ok_or("no gates")?;
                gates.retain(|gate| gate.name != names::GATE);
                let placed = self.now.to_string();
                found.metadata.annotations.get_or_insert_default().insert(names::PLACED.to_owned(), placed);
                self.write(found);
                self.check();
                return Ok(self.pods.get(pod).cloned());
            }
            Action::DeletePod { pod, uid } => {
                let Some(found) = self.pods.get(pod).filter(|it| it.metadata.uid.as_ref() == Some(uid))
                else {
                    return Ok(None);
                };
                let own = World::own(found);
                if !own.bound || own.is_finished() {
                    self.pods.remove(pod);
                } else if !own.terminating {
                    let mut found = found.clone();
                    found.metadata.deletion_timestamp = Some(Time(self.now));
                    self.write(found);
                }
            }
            Action::Support { .. } | Action::WritePlan { .. } | Action::List | Action::Sweep { .. } => {}
        }
        Ok(None)
    }

    /// What must always hold: the scheduler was never let at more than there is.
    fn check(&self) {
        for node in &self.nodes {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            let promised = self.held(name, |own| !own.gated);
            assert!(
                promised <= self.allocatable(name),
                "{promised} GPUs were promised on {name} at {}",
                self.now
            );
        }
    }

    /// The scheduler and the kubelets do one thing each, for some pod.
    fn go_on(&mut self, dice: &mut Dice) {
        let names: Vec<String> = self.pods.keys().cloned().collect();
        if names.is_empty() {
            return;
        }
        let mut found = self.pods[&names[dice.below(names.len())]].clone();
        let own = World::own(&found);
        if own.terminating {
            let since = found.metadata.deletion_timestamp.as_ref().map_or(self.now, |time| time.0);
            if self.now.duration_since(since).as_secs() >= LINGERING {
                self.pods.remove(&own.name);
            }
        } else if !own.bound && !own.gated {
            let free = self.allocatable(&own.pinned) - self.held(&own.pinned, |other| other.bound);
            if own.gpus <= free {
                found.spec.as_mut().expect("a spec").node_name = Some(own.pinned.clone());
            } else {
                let condition = PodCondition {
                    type_: "PodScheduled".to_owned(),
                    status: "False".to_owned(),
                    reason: Some("Unschedulable".to_owned()),
                    ..PodCondition::default()
                };
                found.status.get_or_insert_default().conditions = Some(vec![condition]);
            }
            self.write(found);
        } else if own.bound && own.started.is_none() {
            let state = json!({"phase": "Running", "containerStatuses": [{
                "name": "train", "image": "", "imageID": "x", "ready": true, "restartCount": 0,
                "state": {"running": {"startedAt": self.now}},
            }]});
            found.status = serde_json::from_value(state).expect("a status");
            self.write(found);
        } else if own.bound && !own.is_finished() {
            self.end(found, &own);
        }
    }

    /// A chief ends when all of its set run long enough; a worker when its chief has ended or never comes.
    fn end(&mut self, mut found: Pod, own: &OwnPod) {
        let set: Vec<OwnPod> = self
            .pods
            .values()
            .map(World::own)
            .filter(|other| other.job_uid == own.job_uid && other.attempt == own.attempt)
            .collect();
        let lasted = own.started.map_or(0, |started| self.now.duration_since(started).as_secs());
        let expected = own.claim.as_ref().map_or(0, |claim| claim.nodes.len());
        let is_over = match own.is_chief {
            true => {
                lasted >= TRAINING && set.len() == expected && set.iter().all(|other| other.started.is_some())
            }
            false => set.iter().any(|other| other.is_chief && other.is_finished()) || lasted > 120,
        };
        if is_over {
            let state = json!({"phase": "Succeeded", "containerStatuses": [{
                "name": "train", "image": "", "imageID": "x", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": 0, "startedAt": own.started, "finishedAt": self.now}},
            }]});
            found.status = serde_json::from_value(state).expect("a status");
            self.write(found);
        }
    }
}

struct Manager {
    job: Job,
    /// Forgotten when it is killed.
    status: JobStatus,
    ahead: Vec<Action>,
    listed: bool,
    /// What it was answered and has not seen otherwise yet, and how much had been written then.
    answered: Vec<(u64, Pod)>,
    done: bool,
}

impl Manager {
    /// Does the next action, or decides what they are; returns whether it acted.
    fn step(&mut self, world: &mut World) -> bool {
        if self.ahead.is_empty() {
            let mut listed = false;
            let mut ledger = Ledger::of(&world.nodes, &world.seen);
            self.answered.retain(|(then, _)| *then > world.seen_until);
            self.answered.iter().for_each(|(_, pod)| ledger.note_pod(pod));
            if std::mem::take(&mut self.listed) {
                world.look();
                ledger.replace_own(&world.seen);
                listed = true;
            }
            let seen = Observed {
                job: &self.job,
                status: &self.status,
                ledger: &ledger,
                listed,
                turn: Ok(()),
                now: world.now,
            };
            let decision = decide(&seen);
            self.status = decision.status;
            self.ahead = decision.actions;
            self.ahead.reverse();
            self.done = self.status.phase.is_final() && self.ahead.is_empty();
            return false;
        }
        let Some(action) = self.ahead.pop() else { return false };
        if action == Action::List {
            self.listed = true;
            self.ahead.clear();
            return true;
        }
        match world.act(&self.job, &action) {
            Ok(written) => self.answered.extend(written.map(|pod| (world.written, pod))),
            // Whatever the server says no to is decided again.
            Err(_) => self.ahead.clear(),
        }
        true
    }

    fn is_killed(&mut self) {
        let attempt = if self.status.phase.is_final() { self.status.attempt } else { 0 };
        // The end of a job is seen in its chief, so forgetting it does no harm.
        self.status = JobStatus { attempt, ..JobStatus::default() };
        self.ahead.clear();
        self.listed = false;
        self.answered.clear();
        self.done = false;
    }
}

/// When managers are killed.
#[derive(Clone, Copy)]
enum Kills {
    Never,
    /// After each step with this chance.
    OneIn(usize),
    /// Once, after this many actions of theirs.
    After(usize),
}

/// Runs jobs on a cluster until all have ended; returns how often managers acted.
fn run(nodes: &[u32], jobs: &[u32], seed: u64, kills: Kills) -> usize {
    let mut steps = 0;
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut world = World::new(nodes);
    let mut managers: Vec<Manager> = jobs
        .iter()
        .enumerate()
        .map(|(index, gpus)| Manager {
            job: examples::job(&format!("job-{index}"), *gpus),
            status: JobStatus::default(),
            ahead: Vec::new(),
            listed: false,
            answered: Vec::new(),
            done: false,
        })
        .collect();
    for _ in 0..400_000 {
        match dice.below(10) {
            0..=4 => {
                let chosen = dice.below(managers.len());
                let acted = managers[chosen].step(&mut world);
                steps += usize::from(acted);
                let is_killed = match kills {
                    Kills::Never => false,
                    Kills::OneIn(chance) => dice.one_in(chance),
                    Kills::After(count) => acted && count == steps,
                };
                if is_killed {
                    managers[chosen].is_killed();
                }
            }
            5..=6 => world.go_on(&mut dice),
            7..=8 => world.look(),
            _ => world.now = world.now.checked_add(SignedDuration::from_millis(150)).expect("a time"),
        }
        if managers.iter().all(|manager| manager.done) {
            break;
        }
    }
    for manager in &managers {
        let about = (&manager.job.name, &manager.status.phase, &manager.status.message, seed);
        assert_eq!(manager.status.phase, Phase::Succeeded, "{about:?} {:?}", world.pods.keys());
    }
    // Deleted pods end; then nothing holds a GPU.
    world.now = world.now.checked_add(SignedDuration::from_secs(10)).expect("a time");
    for _ in 0..1000 {
        world.go_on(&mut dice);
    }
    for node in 1..=nodes.len() {
        assert_eq!(world.held(&format!("node-{node}"), |own| !own.gated), 0, "seed {seed}");
    }
    steps
}

#[test]
fn one_job_runs_and_gives_everything_back() {
    run(&[5, 3, 2], &[6], 1, Kills::Never);
}

#[test]
fn a_manager_may_be_killed_after_any_action() {
    let steps = run(&[5, 3, 2], &[6], 1, Kills::Never);
    for step in 1..=steps {
        run(&[5, 3, 2], &[6], 1, Kills::After(step));
    }
}

#[test]
fn a_manager_may_be_killed_again_and_again() {
    for seed in 0..40 {
        run(&[5, 3, 2], &[6], seed, Kills::OneIn(4));
    }
}

#[test]
fn jobs_that_want_the_same_gpus_take_turns() {
    for seed in 0..40 {
        run(&[5, 3, 2], &[6, 7, 4], seed, Kills::Never);
    }
}

#[test]
fn they_do_so_even_if_their_managers_are_killed() {
    for seed in 100..140 {
        run(&[4, 4, 4], &[6, 7, 4, 12, 1], seed, Kills::OneIn(12));
    }
}
