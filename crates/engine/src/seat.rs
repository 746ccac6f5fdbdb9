//! This rank's seat in one process set: negotiates, and carries out what was decided.
//!
//! A seat has a thread of its own, so sets never wait for each other. What decides and moves bytes (the [`Core`]) is behind a
//! lock that any thread may hold:
//!
//! * A submitter never waits for it. It leaves the operation in the inbox and, if the core is free, also announces it to
//!   the other ranks. If that makes something ready, it rings for the seat's thread. In a storm of operations only every
//!   so many are announced, all at once, and the thread lets them pile up for at most `HOROVOD_CYCLE_TIME`.
//! * A caller that waits takes the core if it is free and does the thread's work itself: a lone blocking call negotiates and
//!   reduces where it is called, without a change of threads. After a bounded time without news it lets go and sleeps.
//! * The thread does what nobody else does, and sleeps on a bell that peers ring only while this rank has something pending.
//!
//! Whoever lets go of the core looks at the inbox once more afterwards, since a submitter that found the core taken relies
//! on it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ronde_collective::{Bell, Group, Sleeper, Tree};

use crate::common::{Common, WORLD};
use crate::device::Worker;
use crate::error::Error;
use crate::execute::{self, Entry};
use crate::inbox::Inbox;
use crate::negotiation::{Batch, Decision, Device, Item, Negotiator, Request, Ticket, Topology};
use crate::operation::Operation;
use crate::tickets::Tickets;
use crate::turns::Turns;

/// How long a waiting caller looks for news before it sleeps. Falling asleep and being woken costs about as much.
const SPIN: Duration = Duration::from_micros(50);
/// A waiting caller looks up this often to see whether it should stop waiting (Ctrl-C).
const LOOK_UP: Duration = Duration::from_millis(100);

/// The thread's first sleep, where it has found the core taken before it could ask when something is due.
const FIRST_SLEEP: Duration = Duration::from_secs(1);

/// Operations that follow each other faster than this come in a storm.
const STORM: Duration = Duration::from_micros(20);
/// In a storm so many operations are announced together, which costs little more than announcing one.
const ANNOUNCED_TOGETHER: usize = 32;
/// So many announced one by one come first: the few that a layer of a network gives are wanted early.
const ANNOUNCED_ALONE: usize = 8;
/// What Horovod's default means; longer cycle times, which scripts set to save polling, would only add latency here. Devices
/// compute meanwhile, and each batch disturbs that, so there they are taken at their word.
const LONGEST_PILING: Duration = Duration::from_millis(1);

/// How long after a member has left something that needed it may still complete.
const FAREWELL: Duration = Duration::from_millis(500);

