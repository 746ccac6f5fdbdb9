//! Rounds: every job that something may have changed for has its turn, one after the other as far as deciding goes, and
//! beside each other as far as the API server has to be waited for.
//!
//! A turn begins by deciding, which waits for nobody. So jobs are decided about strictly in order: first those that have
//! GPUs or give them back, then those that wait, as `queue.rs` puts them. What a job is to claim is promised in the ledger
//! before the next one is looked at. Then its requests are under way, while others have their turns; a job has one turn at
//! a time.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{self, FutureExt, LocalBoxFuture};
use futures::stream::{FuturesUnordered, StreamExt};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Api, CustomResourceExt};
use serde_json::json;
use tokio::sync::mpsc::{self, UnboundedReceiver};

use super::figures::Figures;
use super::jobs::{Jobs, Listed};
use super::{Warnings, events};
use crate::act::{Hands, patiently};
use crate::job::{Job, JobStatus, Phase, RondeJob};
use crate::manager::{Turn, turn};
use crate::queue::{Queue, Waiting, sort};
use crate::view::View;
use crate::{Error, remains};

/// Rounds come no closer than this, nor closer than the last one took.
const REST: Duration = Duration::from_millis(50);
/// Every job is looked at again after this time, whatever happened.
const LOOK: Duration = Duration::from_secs(30);
/// How often GPUs are counted for those who ask.
const COUNT: Duration = Duration::from_secs(5);
/// How many jobs have requests under way at a time.
const AT_ONCE: usize = 32;
/// How often what is told of a job changes at most, where only the words do.
const WORDS: Duration = Duration::from_secs(5);
/// How long a turn may take. One that is broken off is begun anew: whatever was done can be seen.
const LONGEST_TURN: Duration = Duration::from_secs(60);

/// What rounds need besides what they remember.
pub(super) struct Rounds<'a> {
    pub(super) jobs: &'a Jobs,
    pub(super) hands: &'a Hands,
    pub(super) view: &'a View,
    pub(super) figures: &'a Figures,
    pub(super) warnings: &'a Warnings,
    /// How long the first of the queue may be overtaken.
    pub(super) hold_after: SignedDuration,
}

/// What is remembered of a job between its turns.
struct Memory {
    /// What was decided last counts more than what a watch may not have brought yet.
    status: JobStatus,
    /// What was written last, and when.
    written: Rc<RefCell<Written>>,
    /// What the last turn began with; none if it must be looked at again.
    looked: Option<Looked>,
    /// When to look again if nothing happens.
    wake: Instant,
    /// After a request that was not taken it is not looked at before `wake`, whatever happens.
    rests: bool,
    is_busy: bool,
}

/// A status that others can read.
struct Written {
    status: JobStatus,
    at: Instant,
}

/// What a decision depends on: where it is the same, the decision would be.
#[derive(PartialEq, Eq)]
struct Looked {
    changes: u64,
    generation: Option<i64>,
    deleting: bool,
    may_claim: Result<(), String>,
}

/// Turns whose requests are under way, and whose they are.
type UnderWay<'a> = FuturesUnordered<LocalBoxFuture<'a, Option<(String, Turn)>>>;

