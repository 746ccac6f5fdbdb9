//! How each collective moves its bytes. One algorithm a file, each with its steps and bytes stated on top.
//!
//! | File | Where | For |
//! |---|---|---|
//! | [`sliced`] | in a host | allreduce and reduce-scatter of anything not small |
//! | [`share`] | in a host | broadcast, allgather |
//! | [`swap`] | in a host | all-to-all |
//! | [`ring`] | between hosts | allreduce, reduce-scatter and allgather of anything not small |
//! | [`doubling`] | between hosts | small allreduce, barrier |
//! | [`tree`] | both | broadcast |
//! | [`hierarchical`] | both | allreduce over hosts with any, also unequal, numbers of ranks |
//! | [`gather`], [`scatter`], [`exchange`] | both | allgather, reduce-scatter, all-to-all |
//! | [`adasum`], [`integer_average`] | both | reductions that are more than a fold |
//! | [`batch`] | both | many tensors at once |
//!
//! This file holds the entry points, which only choose; [`table`] holds the figures they choose by, and [`extents`] knows
//! where the bytes of a tensor, or of a batch of them, lie.

mod adasum;
pub(crate) mod batch;
mod doubling;
mod exchange;
mod extents;
mod gather;
mod hierarchical;
mod integer_average;
mod ring;
mod scatter;
mod share;
mod sliced;
mod swap;
pub(crate) mod table;
mod tree;

pub(crate) use exchange::alltoall;
pub(crate) use gather::allgather;
pub(crate) use scatter::reducescatter;
pub(crate) use tree::broadcast;

use crate::error::Result;
use crate::group::{Group, Reduction};
use crate::kernel::{FoldPlan, Identity, PreScale, Stage, fold};
use crate::types::{DType, ReduceOp};
use extents::{Extents, Run};

/// Inputs are raw, the result is complete: the whole reduction in one fold.
const WHOLE: Stage = Stage { prescale: PreScale::All, finish: true, stream: false };
/// Inputs are raw, the result is a partial one.
const FIRST: Stage = Stage { prescale: PreScale::All, finish: false, stream: false };
/// Partial results in and out.
const MIDDLE: Stage = Stage { prescale: PreScale::None, finish: false, stream: false };
/// Partial results in, the complete result out.
const LAST: Stage = Stage { prescale: PreScale::None, finish: true, stream: false };

/// `source` may be `output` itself.
pub(crate) fn allreduce(
    group: &mut Group,
    source: *const u8,
    output: &mut [u8],
    how: &Reduction,
) -> Result<()> {
    let plan = group.plan(how)?;
    if how.op == ReduceOp::Adasum {
        return adasum::allreduce(group, source, output, how);
    }
    if group.size() == 1 {
        // SAFETY: `source` is readable for as many bytes as `output`, and is it or does not overlap it.
        unsafe { fold(&plan, WHOLE, output.as_mut_ptr(), None, &[source], output.len() / how.dtype.size()) };
        return Ok(());
    }
    if group.hosts.len() > 1 {
        if how.op == ReduceOp::Average && !how.dtype.is_float() {
            return integer_average::allreduce(group, source, output, how);
        }
        return hierarchical::allreduce(group, source, output, how, &plan);
    }
    let run = [Run::whole(source, output.as_mut_ptr(), output.len())];
    in_one_host(group, &Extents::new(&run, &Identity::ZERO), &plan)
}

/// Allreduce of a tensor, or a batch, between ranks that share memory.
fn in_one_host(group: &mut Group, extents: &Extents<'_>, plan: &FoldPlan) -> Result<()> {
    let ranks = group.size();
    if extents.len() <= table::host(ranks).one_phase {
        return one_phase(group, extents, plan, WHOLE);
    }
    let Some(host) = &mut group.host else { unreachable!("a host with several ranks") };
    let slices = sliced::cut(extents.len(), plan.dtype().size(), ranks, ranks);
    sliced::reduce(host, group.local, extents, &slices, plan, WHOLE, true, &mut || Ok(()))
}

