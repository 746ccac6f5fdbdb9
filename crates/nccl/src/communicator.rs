//! This rank's place in one communicator, from the first handshake to its end.
//!
//! Every communicator is non-blocking: NCCL answers "in progress" and is asked again until it is done, for as long as
//! the caller's `check` finds that the other ranks live and nobody pressed Ctrl-C. So a lost rank never leaves anybody
//! inside NCCL.
//!
//! NCCL's functions must not run at the same time for one communicator, and giving it up frees it. So there are turns:
//! a call holds the turn while it is inside NCCL, which is short; giving up waits for the turn, and everybody who comes
//! later finds the reason instead of the communicator. Those who start something also wait until what was started before
//! is no longer in progress, as NCCL wants it. The end of a communicator waits for a while and then gives it up.

use std::ffi::c_int;
use std::fmt::Display;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Who};
use crate::functions::{Code, Config, Functions, Handle, IN_PROGRESS, SUCCESS, UniqueId};
use crate::library::Library;

/// How long the end of a communicator waits for the other ranks, and giving up for a call that is inside NCCL.
const PATIENCE: Duration = Duration::from_secs(5);

/// Pauses between two looks at NCCL: the first ones let others run, later ones sleep, each a little longer.
const QUICK_LOOKS: u32 = 64;
const SHORTEST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// See the module's text.
pub struct Communicator {
    library: &'static Library,
    who: Who,
    rank: usize,
    size: usize,
    pub(crate) patience: Duration,
    state: Mutex<State>,
    free: Condvar,
}

struct State {
    /// `None` once it is given up.
    handle: Option<Alive>,
    /// Somebody is inside NCCL with it.
    taken: bool,
    /// Somebody has started something that may still be in progress.
    starting: bool,
    /// Why nobody may use it any more.
    failure: Option<Error>,
}

/// A communicator of NCCL that has not been freed.
#[derive(Clone, Copy)]
struct Alive(Handle);

// SAFETY: NCCL allows calls for a communicator from any thread, one at a time, which turns see to.
unsafe impl Send for Alive {}

impl Communicator {
    /// Takes this rank's place among `size` ranks that all call this with the same id. The right device's context must
    /// be current. Returns when all ranks are there; if `check` fails before, the communicator is given up.
    pub fn new<E: From<Error> + Display>(
        library: &'static Library,
        id: &UniqueId,
        rank: usize,
        size: usize,
        who: Who,
        check: &dyn Fn() -> Result<(), E>,
    ) -> Result<Communicator, E> {
        const WHAT: &str = "ncclCommInitRankConfig";
        let number = |value: usize| c_int::try_from(value).unwrap_or(c_int::MAX);
        let mut handle: Handle = std::ptr::null_mut();
        let mut config = Config::non_blocking();
        // SAFETY: handle and configuration are written and read during the call only.
        let code = unsafe {
            (library.functions.init_rank)(&raw mut handle, number(size), *id, number(rank), &raw mut config)
        };
        if handle.is_null() {
            return Err(library.failure(WHAT, &who, code, handle).into());
        }
        let state = State { handle: Some(Alive(handle)), taken: false, starting: false, failure: None };
        let communicator = Communicator {
            library,
            who,
            rank,
            size,
            patience: PATIENCE,
            state: Mutex::new(state),
            free: Condvar::new(),
        };
        communicator.settle(WHAT, code, check)?;
        Ok(communicator)
    }

    /// This rank's number in the communicator.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks it has.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Asks NCCL whether something failed in its own threads or on the device. Meant for whoever waits for a stream
    /// with NCCL's work on it. A failure gives the communicator up, which ends that work.
    pub fn health(&self) -> Result<(), Error> {
        match self.progress()? {
            SUCCESS | IN_PROGRESS => Ok(()),
            code => Err(self.fail("a collective of NCCL", code)),
        }
    }

    /// Gives the communicator up, from any thread, as often as one likes: work of NCCL on the device ends, and every
    /// later call fails with this reason unless there was one before.
    pub fn abort(&self, reason: &str) {
        let error = Error::Aborted { who: self.who.clone(), reason: reason.into() };
        self.lock().failure.get_or_insert(error);
        self.give_up();
    }

    /// Waits until NCCL has done what it answered `code` to. Any failure gives the communicator up.
    pub(crate) fn settle<E: From<Error> + Display>(
        &self,
        what: &str,
        mut code: Code,
        check: &dyn Fn() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut looks = 0_u32;
        loop {
            match code {
                SUCCESS => return Ok(()),
                IN_PROGRESS => {}
                code => return Err(self.fail(what, code).into()),
            }
            if let Err(error) = check() {
                self.abort(&error.to_string());
                return Err(error);
            }
            pause(looks);
            looks = looks.saturating_add(1);
            code = self.progress()?;
        }
    }