/// See the module's text.
pub(crate) struct Seat {
    pub(crate) id: u32,
    /// Ranks of the job, ascending.
    pub(crate) members: Vec<usize>,
    pub(crate) common: Arc<Common>,
    pub(crate) turns: Turns,
    inbox: Inbox,
    /// Whether somebody who found the core taken has left something to look at: an operation in the inbox, a frame, a turn.
    fresh: AtomicBool,
    core: Mutex<Core>,
    bell: Bell,
    /// When an operation was last submitted, on the clock of all decisions, in nanoseconds.
    last_submitted: AtomicU64,
    /// How many operations of the storm that blows have been submitted, the first not counted.
    stormed: AtomicUsize,
    /// How much later, in nanoseconds, the thread was rung to come; 0 since it has looked.
    piling: AtomicU64,
    /// Callers that wait for an operation.
    waiting: AtomicUsize,
    stop: AtomicBool,
    spin: Duration,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What negotiates and moves bytes.
struct Core {
    negotiator: Negotiator,
    tree: Tree,
    group: Group,
    /// Runs batches of tensors on a device, once there was one.
    worker: Option<Box<dyn Worker>>,
    tickets: Tickets,
    /// The next decision, which is to be carried out once it is no longer [early](Seat::is_early).
    held: Option<Decision>,
    /// Since when this rank waits although a member has left.
    missing_since: Option<Duration>,
}

impl Seat {
    /// Takes this rank's seat. Collective over the members; `number` is used for no other set of the job.
    pub(crate) fn take(
        common: &Arc<Common>,
        id: u32,
        number: u64,
        members: &[usize],
    ) -> Result<Arc<Seat>, Error> {
        let (tree, sleeper, bell) = common.fabric.control(number, members)?;
        let mut group = common.fabric.group(number, members)?;
        if id == WORLD {
            common.watch.compare_clocks(&mut group)?;
        }
        let topology = Topology {
            me: group.rank(),
            members: members.to_vec(),
            hosts: tree.hosts().to_vec(),
            host_names: members.iter().map(|&rank| common.fabric.host_of(rank)).collect(),
        };
        let neighbours = tree.hosts().iter().find(|host| host.contains(&group.rank())).map_or(1, Vec::len);
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let negotiator = Negotiator::new(topology, common.negotiation());
        let seat = Arc::new(Seat {
            id,
            members: members.to_vec(),
            common: common.clone(),
            turns: Turns::new(id, members, common.place.rank),
            inbox: Inbox::default(),
            fresh: AtomicBool::new(false),
            core: Mutex::new(Core {
                negotiator,
                tree,
                group,
                worker: None,
                tickets: Tickets::default(),
                held: None,
                missing_since: None,
            }),
            bell,
            last_submitted: AtomicU64::new(0),
            stormed: AtomicUsize::new(0),
            piling: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            spin: if neighbours > cores { Duration::ZERO } else { SPIN },
            thread: Mutex::new(None),
        });
        let thread = {
            let seat = seat.clone();
            std::thread::Builder::new()
                .name(format!("ronde-set-{id}"))
                .spawn(move || seat.attend(&sleeper))
                .map_err(|error| Error::Invalid(format!("starting a thread: {error}")))?
        };
        *locked(&seat.thread) = Some(thread);
        Ok(seat)
    }

    /// Whether this rank is a member.
    pub(crate) fn includes(&self, rank: usize) -> bool {
        self.members.binary_search(&rank).is_ok()
    }

    /// Puts an operation in flight. Never waits for other ranks.
    pub(crate) fn submit(&self, operation: Arc<Operation>) -> Result<(), Error> {
        let now = Instant::now();
        let awaited = operation.what.awaited;
        let on_device = operation.what.device != Device::Host;
        let queued = self.inbox.put(operation, |operation| self.common.submitted(operation, now))?;
        self.fresh.store(true, Ordering::SeqCst);
        let stormed = self.stormed(now);
        if awaited {
            // Whoever waits right away announces it then, without asking peers to ring for the thread in between.
        } else if (on_device || stormed > ANNOUNCED_ALONE && queued < ANNOUNCED_TOGETHER)
            && self.waiting.load(Ordering::Relaxed) == 0
        {
            // More are about to follow; if none do, the thread announces this one. A device is given its work without a wait
            // for the end, so nothing would pile up behind a batch there, and each tensor would be one.
            self.pile_up(on_device);
        } else {
            self.stir(stormed > 0);
        }
        Ok(())
    }

    /// Announces what lies in the inbox, if nobody else is about to. While it `storms`, what that makes ready may pile up.
    fn stir(&self, storms: bool) {
        loop {
            // Against the holder's unlocking and then looking at `fresh`: one of both sees the other.
            fence(Ordering::SeqCst);
            if !self.fresh.load(Ordering::SeqCst) {
                return;
            }
            let Some(mut core) = self.try_core() else { return };
            let outcome = self.settle(&mut core);
            if storms && matches!(outcome, Ok(true)) {
                core.tree.attend(false);
                drop(core);
                self.pile_up(false);
            } else {
                self.let_go(core, outcome);
            }
        }
    }

    /// Something was left to look at: has whoever holds the core, or else the thread, see what can be done now.
    pub(crate) fn nudge(&self) {
        self.fresh.store(true, Ordering::SeqCst);
        self.bell.ring();
    }

    /// Something was left to tell other ranks: does that here, if nobody else is about to.
    pub(crate) fn speak_up(&self) {
        self.fresh.store(true, Ordering::SeqCst);
        self.stir(false);
    }

