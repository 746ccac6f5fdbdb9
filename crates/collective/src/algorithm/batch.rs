//! Many tensors at once.
//!
//! In one host a batch is one virtual tensor ([`super::extents`]) and goes the way of a single one: packing is the copy into
//! the shared segment, unpacking the copy out. Where every member has a share of every tensor (reduce-scatter, allgather)
//! the virtual tensor is ordered by member, so that what belongs to one member lies together.
//!
//! Between hosts the algorithms send straight from memory that lies in one go, so tensors are first packed into staging
//! memory, as many as fit, and large ones go alone from where they lie. What travels together depends on lengths only:
//! ranks must agree on it, and addresses differ between them.
//!
//! Steps and bytes: those of one tensor of the total size; between hosts for each load, with the batch copied once more on
//! either side unless it goes alone.

use super::extents::{Extents, lay};
use super::sliced::one_each;
use super::{WHOLE, in_one_host, scatter, share, table};
use crate::error::Result;
use crate::group::{Group, Reduction};
use crate::kernel::{Identity, copy, fold};
use crate::parts::{GatherPart, Part, ScatterPart};
use crate::types::ReduceOp;

/// Private memory that a group keeps for the next batch. It grows to what was needed.
#[derive(Default)]
pub(crate) struct Staging(Vec<u8>);

impl Staging {
    /// Memory of `len` bytes, with whatever was left in it.
    pub(super) fn room(&mut self, len: usize) -> &mut [u8] {
        if self.0.len() < len {
            self.0.resize(len, 0);
        }
        &mut self.0[..len]
    }
}

/// See [`Group::allreduce_parts`], whose promises about addresses hold here.
pub(crate) fn allreduce(group: &mut Group, parts: &[Part], how: &Reduction) -> Result<()> {
    let plan = group.plan(how)?;
    let absent = how.identity();
    if how.op == ReduceOp::Adasum {
        // How far two gradients agree is judged tensor by tensor.
        return parts.iter().try_for_each(|part| allreduce_alone(group, part, how));
    }
    if group.size() == 1 {
        for part in parts.iter().filter(|part| !part.target.is_null()) {
            let source = source_or(part, part.target, &absent);
            // SAFETY: source and target hold the part's bytes, and are the same or apart.
            unsafe { fold(&plan, WHOLE, part.target, None, &[source], part.len / how.dtype.size()) };
        }
        return Ok(());
    }
    if group.hosts.len() == 1 {
        let runs = lay(parts.iter().map(|part| (part.source, part.target, part.len)));
        return in_one_host(group, &Extents::new(&runs, &absent), &plan);
    }
    for load in loads(parts.iter().map(|part| part.len)) {
        if let [only] = load[..] {
            allreduce_alone(group, &parts[only], how)?;
            continue;
        }
        let runs =
            lay(load.iter().map(|&index| &parts[index]).map(|part| (part.source, part.target, part.len)));
        let extents = Extents::new(&runs, &absent);
        with_staging(group, extents.len(), |group, staging| {
            // SAFETY: the staging memory is as long as the load, and sources and targets as their runs.
            unsafe { extents.pack(0, extents.len(), staging.as_mut_ptr(), false) };
            super::allreduce(group, staging.as_ptr(), staging, how)?;
            // SAFETY: as above.
            unsafe { extents.unpack(0, extents.len(), staging.as_ptr()) };
            Ok(())
        })?;
    }
    Ok(())
}

/// One tensor where it lies. What this rank lacks is made up by memory of its own.
fn allreduce_alone(group: &mut Group, part: &Part, how: &Reduction) -> Result<()> {
    if part.len == 0 {
        return Ok(());
    }
    let mut unwanted = vec![0; if part.target.is_null() { part.len } else { 0 }];
    let target = if part.target.is_null() { unwanted.as_mut_ptr() } else { part.target };
    let source = source_or(part, target, &how.identity());
    // SAFETY: the target, the caller's or ours, holds the part's bytes; only the source may be the same memory, which
    // the algorithms know.
    let output = unsafe { std::slice::from_raw_parts_mut(target, part.len) };
    super::allreduce(group, source, output, how)
}

/// The part's source; if it has none, its `target`, which then holds the identity.
fn source_or(part: &Part, target: *mut u8, absent: &Identity) -> *const u8 {
    if part.source.is_null() {
        // SAFETY: the target holds the part's bytes.
        unsafe { absent.fill(target, part.len) };
        return target;
    }
    part.source
}

