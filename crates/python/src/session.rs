//! The one engine of this process: started, found by every call, and left.
//!
//! A call works on its own reference, so leaving the job never pulls it from under an operation that another thread is still
//! waiting for. A forked child inherits the engine's memory but not its threads, and a word from it would reach the other
//! ranks in its parent's name; so it is refused everything.

use std::cell::{Cell, RefCell};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use ronde_engine::{Engine, Error, Inquiries, Settings};

use crate::{error, gpu};

struct Running {
    engine: Arc<Engine>,
    process: u32,
    /// Forks counted when it began.
    forks: u32,
}

/// Forks between the process that loaded this module and this one. Asking the kernel which process this is would cost as much as
/// submitting an operation.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Has forks counted from now on, in the children.
fn count_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler adds to an atomic number, which is allowed in a forked child. Registering fails only without
        // memory; then children are not told apart, as before they are born.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
    });
}

/// Held for moments only, and never while waiting for the interpreter.
static RUNNING: Mutex<Option<Running>> = Mutex::new(None);
/// Held while joining, which may take long, so that two threads do not join as the same rank.
static JOINING: Mutex<()> = Mutex::new(());
/// How long leaving waits for other threads to let go of the engine.
const LETTING_GO: Duration = Duration::from_secs(10);

thread_local! {
    /// Whether this thread belongs to the interpreter and waits in a call. The engine's own threads never touch it.
    static CALLING: Cell<bool> = const { Cell::new(false) };
    /// What a signal handler raised while this thread waited.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
    /// The engine that a signal handler wants to leave while this thread waits in it.
    static LEAVING: RefCell<Option<Arc<Engine>>> = const { RefCell::new(None) };
}

/// Joins the job that the environment names, or makes one of size 1, with these process sets. Does nothing if that was
/// done before.
#[pyfunction]
#[pyo3(signature = (process_sets=None, dynamic=false))]
pub(crate) fn init(py: Python<'_>, process_sets: Option<Vec<Vec<usize>>>, dynamic: bool) -> PyResult<()> {
    let sets = process_sets.unwrap_or_default();
    let joined = detached(py, || {
        let _joining = locked(&JOINING);
        count_forks();
        if locked(&RUNNING).is_none() {
            let mut settings = Settings::from_environment(|name| std::env::var(name).ok());
            settings.0.dynamic_process_sets |= dynamic;
            let for_gpu = settings.0.clone();
            let engine = Engine::start(Arc::new(signal_raised), settings, &sets)?;
            gpu::serve(&engine, for_gpu);
            let forks = FORKS.load(Ordering::Relaxed);
            *locked(&RUNNING) = Some(Running { engine: Arc::new(engine), process: process::id(), forks });
        }
        Ok(())
    });
    joined.map_err(|raised| error::in_init(py, raised))?;
    locked(&RUNNING).as_ref().map_or(Ok(()), Running::check_process)
}

/// Leaves the job. Does nothing without one, nor in a forked child, whose parent stays. False: it was called by a signal
/// handler in the middle of another call, which now comes to its end and then leaves.
#[pyfunction]
pub(crate) fn shutdown(py: Python<'_>) -> bool {
    let left = locked(&RUNNING).take();
    match left {
        Some(running) if running.is_inherited() => std::mem::forget(running),
        // The interrupted call holds what leaving would wait for.
        Some(Running { engine, .. }) if CALLING.get() => {
            gpu::forget();
            LEAVING.set(Some(engine));
            return false;
        }
        Some(Running { engine, .. }) => {
            gpu::forget();
            py.detach(|| leave(engine));
        }
        None => {}
    }
    true
}

