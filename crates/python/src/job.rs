//! The one job of this process: started, found by every call, and left.
//!
//! A call works on its own reference, so leaving the job never pulls it from under a collective
//! that another thread is still waiting in. A forked child inherits the job's memory but not its
//! threads, and a word from it would reach the other ranks in its parent's name; so it is refused
//! everything.

use std::cell::RefCell;
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use ronde_engine::{Error, Job};

use crate::error;

struct Running {
    job: Arc<Job>,
    process: u32,
}

/// Held for moments only, and never while waiting for the interpreter.
static RUNNING: Mutex<Option<Running>> = Mutex::new(None);
/// Held while joining, which may take long, so that two threads do not join as the same rank.
static JOINING: Mutex<()> = Mutex::new(());

thread_local! {
    /// What a signal handler raised while this thread waited in a collective.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Joins the job that the environment names, or makes one of size 1. Does nothing if that was done
/// before.
#[pyfunction]
pub(crate) fn init(py: Python<'_>) -> PyResult<()> {
    detached(py, || {
        let _joining = locked(&JOINING);
        if locked(&RUNNING).is_none() {
            let job = Arc::new(Job::start(Arc::new(signal_raised))?);
            *locked(&RUNNING) = Some(Running { job, process: process::id() });
        }
        Ok(())
    })?;
    locked(&RUNNING).as_ref().map_or(Ok(()), Running::check_process)
}

/// Leaves the job. Does nothing without one, nor in a forked child, whose parent stays.
#[pyfunction]
pub(crate) fn shutdown(py: Python<'_>) {
    let left = locked(&RUNNING).take();
    if let Some(Running { job, process }) = left {
        if process != process::id() {
            std::mem::forget(job);
        } else if let Some(job) = Arc::into_inner(job) {
            py.detach(|| job.shutdown());
        }
    }
}

/// Run by the interpreter in a forked child: closes the parent's connections there, since one that a child keeps open hides
/// the parent's death from the other ranks.
#[pyfunction]
pub(crate) fn after_fork_in_child() {
    // The lock may have been held by a thread that the child does not have; then the connections stay open.
    let Ok(slot) = RUNNING.try_lock() else { return };
    if let Some(running) = slot.as_ref().filter(|running| running.process != process::id()) {
        running.job.close_in_forked_child();
    }
}

/// Whether this process is in a job.
#[pyfunction]
pub(crate) fn is_initialized() -> bool {
    locked(&RUNNING).as_ref().is_some_and(|running| running.process == process::id())
}

/// Rank, size, local rank, local size, cross rank and cross size.
#[pyfunction]
pub(crate) fn place() -> PyResult<(usize, usize, usize, usize, usize, usize)> {
    let slot = locked(&RUNNING);
    let running = slot.as_ref().ok_or_else(error::place_unknown)?;
    running.check_process()?;
    let place = running.job.place();
    Ok((place.rank, place.size, place.local_rank, place.local_size, place.cross_rank, place.cross_size))
}

/// Rank and size for a collective, which fails without a job as any other of its steps does.
#[pyfunction]
pub(crate) fn rank_and_size() -> PyResult<(usize, usize)> {
    let place = current()?.place();
    Ok((place.rank, place.size))
}

/// Runs a collective of the job without holding up other Python threads.
pub(crate) fn call<T: Send>(
    py: Python<'_>,
    collective: impl FnOnce(&Job) -> Result<T, Error> + Send,
) -> PyResult<T> {
    let job = current()?;
    detached(py, move || collective(&job))
}

fn current() -> PyResult<Arc<Job>> {
    let slot = locked(&RUNNING);
    let running = slot.as_ref().ok_or_else(error::no_job)?;
    running.check_process()?;
    Ok(Arc::clone(&running.job))
}

fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T, Error> + Send) -> PyResult<T> {
    py.detach(work).map_err(|failure| match RAISED.take() {
        Some(raised) => raised,
        None => error::raise(&failure),
    })
}

/// Asked by the engine every now and then while it waits: has a signal handler raised something, as
/// Ctrl-C does?
fn signal_raised() -> bool {
    let raised = Python::try_attach(|py| py.check_signals().err()).flatten();
    let stop = raised.is_some();
    if stop {
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
        if self.process == process::id() { Ok(()) } else { Err(error::forked(self.process)) }
    }
}
