//! The GPU of this process, and the framework's streams around it.
//!
//! A rank works with one GPU: that of the first tensor it brings from one. The front moves tensors of other GPUs there and
//! back. A rank that has to take part before it brought a tensor, since it has joined, is given one by [`serve`]'s loader. The
//! GPU belongs to the engine that it was opened for: [`forget`] lets go of it when that is left.
//!
//! What work comes before an operation, and what comes after it, is known by streams. The front of the framework says once
//! how to ask for its current one ([`use_streams`]); [`record`] and [`follow`] are the two ends of an operation.

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use ronde_engine::device::{Event, Executor};
use ronde_engine::{Engine, Error, Settings};
use ronde_gpu::Gpu;

use crate::exchange::Exchange;
use crate::{error, session};

struct Use {
    /// Those of the engine, if there is one.
    settings: Option<Settings>,
    gpu: Option<Arc<Gpu>>,
}

/// Held while a GPU is opened, and never by somebody who waits for the interpreter.
static IN_USE: Mutex<Use> = Mutex::new(Use { settings: None, gpu: None });
/// The GPU to use if no tensor says so.
static NAMED: AtomicI32 = AtomicI32::new(NOBODY);
const NOBODY: i32 = -1;

fn in_use() -> MutexGuard<'static, Use> {
    // A panic while opening leaves nothing behind.
    IN_USE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The GPU, if one is in use.
pub(crate) fn current() -> Option<Arc<Gpu>> {
    in_use().gpu.clone()
}

/// Has the engine find a GPU where it must take part in others' operations before there was a tensor on one.
pub(crate) fn serve(engine: &Engine, settings: Settings) {
    let local_rank = engine.place().local_rank;
    in_use().settings = Some(settings);
    engine.set_executor_loader(move || {
        let gpu = open(|| match NAMED.load(Ordering::Relaxed) {
            NOBODY => default_ordinal(local_rank),
            named => Ok(named),
        })?;
        Ok(gpu as Arc<dyn Executor>)
    });
}

/// The usual way to share GPUs out: by the rank's number on its host.
fn default_ordinal(local_rank: usize) -> Result<i32, Error> {
    let count = ronde_cuda::Device::count()
        .map_err(|error| Error::Invalid(format!("this rank has to take part with a GPU: {error}")))?;
    Ok((local_rank % count.max(1)) as i32)
}

/// The GPU in use, or the one that `ordinal` names from now on.
fn open(ordinal: impl FnOnce() -> Result<i32, Error>) -> Result<Arc<Gpu>, Error> {
    let mut now = in_use();
    if let Some(gpu) = &now.gpu {
        return Ok(gpu.clone());
    }
    let settings = now.settings.as_ref().ok_or_else(|| Error::ShutDown(error::NO_JOB.into()))?;
    let gpu = Gpu::open(ordinal()?, settings)?;
    now.gpu = Some(gpu.clone());
    Ok(gpu)
}

/// Lets go of the GPU, when the engine is left.
pub(crate) fn forget() {
    NAMED.store(NOBODY, Ordering::Relaxed);
    let left = std::mem::replace(&mut *in_use(), Use { settings: None, gpu: None });
    drop(left);
}

/// Brings a tensor's GPU into use, unless another is; returns the number of the one in use.
#[pyfunction]
pub(crate) fn use_gpu(py: Python<'_>, ordinal: i32) -> PyResult<i32> {
    if let Some(gpu) = current() {
        return Ok(gpu.ordinal());
    }
    session::call(py, move |engine| {
        let gpu = open(|| Ok(ordinal))?;
        engine.set_executor(gpu.clone());
        Ok(gpu.ordinal())
    })
}

/// Names the GPU to take if this rank has to take part without a tensor on one.
#[pyfunction]
pub(crate) fn prefer_gpu(ordinal: i32) {
    NAMED.store(ordinal, Ordering::Relaxed);
}

/// What the framework's front says about its streams.
struct Streams {
    exchange: Option<Exchange>,
    /// Takes the number of a GPU and returns its current stream.
    current: Py<PyAny>,
    /// Tells the framework's allocator that the current stream uses tensors of another one.
    lend: Py<PyAny>,
}

static STREAMS: PyOnceLock<Streams> = PyOnceLock::new();

/// Says how to ask a framework, whose tensors are of a class `tensor`, for its current stream, and how to tell it that a
/// tensor is used by the current stream. The first one to say so stays.
#[pyfunction]
pub(crate) fn use_streams(tensor: &Bound<'_, PyAny>, current: Py<PyAny>, lend: Py<PyAny>) {
    let streams = Streams { exchange: Exchange::of(tensor), current, lend };
    let _ = STREAMS.set(tensor.py(), streams);
}

/// The stream that the framework works on now, on the GPU in use.
#[pyfunction]
pub(crate) fn current_stream(py: Python<'_>) -> PyResult<u64> {
    stream_on(py, current().ok_or_else(error::no_job)?.ordinal())
}

/// The same, for a GPU whose number is known already.
pub(crate) fn stream_on(py: Python<'_>, ordinal: i32) -> PyResult<u64> {
    let streams =
        STREAMS.get(py).ok_or_else(|| PyRuntimeError::new_err("no framework has named its streams"))?;
    match streams.exchange.as_ref().and_then(|exchange| exchange.current_stream(py, ordinal)) {
        Some(stream) => Ok(stream),
        None => streams.current.call1(py, (ordinal,))?.extract(py),
    }
}

/// The point that the work of a stream has come to, behind which an operation may read what that work wrote.
pub(crate) fn record(stream: u64) -> Result<Arc<dyn Event>, Error> {
    current().ok_or_else(|| Error::ShutDown(error::NO_JOB.into()))?.record(stream)
}

/// Has the framework's current stream go on behind these points; the host does not wait. Returns that stream.
pub(crate) fn follow(py: Python<'_>, events: &[Arc<dyn Event>]) -> PyResult<u64> {
    let stream = current_stream(py)?;
    for event in events {
        event.order(stream).map_err(|text| error::on_device(&text))?;
    }
    Ok(stream)
}

/// Tells the framework's allocator that the current stream uses the tensors among these objects.
pub(crate) fn lend(py: Python<'_>, objects: [Option<&Py<PyAny>>; 2]) -> PyResult<()> {
    if let Some(streams) = STREAMS.get(py) {
        streams.lend.call1(py, (objects[0], objects[1]))?;
    }
    Ok(())
}

/// Whether CUDA is there: whether its driver can be opened.
#[pyfunction]
pub(crate) fn cuda_available() -> bool {
    ronde_cuda::version().is_ok()
}

/// The version of NCCL, as NCCL writes it in one number; 0 if there is none that can be used.
#[pyfunction]
pub(crate) fn nccl_version() -> i32 {
    let settings = Settings::from_environment(|name| std::env::var(name).ok()).0;
    let named = settings.nccl_library.as_ref().map(|path| path.to_string_lossy());
    ronde_nccl::Library::open(named.as_deref()).map_or(0, |library| library.version().0)
}
