//! Operations in and out, on numbers: addresses, shapes, type and reduction codes.
//!
//! `awaited` says that the caller waits for the operation right away, which spares a change of threads. `stream` says that the
//! tensors are in the memory of the GPU in use, and that they can be read behind what this stream has been given until now.
//! `wire` is the type that such tensors travel in, if it is narrower than theirs.
//!
//! For all of them holds what the `SAFETY` notes lean on: `python/ronde` passes addresses of arrays and tensors that it keeps
//! alive until it has waited for the operation; outputs are fresh or the caller's own to change. Python threads that write
//! to an array while a collective reads it race here as they do in NumPy.

#![expect(clippy::too_many_arguments, reason = "plain numbers cross faster than an object that holds them")]

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ronde_collective::types::ReduceOp;
use ronde_engine::device::Event;
use ronde_engine::{Device, Error, Kind, Submission, Tensor};

use crate::{dtype, error, gpu, session};

/// The reduction that one of Horovod's numbers means.
pub(crate) fn reduction(code: i64) -> PyResult<ReduceOp> {
    u8::try_from(code).ok().and_then(ReduceOp::from_code).ok_or_else(|| {
        let known = ReduceOp::ALL.map(|op| format!("{op:?} ({})", op as u8)).join(", ");
        PyValueError::new_err(format!("op {code} is none of {known}"))
    })
}

/// By what the others know an operation, so that they hear of it where this rank alone cannot start it.
pub(crate) struct Called<'a> {
    pub(crate) process_set: u32,
    pub(crate) kind: Kind,
    pub(crate) name: &'a str,
    pub(crate) tensors: usize,
}

impl Called<'_> {
    /// Tells them why, and raises it here.
    pub(crate) fn failed(&self, failure: &Error) -> PyErr {
        let Called { process_set, kind, name, tensors } = *self;
        if let Ok(engine) = session::current() {
            // If not even that works, this rank has been lost to them before.
            let _ = engine.submit_fault(process_set, kind, name, tensors, &failure.to_string());
        }
        error::raise(failure)
    }
}

/// Where the tensors of an operation are, and since when.
struct Origin {
    device: Device,
    ready: Option<Arc<dyn Event>>,
}

impl Origin {
    /// The GPU may have failed, or the stream may be one that nothing can be waited for in.
    fn of(stream: Option<u64>, process_set: u32, kind: Kind, name: &str, tensors: usize) -> PyResult<Origin> {
        let Some(stream) = stream else { return Ok(Origin { device: Device::Host, ready: None }) };
        let called = Called { process_set, kind, name, tensors };
        let ready = gpu::record(stream).map_err(|failure| called.failed(&failure))?;
        Ok(Origin { device: Device::Gpu, ready: Some(ready) })
    }

    fn tensor(&self, input: usize, output: usize, shape: Vec<u64>, code: u8) -> PyResult<Tensor> {
        Ok(Tensor {
            source: input as *const u8,
            target: output as *mut u8,
            capacity: 0,
            shape,
            dtype: dtype::of_code(code)?,
            stored: None,
            ready: self.ready.clone(),
        })
    }

    fn pairs(&self, given: Vec<Pair>) -> PyResult<Vec<Tensor>> {
        given
            .into_iter()
            .map(|(input, output, shape, dtype)| self.tensor(input, output, shape, dtype))
            .collect()
    }

    /// Tensors that travel in these types, where there is one.
    fn narrowed(&self, given: Vec<Pair>, wires: Vec<Option<u8>>) -> PyResult<Vec<Tensor>> {
        let wires = wires.into_iter().chain(std::iter::repeat(None));
        let tensors = self.pairs(given)?.into_iter().zip(wires);
        tensors.map(|(tensor, wire)| narrowed(tensor, wire)).collect()
    }

    /// A tensor whose result is of a size that only the ranks together know; there may be room that is likely to be right.
    fn growing(&self, input: usize, room: Option<Room>, shape: Vec<u64>, code: u8) -> PyResult<Tensor> {
        let (output, capacity) = room.unwrap_or_default();
        Ok(Tensor { capacity, ..self.tensor(input, output, shape, code)? })
    }
}