impl Rounds<'_> {
    /// Goes on until the cluster cannot be watched any more; returns why.
    pub(super) async fn run(&self) -> Error {
        let mut memories: HashMap<String, Memory> = HashMap::new();
        let mut under_way: UnderWay<'_> = FuturesUnordered::new();
        let mut changes = self.view.changes();
        let (mut cleared, mut counted): (Option<Instant>, Option<Instant>) = (None, None);
        let is_clearing = Rc::new(Cell::new(false));
        loop {
            let began = Instant::now();
            if let Err(error) = self.view.check() {
                return error;
            }
            if let Some(outage) = self.view.outage() {
                self.warnings.say(&outage.to_string());
            }
            let wake = self.round(&mut memories, &mut under_way);
            if cleared.is_none_or(|cleared| cleared.elapsed() >= LOOK) && !is_clearing.replace(true) {
                cleared = Some(began);
                under_way.push(self.clear_away(Rc::clone(&is_clearing)).boxed_local());
            }
            if counted.is_none_or(|counted| counted.elapsed() >= COUNT) {
                counted = Some(began);
                self.figures.gpus(self.view.ledger().gpus(self.hands.clock.now()));
            }
            let mut rest = std::pin::pin!(tokio::time::sleep(began.elapsed().max(REST)));
            let mut has_ended = false;
            loop {
                tokio::select! {
                    () = &mut rest => break,
                    Some(ended) = under_way.next() => {
                        self.note(&mut memories, ended);
                        has_ended = true;
                    }
                }
            }
            // A job whose turn has ended is looked at again at once.
            if has_ended {
                continue;
            }
            tokio::select! {
                () = changes.next() => {}
                () = self.jobs.changed() => {}
                Some(ended) = under_way.next() => self.note(&mut memories, ended),
                () = tokio::time::sleep_until(wake.into()) => {}
            }
        }
    }

    /// Begins the turns of all jobs that something may have changed for; returns when to look again if nothing happens.
    fn round<'r>(&'r self, memories: &mut HashMap<String, Memory>, under_way: &mut UnderWay<'r>) -> Instant {
        let all = self.jobs.all();
        let by_uid: HashMap<&str, &Arc<Listed>> =
            all.iter().map(|listed| (listed.job.root.uid.as_str(), listed)).collect();
        memories.retain(|uid, memory| memory.is_busy || by_uid.contains_key(uid.as_str()));
        for (uid, listed) in &by_uid {
            if !memories.contains_key(*uid) {
                memories.insert((*uid).to_owned(), Memory::new(&listed.status));
            }
        }
        self.figures.count(memories.values().map(|memory| memory.status.phase));
        let now = self.hands.clock.now();
        let (active, waiting) = self.order(&all, memories, now);
        for uid in active {
            if let Some(listed) = by_uid.get(uid.as_str()) {
                self.begin(listed, Ok(()), memories, under_way);
            }
        }
        let mut queue = Queue::new(self.hold_after, now);
        for job in &waiting {
            let Some(listed) = by_uid.get(job.uid.as_str()) else { continue };
            let may_claim = queue.ask(job);
            let may = may_claim.is_ok();
            self.begin(listed, may_claim, memories, under_way);
            // There are GPUs for it, only not where it would like them.
            let is_choosy =
                memories.get(&job.uid).is_some_and(|memory| memory.status.reason == "WaitsForBetter");
            if may && !is_choosy && !self.view.ledger().claims(&listed.job.key()) {
                queue.refused(job);
            }
        }
        let idle = memories.values().filter(|memory| !memory.is_busy);
        let wake = idle.map(|memory| memory.wake).min();
        let latest = Instant::now() + LOOK;
        wake.map_or(latest, |wake| wake.min(latest))
    }

    /// Begins a job's turn, if it has none and something may have changed for it.
    fn begin<'r>(
        &'r self,
        listed: &Arc<Listed>,
        may_claim: Result<(), String>,
        memories: &mut HashMap<String, Memory>,
        under_way: &mut UnderWay<'r>,
    ) {
        let uid = listed.job.root.uid.clone();
        let Some(memory) = memories.get_mut(&uid) else { return };
        let looked = Looked {
            changes: self.view.ledger().changes(),
            generation: listed.job.generation,
            deleting: listed.job.deleting,
            may_claim: may_claim.clone(),
        };
        let has_time = memory.rests || memory.looked.as_ref() == Some(&looked);
        // There is another round as soon as one of those under way has ended.
        let is_full = under_way.len() >= AT_ONCE;
        if is_full || memory.is_busy || has_time && memory.wake > Instant::now() {
            return;
        }
        memory.looked = Some(looked);
        let (status, written) = (memory.status.clone(), Rc::clone(&memory.written));
        let mut turn = self
            .attend(Arc::clone(listed), status, written, may_claim)
            .map(move |turned| Some((uid, turned)))
            .boxed_local();
        match (&mut turn).now_or_never() {
            Some(ended) => self.note(memories, ended),
            None => {
                memory.is_busy = true;
                under_way.push(turn);
            }
        }
    }

    /// One job's turn.
    async fn attend(
        &self,
        listed: Arc<Listed>,
        status: JobStatus,
        written: Rc<RefCell<Written>>,
        may_claim: Result<(), String>,
    ) -> Turn {
        let job = &listed.job;
        let (tell, told) = mpsc::unbounded_channel();
        let written = &written;
        let say = async move |status: &JobStatus| {
            let (before, is_due) = {
                let Written { status, at } = &*written.borrow();
                (status.clone(), at.elapsed() >= WORDS)
            };
            if before == *status || !is_due && !is_pressing(&before, status) {
                return Ok(());
            }
            write(self.hands, job, status).await?;
            if status.phase == Phase::Placing && before.phase != Phase::Placing {
                self.figures.waited(waited(job, &before, self.hands.clock.now()));
            }
            written.replace(Written { status: status.clone(), at: Instant::now() });
            let _ = tell.send((before, status.clone()));
            Ok(())
        };
        let may_claim = may_claim.as_ref().copied().map_err(String::as_str);
        let turned = turn(job, status, may_claim, self.hands, self.view, say);
        // Nobody waits for events to be written but the end of the turn.
        let turned = future::join(turned, self.tell(job, told));
        let mut turned = match tokio::time::timeout(LONGEST_TURN, turned).await {
            Ok((turned, ())) => turned,
            Err(_) => {
                let message = "the API server does not answer".to_owned();
                let trouble = Error::Passing { doing: format!("bring job {} on", job.name), message };
                let status = written.borrow().status.clone();
                Turn { status, wake: Some(Duration::ZERO), trouble: Some(trouble) }
            }
        };
        if written.borrow().status != turned.status {
            turned.wake = Some(turned.wake.map_or(WORDS, |wake| wake.min(WORDS)));
        }
        turned
    }

    /// Tells of changes of a job's status, one after the other, until there are no more.
    async fn tell(&self, job: &Job, mut changes: UnboundedReceiver<(JobStatus, JobStatus)>) {
        while let Some((before, now)) = changes.recv().await {
            if let Err(error) = events::tell(self.hands, job, &before, &now).await {
                self.warnings.say(&error.to_string());
            }
        }
    }

    /// The jobs that have GPUs or have ended, and in their order those that wait.
    fn order(
        &self,
        all: &[Arc<Listed>],
        memories: &HashMap<String, Memory>,
        now: Timestamp,
    ) -> (Vec<String>, Vec<Waiting>) {
        let ledger = self.view.ledger();
        let (mut active, mut waiting) = (Vec::new(), Vec::new());
        for Listed { job, needs, .. } in all.iter().map(Arc::as_ref) {
            let uid = &job.root.uid;
            let Some(Memory { status, is_busy, .. }) = memories.get(uid) else { continue };
            let waits = matches!(status.phase, Phase::Pending | Phase::Suspended);
            // One that is claiming does not wait any more, though its turn has not ended.
            if !waits || *is_busy && ledger.claims(&job.key()) {
                active.push(uid.clone());
                continue;
            }
            let pauses = status.not_before.as_ref().is_some_and(|time| time.0 > now);
            // What waiting for GPUs does not help.
            let is_in_vain = matches!(status.reason.as_str(), "NeverEnough" | "Invalid");
            waiting.push(Waiting {
                uid: uid.clone(),
                called: format!("{}/{}", job.namespace, job.name),
                resource: job.spec.resource.clone(),
                gpus: job.spec.gpus.min(),
                needs: Arc::clone(needs),
                priority: job.spec.priority,
                created: job.created,
                since: status.waiting_since.as_ref().map_or(now, |time| time.0),
                able: !job.spec.suspend && !pauses && !is_in_vain,
                avoids: status.avoid.iter().any(|one| one.until.0 > now),
            });
        }
        active.sort();
        sort(&mut waiting);
        (active, waiting)
    }

    /// Jobs of `ronde kube run` that were left behind and whose time is over. Where the API server says no to all of it, that
    /// takes long, and must not take the place of jobs' turns.
    async fn clear_away(&self, is_clearing: Rc<Cell<bool>>) -> Option<(String, Turn)> {
        remains::clear_away(self.hands, self.view, None).await;
        is_clearing.set(false);
        None
    }

    /// A turn has ended.
    fn note(&self, memories: &mut HashMap<String, Memory>, ended: Option<(String, Turn)>) {
        let Some((uid, turned)) = ended else { return };
        if let Some(error) = &turned.trouble {
            self.warnings.say(&error.to_string());
        }
        let Some(memory) = memories.get_mut(&uid) else { return };
        if std::mem::take(&mut memory.is_busy) {
            // What happened while its requests were under way has not been looked at.
            memory.looked = None;
        }
        memory.status = turned.status;
        memory.rests = turned.trouble.is_some();
        memory.wake = Instant::now() + turned.wake.map_or(LOOK, |wake| wake.min(LOOK));
    }
}