    /// How many operations were submitted just before this one, each on the heels of the last; more are likely to come.
    fn stormed(&self, now: Instant) -> usize {
        let now = self.common.since_start(now).as_nanos() as u64;
        let last = self.last_submitted.swap(now, Ordering::Relaxed);
        if now.saturating_sub(last) < STORM.as_nanos() as u64 {
            self.stormed.fetch_add(1, Ordering::Relaxed) + 1
        } else {
            self.stormed.store(0, Ordering::Relaxed);
            0
        }
    }

    /// Has the thread come a little later, unless it is about to anyway. Whoever waits meanwhile does not wait for it.
    fn pile_up(&self, on_device: bool) {
        let time = self.common.settings.cycle_time;
        let time = if on_device { time } else { time.min(LONGEST_PILING) };
        if self.piling.swap(time.as_nanos().max(1) as u64, Ordering::SeqCst) == 0 {
            self.bell.ring();
        }
    }

    /// Hands the core to whoever is next: the thread, if there is something to do. It is rung for after the lock is free, since
    /// it goes back to sleep if it finds the core taken.
    fn let_go(&self, mut core: MutexGuard<'_, Core>, outcome: Result<bool, Error>) {
        match outcome {
            Ok(true) => {
                drop(core);
                self.bell.ring();
            }
            Ok(false) => {}
            Err(error) => self.close(&mut core, &error),
        }
    }

