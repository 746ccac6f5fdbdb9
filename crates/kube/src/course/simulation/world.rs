//! The cluster: API server, scheduler and kubelets, and whoever else writes to it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::cluster::{Ledger, OwnPod};
use crate::course::{Action, Said, Setback, SetbackKind};
use crate::job::{Job, examples, names, pod};

/// Random numbers that are the same every time.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit.max(1)
    }

    /// Once in so many times; never if that is 0.
    pub(super) fn one_in(&mut self, chance: usize) -> bool {
        chance > 0 && self.below(chance) == 0
    }
}

/// How long a chief trains and a deleted pod lingers.
const TRAINING: i64 = 20;
const LINGERING: i64 = 3;

/// How hard the API server and the kubelets make it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trouble {
    /// One in so many requests finds it busy, and one in so many is refused for want of quota.
    pub(super) busy: usize,
    pub(super) quota: usize,
    /// Deletions are forbidden every now and then, for a while.
    pub(super) forbids: bool,
    /// One in so many pods is turned away by its node.
    pub(super) refuses: usize,
}

/// What the API server says if it does not do as it is asked.
#[derive(Debug)]
pub(super) enum Answer {
    Busy,
    Gone,
    Setback(Setback),
}

pub(super) struct World {
    pub(super) now: Timestamp,
    pub(super) trouble: Trouble,
    /// Whether chiefs have a container that does not end by itself.
    pub(super) has_sidecars: bool,
    /// How many trainings fail before one ends well, and how many have ended.
    pub(super) failing: u32,
    pub(super) trainings: u32,
    pub(super) written: u64,
    pub(super) nodes: Vec<Node>,
    pub(super) pods: BTreeMap<String, Pod>,
    /// What managers see, a while behind, and how much had been written then.
    pub(super) seen: Ledger,
    pub(super) seen_until: u64,
    dice: Dice,
}

impl World {
    pub(super) fn new(gpus: &[u32], seed: u64) -> World {
        let node = |(index, gpus): (usize, &u32)| examples::node(&format!("node-{}", index + 1), *gpus);
        let nodes: Vec<Node> = gpus.iter().enumerate().map(node).collect();
        World {
            now: "2026-01-01T00:00:00Z".parse().expect("a time"),
            trouble: Trouble::default(),
            has_sidecars: false,
            failing: 0,
            trainings: 0,
            written: 0,
            seen: Ledger::of(&nodes, []),
            nodes,
            pods: BTreeMap::new(),
            seen_until: 0,
            dice: Dice::new(seed + 1000),
        }
    }

    pub(super) fn wait(&mut self, time: SignedDuration) {
        self.now = self.now.checked_add(time).expect("a time");
    }

    /// Somebody else's pod, which holds nothing but a name.
    pub(super) fn add_stranger(&mut self, name: &str) {
        let pod =
            json!({"metadata": {"name": name, "uid": format!("theirs-{name}")}, "spec": {"containers": []}});
        self.write(serde_json::from_value(pod).expect("a pod"));
    }

    fn write(&mut self, mut pod: Pod) {
        self.written += 1;
        pod.metadata.resource_version = Some(self.written.to_string());
        self.pods.insert(pod.metadata.name.clone().unwrap_or_default(), pod);
    }

    fn remove(&mut self, pod: &str) {
        self.written += 1;
        self.pods.remove(pod);
    }

    pub(super) fn look(&mut self) {
        if self.seen_until < self.written {
            self.seen = Ledger::of(&self.nodes, self.pods.values());
            self.seen_until = self.written;
        }
    }

    /// A pod as one of ours; none if it is somebody else's.
    pub(super) fn own(pod: &Pod) -> Option<OwnPod> {
        OwnPod::read(pod, pod.spec.as_ref().expect("a spec"))
    }

    /// All pods of ours.
    pub(super) fn ours(&self) -> impl Iterator<Item = OwnPod> {
        self.pods.values().filter_map(World::own)
    }

    fn allocatable(&self, node: &str) -> u32 {
        let found = self.nodes.iter().find(|one| one.metadata.name.as_deref() == Some(node)).expect("a node");
        let gpus = &found.status.as_ref().and_then(|status| status.allocatable.as_ref()).expect("resources")
            ["nvidia.com/gpu"];
        gpus.0.parse().expect("a number")
    }

    /// GPUs of a node held by pods that fit.
    fn held(&self, node: &str, fits: impl Fn(&OwnPod) -> bool) -> u32 {
        self.ours()
            .filter(|own| own.pinned == node && !own.is_finished() && fits(own))
            .map(|own| own.gpus)
            .sum()
    }