impl Memory {
    fn new(status: &JobStatus) -> Memory {
        let now = Instant::now();
        Memory {
            status: status.clone(),
            written: Rc::new(RefCell::new(Written { status: status.clone(), at: now })),
            looked: None,
            wake: now,
            rests: false,
            is_busy: false,
        }
    }
}

/// Whether others must know at once what has changed. A claim becomes safe in a moment, and pods that start do so by
/// themselves: that is written if it lasts.
fn is_pressing(before: &JobStatus, now: &JobStatus) -> bool {
    let passes = now.phase == Phase::Claimed || now.phase == Phase::Scheduled && now.reason == "Starting";
    !passes && (before.phase, &before.reason) != (now.phase, &now.reason)
}

/// How long a job that gets its GPUs now has waited for them.
fn waited(job: &Job, before: &JobStatus, now: Timestamp) -> Duration {
    let since = before.waiting_since.as_ref().map_or(job.created, |time| time.0);
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

/// Writes a status down, so that another manager goes on from it.
async fn write(hands: &Hands, job: &Job, status: &JobStatus) -> Result<(), Error> {
    // What is answered is not read: it may be a job that cannot be.
    let jobs: Api<DynamicObject> =
        Api::namespaced_with(hands.client.clone(), &job.namespace, &RondeJob::api_resource());
    // Fields that are not there any more must go, which a merge does only for those that say so.
    let mut body = json!(status);
    let optional = [
        "notBefore",
        "waitingSince",
        "stuckSince",
        "started",
        "finished",
        "exitCode",
        "failedPod",
        "avoid",
        "nodes",
    ];
    for field in optional {
        if body.get(field).is_none() {
            body[field] = serde_json::Value::Null;
        }
    }
    // With its uid, so that a job that was made anew under the same name does not get it.
    let patch = Patch::Merge(json!({"metadata": {"uid": job.root.uid}, "status": body}));
    let params = PatchParams::default();
    match patiently("write the job's status", || jobs.patch_status(&job.name, &params, &patch)).await {
        Ok(_) | Err(Error::Gone { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::clock::Clock;
    use crate::cluster::Ledger;
    use crate::fake::Fake;
    use crate::job::examples;

    #[tokio::test]
    async fn jobs_start_beside_each_other_on_gpus_of_their_own() {
        let fake = Fake::default();
        fake.refuse((Method::POST, "/events", 403, "Forbidden", "events are not kept here"));
        let hands = Hands::new(fake.client(), Clock::default(), examples::surroundings());
        let view = View::still(Ledger::of(&[examples::node("node-1", 5), examples::node("node-2", 2)], []));
        let (jobs, figures, warnings) = (Jobs::default(), Figures::default(), Warnings::default());
        for name in ["a", "b", "c", "d", "e"] {
            let job = examples::job(name, 2);
            let status = JobStatus::default();
            jobs.note(job.root.uid.clone(), Arc::new(Listed::new(job, status)));
        }
        let rounds = Rounds {
            jobs: &jobs,
            hands: &hands,
            view: &view,
            figures: &figures,
            warnings: &warnings,
            hold_after: SignedDuration::from_secs(300),
        };
        let (mut memories, mut under_way) = (HashMap::new(), FuturesUnordered::new());
        rounds.round(&mut memories, &mut under_way);
        // Nothing has been answered yet, and all of it is decided.
        assert_eq!((fake.asked(""), under_way.len()), (0, 5));
        assert_eq!(view.ledger().gpus(Timestamp::now())["nvidia.com/gpu"], (7, 1));
        // A job whose turn has not ended has no other.
        rounds.round(&mut memories, &mut under_way);
        assert_eq!(under_way.len(), 5);
        while let Some(ended) = under_way.next().await {
            rounds.note(&mut memories, ended);
        }
        let phase = |name: &str| memories[&format!("uid-{name}")].status.phase;
        assert_eq!(["a", "b", "c"].map(phase), [Phase::Placing; 3]);
        assert_eq!(["d", "e"].map(phase), [Phase::Pending; 2]);
        assert!(memories.values().all(|memory| memory.status.yields == 0));
        assert_eq!(fake.names("pods"), ["a-chief", "b-chief", "c-chief"]);
        assert_eq!(view.ledger().gpus(Timestamp::now())["nvidia.com/gpu"], (7, 1));
    }
}
