//! The engine of this process: operations in, results out.
//!
//! [`Engine::start`] joins the job and takes a seat in the set of all ranks and in the static process sets. Operations are
//! submitted to a set and known by a [`Handle`] until somebody has waited for them.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ronde_collective::types::{DType, ReduceOp};
use ronde_collective::{Group, Interrupt, LinkKind};
use ronde_rendezvous::{JobSpec, Place};
use ronde_settings::{Level, Note, Settings, TimelineTarget};

use crate::common::{Common, WORLD};
use crate::device::Executor;
use crate::error::Error;
use crate::hasher::QuickState;
use crate::inquiry::Inquiries;
use crate::job::{Job, Membership};
use crate::negotiation::{Device, Kind};
use crate::network::Network;
use crate::operation::{Finished, Operation, Submission, Tensor};
use crate::seat::Seat;
use crate::teller::Teller;

type Result<T> = std::result::Result<T, Error>;

/// What an operation in flight is known by.
pub type Handle = u64;

/// Operations that somebody may still wait for.
type Handles = HashMap<Handle, (Arc<Seat>, Arc<Operation>), QuickState>;

/// See the module's text. Dropping it shuts it down.
pub struct Engine {
    common: Arc<Common>,
    handles: Mutex<Handles>,
    next: AtomicU64,
    teller: Arc<Teller>,
    // Dropped last: links say goodbye before the rendezvous is left.
    membership: Arc<Membership>,
}

impl Engine {
    /// Joins the job that the environment describes and registers the given process sets, which must be the same on
    /// all ranks.
    pub fn start(
        interrupted: Interrupt,
        settings: (Settings, Vec<Note>),
        sets: &[Vec<usize>],
    ) -> Result<Engine> {
        let (settings, notes) = settings;
        let job = Job::start(&settings, interrupted.clone())?;
        let rank = job.place().rank;
        ronde_settings::configure(&settings, rank);
        for note in notes.iter().filter(|_| rank == 0) {
            ronde_settings::log(Level::Warning, &note.text);
        }
        Engine::over(job, interrupted, settings, sets)
    }

    /// Joins the job that `spec` describes, with links as `network` says.
    pub fn join(
        spec: &JobSpec,
        network: &Network,
        interrupted: Interrupt,
        settings: Settings,
        sets: &[Vec<usize>],
    ) -> Result<Engine> {
        let job = Job::join(spec, network, &settings, interrupted.clone())?;
        Engine::over(job, interrupted, settings, sets)
    }

    fn over(job: Job, interrupted: Interrupt, settings: Settings, sets: &[Vec<usize>]) -> Result<Engine> {
        let (place, fabric, membership) = job.into_parts();
        let membership = Arc::new(membership);
        let everybody: Vec<usize> = (0..place.size).collect();
        let common = Common::new(fabric, place, settings, interrupted);
        common.set_membership(&membership);
        let engine = Engine {
            common,
            handles: Mutex::default(),
            next: AtomicU64::new(0),
            teller: Arc::default(),
            membership,
        };
        engine.common.open_set(WORLD, &everybody)?;
        engine.agree_on_static_sets(sets)?;
        for ranks in sets {
            engine.register_set(ranks)?;
        }
        if let Some(TimelineTarget::File(path)) = &engine.common.settings.timeline {
            let mark_cycles = engine.common.settings.timeline_mark_cycles;
            // A trace that cannot be written is no reason not to train.
            if let Err(error) = engine.start_timeline(path, mark_cycles) {
                ronde_settings::log(Level::Error, error);
            }
        }
        Ok(engine)
    }

    /// Where this process stands in the job.
    pub fn place(&self) -> Place {
        self.common.place
    }

    /// How each rank is reached.
    pub fn links(&self) -> Vec<LinkKind> {
        self.common.fabric.links()
    }

    /// A group of all ranks beside the engine's own, for measuring the data plane alone. Collective, and may be called once.
    pub fn bare_group(&self) -> Result<Group> {
        let everybody: Vec<usize> = (0..self.common.place.size).collect();
        Ok(self.common.fabric.group(u64::from(u32::MAX), &everybody)?)
    }

    /// Whether every host has as many ranks as this one.
    pub fn is_homogeneous(&self) -> bool {
        self.common.is_homogeneous()
    }

