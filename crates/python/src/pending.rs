//! Operations that were started for a front and are not over: the tensors they keep in memory, and what they will return.
//!
//! The engine works on addresses, so the tensors of an operation must stay alive until it has ended, whatever the caller
//! does with them. They are held here, under the number the engine gave, until [`synchronize`]. A thousand small operations
//! under way at once are bound by the interpreter; so this is no dictionary of tuples, through which its collector would
//! look again and again.
//!
//! On a GPU an operation has ended, for the host, once it was given to the device: [`synchronize`] has the framework's current
//! stream wait for the rest. Whatever that stream is given from then on comes behind the operation, also what uses the memory
//! of a tensor that goes now: a framework's allocator gives it to the stream again that it was for. That is the one the tensors
//! came with; only where it is not the current one, the allocator has to be told that this one uses them too.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use ronde_engine::{Handle, QuickState};

use crate::{gpu, operations, outcome};

struct Pending {
    /// What to return, or to make it of.
    result: Py<PyAny>,
    /// Makes the value to return of the result and what the engine answers; without it the result is that value.
    finish: Option<Py<PyAny>>,
    /// What else has to stay alive.
    kept: Option<Py<PyAny>>,
    /// The stream that the tensors came with, on a GPU.
    stream: Option<u64>,
}

type Table = HashMap<Handle, Pending, QuickState>;

/// Held for moments only, in which nothing of Python runs: also what leaves the table is dropped outside.
static PENDING: Mutex<Table> = Mutex::new(HashMap::with_hasher(QuickState::new()));

fn table() -> MutexGuard<'static, Table> {
    // Nothing panics with the lock held.
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take(handle: Handle) -> Option<Pending> {
    table().remove(&handle)
}

/// Holds a tensor until its operation has ended; it is the result as well.
pub(crate) fn keep_tensor(handle: Handle, tensor: Py<PyAny>, stream: Option<u64>) {
    insert(handle, Pending { result: tensor, finish: None, kept: None, stream });
}

fn insert(handle: Handle, pending: Pending) {
    // A number is used again only by another job, to which the old one means nothing.
    let replaced = table().insert(handle, pending);
    drop(replaced);
}

/// Hold the tensors of an operation until it has ended, and return its handle.
///
/// ``finish(result, answer)`` makes the value that ``synchronize`` returns; without it that is ``result`` itself.
#[pyfunction]
#[pyo3(signature = (handle, result, finish, tensors, stream=None))]
pub(crate) fn keep(
    handle: Handle,
    result: Py<PyAny>,
    finish: Option<Py<PyAny>>,
    tensors: Option<Py<PyAny>>,
    stream: Option<u64>,
) -> Handle {
    insert(handle, Pending { result, finish, kept: tensors, stream });
    handle
}

/// The handles of all operations that nobody has waited for yet.
#[pyfunction]
pub(crate) fn pending() -> Vec<Handle> {
    let mut handles: Vec<Handle> = table().keys().copied().collect();
    handles.sort_unstable();
    handles
}

/// Wait until an operation has ended and return its result; ``None`` for a handle that is not known.
///
/// On a GPU the current stream waits, not the caller: the result can be used as any other that is still being computed.
///
/// Raises ``HorovodInternalError`` if the operation failed, on this rank or on another.
#[pyfunction]
pub(crate) fn synchronize(py: Python<'_>, handle: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    match handle.extract() {
        Ok(handle) => result_of(py, handle),
        Err(_) => Ok(py.None()),
    }
}

/// Wait until several operations have ended and return their results; if some fail, raise the first error once all have ended.
#[pyfunction]
pub(crate) fn synchronize_all(py: Python<'_>, handles: &Bound<'_, PyAny>) -> PyResult<Vec<Py<PyAny>>> {
    let (mut results, mut failure) = (Vec::new(), None);
    for handle in handles.try_iter()? {
        match synchronize(py, &handle?) {
            Ok(result) => results.push(result),
            // What interrupts a program is not to wait any longer.
            Err(error) if !error.is_instance_of::<PyException>(py) => return Err(error),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    failure.map_or(Ok(results), Err)
}

fn result_of(py: Python<'_>, handle: Handle) -> PyResult<Py<PyAny>> {
    if !table().contains_key(&handle) {
        return Ok(py.None());
    }
    let finished = outcome::finished(py, handle).inspect_err(|_| {
        // Whatever a signal handler raised, an operation that goes on still needs its tensors.
        if operations::poll(handle) {
            drop(take(handle));
        }
    })?;
    // Another thread that waited for the same handle has the result.
    let Some(Pending { result, finish, kept, stream }) = take(handle) else { return Ok(py.None()) };
    let mut current = None;
    if !finished.events.is_empty() {
        current = Some(gpu::follow(py, &finished.events)?);
        if current != stream {
            gpu::lend(py, [Some(&result), kept.as_ref()])?;
        }
    }
    match finish {
        None => Ok(result),
        Some(finish) => finish.call1(py, (result, outcome::answer(py, finished, current)?)),
    }
}
