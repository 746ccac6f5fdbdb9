//! The collectives, on numbers: addresses, counts, type and reduction codes. Each lets go of the
//! interpreter.
//!
//! For all of them holds what the `SAFETY` notes lean on: `python/ronde` passes addresses that
//! [`crate::describe`] (or a tensor itself) gave for arrays which it keeps alive until the call
//! returns; outputs are fresh or the caller's own to change. Python threads that write to an array
//! while a collective reads it race here as they do in NumPy.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ronde_collective::types::ReduceOp;
use ronde_engine::Job;

use crate::memory::Elements;
use crate::{dtype, job};

/// The reduction that one of Horovod's numbers means.
fn reduction(code: i64) -> PyResult<ReduceOp> {
    u8::try_from(code).ok().and_then(ReduceOp::from_code).ok_or_else(|| {
        let known = ReduceOp::ALL.map(|op| format!("{op:?} ({})", op as u8)).join(", ");
        PyValueError::new_err(format!("op {code} is none of {known}"))
    })
}

/// Reduces `count` elements over all ranks; in place where both addresses are one.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "plain numbers cross faster than an object that holds them")]
pub(crate) fn allreduce(
    py: Python<'_>,
    input: usize,
    output: usize,
    count: usize,
    dtype: u8,
    op: i64,
    prescale: f64,
    postscale: f64,
) -> PyResult<()> {
    let (dtype, op) = (dtype::of_code(dtype)?, reduction(op)?);
    let (input, output) = (Elements::new(input, count, dtype), Elements::new(output, count, dtype));
    job::call(py, move |job| {
        // SAFETY: see above; the same memory is never taken twice.
        let (input, output) = unsafe { ((!input.is_same_as(output)).then(|| input.read()), output.write()) };
        job.allreduce(input, output, dtype, op, prescale, postscale)
    })
}

/// How many rows each rank brings to an allgather, after checking that their rows are alike.
#[pyfunction]
pub(crate) fn gather_counts(
    py: Python<'_>,
    dtype: u8,
    row_elements: usize,
    rows: usize,
) -> PyResult<Vec<usize>> {
    let dtype = dtype::of_code(dtype)?;
    job::call(py, move |job| job.gather_counts(dtype, row_elements * dtype.size(), rows))
}

/// Joins the `counts[rank]` elements of every rank, in the order of ranks.
#[pyfunction]
pub(crate) fn allgather(
    py: Python<'_>,
    input: usize,
    output: usize,
    dtype: u8,
    counts: Vec<usize>,
    rank: usize,
) -> PyResult<()> {
    let dtype = dtype::of_code(dtype)?;
    let input = Elements::new(input, counts[rank], dtype);
    let output = Elements::new(output, counts.iter().sum(), dtype);
    let bytes: Vec<usize> = counts.iter().map(|count| count * dtype.size()).collect();
    job::call(py, move |job| {
        // SAFETY: see above; the output is fresh.
        let (input, output) = unsafe { (input.read(), output.write()) };
        job.allgather(input, &bytes, output)
    })
}

/// Gives every rank the root's `count` elements; in place where both addresses are one.
#[pyfunction]
pub(crate) fn broadcast(
    py: Python<'_>,
    input: usize,
    output: usize,
    count: usize,
    dtype: u8,
    root: usize,
) -> PyResult<()> {
    let dtype = dtype::of_code(dtype)?;
    let (input, output) = (Elements::new(input, count, dtype), Elements::new(output, count, dtype));
    job::call(py, move |job| {
        // SAFETY: see above; the output is fresh or the caller's own to change.
        let buffer = unsafe { output.write() };
        if job.place().rank == root && !input.is_same_as(output) {
            // SAFETY: see above; the output is other memory.
            buffer.copy_from_slice(unsafe { input.read() });
        }
        job.broadcast(buffer, dtype, root)
    })
}

/// Reduces over all ranks and leaves `rows[rank]` rows of the result with each.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "plain numbers cross faster than an object that holds them")]
pub(crate) fn reducescatter(
    py: Python<'_>,
    input: usize,
    output: usize,
    dtype: u8,
    rows: Vec<usize>,
    rank: usize,
    row_elements: usize,
    op: i64,
    prescale: f64,
    postscale: f64,
) -> PyResult<()> {
    let (dtype, op) = (dtype::of_code(dtype)?, reduction(op)?);
    let input = Elements::new(input, rows.iter().sum::<usize>() * row_elements, dtype);
    let output = Elements::new(output, rows[rank] * row_elements, dtype);
    job::call(py, move |job| {
        // SAFETY: see above; the output is fresh.
        let (input, output) = unsafe { (input.read(), output.write()) };
        job.reducescatter(input, output, &rows, row_elements, dtype, op, prescale, postscale)
    })
}

/// How many rows come from each rank in an alltoall that sends `splits[rank]` rows to each.
#[pyfunction]
pub(crate) fn alltoall_counts(
    py: Python<'_>,
    dtype: u8,
    row_elements: usize,
    splits: Vec<usize>,
) -> PyResult<Vec<usize>> {
    let dtype = dtype::of_code(dtype)?;
    job::call(py, move |job| job.alltoall_counts(dtype, row_elements * dtype.size(), &splits))
}

/// Sends `sent[rank]` elements to each rank and takes `received[rank]` from each.
#[pyfunction]
pub(crate) fn alltoall(
    py: Python<'_>,
    input: usize,
    output: usize,
    dtype: u8,
    sent: Vec<usize>,
    received: Vec<usize>,
) -> PyResult<()> {
    let dtype = dtype::of_code(dtype)?;
    let input = Elements::new(input, sent.iter().sum(), dtype);
    let output = Elements::new(output, received.iter().sum(), dtype);
    let in_bytes =
        |counts: Vec<usize>| counts.into_iter().map(|count| count * dtype.size()).collect::<Vec<_>>();
    let (sent, received) = (in_bytes(sent), in_bytes(received));
    job::call(py, move |job| {
        // SAFETY: see above; the output is fresh.
        let (input, output) = unsafe { (input.read(), output.write()) };
        job.alltoall(input, &sent, output, &received)
    })
}

/// Waits for all ranks.
#[pyfunction]
pub(crate) fn barrier(py: Python<'_>) -> PyResult<()> {
    job::call(py, Job::barrier)
}