    /// Puts an operation in flight; never waits for other ranks.
    ///
    /// # Safety
    /// Every source of the submission is readable, and every target writable, for what its shape and type say; both
    /// stay so and are left alone until the operation is finished.
    pub unsafe fn submit(&self, set: u32, submission: Submission) -> Result<Handle> {
        let seat = self.common.seat(set)?;
        check(&seat, &submission)?;
        let operation = Arc::new(Operation::new(submission));
        seat.submit(operation.clone())?;
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.handles().insert(handle, (seat, operation));
        Ok(handle)
    }

    /// Puts an operation in flight that nobody will wait for: `then` is called with how it ended, once, on a thread of its own.
    /// It is not called if the operation is refused here.
    ///
    /// # Safety
    /// As for [`submit`](Engine::submit), until `then` is called.
    pub unsafe fn submit_then(
        &self,
        set: u32,
        submission: Submission,
        then: impl FnOnce(Result<Finished>) + Send + 'static,
    ) -> Result<()> {
        let seat = self.common.seat(set)?;
        check(&seat, &submission)?;
        self.teller.start()?;
        let mut operation = Operation::new(submission);
        operation.tell(Box::new(then), self.teller.clone());
        seat.submit(Arc::new(operation))
    }

    /// Whether an operation is finished, on its device too; true for handles nobody knows any more.
    pub fn poll(&self, handle: Handle) -> bool {
        self.handles().get(&handle).is_none_or(|(_, operation)| operation.is_reached())
    }

    /// The outcome of an operation that is over, whose handle is then forgotten; `None` if it is not, or nobody knows it. One that
    /// failed is over once no device uses its tensors.
    pub fn finished(&self, handle: Handle) -> Option<Result<Finished>> {
        let (_, operation) = {
            let mut handles = self.handles();
            let Entry::Occupied(entry) = handles.entry(handle) else { return None };
            let operation = &entry.get().1;
            if !operation.is_done() {
                return None;
            }
            self.spoil(operation);
            if !operation.is_settled() {
                return None;
            }
            entry.remove()
        };
        Some(operation.outcome())
    }

    /// Waits for an operation and forgets its handle. `None`: no such handle. When this returns a failure of the operation, no device
    /// uses its tensors any more.
    pub fn wait(&self, handle: Handle) -> Result<Option<Finished>> {
        let Some((seat, operation)) = self.handles().get(&handle).cloned() else { return Ok(None) };
        seat.wait(&operation)?;
        self.spoil(&operation);
        operation.settle();
        self.handles().remove(&handle);
        operation.outcome().map(Some)
    }

    /// Makes an operation a failed one if a rank is lost before the device is done with it: streams then go on without the lost rank's
    /// part, and the result is worth nothing. Like every failed operation, it is over only when no device uses its tensors.
    fn spoil(&self, operation: &Operation) {
        if let Err(loss) = self.common.fabric.check_loss() {
            operation.spoil(&loss.into());
        }
    }

    /// Tells the other members that this rank found its own arguments for an operation of so many tensors wrong. Several are
    /// a group, whose members the others wait for one by one.
    pub fn submit_fault(
        &self,
        set: u32,
        kind: Kind,
        name: &str,
        tensors: usize,
        message: &str,
    ) -> Result<()> {
        let seat = self.common.seat(set)?;
        let nothing = || Tensor {
            source: std::ptr::null(),
            target: std::ptr::null_mut(),
            capacity: 0,
            shape: Vec::new(),
            dtype: DType::U8,
            stored: None,
            ready: None,
        };
        let what = Submission {
            grouped: tensors > 1,
            fault: Some(message.to_owned()),
            ..Submission::new(kind, name, (0..tensors).map(|_| nothing()).collect())
        };
        seat.submit(Arc::new(Operation::new(what)))
    }

    /// Registers a process set. Collective over all ranks of the job.
    pub fn add_set(&self, ranks: &[usize]) -> Result<u32> {
        if !self.common.settings.dynamic_process_sets {
            return Err(Error::Invalid(
                "process sets can be added after init() only if HOROVOD_DYNAMIC_PROCESS_SETS=1 is set or \
                 init(process_sets=\"dynamic\") was called"
                    .into(),
            ));
        }
        self.register_set(ranks)
    }

