//! What all process sets of this rank share: the links to the other ranks, the table of sets, settings and observers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use ronde_collective::{Fabric, Interrupt};
use ronde_rendezvous::Place;
use ronde_settings::{Level, Settings};

use crate::device::Executor;
use crate::error::Error;
use crate::inquiry::Inquiries;
use crate::job::Membership;
use crate::negotiation;
use crate::operation::Operation;
use crate::seat::Seat;
use crate::watch::Watch;

/// A process set as this rank knows it.
struct Set {
    ranks: Vec<usize>,
    /// `None` if this rank is not a member.
    seat: Option<Arc<Seat>>,
}

/// See the module's text.
pub(crate) struct Common {
    pub(crate) fabric: Fabric,
    pub(crate) place: Place,
    pub(crate) settings: Settings,
    pub(crate) watch: Watch,
    pub(crate) inquiries: Arc<Inquiries>,
    started: Instant,
    interrupted: Interrupt,
    sets: RwLock<BTreeMap<u32, Set>>,
    /// Sets added so far. All ranks add the same ones in the same order, so it names a set's links on all of them.
    added: AtomicU64,
    executor: Mutex<Option<Arc<dyn Executor>>>,
    loader: OnceLock<Loader>,
    membership: OnceLock<Weak<Membership>>,
    /// Why no process set gets a turn for its work on devices any more.
    pub(crate) turns_end: OnceLock<Error>,
}

/// Finds the device of a rank that has not named one by a tensor: one that has joined takes part without data.
pub(crate) type Loader = Box<dyn Fn() -> Result<Arc<dyn Executor>, Error> + Send + Sync>;

/// The set of all ranks.
pub(crate) const WORLD: u32 = 0;

impl Common {
    pub(crate) fn new(
        fabric: Fabric,
        place: Place,
        settings: Settings,
        interrupted: Interrupt,
    ) -> Arc<Common> {
        Arc::new(Common {
            fabric,
            place,
            settings,
            watch: Watch::default(),
            inquiries: Arc::default(),
            started: Instant::now(),
            interrupted,
            sets: RwLock::default(),
            added: AtomicU64::new(0),
            executor: Mutex::new(None),
            loader: OnceLock::new(),
            membership: OnceLock::new(),
            turns_end: OnceLock::new(),
        })
    }

    /// Time since the engine started, the clock of all its decisions.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// A moment on that clock.
    pub(crate) fn since_start(&self, moment: Instant) -> Duration {
        moment.saturating_duration_since(self.started)
    }

    pub(crate) fn interrupted(&self) -> bool {
        (self.interrupted)()
    }

    pub(crate) fn negotiation(&self) -> negotiation::Settings {
        // What is fused with what depends on who is when ready, and between hosts the order of additions depends on that.
        let threshold = if self.settings.deterministic { 0 } else { self.settings.fusion_threshold };
        negotiation::Settings {
            fusion_threshold: negotiation::rounded_threshold(
                threshold,
                self.place.local_size,
                self.is_homogeneous(),
            ),
            cache_capacity: self.settings.cache_capacity,
            disable_group_fusion: self.settings.disable_group_fusion,
            stall_warning: self.settings.stall_warning,
            stall_shutdown: self.settings.stall_shutdown,
        }
    }

    /// Whether every host has as many ranks as this one.
    pub(crate) fn is_homogeneous(&self) -> bool {
        self.fabric.hosts().iter().all(|host| host.len() == self.fabric.hosts()[0].len())
    }

    /// Enters a set and, as a member, takes the seat in it. Every rank of the job does this in the same order.
    pub(crate) fn open_set(self: &Arc<Common>, id: u32, ranks: &[usize]) -> Result<(), Error> {
        let number = self.added.fetch_add(1, Ordering::Relaxed);
        let member = ranks.contains(&self.place.rank);
        let seat = member.then(|| Seat::take(self, id, number, ranks)).transpose()?;
        self.sets_mut().insert(id, Set { ranks: ranks.to_vec(), seat });
        Ok(())
    }

    /// Forgets a set, whose members have ended it in order.
    pub(crate) fn close_set(&self, id: u32) {
        let set = self.sets_mut().remove(&id);
        if let Some(seat) = set.and_then(|set| set.seat) {
            seat.leave(&self.removed(id));
        }
    }

