//! Carries out a batch that all members of a process set have agreed on.
//!
//! Host memory goes straight to the data plane: packing a fused batch is its copy into the shared segment. What ranks may
//! bring in different amounts (rows of an allgather, splits of an alltoall) is exchanged here, in one small meeting a batch.

use std::sync::Arc;

use ronde_collective::types::ReduceOp;
use ronde_collective::{GatherPart, Group, Part, Reduction, ScatterPart, rows_of};

use crate::buffer::Buffer;
use crate::device::{Input, Worker};
use crate::error::Error;
use crate::negotiation::{Batch, Kind};
use crate::operation::{Memory, Operation, Rows, Tensor};

/// The operation behind an item of a batch, and which of its tensors it is; `None` where this rank has joined.
pub(crate) type Entry = Option<(Arc<Operation>, usize)>;

fn tensor(entry: &Entry) -> Option<&Tensor> {
    entry.as_ref().and_then(|(operation, index)| operation.what.tensors.get(*index))
}

/// Runs a batch of tensors in host memory to its end.
pub(crate) fn run(group: &mut Group, batch: &Batch, entries: &[Entry]) -> Result<(), Error> {
    for event in entries.iter().filter_map(|entry| tensor(entry)?.ready.as_ref()) {
        // Only this rank's device failed, so the members are no longer level.
        event.wait().map_err(Error::ShutDown)?;
    }
    let how =
        Reduction { dtype: batch.dtype, op: batch.op, prescale: batch.prescale, postscale: batch.postscale };
    match batch.kind {
        Kind::Allreduce => allreduce(group, batch, entries, &how),
        Kind::Reducescatter => reducescatter(group, entries, &how),
        Kind::Allgather => allgather(group, entries),
        Kind::Broadcast => broadcast(group, batch, entries),
        Kind::Alltoall => alltoall(group, entries),
        Kind::Barrier | Kind::Join | Kind::AddSet | Kind::RemoveSet => Ok(()),
    }
}

/// Starts a batch of tensors on a device; its end is an event that is recorded with its operations.
pub(crate) fn start(
    worker: &mut dyn Worker,
    group: &mut Group,
    batch: &Batch,
    entries: &[Entry],
) -> Result<(), Error> {
    let items: Vec<Option<Input<'_>>> = entries
        .iter()
        .map(|entry| {
            let splits = entry.as_ref().and_then(|(operation, _)| operation.what.splits.as_deref());
            tensor(entry).map(|tensor| Input { tensor, splits })
        })
        .collect();
    let started = worker.run(group, batch, &items)?;
    let rows = started.rows.into_iter().chain(std::iter::repeat_with(|| None));
    for (entry, rows) in entries.iter().zip(rows) {
        let Some((operation, index)) = entry else { continue };
        operation.started(started.event.clone());
        operation.record(|finished| {
            finished.received.clone_from(&started.received);
            if let Some(slot) = finished.rows.get_mut(*index) {
                *slot = rows;
            }
        });
    }
    Ok(())
}

fn allreduce(group: &mut Group, batch: &Batch, entries: &[Entry], how: &Reduction) -> Result<(), Error> {
    let parts: Vec<Part> = entries
        .iter()
        .zip(&batch.items)
        .map(|(entry, item)| match tensor(entry) {
            Some(tensor) => Part { source: tensor.source, target: tensor.target, len: tensor.bytes() },
            None => Part {
                source: std::ptr::null(),
                target: std::ptr::null_mut(),
                len: item.shape.iter().product::<u64>() as usize * batch.dtype.size(),
            },
        })
        .collect();
    // SAFETY: submitters keep their memory valid and to themselves until the operation is finished, and the members have
    // agreed on the lengths.
    Ok(unsafe { group.allreduce_parts(&parts, how) }?)
}

fn reducescatter(group: &mut Group, entries: &[Entry], how: &Reduction) -> Result<(), Error> {
    if !matches!(how.op, ReduceOp::Sum | ReduceOp::Average) {
        return Err(Error::Invalid(format!("reducescatter knows Sum and Average, not {}", how.op)));
    }
    let members = group.size();
    let parts: Vec<ScatterPart> = entries
        .iter()
        .filter_map(tensor)
        .map(|tensor| ScatterPart {
            source: tensor.source,
            target: tensor.target,
            lengths: rows_of(tensor.rows(), members)
                .into_iter()
                .map(|rows| rows * tensor.row_elements())
                .collect(),
        })
        .collect();
    // SAFETY: as in `allreduce`; a target holds this member's rows.
    Ok(unsafe { group.reducescatter_parts(&parts, how) }?)
}