    /// Waits until an operation of this set is finished.
    pub(crate) fn wait(&self, operation: &Operation) -> Result<(), Error> {
        if operation.is_done() {
            return Ok(());
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let outcome = self.wait_long(operation);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        outcome
    }

    fn wait_long(&self, operation: &Operation) -> Result<(), Error> {
        loop {
            if operation.is_done() {
                return Ok(());
            }
            if let Some(mut core) = self.try_core() {
                let outcome = self.drive(&mut core, operation);
                self.let_go(core, outcome);
                self.stir(false);
            } else {
                self.look(operation);
            }
            if operation.is_done() {
                return Ok(());
            }
            operation.sleep(LOOK_UP);
            if !operation.is_done() && self.common.interrupted() {
                return Err(Error::Interrupted);
            }
        }
    }

    /// Somebody else works for this caller: looks for its end for a moment.
    fn look(&self, operation: &Operation) {
        let start = Instant::now();
        while start.elapsed() < self.spin && !operation.is_done() {
            for _ in 0..64 {
                std::hint::spin_loop();
            }
        }
    }

    /// Works until `operation` is finished or there has been no news for a while. Returns whether there is more to do.
    fn drive(&self, core: &mut Core, operation: &Operation) -> Result<bool, Error> {
        core.tree.attend(false);
        let mut quiet: Option<Instant> = None;
        while !operation.is_done() {
            if self.step(core)? {
                quiet = None;
            } else if quiet.get_or_insert_with(Instant::now).elapsed() < self.spin {
                std::hint::spin_loop();
            } else if self.settle(core)? {
                quiet = None;
            } else {
                return Ok(false);
            }
        }
        self.settle(core)
    }

    /// The seat's thread. Where it finds the core taken, whoever holds it rings again if something is left to do.
    fn attend(&self, sleeper: &Sleeper) {
        self.common.pin_thread();
        let mut limit = Some(FIRST_SLEEP);
        let mut is_held = false;
        while !self.stop.load(Ordering::SeqCst) && !self.is_closed() {
            let piling = self.piling.load(Ordering::SeqCst);
            if piling > 0 && self.waiting.load(Ordering::Relaxed) == 0 {
                std::thread::sleep(Duration::from_nanos(piling));
            }
            // Before the look, so that whoever comes after it rings again.
            self.piling.store(0, Ordering::SeqCst);
            // A wire goes on waking its sleeper until it is read, so there the thread waits for its turn.
            let core = if sleeper.has_wires() { Some(locked(&self.core)) } else { self.knock() };
            if let Some(mut core) = core {
                match self.work(&mut core) {
                    Ok(until) => limit = until,
                    Err(error) => return self.close(&mut core, &error),
                }
                is_held = core.held.is_some();
                drop(core);
                fence(Ordering::SeqCst);
                if self.fresh.load(Ordering::SeqCst) {
                    continue;
                }
            }
            if let Err(error) = if is_held { sleeper.sleep_on_bell(limit) } else { sleeper.sleep(limit) } {
                let mut core = locked(&self.core);
                // What was decided before the loss may still be complete.
                let error = self.work(&mut core).map_or_else(|error| error, |_| Error::from(error));
                return self.close(&mut core, &error);
            }
        }
    }

    /// Takes the core, or has its holder look for news once more: it may be past its last look, and the ring that woke
    /// this thread is used up.
    fn knock(&self) -> Option<MutexGuard<'_, Core>> {
        self.try_core().or_else(|| {
            self.fresh.store(true, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            self.try_core()
        })
    }

    /// Does everything there is to do; returns for how long there is nothing more.
    fn work(&self, core: &mut Core) -> Result<Option<Duration>, Error> {
        loop {
            while self.step(core)? {}
            if !self.settle(core)? {
                if core.held.is_some() {
                    return Ok(None);
                }
                let tick = core.negotiator.next_tick();
                let farewell = core.missing_since.map(|since| since + FAREWELL);
                let due = [tick, farewell].into_iter().flatten().min();
                return Ok(due.map(|due| due.saturating_sub(self.common.now())));
            }
        }
    }

    /// One turn: takes in what has come, decides, and carries out. Returns whether anything happened.
    fn step(&self, core: &mut Core) -> Result<bool, Error> {
        let taken = self.take_in(core);
        let mut sent = Ok(());
        if core.held.is_none() {
            core.negotiator.advance(self.common.now());
            self.ask_for_turns(core.negotiator.device_batches());
            sent = self.flush(core).and_then(|()| self.pass_on(core));
        }
        let mut moved = matches!(taken, Ok(true));
        while let Some(decision) = core.held.take().or_else(|| core.negotiator.next()) {
            if self.is_early(&decision)? {
                core.held = Some(decision);
                break;
            }
            moved = true;
            self.carry_out(core, decision)?;
        }
        sent?;
        taken?;
        self.miss(core, moved)?;
        Ok(moved)
    }

    /// Gives up on a member that has left the job while this rank waits. Not at once: what the member took part in to its end may
    /// still be on its way here from others.
    fn miss(&self, core: &mut Core, moved: bool) -> Result<(), Error> {
        let gone = core.tree.left().filter(|_| !moved && self.awaits_others(core));
        let Some(gone) = gone else {
            core.missing_since = None;
            return Ok(());
        };
        let now = self.common.now();
        if now.saturating_sub(*core.missing_since.get_or_insert(now)) < FAREWELL {
            return Ok(());
        }
        Err(self.common.departed(self.members[gone]))
    }

    /// Whether this rank waits for other ranks.
    fn awaits_others(&self, core: &Core) -> bool {
        core.held.is_none() && (!core.negotiator.is_idle() || self.owes_turns())
    }

    /// Announces and listens without deciding, and sets whether peers have to ring. Returns whether there is something to do.
    fn settle(&self, core: &mut Core) -> Result<bool, Error> {
        loop {
            let taken = self.take_in(core);
            self.flush(core)?;
            taken?;
            if let Some(decision) = &core.held {
                return self.is_early(decision).map(|is_early| !is_early);
            }
            if core.negotiator.is_due(self.common.now()) {
                return Ok(true);
            }
            core.tree.attend(core.tree.parent().is_some() || core.negotiator.wants_children());
            if !core.tree.has_news() && !self.fresh.load(Ordering::SeqCst) {
                // The thread has to count the time that a member is missing.
                let is_missed = core.tree.left().is_some() && self.awaits_others(core);
                return Ok(is_missed && core.missing_since.is_none());
            }
        }
    }

    /// Hands the negotiation what was submitted here and what came from others.
    fn take_in(&self, core: &mut Core) -> Result<bool, Error> {
        let mut moved = false;
        if self.fresh.swap(false, Ordering::SeqCst) {
            let now = self.common.now();
            for operation in self.inbox.take() {
                moved = true;
                let requests: Vec<(Request, Ticket)> = operation
                    .requests()
                    .enumerate()
                    .map(|(index, request)| (request, core.tickets.issue((operation.clone(), index))))
                    .collect();
                if let Err(refused) = core.negotiator.submit_all(now, requests) {
                    core.tickets.take_back(&operation);
                    self.refuse(&operation, &Error::Invalid(refused.to_string()));
                }
            }
            moved |= self.turns.pass_on(now, &mut core.negotiator)?;
        }
        if core.negotiator.has_decided() || core.held.is_some() {
            // Carried out first: others may be running it already, and take in nothing new until this rank joins them.
            return Ok(moved);
        }
        let mut garbled = None;
        let negotiator = &mut core.negotiator;
        let now = self.common.now();
        moved |= core.tree.pump(|from, frame| {
            if let Err(error) = negotiator.receive(now, from, frame) {
                garbled = Some(error);
            }
        })?;
        core.negotiator.listen(self.common.watch.is_on());
        for (name, position) in core.negotiator.take_heard() {
            self.common.watch.heard(name, self.members[position]);
        }
        match garbled {
            Some(error) => Err(Error::ShutDown(error.to_string())),
            None => Ok(moved),
        }
    }

    fn flush(&self, core: &mut Core) -> Result<(), Error> {
        while let Some((to, frame)) = core.negotiator.outgoing() {
            core.tree.send(to, &frame)?;
        }
        if core.negotiator.urges_parent()
            && let Some(parent) = core.tree.parent()
        {
            core.tree.wake(parent);
        }
        Ok(())
    }

    /// Sees to it that those below this rank have all of what was decided before this rank begins to carry it out, and so
    /// stops passing on: it may be more than a pipe takes at once.
    fn pass_on(&self, core: &mut Core) -> Result<(), Error> {
        while core.negotiator.has_decided() && core.tree.owes_children() {
            if let Some(gone) = core.tree.left() {
                return Err(self.common.departed(self.members[gone]));
            }
            core.tree.push()?;
            std::thread::yield_now();
        }
        Ok(())
    }

    fn carry_out(&self, core: &mut Core, decision: Decision) -> Result<(), Error> {
        match decision {
            Decision::Run(batch) => {
                self.run(core, &batch)?;
                self.has_started(&batch);
            }
            // It is no longer early: the batch was started, or this rank has none to start.
            Decision::Turn { .. } => {}
            Decision::Fail { tickets, text } => {
                let error = Error::Mismatch(text);
                for ticket in tickets {
                    self.end(core, ticket, Some(&error));
                }
            }
            Decision::Done { ticket } => {
                let closes = self.end(core, ticket, None);
                if closes {
                    return Err(self.common.removed(self.id));
                }
            }
            Decision::Joined { ticket, last } => {
                if let Some((operation, _)) = core.tickets.redeem(ticket) {
                    operation.record(|finished| finished.last_joined = Some(last));
                    self.inbox.forget(operation.names());
                    operation.end_item(None);
                }
            }
            Decision::AddSet { ticket, ranks, id } => {
                let added = self.common.open_set(id, &ranks);
                if let Some((operation, _)) = core.tickets.redeem(ticket) {
                    operation.record(|finished| finished.set = Some(id));
                    self.inbox.forget(operation.names());
                    operation.end_item(added.as_ref().err());
                }
                added?;
            }
            Decision::RemoveSet { ticket, id } => {
                self.common.close_set(id);
                self.end(core, ticket, None);
            }
            Decision::Stalled(report) => self.common.warn(&report.to_string()),
            Decision::Note(text) => self.common.warn(&text),
            Decision::Inquire => {
                if let Some(answer) = self.common.inquiries.ask(self.id) {
                    core.negotiator.answer(self.common.now(), answer);
                    self.flush(core)?;
                }
            }
            Decision::ShutDown { text } => return Err(Error::ShutDown(text)),
        }
        Ok(())
    }

    fn run(&self, core: &mut Core, batch: &Batch) -> Result<(), Error> {
        let entries: Vec<Entry> = batch
            .items
            .iter()
            .map(|item: &Item| item.ticket.and_then(|ticket| core.tickets.redeem(ticket)))
            .collect();
        self.common.watch.running(batch);
        core.group.set_eager(self.waiting.load(Ordering::Relaxed) > 0);
        let outcome = match batch.device {
            Device::Host => execute::run(&mut core.group, batch, &entries),
            Device::Gpu => self.start(core, batch, &entries),
        };
        match &outcome {
            Ok(()) | Err(Error::Invalid(_)) => {}
            // This rank, or its device, failed; the others must not wait for it.
            Err(Error::Collective(error)) => core.group.abandon(error),
            Err(error) => {
                core.group.abandon(&ronde_collective::Error::Invalid(error.to_string()));
                if let (Error::ShutDown(reason), Device::Gpu) = (error, batch.device) {
                    // Some may be past the batch already, and wait for the next.
                    self.common.fail(reason);
                }
            }
        }
        self.common.watch.ran(batch, &entries);
        let failure = outcome.as_ref().err();
        self.inbox
            .forget(entries.iter().flatten().filter_map(|(operation, index)| operation.names().get(*index)));
        for (operation, _) in entries.iter().flatten() {
            operation.end_item(failure);
        }
        match outcome {
            // What this reduction or type cannot do, it could on no rank; the members are still level.
            Err(Error::Invalid(_)) | Ok(()) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn start(&self, core: &mut Core, batch: &Batch, entries: &[Entry]) -> Result<(), Error> {
        let Core { worker, group, .. } = core;
        let worker = match worker {
            Some(worker) => worker,
            vacant => vacant.insert(self.open_device(group)?),
        };
        execute::start(worker.as_mut(), group, batch, entries)
    }

    /// Prepares this rank's device for the set. Where one rank has none (it may have joined, and never had a tensor there), all
    /// fail alike.
    fn open_device(&self, group: &mut Group) -> Result<Box<dyn Worker>, Error> {
        let executor = self.common.executor();
        let have = group.gather_small(&[u8::from(executor.is_ok())])?;
        let executor = executor?;
        match have.iter().position(|have| have == &[0]) {
            None => executor.open(group),
            Some(without) => Err(Error::Invalid(format!(
                "rank {} has no device that it could use for these tensors, which are in the memory of one",
                self.members[without]
            ))),
        }
    }

    /// Ends one item; tells whether its operation closes the set.
    fn end(&self, core: &mut Core, ticket: u64, failure: Option<&Error>) -> bool {
        let Some((operation, index)) = core.tickets.redeem(ticket) else { return false };
        self.common.watch.decided(&operation, index);
        self.inbox.forget(operation.names().get(index));
        operation.end_item(failure);
        operation.closes_set
    }

    fn refuse(&self, operation: &Operation, error: &Error) {
        self.inbox.forget(operation.names());
        operation.fail(error);
    }

    /// Passes on what this rank is doing, for the stall report that asked.
    pub(crate) fn answer(&self, text: String) {
        let mut core = locked(&self.core);
        core.negotiator.answer(self.common.now(), text);
        let outcome = self.settle(&mut core);
        self.let_go(core, outcome);
        self.stir(false);
    }

    /// From now on everything fails with `error`, what is in flight included.
    fn close(&self, core: &mut Core, error: &Error) {
        let waiting = self.inbox.close(error);
        for operation in core.tickets.redeem_all().into_iter().map(|holder| holder.0).chain(waiting) {
            operation.fail(error);
        }
        self.end_turns(error);
        self.bell.ring();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.inbox.is_closed()
    }

    /// Ends the thread and fails what is in flight.
    pub(crate) fn leave(&self, error: &Error) {
        self.stop.store(true, Ordering::SeqCst);
        self.bell.ring();
        let thread = locked(&self.thread).take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            // A thread that panicked has said so on standard error.
            let _ = thread.join();
        }
        let mut core = locked(&self.core);
        self.close(&mut core, error);
        // While it is still told of losses: it waits for its device, which may wait for those of others.
        core.worker = None;
    }

    fn try_core(&self) -> Option<MutexGuard<'_, Core>> {
        match self.core.try_lock() {
            Ok(core) => Some(core),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// A panic with a lock held is a bug; what it left behind is refused or failed, never trusted.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