/// Fails what is in flight, which makes threads that wait for it let go, and drops the engine.
fn leave(mut engine: Arc<Engine>) {
    engine.shut_down();
    let deadline = Instant::now() + LETTING_GO;
    while let Err(shared) = Arc::try_unwrap(engine) {
        if Instant::now() > deadline {
            return;
        }
        engine = shared;
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Run by the interpreter in a forked child: closes the parent's connections there, since one that a child keeps open hides
/// the parent's death from the other ranks.
#[pyfunction]
pub(crate) fn after_fork_in_child() {
    // The lock may have been held by a thread that the child does not have; then the connections stay open.
    let Ok(slot) = RUNNING.try_lock() else { return };
    if let Some(running) = slot.as_ref().filter(|running| running.is_inherited()) {
        running.engine.close_in_forked_child();
    }
}

/// Whether this process is in a job.
#[pyfunction]
pub(crate) fn is_initialized() -> bool {
    locked(&RUNNING).as_ref().is_some_and(|running| !running.is_inherited())
}

/// Rank, size, local rank, local size, cross rank and cross size.
#[pyfunction]
pub(crate) fn place() -> PyResult<(usize, usize, usize, usize, usize, usize)> {
    let place = running(error::place_unknown)?.place();
    Ok((place.rank, place.size, place.local_rank, place.local_size, place.cross_rank, place.cross_size))
}

/// Rank and size for a collective, which fails without a job as any other of its steps does.
#[pyfunction]
pub(crate) fn rank_and_size() -> PyResult<(usize, usize)> {
    let place = current()?.place();
    Ok((place.rank, place.size))
}

/// Whether every host has equally many ranks.
#[pyfunction]
pub(crate) fn is_homogeneous() -> PyResult<bool> {
    Ok(running(error::place_unknown)?.is_homogeneous())
}

/// Tells the other ranks that this one is about to end, and why. Does nothing without a job.
#[pyfunction]
pub(crate) fn fail(py: Python<'_>, text: &str) {
    if let Ok(engine) = current() {
        py.detach(|| engine.fail(text));
    }
}

/// Questions of other ranks about what this one is doing, for a thread that stands by to answer them.
#[pyclass(frozen)]
pub(crate) struct Inquiry {
    engine: Arc<Inquiries>,
}

#[pymethods]
impl Inquiry {
    /// Waits for the next question: the process set it is for, or None once the job has been left.
    fn next(&self, py: Python<'_>) -> Option<u32> {
        const LOOK_UP: Duration = Duration::from_secs(3600);
        loop {
            match py.detach(|| self.engine.next(LOOK_UP)) {
                Some(Some(set)) => return Some(set),
                Some(None) => {}
                None => return None,
            }
        }
    }
}

/// Stands by for questions of the other ranks.
#[pyfunction]
pub(crate) fn inquiries() -> PyResult<Inquiry> {
    Ok(Inquiry { engine: current()?.inquiries() })
}

/// Answers a question for a process set.
#[pyfunction]
pub(crate) fn answer_inquiry(py: Python<'_>, process_set: u32, text: &str) {
    if let Ok(engine) = current() {
        py.detach(|| engine.answer(process_set, text));
    }
}

/// Writes a trace of what happens from now on.
#[pyfunction]
pub(crate) fn start_timeline(py: Python<'_>, path: &str, mark_cycles: bool) -> PyResult<()> {
    let engine = running(error::place_unknown)?;
    py.detach(|| engine.start_timeline(path, mark_cycles)).map_err(|failure| error::raise(&failure))
}

/// Ends the trace, if there is one.
#[pyfunction]
pub(crate) fn stop_timeline(py: Python<'_>) -> PyResult<()> {
    let engine = running(error::place_unknown)?;
    py.detach(|| engine.stop_timeline());
    Ok(())
}

/// Runs a call of the engine that may wait, without holding up other Python threads.
pub(crate) fn call<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&Engine) -> Result<T, Error> + Send,
) -> PyResult<T> {
    let engine = current()?;
    detached(py, move || work(&engine))
}

/// The engine, for an operation.
pub(crate) fn current() -> PyResult<Arc<Engine>> {
    running(error::no_job)
}

fn running(missing: impl FnOnce() -> PyErr) -> PyResult<Arc<Engine>> {
    engine().map_err(|absent| match absent {
        Absent::NoJob => missing(),
        Absent::Forked(parent) => error::forked(parent),
    })
}

/// Why there is no engine to call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Absent {
    #[error("{}", error::NO_JOB)]
    NoJob,
    #[error("{}", error::forked_text(*.0))]
    Forked(u32),
}

/// The engine, for threads that know nothing of the interpreter.
pub(crate) fn engine() -> Result<Arc<Engine>, Absent> {
    let slot = locked(&RUNNING);
    let running = slot.as_ref().ok_or(Absent::NoJob)?;
    if running.is_inherited() {
        return Err(Absent::Forked(running.process));
    }
    Ok(Arc::clone(&running.engine))
}

fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T, Error> + Send) -> PyResult<T> {
    let outcome = py.detach(|| {
        // A signal handler that runs while this thread waits may make calls of its own.
        let before = CALLING.replace(true);
        let mut outcome = work();
        CALLING.set(before);
        if let Some(engine) = (!before).then(|| LEAVING.take()).flatten() {
            leave(engine);
            outcome = outcome.map_err(|_| Error::ShutDown("a signal handler called shutdown()".into()));
        }
        outcome
    });
    // What a handler raised must reach the caller even if it was raised too late to end the wait.
    match RAISED.take() {
        Some(raised) => Err(raised),
        None => outcome.map_err(|failure| error::raise(&failure)),
    }
}

/// Asked by the engine every now and then while it waits: has a signal handler raised something, as Ctrl-C does, or left?
fn signal_raised() -> bool {
    if !CALLING.get() {
        return false;
    }
    let raised = Python::try_attach(|py| py.check_signals().err()).flatten();
    let stop = raised.is_some() || LEAVING.with_borrow(Option::is_some);
    if raised.is_some() {
        RAISED.set(raised);
    }
    stop
}

/// Nothing here panics with a lock held, so there is no half-made state to fear.
fn locked<T>(mutex: &'static Mutex<T>) -> MutexGuard<'static, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Running {
    fn check_process(&self) -> PyResult<()> {
        if self.is_inherited() { Err(error::forked(self.process)) } else { Ok(()) }
    }

    /// Whether this process is a child of the one that joined.
    fn is_inherited(&self) -> bool {
        self.forks != FORKS.load(Ordering::Relaxed)
    }
}