/// A tensor that travels in the type of this code, if there is one.
pub(crate) fn narrowed(tensor: Tensor, wire: Option<u8>) -> PyResult<Tensor> {
    Ok(match wire {
        Some(code) => Tensor { dtype: dtype::of_code(code)?, stored: Some(tensor.dtype), ..tensor },
        None => tensor,
    })
}

/// Input, output, shape and type code.
type Pair = (usize, usize, Vec<u64>, u8);
/// Address and bytes.
type Room = (usize, usize);

pub(crate) fn submit(process_set: u32, submission: Submission) -> PyResult<u64> {
    let engine = session::current()?;
    // SAFETY: see the module's text.
    unsafe { engine.submit(process_set, submission) }.map_err(|failure| error::raise(&failure))
}

/// Reduces one tensor over the set; in place where both addresses are one.
#[pyfunction]
#[pyo3(signature = (process_set, name, input, output, shape, dtype, op, prescale, postscale, priority, awaited=false, stream=None, wire=None))]
pub(crate) fn enqueue_allreduce(
    process_set: u32,
    name: &str,
    input: usize,
    output: usize,
    shape: Vec<u64>,
    dtype: u8,
    op: i64,
    prescale: f64,
    postscale: f64,
    priority: i32,
    awaited: bool,
    stream: Option<u64>,
    wire: Option<u8>,
) -> PyResult<u64> {
    let origin = Origin::of(stream, process_set, Kind::Allreduce, name, 1)?;
    let tensor = narrowed(origin.tensor(input, output, shape, dtype)?, wire)?;
    let what = Submission::new(Kind::Allreduce, name, vec![tensor]);
    let (op, device) = (reduction(op)?, origin.device);
    submit(process_set, Submission { op, prescale, postscale, priority, device, awaited, ..what })
}

/// Reduces several tensors as one group. `wires` are the types that they travel in, tensor by tensor, or empty.
#[pyfunction]
#[pyo3(signature = (process_set, name, tensors, op, prescale, postscale, priority, awaited=false, stream=None, wires=Vec::new()))]
pub(crate) fn enqueue_grouped_allreduce(
    process_set: u32,
    name: &str,
    tensors: Vec<Pair>,
    op: i64,
    prescale: f64,
    postscale: f64,
    priority: i32,
    awaited: bool,
    stream: Option<u64>,
    wires: Vec<Option<u8>>,
) -> PyResult<u64> {
    let origin = Origin::of(stream, process_set, Kind::Allreduce, name, tensors.len())?;
    let what = Submission::new(Kind::Allreduce, name, origin.narrowed(tensors, wires)?);
    let (op, device, grouped) = (reduction(op)?, origin.device, true);
    submit(process_set, Submission { op, prescale, postscale, priority, device, grouped, awaited, ..what })
}

/// Joins everybody's tensors along the first dimension. `room` is memory for the results, tensor by tensor, or empty.
#[pyfunction]
#[pyo3(signature = (process_set, name, tensors, grouped, awaited=false, stream=None, room=Vec::new()))]
pub(crate) fn enqueue_allgather(
    process_set: u32,
    name: &str,
    tensors: Vec<(usize, Vec<u64>, u8)>,
    grouped: bool,
    awaited: bool,
    stream: Option<u64>,
    room: Vec<Room>,
) -> PyResult<u64> {
    let origin = Origin::of(stream, process_set, Kind::Allgather, name, tensors.len())?;
    let rooms = room.into_iter().map(Some).chain(std::iter::repeat(None));
    let tensors = tensors
        .into_iter()
        .zip(rooms)
        .map(|((input, shape, dtype), room)| origin.growing(input, room, shape, dtype))
        .collect::<PyResult<_>>()?;
    let what = Submission::new(Kind::Allgather, name, tensors);
    submit(process_set, Submission { grouped, awaited, device: origin.device, ..what })
}

/// Gives everybody the root's elements.
#[pyfunction]
#[pyo3(signature = (process_set, name, input, output, shape, dtype, root_rank, awaited=false, stream=None))]
pub(crate) fn enqueue_broadcast(
    process_set: u32,
    name: &str,
    input: usize,
    output: usize,
    shape: Vec<u64>,
    dtype: u8,
    root_rank: i64,
    awaited: bool,
    stream: Option<u64>,
) -> PyResult<u64> {
    let origin = Origin::of(stream, process_set, Kind::Broadcast, name, 1)?;
    let what = Submission::new(Kind::Broadcast, name, vec![origin.tensor(input, output, shape, dtype)?]);
    let root = usize::try_from(root_rank)
        .map_err(|_| PyValueError::new_err(format!("root_rank {root_rank} is not a rank of this job")))?;
    submit(process_set, Submission { root, awaited, device: origin.device, ..what })
}