/// Everybody on the host publishes its input, and folds everybody's.
fn one_phase(group: &mut Group, extents: &Extents<'_>, plan: &FoldPlan, stage: Stage) -> Result<()> {
    let Some(host) = &mut group.host else { unreachable!("one phase needs neighbours") };
    let (len, count) = (extents.len(), extents.len() / plan.dtype().size());
    let staging = &mut group.staging;
    // SAFETY: sources are readable, and a slot holds what goes in one phase.
    let publish = |slot| unsafe { extents.pack(0, len, slot, false) };
    host.round(len, publish, |inputs| {
        // SAFETY: all shared inputs hold that many bytes, published before the round let us through; targets are
        // private memory.
        unsafe {
            match extents.only_target() {
                Some(target) if target.is_null() => (),
                Some(target) => fold(plan, stage, target, None, inputs, count),
                // One fold, and copies out of the cache, cost less than a fold for each of many small tensors.
                None => {
                    let result = staging.room(len).as_mut_ptr();
                    fold(plan, stage, result, None, inputs, count);
                    extents.unpack(0, len, result);
                }
            }
        }
    })
}

pub(crate) fn barrier(group: &mut Group) -> Result<()> {
    if let Some(host) = &mut group.host {
        host.round(0, |_| (), |_| ())?;
    }
    if group.hosts.len() > 1 {
        if group.local == 0 {
            doubling::meet(group)?;
        }
        if let Some(host) = &mut group.host {
            host.round(0, |_| (), |_| ())?;
        }
    }
    Ok(())
}

pub(crate) fn gather_small(group: &mut Group, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
    with_everybodys(group, bytes, |all| all.iter().map(|one| one.to_vec()).collect())
}

pub(crate) fn compare(group: &mut Group, bytes: &[u8]) -> Result<Option<Vec<Vec<u8>>>> {
    with_everybodys(group, bytes, |all| {
        let differing = all.iter().any(|&one| one != bytes);
        differing.then(|| all.iter().map(|one| one.to_vec()).collect())
    })
}

/// Hands everybody's few bytes, in order, to `read`.
fn with_everybodys<T>(group: &mut Group, bytes: &[u8], read: impl FnOnce(&[&[u8]]) -> T) -> Result<T> {
    let len = bytes.len();
    if group.hosts.len() == 1
        && len <= table::ONE_PHASE_SHARE
        && let Some(host) = &mut group.host
    {
        let mut outcome = None;
        // SAFETY: the slot holds that many bytes.
        let publish = |slot| unsafe { bytes.as_ptr().copy_to_nonoverlapping(slot, len) };
        host.round(len, publish, |inputs| {
            // SAFETY: every member published that many bytes before the round let us through.
            let all = inputs.iter().map(|&input| unsafe { std::slice::from_raw_parts(input, len) });
            outcome = Some(read(&all.collect::<Vec<_>>()));
        })?;
        return Ok(outcome.expect("a round that succeeds has read"));
    }
    // Between hosts: a sum over vectors in which everybody fills its own part.
    let mut all = vec![0; len * group.size()];
    all[group.me * len..][..len].copy_from_slice(bytes);
    let source = all.as_ptr();
    allreduce(group, source, &mut all, &Reduction::new(DType::U8, ReduceOp::Sum))?;
    let parts: Vec<&[u8]> = (0..group.size()).map(|member| &all[member * len..][..len]).collect();
    Ok(read(&parts))
}

/// Splits `elements` into `parts` runs that start at multiples of `align`: (first element, count) of each.
fn split(elements: usize, parts: usize, align: usize) -> Vec<(usize, usize)> {
    let share = elements.div_ceil(parts).next_multiple_of(align);
    (0..parts)
        .map(|part| {
            let start = (part * share).min(elements);
            (start, ((part + 1) * share).min(elements) - start)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_split_covers_everything_once_in_order(elements in 0usize..100_000, parts in 1usize..40, align in 1usize..100) {
            let runs = split(elements, parts, align);
            prop_assert_eq!(runs.len(), parts);
            let mut next = 0;
            for (start, count) in runs {
                prop_assert_eq!(start, next);
                prop_assert!(count == 0 || start.is_multiple_of(align));
                next = start + count;
            }
            prop_assert_eq!(next, elements);
        }
    }
}