    fn register_set(&self, ranks: &[usize]) -> Result<u32> {
        let ranks = self.checked_ranks(ranks)?;
        if let Some((id, _)) = self.common.sets().iter().find(|(_, known)| *known == ranks) {
            return Err(Error::Invalid(format!("ranks {ranks:?} are process set {id} already")));
        }
        let submission = Submission { ranks, ..Submission::new(Kind::AddSet, "process_set.add", Vec::new()) };
        let finished = self.run(WORLD, Operation::new(submission))?;
        finished.set.ok_or_else(|| Error::ShutDown("the process set was not added".into()))
    }

    fn checked_ranks(&self, ranks: &[usize]) -> Result<Vec<usize>> {
        let sorted: BTreeSet<usize> = ranks.iter().copied().collect();
        let size = self.common.place.size;
        if sorted.len() != ranks.len() || sorted.is_empty() || sorted.last().is_some_and(|&last| last >= size)
        {
            return Err(Error::Invalid(format!(
                "a process set needs ranks of this job (0 to {}), each once, not {ranks:?}",
                size - 1
            )));
        }
        Ok(sorted.into_iter().collect())
    }

    /// Removes a process set. Collective over all ranks of the job. `false`: there is no such set to remove.
    pub fn remove_set(&self, id: u32) -> Result<bool> {
        let Some((_, ranks)) = self.common.sets().into_iter().find(|(known, _)| *known == id) else {
            return Ok(false);
        };
        if id == WORLD {
            return Ok(false);
        }
        // Members first end the set at one point of its own order; then everybody forgets it.
        if ranks.contains(&self.common.place.rank) {
            let mut last = Operation::new(Submission::new(Kind::Barrier, "process_set.remove", Vec::new()));
            last.closes_set = true;
            self.run(id, last)?;
        }
        let submission =
            Submission { ranks, ..Submission::new(Kind::RemoveSet, "process_set.remove", Vec::new()) };
        self.run(WORLD, Operation::new(submission))?;
        Ok(true)
    }

    /// All process sets with their ranks.
    pub fn sets(&self) -> Vec<(u32, Vec<usize>)> {
        self.common.sets()
    }

    fn run(&self, set: u32, operation: Operation) -> Result<Finished> {
        let seat = self.common.seat(set)?;
        let operation = Arc::new(operation);
        seat.submit(operation.clone())?;
        seat.wait(&operation)?;
        operation.outcome()
    }

    /// Static sets are compared before the first of them is registered: a different number would leave ranks waiting.
    fn agree_on_static_sets(&self, sets: &[Vec<usize>]) -> Result<()> {
        let mut hasher = DefaultHasher::new();
        sets.hash(&mut hasher);
        let digest = hasher.finish();
        // The digest travels in the place of ranks, which the negotiation compares.
        let submission = Submission {
            ranks: vec![sets.len(), (digest & 0xffff_ffff) as usize, (digest >> 32) as usize],
            ..Submission::new(Kind::Barrier, "process_sets.static", Vec::new())
        };
        self.run(WORLD, Operation::new(submission)).map(drop).map_err(|error| match error {
            Error::Mismatch(_) => Error::Invalid(
                "init(process_sets=…) was called with mismatching process sets on different ranks; every rank must give the same \
                 sets in the same order"
                    .into(),
            ),
            other => other,
        })
    }

    /// From now on process sets whose tensors are in device memory for the first time are served by `executor`.
    pub fn set_executor(&self, executor: Arc<dyn Executor>) {
        self.common.set_executor(executor);
    }

    /// Says how to find an executor where this rank has to take part before it had a tensor in device memory.
    pub fn set_executor_loader(
        &self,
        loader: impl Fn() -> Result<Arc<dyn Executor>> + Send + Sync + 'static,
    ) {
        self.common.set_loader(Box::new(loader));
    }

    /// Tells the other ranks that this one is about to end because of `reason`, so that they fail with it.
    pub fn fail(&self, reason: &str) {
        self.common.fail(reason);
    }

    /// Where a thread may stand by for questions of other ranks about what this one is doing.
    pub fn inquiries(&self) -> Arc<Inquiries> {
        self.common.inquiries.clone()
    }

    /// Answers an inquiry for a set.
    pub fn answer(&self, set: u32, text: &str) {
        if let Ok(seat) = self.common.seat(set) {
            seat.answer(format!("{text}; {}", self.common.inquiries.last_words()));
        }
    }