    /// The right to start something, once what others have started is no longer in progress; or the reason why nobody
    /// may.
    pub(crate) fn start(&self) -> Result<Start<'_>, Error> {
        let waits = |state: &mut State| state.starting && state.failure.is_none();
        let mut state = self.free.wait_while(self.lock(), waits).unwrap_or_else(PoisonError::into_inner);
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        state.starting = true;
        Ok(Start { communicator: self })
    }

    /// How far NCCL is: a code, which may be that of a failure.
    fn progress(&self) -> Result<Code, Error> {
        let turn = self.turn()?;
        let mut state = SUCCESS;
        // SAFETY: the handle is alive while the turn is held; one code is written.
        let asked = unsafe { (turn.functions().async_error)(turn.handle(), &raw mut state) };
        Ok(if asked == SUCCESS { state } else { asked })
    }

    /// Remembers a failure, unless there was one before, and gives the communicator up. Returns the first failure.
    fn fail(&self, what: &str, code: Code) -> Error {
        let said = match self.turn() {
            Ok(turn) => self.library.failure(what, &self.who, code, turn.handle()),
            Err(earlier) => return earlier,
        };
        let first = self.lock().failure.get_or_insert(said).clone();
        self.give_up();
        first
    }

    /// The right to be inside NCCL with this communicator, or the reason why nobody may be.
    pub(crate) fn turn(&self) -> Result<Turn<'_>, Error> {
        let waits = |state: &mut State| state.taken && state.failure.is_none();
        let mut state = self.free.wait_while(self.lock(), waits).unwrap_or_else(PoisonError::into_inner);
        match (&state.failure, state.handle) {
            (None, Some(Alive(handle))) => {
                state.taken = true;
                Ok(Turn { communicator: self, handle })
            }
            (Some(failure), _) => Err(failure.clone()),
            (None, None) => Err(Error::Aborted { who: self.who.clone(), reason: "it has ended".into() }),
        }
    }

    /// Frees the communicator, once. A call that is inside NCCL is waited for, though not for ever: one that is stuck
    /// there is just what NCCL's abort is for.
    fn give_up(&self) {
        // Those who wait for their turn learn the reason now, not after the call that is inside.
        self.free.notify_all();
        let (mut state, _) = self
            .free
            .wait_timeout_while(self.lock(), self.patience, |state| state.taken && state.handle.is_some())
            .unwrap_or_else(PoisonError::into_inner);
        let handle = state.handle.take();
        drop(state);
        self.free.notify_all();
        if let Some(Alive(handle)) = handle {
            // SAFETY: alive until now, and nobody gets at it any more. Its answer changes nothing: it is gone.
            unsafe { (self.library.functions.abort)(handle) };
        }
    }

    /// The end in order: NCCL finishes what is under way, then frees. `false` if that did not happen in time.
    fn finish(&self) -> bool {
        let Ok(turn) = self.turn() else { return false };
        // SAFETY: alive while the turn is held.
        let mut code = unsafe { (turn.functions().finalize)(turn.handle()) };
        drop(turn);
        let begin = Instant::now();
        let mut looks = 0_u32;
        while code == IN_PROGRESS && begin.elapsed() < self.patience {
            pause(looks);
            looks = looks.saturating_add(1);
            let Ok(now) = self.progress() else { return false };
            code = now;
        }
        if code != SUCCESS {
            return false;
        }
        if let Some(Alive(handle)) = self.lock().handle.take() {
            // SAFETY: alive until now, finalized, and nobody gets at it any more.
            unsafe { (self.library.functions.destroy)(handle) };
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if !self.finish() {
            self.give_up();
        }
    }
}

/// The right to start something with a communicator, until it is no longer in progress.
pub(crate) struct Start<'a> {
    communicator: &'a Communicator,
}

impl Drop for Start<'_> {
    fn drop(&mut self) {
        self.communicator.lock().starting = false;
        self.communicator.free.notify_all();
    }
}

/// The right to be inside NCCL with a communicator.
pub(crate) struct Turn<'a> {
    communicator: &'a Communicator,
    handle: Handle,
}

impl Turn<'_> {
    /// Alive for as long as the turn is held.
    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    pub(crate) fn functions(&self) -> &'static Functions {
        &self.communicator.library.functions
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.communicator.lock().taken = false;
        self.communicator.free.notify_all();
    }
}

/// Lets others run before the next look.
fn pause(looks: u32) {
    if looks < QUICK_LOOKS {
        std::thread::yield_now();
    } else {
        let longer = SHORTEST_PAUSE * (looks - QUICK_LOOKS + 1);
        std::thread::sleep(longer.min(LONGEST_PAUSE));
    }
}