/// Sends rows to everybody. `room` is memory for the result.
#[pyfunction]
#[pyo3(signature = (process_set, name, input, shape, dtype, splits, awaited=false, stream=None, room=None))]
pub(crate) fn enqueue_alltoall(
    process_set: u32,
    name: &str,
    input: usize,
    shape: Vec<u64>,
    dtype: u8,
    splits: Option<Vec<usize>>,
    awaited: bool,
    stream: Option<u64>,
    room: Option<Room>,
) -> PyResult<u64> {
    let origin = Origin::of(stream, process_set, Kind::Alltoall, name, 1)?;
    let what = Submission::new(Kind::Alltoall, name, vec![origin.growing(input, room, shape, dtype)?]);
    submit(process_set, Submission { splits, awaited, device: origin.device, ..what })
}

/// Reduces and leaves each member its rows.
#[pyfunction]
#[pyo3(signature = (process_set, name, tensors, op, prescale, postscale, grouped, awaited=false, stream=None))]
pub(crate) fn enqueue_reducescatter(
    process_set: u32,
    name: &str,
    tensors: Vec<Pair>,
    op: i64,
    prescale: f64,
    postscale: f64,
    grouped: bool,
    awaited: bool,
    stream: Option<u64>,
) -> PyResult<u64> {
    let origin = Origin::of(stream, process_set, Kind::Reducescatter, name, tensors.len())?;
    let what = Submission::new(Kind::Reducescatter, name, origin.pairs(tensors)?);
    let (op, device) = (reduction(op)?, origin.device);
    submit(process_set, Submission { op, prescale, postscale, device, grouped, awaited, ..what })
}

/// Ends once every member is there.
#[pyfunction]
#[pyo3(signature = (process_set, name, awaited=false))]
pub(crate) fn enqueue_barrier(process_set: u32, name: &str, awaited: bool) -> PyResult<u64> {
    submit(process_set, Submission { awaited, ..Submission::new(Kind::Barrier, name, Vec::new()) })
}

/// Says that this rank has no more data.
#[pyfunction]
#[pyo3(signature = (name, awaited=false))]
pub(crate) fn enqueue_join(name: &str, awaited: bool) -> PyResult<u64> {
    submit(0, Submission { awaited, ..Submission::new(Kind::Join, name, Vec::new()) })
}

/// Tells the members that this rank found its own arguments wrong.
#[pyfunction]
#[pyo3(signature = (process_set, kind, name, message, tensors=1))]
pub(crate) fn enqueue_fault(
    process_set: u32,
    kind: &str,
    name: &str,
    message: &str,
    tensors: usize,
) -> PyResult<()> {
    let kind = match kind {
        "allreduce" => Kind::Allreduce,
        "allgather" => Kind::Allgather,
        "broadcast" => Kind::Broadcast,
        "alltoall" => Kind::Alltoall,
        "reducescatter" => Kind::Reducescatter,
        other => return Err(PyValueError::new_err(format!("{other} is no collective"))),
    };
    let engine = session::current()?;
    engine.submit_fault(process_set, kind, name, tensors, message).map_err(|failure| error::raise(&failure))
}

/// Whether an operation is finished, on its device too.
#[pyfunction]
pub(crate) fn poll(handle: u64) -> bool {
    session::current().map_or(true, |engine| engine.poll(handle))
}

/// Registers a process set.
#[pyfunction]
pub(crate) fn add_process_set(py: Python<'_>, ranks: Vec<usize>) -> PyResult<u32> {
    session::call(py, move |engine| engine.add_set(&ranks)).map_err(|raised| error::in_init(py, raised))
}

/// Removes a process set.
#[pyfunction]
pub(crate) fn remove_process_set(py: Python<'_>, process_set: u32) -> PyResult<bool> {
    session::call(py, move |engine| engine.remove_set(process_set))
}

/// All process sets with their ranks.
#[pyfunction]
pub(crate) fn process_sets() -> PyResult<Vec<(u32, Vec<usize>)>> {
    Ok(session::current()?.sets())
}