fn allgather(group: &mut Group, entries: &[Entry]) -> Result<(), Error> {
    let tensors: Vec<&Tensor> = entries.iter().filter_map(tensor).collect();
    let rows = group.gather_numbers(&tensors.iter().map(|tensor| tensor.rows()).collect::<Vec<_>>())?;
    let mut results = Vec::with_capacity(tensors.len());
    let mut parts = Vec::with_capacity(tensors.len());
    for (index, tensor) in tensors.iter().enumerate() {
        let row_bytes = tensor.row_elements() * tensor.dtype.size();
        let lengths: Vec<usize> = rows.iter().map(|rows| rows[index] * row_bytes).collect();
        let buffer = Buffer::new(lengths.iter().sum());
        let mut shape = tensor.shape.clone();
        shape[0] = rows.iter().map(|rows| rows[index] as u64).sum();
        parts.push(GatherPart { source: tensor.source, target: buffer.as_ptr(), lengths });
        results.push(Rows { memory: Memory::Host(buffer), shape });
    }
    // SAFETY: as in `allreduce`; the buffers hold what all bring together.
    unsafe { group.allgather_parts(&parts) }?;
    for ((operation, index), rows) in entries.iter().flatten().zip(results) {
        operation.record(|finished| finished.rows[*index] = Some(rows));
    }
    Ok(())
}

fn broadcast(group: &mut Group, batch: &Batch, entries: &[Entry]) -> Result<(), Error> {
    for tensor in entries.iter().filter_map(tensor) {
        let len = tensor.bytes();
        if len == 0 {
            continue;
        }
        let root = group
            .members()
            .iter()
            .position(|&rank| rank == batch.root as usize)
            .ok_or_else(|| Error::Invalid(format!("rank {} is not in this process set", batch.root)))?;
        if root == group.rank() && tensor.source != tensor.target.cast_const() {
            // SAFETY: the submitter's input and output are that long and lie apart.
            unsafe { std::ptr::copy_nonoverlapping(tensor.source, tensor.target, len) };
        }
        // SAFETY: the output is the submitter's to give until the operation is finished.
        let buffer = unsafe { std::slice::from_raw_parts_mut(tensor.target, len) };
        group.broadcast(buffer, root)?;
    }
    Ok(())
}

fn alltoall(group: &mut Group, entries: &[Entry]) -> Result<(), Error> {
    for entry in entries.iter().flatten() {
        let (operation, index) = entry;
        let Some(tensor) = operation.what.tensors.get(*index) else { continue };
        let even = || vec![tensor.rows() / group.size(); group.size()];
        let sent = operation.what.splits.clone().unwrap_or_else(even);
        let me = group.rank();
        let received: Vec<usize> =
            group.gather_numbers(&sent)?.iter().map(|row| row.get(me).copied().unwrap_or(0)).collect();
        let row_bytes = tensor.row_elements() * tensor.dtype.size();
        let bytes = |rows: &[usize]| rows.iter().map(|rows| rows * row_bytes).collect::<Vec<_>>();
        let buffer = Buffer::new(received.iter().sum::<usize>() * row_bytes);
        let sent_bytes = bytes(&sent);
        // SAFETY: as in `allreduce`; the splits were checked against the rows before they were submitted.
        let (input, output) = unsafe {
            (
                std::slice::from_raw_parts(non_null(tensor.source), sent_bytes.iter().sum()),
                std::slice::from_raw_parts_mut(buffer.as_ptr(), buffer.len()),
            )
        };
        group.alltoall(input, &sent_bytes, output, &bytes(&received))?;
        let mut shape = tensor.shape.clone();
        shape[0] = received.iter().sum::<usize>() as u64;
        operation.record(|finished| {
            finished.rows[*index] = Some(Rows { memory: Memory::Host(buffer), shape });
            finished.received = received;
        });
    }
    Ok(())
}

/// Frameworks give null for tensors without elements, which a slice may not begin at.
fn non_null(pointer: *const u8) -> *const u8 {
    if pointer.is_null() { std::ptr::dangling() } else { pointer }
}