/// See [`Group::reducescatter_parts`].
pub(crate) fn reducescatter(group: &mut Group, parts: &[ScatterPart], how: &Reduction) -> Result<()> {
    let plan = group.plan(how)?;
    let absent = how.identity();
    let element = how.dtype.size();
    let bytes: Vec<Vec<usize>> =
        parts.iter().map(|part| part.lengths.iter().map(|count| count * element).collect()).collect();
    if group.size() == 1 {
        // Everything is this rank's share.
        let whole = parts.iter().zip(&bytes).map(|(part, bytes)| Part {
            source: part.source,
            target: part.target,
            len: bytes[0],
        });
        return allreduce(group, &whole.collect::<Vec<_>>(), how);
    }
    let me = group.me;
    let runs_of = |shares: &[Share]| {
        lay(shares.iter().map(|share| {
            let part = &parts[share.tensor];
            let target = if share.member == me { part.target } else { std::ptr::null_mut() };
            (from(part.source, share.start), target, share.len)
        }))
    };
    if group.hosts.len() == 1 {
        let all: Vec<usize> = (0..parts.len()).collect();
        let (shares, lengths) = by_member(&bytes, &all, group.size());
        let runs = runs_of(&shares);
        let slices = one_each(&lengths, |member| member);
        return scatter::in_one_host(group, &Extents::new(&runs, &absent), &slices, &plan);
    }
    for load in loads(bytes.iter().map(|lengths| lengths.iter().sum())) {
        let (shares, lengths) = by_member(&bytes, &load, group.size());
        let runs = runs_of(&shares);
        let extents = Extents::new(&runs, &absent);
        let own: usize = lengths[..me].iter().sum();
        let mut result = vec![0; lengths[me]];
        match load[..] {
            [only] if !parts[only].source.is_null() => {
                // SAFETY: the source holds all shares, and nobody writes it meanwhile.
                let input = unsafe { std::slice::from_raw_parts(parts[only].source, extents.len()) };
                super::reducescatter(group, input, &lengths, &mut result, how)?;
            }
            _ => with_staging(group, extents.len(), |group, staging| {
                // SAFETY: the staging memory is as long as the load, and sources as their runs.
                unsafe { extents.pack(0, extents.len(), staging.as_mut_ptr(), false) };
                super::reducescatter(group, staging, &lengths, &mut result, how)
            })?,
        }
        // SAFETY: the result is as long as this member's shares, the only ones with targets.
        unsafe { extents.unpack(own, result.len(), result.as_ptr()) };
    }
    Ok(())
}

/// See [`Group::allgather_parts`].
pub(crate) fn allgather(group: &mut Group, parts: &[GatherPart]) -> Result<()> {
    let (me, members) = (group.me, group.size());
    let bytes: Vec<Vec<usize>> = parts.iter().map(|part| part.lengths.clone()).collect();
    let runs_of = |shares: &[Share]| {
        lay(shares.iter().map(|share| {
            let part = &parts[share.tensor];
            let source = if share.member == me { part.source } else { std::ptr::null() };
            (source, from(part.target, share.start).cast_mut(), share.len)
        }))
    };
    if group.hosts.len() == 1 {
        parts.iter().for_each(|part| put_own(part, me));
        let all: Vec<usize> = (0..parts.len()).collect();
        let (shares, lengths) = by_member(&bytes, &all, members);
        let runs = runs_of(&shares);
        let slices = one_each(&lengths, |member| member);
        return match &mut group.host {
            Some(host) => share::share(host, group.local, &Extents::new(&runs, &Identity::ZERO), &slices),
            None => Ok(()),
        };
    }
    for load in loads(bytes.iter().map(|lengths| lengths.iter().sum())) {
        let (shares, lengths) = by_member(&bytes, &load, members);
        let runs = runs_of(&shares);
        let extents = Extents::new(&runs, &Identity::ZERO);
        match load[..] {
            [only] if !parts[only].target.is_null() => {
                put_own(&parts[only], me);
                // SAFETY: the target holds all contributions, and nobody else touches it meanwhile.
                let output = unsafe { std::slice::from_raw_parts_mut(parts[only].target, extents.len()) };
                super::allgather(group, &lengths, output)?;
            }
            _ => with_staging(group, extents.len(), |group, staging| {
                let own: usize = lengths[..me].iter().sum();
                // SAFETY: the staging memory is as long as the load; this member's sources and all targets as their runs.
                unsafe { extents.pack(own, lengths[me], staging[own..].as_mut_ptr(), false) };
                super::allgather(group, &lengths, staging)?;
                // SAFETY: as above.
                unsafe { extents.unpack(0, extents.len(), staging.as_ptr()) };
                Ok(())
            })?,
        }
    }
    Ok(())
}