    /// The seat of this rank in a set, or why it has none.
    pub(crate) fn seat(&self, id: u32) -> Result<Arc<Seat>, Error> {
        let sets = self.sets.read().unwrap_or_else(PoisonError::into_inner);
        let set = sets.get(&id).ok_or_else(|| {
            Error::Invalid(format!("there is no process set {id}: it was never added, or has been removed"))
        })?;
        set.seat.clone().ok_or_else(|| {
            Error::Invalid(format!(
                "rank {} is not in process set {id}, whose ranks are {:?}; only they may use it",
                self.place.rank, set.ranks
            ))
        })
    }

    /// All seats of this rank.
    pub(crate) fn seats(&self) -> Vec<Arc<Seat>> {
        let sets = self.sets.read().unwrap_or_else(PoisonError::into_inner);
        sets.values().filter_map(|set| set.seat.clone()).collect()
    }

    /// All sets with their ranks.
    pub(crate) fn sets(&self) -> Vec<(u32, Vec<usize>)> {
        let sets = self.sets.read().unwrap_or_else(PoisonError::into_inner);
        sets.iter().map(|(&id, set)| (id, set.ranks.clone())).collect()
    }

    /// Ends all sets; the one of all ranks last, because it may be adding another.
    pub(crate) fn leave_all(&self, error: &Error) {
        let world = self.seat(WORLD).ok();
        if let Some(world) = world {
            world.leave(error);
        }
        let sets = std::mem::take(&mut *self.sets_mut());
        for seat in sets.into_values().filter_map(|set| set.seat) {
            seat.leave(error);
        }
    }

    fn sets_mut(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<u32, Set>> {
        self.sets.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why a set that was removed takes nothing more.
    pub(crate) fn removed(&self, id: u32) -> Error {
        Error::Invalid(format!("process set {id} was removed"))
    }

    /// Why nothing goes on after a rank has left in order.
    pub(crate) fn departed(&self, rank: usize) -> Error {
        if let Some(loss) = self.fabric.loss_soon() {
            return loss.into();
        }
        let host = self.fabric.host_of(rank);
        Error::ShutDown(format!(
            "rank {rank} on {host} has left the job (it called shutdown() or its script ended) while this rank \
             still waits for it; every rank has to take part in every collective, or say join() when it has no more data"
        ))
    }

    pub(crate) fn set_executor(&self, executor: Arc<dyn Executor>) {
        *self.executor_slot() = Some(executor);
    }

    /// Names what tells the ranks of other hosts and the launcher of this one's failure.
    pub(crate) fn set_membership(&self, membership: &Arc<Membership>) {
        let _ = self.membership.set(Arc::downgrade(membership));
    }

    /// Tells the other ranks that this one can take no further part, and why, so that they fail with that reason.
    pub(crate) fn fail(&self, reason: &str) {
        // The rendezvous first: it tells the launcher who failed first, and neighbours may end at once.
        if let Some(membership) = self.membership.get().and_then(Weak::upgrade) {
            membership.fail(reason);
        }
        self.fabric.fail(reason);
    }

    /// The first one stays.
    pub(crate) fn set_loader(&self, loader: Loader) {
        let _ = self.loader.set(loader);
    }

    pub(crate) fn executor(&self) -> Result<Arc<dyn Executor>, Error> {
        if let Some(executor) = &*self.executor_slot() {
            return Ok(executor.clone());
        }
        let loader = self.loader.get().ok_or_else(|| {
            Error::Invalid("the tensors are in the memory of a device for which nothing is loaded".into())
        })?;
        let executor = loader()?;
        self.set_executor(executor.clone());
        Ok(executor)
    }

    fn executor_slot(&self) -> MutexGuard<'_, Option<Arc<dyn Executor>>> {
        self.executor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An operation is put in flight.
    pub(crate) fn submitted(&self, operation: &Operation, now: Instant) {
        self.inquiries.saw(&operation.what.name, now);
        self.watch.submitted(operation);
    }

    pub(crate) fn warn(&self, text: &str) {
        ronde_settings::log(Level::Warning, text);
    }

    /// Keeps the calling thread on the core that HOROVOD_THREAD_AFFINITY names for this rank.
    pub(crate) fn pin_thread(&self) {
        if let Some(&core) = self.settings.thread_affinity.get(self.place.local_rank) {
            let mut cores = rustix::thread::CpuSet::new();
            if core < rustix::thread::CpuSet::MAX_CPU {
                cores.set(core);
            }
            if let Err(error) = rustix::thread::sched_setaffinity(None, &cores) {
                self.warn(&format!(
                    "HOROVOD_THREAD_AFFINITY: this thread cannot run on core {core}: {error}"
                ));
            }
        }
    }
}