    /// To be called in a forked child, which shares this job's sockets without being part of it: closes them there, so
    /// that the parent's death stays visible to the other ranks. The engine must not be used in the child afterwards.
    pub fn close_in_forked_child(&self) {
        for socket in self.common.fabric.sockets().into_iter().chain(self.membership.descriptors()) {
            // SAFETY: the descriptors are this process's copies, and nothing in the child uses the job again.
            unsafe { libc::close(socket) };
        }
    }

    /// Writes a trace of what happens from now on. Allowed where `HOROVOD_TIMELINE` was set when the engine started.
    pub fn start_timeline(&self, path: &str, mark_cycles: bool) -> Result<()> {
        if self.common.settings.timeline.is_none() {
            return Err(Error::Invalid(
                "the timeline can be started only if HOROVOD_TIMELINE was set before init(), to a file or to DYNAMIC".into(),
            ));
        }
        let started = self.common.watch.start(path, self.common.place.rank, mark_cycles);
        started.map_err(|error| Error::Invalid(format!("the timeline cannot be written to {path}: {error}")))
    }

    /// Ends the trace, if there is one.
    pub fn stop_timeline(&self) {
        self.common.watch.stop();
    }

    /// Ends everything that is in flight with an error. Threads that wait for it return; nothing can be submitted any more.
    pub fn shut_down(&self) {
        self.common.inquiries.close();
        self.common.leave_all(&Error::ShutDown(
            "Horovod has been shut down on this rank: shutdown() was called, or the script ended, with operations in flight"
                .into(),
        ));
        self.teller.stop();
        self.common.watch.stop();
    }

    fn handles(&self) -> MutexGuard<'_, Handles> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// What this rank can see to be wrong by itself.
fn check(seat: &Seat, submission: &Submission) -> Result<()> {
    let members = seat.members.len();
    let refuse = |text: String| Err(Error::Invalid(text));
    if let Some(tensor) = submission.tensors.iter().find(|tensor| !travels(submission, tensor)) {
        return refuse(format!(
            "{} \"{}\": only an allreduce of floats on a device sends them as another type than they have in memory, and that has \
             to be a narrower one; here it is {}",
            submission.kind, submission.name, tensor.dtype
        ));
    }
    match submission.kind {
        Kind::Broadcast if !seat.includes(submission.root) => refuse(format!(
            "broadcast \"{}\": root rank {} is not in process set {}, whose ranks are {:?}",
            submission.name, submission.root, seat.id, seat.members
        )),
        Kind::Reducescatter if submission.tensors.iter().any(|tensor| tensor.shape.is_empty()) => {
            refuse(format!(
                "reducescatter \"{}\" needs rows to share out, but a tensor has no dimensions",
                submission.name
            ))
        }
        Kind::Alltoall => {
            let rows = submission.tensors.first().map_or(0, crate::operation::Tensor::rows);
            match &submission.splits {
                None if !rows.is_multiple_of(members) => refuse(format!(
                    "alltoall \"{}\": {rows} rows cannot be shared out evenly over {members} ranks; say how with splits",
                    submission.name
                )),
                Some(splits) if splits.len() != members => refuse(format!(
                    "alltoall \"{}\": {} splits for {members} ranks",
                    submission.name,
                    splits.len()
                )),
                Some(splits) if total(splits).is_none_or(|total| total > rows) => refuse(format!(
                    "alltoall \"{}\": splits {splits:?} add up to more than the {rows} rows of the tensor",
                    submission.name
                )),
                _ => Ok(()),
            }
        }
        Kind::Allreduce if submission.op == ReduceOp::Adasum && seat.id != WORLD => refuse(format!(
            "allreduce \"{}\": Adasum works over all ranks, not over process sets",
            submission.name
        )),
        Kind::Join if seat.id != WORLD => refuse("join works over all ranks, not over process sets".into()),
        _ => Ok(()),
    }
}

/// Whether a tensor can travel in the type it is to travel in.
fn travels(submission: &Submission, tensor: &Tensor) -> bool {
    tensor.stored.is_none_or(|stored| {
        submission.kind == Kind::Allreduce
            && submission.device != Device::Host
            && stored.is_float()
            && tensor.dtype.is_float()
            && stored.size() > tensor.dtype.size()
    })
}

/// The sum, if there is such a number.
fn total(splits: &[usize]) -> Option<usize> {
    splits.iter().try_fold(0usize, |sum, &split| sum.checked_add(split))
}