    /// Does what a manager asks for, and tells the pod that was written.
    pub(super) fn act(&mut self, job: &Job, action: &Action) -> Result<Option<Pod>, Answer> {
        if self.dice.one_in(self.trouble.busy) {
            return Err(Answer::Busy);
        }
        if action.frees() && self.trouble.forbids && self.now.as_second() % 40 < 15 {
            return Err(refused(SetbackKind::Withheld, "Forbidden"));
        }
        match action {
            Action::CreatePod { gang, member } => {
                let mut made =
                    pod(job, gang, &gang.members[*member], &examples::surroundings()).expect("a pod");
                let name = made.metadata.name.clone().unwrap_or_default();
                if let Some(found) = self.pods.get(&name) {
                    let is_ours = World::own(found).is_some_and(|own| own.job_uid == job.root.uid);
                    let taken = || refused(SetbackKind::Taken, "NameTaken");
                    return if is_ours { Ok(Some(found.clone())) } else { Err(taken()) };
                }
                if self.dice.one_in(self.trouble.quota) {
                    return Err(refused(SetbackKind::Withheld, "QuotaExceeded"));
                }
                made.metadata.uid = Some(format!("pod-{}", self.written));
                // Of several API servers, each with a clock of its own, any may have been asked.
                let skew = i64::try_from(self.dice.below(5)).unwrap_or(0) - 2;
                let second = Timestamp::from_second(self.now.as_second() + skew).expect("a time");
                made.metadata.creation_timestamp = Some(Time(second));
                self.write(made);
                return Ok(self.pods.get(&name).cloned());
            }
            Action::Ungate { pod, uid } => {
                let mut found = self.find(pod, uid).ok_or(Answer::Gone)?;
                let gates = found.spec.as_mut().and_then(|spec| spec.scheduling_gates.as_mut());
                gates.ok_or(Answer::Gone)?.retain(|gate| gate.name != names::GATE);
                let placed = self.now.to_string();
                found.metadata.annotations.get_or_insert_default().insert(names::PLACED.to_owned(), placed);
                self.write(found);
                self.check();
                return Ok(self.pods.get(pod).cloned());
            }
            Action::DeletePod { pod, uid } => {
                let Some(found) = self.find(pod, uid) else { return Err(Answer::Gone) };
                let own = World::own(&found).expect("managers delete nothing but their own");
                if !own.bound || own.is_finished() {
                    self.remove(pod);
                } else if !own.terminating {
                    let mut found = found.clone();
                    found.metadata.deletion_timestamp = Some(Time(self.now));
                    self.write(found);
                }
            }
            Action::EndPod { pod, uid, why } => {
                let mut found = self.find(pod, uid).ok_or(Answer::Gone)?;
                found
                    .metadata
                    .annotations
                    .get_or_insert_default()
                    .insert(names::ENDED.to_owned(), why.clone());
                self.write(found);
                return Ok(self.pods.get(pod).cloned());
            }
            Action::Support { .. } | Action::List | Action::Sweep => {}
        }
        Ok(None)
    }

    fn find(&self, name: &str, uid: &str) -> Option<Pod> {
        self.pods.get(name).filter(|it| it.metadata.uid.as_deref() == Some(uid)).cloned()
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
    pub(super) fn go_on(&mut self, dice: &mut Dice) {
        let names: Vec<String> = self.pods.keys().cloned().collect();
        if names.is_empty() {
            return;
        }
        let mut found = self.pods[&names[dice.below(names.len())]].clone();
        let Some(own) = World::own(&found) else { return };
        if dice.one_in(8) {
            // Anybody may write to a pod at any time.
            self.write(found);
        } else if own.terminating {
            let since = found.metadata.deletion_timestamp.as_ref().map_or(self.now, |time| time.0);
            if self.now.duration_since(since).as_secs() >= LINGERING {
                self.remove(&own.name);
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
        } else if own.bound && !own.is_finished() && own.told_to_end.is_some() {
            let code = own.ended.as_ref().and_then(|ended| ended.exit_code).unwrap_or(143);
            found.status = Some(self.ended(&own, "Failed", code));
            found.status.get_or_insert_default().reason = Some("DeadlineExceeded".to_owned());
            self.write(found);
        } else if own.bound && own.started.is_none() && !own.is_finished() {
            if dice.one_in(self.trouble.refuses) {
                let state = json!({"phase": "Failed", "reason": "OutOfnvidia.com/gpu"});
                found.status = serde_json::from_value(state).expect("a status");
                return self.write(found);
            }
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
            .ours()
            .filter(|other| other.job_uid == own.job_uid && other.attempt == own.attempt)
            .collect();
        let lasted = own.started.map_or(0, |started| self.now.duration_since(started).as_secs());
        let expected = own.claim.as_ref().map_or(0, |claim| claim.nodes.len());
        let is_over = match own.is_chief {
            true => {
                lasted >= TRAINING && set.len() == expected && set.iter().all(|other| other.started.is_some())
            }
            false => set.iter().any(|other| other.is_chief && other.ended.is_some()) || lasted > 120,
        };
        if is_over && own.ended.is_none() {
            let code = i32::from(own.is_chief && self.trainings < self.failing);
            self.trainings += u32::from(own.is_chief);
            let phase = match code {
                // Another container of the chief's goes on.
                _ if own.is_chief && self.has_sidecars => "Running",
                0 => "Succeeded",
                _ => "Failed",
            };
            found.status = Some(self.ended(own, phase, code));
            self.write(found);
        }
    }

    /// The status of a pod whose training has ended, now if not before.
    fn ended(&self, own: &OwnPod, phase: &str, code: i32) -> PodStatus {
        let finished = own.ended.as_ref().and_then(|ended| ended.at).unwrap_or(self.now);
        let state = json!({"phase": phase, "containerStatuses": [{
            "name": "train", "image": "", "imageID": "x", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": code, "startedAt": own.started, "finishedAt": finished}},
        }]});
        serde_json::from_value(state).expect("a status")
    }
}

fn refused(kind: SetbackKind, reason: &str) -> Answer {
    Answer::Setback(Setback { kind, said: Said::new(reason, "the API server says no") })
}
