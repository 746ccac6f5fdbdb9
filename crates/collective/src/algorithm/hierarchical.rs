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

use super::extents::{Extents, Run};
use super::ring::{Ring, Segment};
use super::share::{share, share_while};
use super::sliced::{self, Slice};
use super::{FIRST, LAST, doubling, one_phase, split, table};
use crate::error::Result;
use crate::group::{Group, Reduction};
use crate::kernel::{FoldPlan, Identity, fold};
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
    let mut behind: Option<(Block, usize)> = None;
    let elements = output.len() / element;
    for (number, start) in (0..elements).step_by(block.max(1)).enumerate() {
        let count = block.min(elements - start);
        let owners = group.hosts[group.my_host].len();
        // SAFETY: the block lies within the tensor.
        let (source, target) =
            unsafe { (source.add(start * element), output.as_mut_ptr().add(start * element)) };
        let len = count * element;
        let block = Block { source, target, len, slices: sliced::cut(len, element, slices, owners) };
        let raw = reduce_in_host(group, &mut flow, &block, plan, how.prescale)?;
        let local = group.local;
        for (index, slice) in block.slices.iter().enumerate().filter(|(_, slice)| slice.owner == local) {
            let wire = FIRST_WIRE + 2 * index as u32 + (number % 2) as u32;
            // SAFETY: a slice lies within its block.
            let (source, at) = unsafe { (block.source.add(slice.start), block.target.add(slice.start)) };
            let own = if raw { source } else { at.cast_const() };
            add_ring(group, &mut flow, index, wire, own, Span { at, len: slice.len }, element)?;
        }
        let batch = flow.close_batch();
        flow.advance()?;
        if let Some((block, batch)) = behind.replace((block, batch)) {
            flow.run_batch(batch)?;
            share_in_host(group, &mut flow, &block)?;
        }
    }
    if let Some((block, batch)) = behind {
        flow.run_batch(batch)?;
        share_in_host(group, &mut flow, &block)?;
    }
    Ok(())
}

/// A block of the tensor and how it is cut.
struct Block {
    source: *const u8,
    target: *mut u8,
    len: usize,
    slices: Vec<Slice>,
}

/// The host's partial result of each slice, with its owner. Returns whether it was left where it is: alone on a host with
/// nothing to scale, the input is the partial result.
fn reduce_in_host(
    group: &mut Group,
    flow: &mut Flow<'_>,
    block: &Block,
    plan: &FoldPlan,
    prescale: f64,
) -> Result<bool> {
    if let Some(host) = &mut group.host {
        let run = [Run::whole(block.source, block.target, block.len)];
        let extents = Extents::new(&run, &Identity::ZERO);
        let mut meanwhile = || flow.advance().map(drop);
        sliced::reduce(host, group.local, &extents, &block.slices, plan, FIRST, false, &mut meanwhile)?;
        return Ok(false);
    }
    if prescale == 1.0 {
        return Ok(true);
    }
    let count = block.len / plan.dtype().size();
    // SAFETY: source and target are valid for the block's length and equal or apart.
    unsafe { fold(plan, FIRST, block.target, None, &[block.source], count) };
    Ok(false)
}

fn share_in_host(group: &mut Group, flow: &mut Flow<'_>, block: &Block) -> Result<()> {
    let Some(host) = &mut group.host else {
        return Ok(());
    };
    let run = [Run::whole(block.target, block.target, block.len)];
    let extents = Extents::new(&run, &Identity::ZERO);
    share_while(host, group.local, &extents, &block.slices, &mut || flow.advance().map(drop))
}

/// Adds the ring of slice `index` to the flow.
fn add_ring(
    group: &mut Group,
    flow: &mut Flow<'_>,
    index: usize,
    wire: u32,
    own: *const u8,
    slice: Span,
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
                    Span { at: slice.at.add(start * element), len: len * element },
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
        let run = [Run::whole(source, output.as_mut_ptr(), output.len())];
        one_phase(group, &Extents::new(&run, &Identity::ZERO), plan, FIRST)?;
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
        let (at, len) = (output.as_mut_ptr(), output.len());
        let run = [Run::whole(at, at, len)];
        let extents = Extents::new(&run, &Identity::ZERO);
        share(host, group.local, &extents, &[Slice { start: 0, len, owner: 0 }])?;
    }
    Ok(())
}