/// Copies this member's contribution to its place, unless it lies there or the result is not wanted.
fn put_own(part: &GatherPart, me: usize) {
    let place = from(part.target, part.lengths[..me].iter().sum()).cast_mut();
    if part.lengths[me] > 0 && !place.is_null() && place.cast_const() != part.source {
        // SAFETY: the source holds the contribution and the target has room for it; they are apart.
        unsafe { copy(place, part.source, part.lengths[me], false) };
    }
}

/// The address so many bytes on; there is none from nowhere.
fn from(address: *const u8, bytes: usize) -> *const u8 {
    if address.is_null() { address } else { address.wrapping_add(bytes) }
}

/// What one member has of one tensor.
#[derive(Debug, PartialEq, Eq)]
struct Share {
    tensor: usize,
    member: usize,
    /// Where in its tensor it begins.
    start: usize,
    len: usize,
}

/// The shares of some tensors ordered by member, and how many bytes each member has in all. `lengths[t][m]` is
/// the share of member m in tensor t.
fn by_member(lengths: &[Vec<usize>], tensors: &[usize], members: usize) -> (Vec<Share>, Vec<usize>) {
    let mut starts = vec![0; tensors.len()];
    let mut shares = Vec::with_capacity(tensors.len() * members);
    let totals = (0..members).map(|member| {
        let mut total = 0;
        for (&tensor, start) in tensors.iter().zip(&mut starts) {
            let len = lengths[tensor][member];
            shares.push(Share { tensor, member, start: *start, len });
            *start += len;
            total += len;
        }
        total
    });
    let totals = totals.collect();
    (shares, totals)
}

/// Which tensors travel together between hosts: small ones as many as fit the staging memory, large ones alone, empty
/// ones not at all.
fn loads(lengths: impl Iterator<Item = usize>) -> Vec<Vec<usize>> {
    let (mut loads, mut open, mut bytes) = (Vec::new(), Vec::new(), 0);
    for (index, len) in lengths.enumerate().filter(|&(_, len)| len > 0) {
        if len >= table::ALONE {
            loads.push(vec![index]);
            continue;
        }
        if bytes + len > table::STAGING {
            loads.push(std::mem::take(&mut open));
            bytes = 0;
        }
        open.push(index);
        bytes += len;
    }
    loads.extend((!open.is_empty()).then_some(open));
    loads
}

/// Lends `len` bytes of the group's staging memory to `run`. What goes alone and is larger than is worth keeping gets memory
/// for this one time.
fn with_staging(
    group: &mut Group,
    len: usize,
    run: impl FnOnce(&mut Group, &mut [u8]) -> Result<()>,
) -> Result<()> {
    if len > table::STAGING {
        return run(group, &mut vec![0; len]);
    }
    let mut staging = std::mem::take(&mut group.staging);
    let outcome = run(group, staging.room(len));
    group.staging = staging;
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_tensor_that_is_not_empty_travels_once_and_loads_fit(
            lengths in prop::collection::vec(prop_oneof![Just(0usize), 1usize..100_000, 1usize..(8 << 20)], 0..60)
        ) {
            let loads = loads(lengths.iter().copied());
            let mut seen: Vec<usize> = loads.concat();
            seen.sort_unstable();
            let wanted: Vec<usize> = (0..lengths.len()).filter(|&index| lengths[index] > 0).collect();
            prop_assert_eq!(seen, wanted);
            for load in &loads {
                let bytes: usize = load.iter().map(|&index| lengths[index]).sum();
                prop_assert!(load.len() == 1 || bytes <= table::STAGING);
                prop_assert!(load.len() == 1 || load.iter().all(|&index| lengths[index] < table::ALONE));
            }
        }
    }

    #[test]
    fn a_large_tensor_does_not_part_the_small_ones_around_it() {
        assert_eq!(loads([8, 0, table::ALONE, 8].into_iter()), [vec![2], vec![0, 3]]);
    }

    #[test]
    fn shares_are_ordered_by_member_and_know_their_place() {
        let (shares, totals) = by_member(&[vec![1, 2], vec![9, 9], vec![4, 0]], &[0, 2], 2);
        let told: Vec<_> =
            shares.iter().map(|share| (share.member, share.tensor, share.start, share.len)).collect();
        assert_eq!(told, [(0, 0, 0, 1), (0, 2, 0, 4), (1, 0, 1, 2), (1, 2, 4, 0)]);
        assert_eq!(totals, [5, 2]);
    }
}
