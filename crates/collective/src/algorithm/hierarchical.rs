//! Allreduce over several hosts with any, also unequal, numbers of ranks.
//!
//! Reduce inside each host, all-reduce between hosts, share inside each host. The tensor is cut into as many slices as
//! the largest host has ranks; on a host with L ranks slice k belongs to local rank k mod L, which reduces it inside
//! the host and takes part in its ring with the owners of the same slice elsewhere. So every rank drives its share of
//! the network, and with one rank a host this is a plain ring. A rank that owns several slices (the one next to a host of
//! five) advances all their rings in one loop.
//!
//! The tensor goes through in blocks, small enough that what arrives is still in cache when it is passed on. While the
//! rings of one block run, the next block is reduced in the host. Consecutive blocks use different wires.
//!
//! Bytes through the link of each of H hosts for a tensor of S: 2·S·(H-1)/H, whatever the number of ranks. Inside
//! a host: those of [`sliced`]. Small tensors: reduce in the host, recursive doubling between leaders, share.

use super::ring::{Ring, Segment};
use super::share::{Shared, share, share_while};
use super::sliced::{self, Slice};
use super::{FIRST, LAST, doubling, one_phase, split, table};
use crate::error::Result;
use crate::group::{Group, Reduction};
use crate::kernel::{FoldPlan, fold};
use crate::net::{Flow, Span};

/// Wires for rings are numbered from here: slice by slice, two for each.
const FIRST_WIRE: u32 = 16;

pub(super) fn allreduce(
    group: &mut Group,
    source: *const u8,
    output: &mut [u8],
    how: &Reduction,
    plan: &FoldPlan,
) -> Result<()> {
    let row = table::net(group.hosts.len());
    if output.len() <= row.doubling {
        return small(group, source, output, how, plan);
    }
    let element = how.dtype.size();
    let largest = group.hosts.iter().map(Vec::len).max().unwrap_or(1);
    let slices = largest * row.streams;
    let block = row.block / element;
    let shared = group.shared.clone();
    let mut flow = Flow::new(&shared, Some((plan, element)));
    let mut behind: Option<(Vec<Slice>, usize)> = None;
    let elements = output.len() / element;
    for (number, start) in (0..elements).step_by(block.max(1)).enumerate() {
        let count = block.min(elements - start);
        // SAFETY: the block lies within the tensor.
        let (from, to) = unsafe { (source.add(start * element), output.as_mut_ptr().add(start * element)) };
        let owners = group.hosts[group.my_host].len();
        let cut = sliced::cut(from, to, count, element, slices, owners);
        let raw = reduce_in_host(group, &mut flow, &cut, plan, element, how.prescale)?;
        let local = group.local;
        for (index, slice) in cut.iter().enumerate().filter(|(_, slice)| slice.owner == local) {
            let wire = FIRST_WIRE + 2 * index as u32 + (number % 2) as u32;
            let own = if raw { slice.source } else { slice.target.cast_const() };
            add_ring(group, &mut flow, index, wire, own, slice, element)?;
        }
        let batch = flow.close_batch();
        flow.advance()?;
        if let Some((slices, batch)) = behind.replace((cut, batch)) {
            flow.run_batch(batch)?;
            share_in_host(group, &mut flow, &slices)?;
        }
    }
    if let Some((slices, batch)) = behind {
        flow.run_batch(batch)?;
        share_in_host(group, &mut flow, &slices)?;
    }
    Ok(())
}

/// The host's partial result of each slice, with its owner. Returns whether it was left where it is: alone on a host with
/// nothing to scale, the input is the partial result.
fn reduce_in_host(
    group: &mut Group,
    flow: &mut Flow<'_>,
    slices: &[Slice],
    plan: &FoldPlan,
    element: usize,
    prescale: f64,
) -> Result<bool> {
    if let Some(host) = &mut group.host {
        let mut meanwhile = || flow.advance().map(drop);
        sliced::reduce(host, group.local, slices, plan, FIRST, element, false, &mut meanwhile)?;
        return Ok(false);
    }
    if prescale == 1.0 {
        return Ok(true);
    }
    for slice in slices {
        // SAFETY: source and target of a slice are valid for its length and equal or apart.
        unsafe { fold(plan, FIRST, slice.target, None, &[slice.source], slice.len / element) };
    }
    Ok(false)
}

fn share_in_host(group: &mut Group, flow: &mut Flow<'_>, slices: &[Slice]) -> Result<()> {
    let Some(host) = &mut group.host else {
        return Ok(());
    };
    let shared: Vec<Shared> = slices
        .iter()
        .map(|slice| Shared {
            source: slice.target,
            target: slice.target,
            len: slice.len,
            owner: slice.owner,
        })
        .collect();
    share_while(host, group.local, &shared, &mut || flow.advance().map(drop))
}

/// Adds the ring of slice `index` to the flow.
fn add_ring(
    group: &mut Group,
    flow: &mut Flow<'_>,
    index: usize,
    wire: u32,
    own: *const u8,
    slice: &Slice,
    element: usize,
) -> Result<()> {
    let hosts = group.hosts.len();
    let owner = |host: usize| group.members[group.hosts[host][index % group.hosts[host].len()]];
    let (next, previous) = (owner((group.my_host + 1) % hosts), owner((group.my_host + hosts - 1) % hosts));
    let ring = Ring {
        hosts,
        here: group.my_host,
        next: group.wires.get(next, wire)?,
        previous: group.wires.get(previous, wire)?,
    };
    let segments: Vec<Segment> = split(slice.len / element, hosts, 64 / element)
        .into_iter()
        .map(|(start, len)| {
            // SAFETY: a split stays within the slice.
            unsafe {
                vec![(
                    own.add(start * element),
                    Span { at: slice.target.add(start * element), len: len * element },
                )]
            }
        })
        .collect();
    ring.allreduce(flow, &segments);
    Ok(())
}

fn small(
    group: &mut Group,
    source: *const u8,
    output: &mut [u8],
    how: &Reduction,
    plan: &FoldPlan,
) -> Result<()> {
    let (element, count) = (how.dtype.size(), output.len() / how.dtype.size());
    if group.host.is_some() {
        one_phase(group, source, output, plan, FIRST, how.dtype)?;
    } else {
        // SAFETY: source and output are equally long, and the same or apart.
        unsafe { fold(plan, FIRST, output.as_mut_ptr(), None, &[source], count) };
    }
    if group.local == 0 {
        doubling::allreduce(group, output, plan, element)?;
        // SAFETY: in place.
        unsafe { fold(plan, LAST, output.as_mut_ptr(), None, &[output.as_ptr()], count) };
    }
    if let Some(host) = &mut group.host {
        let whole =
            Shared { source: output.as_ptr(), target: output.as_mut_ptr(), len: output.len(), owner: 0 };
        share(host, group.local, &[whole])?;
    }
    Ok(())
}
