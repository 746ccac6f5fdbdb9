//! Reduce-scatter with unequal parts.
//!
//! In one host: [`sliced`] with one slice a member. Over several: each host reduces into its leader's scratch memory, the
//! leaders run the folding half of a ring whose segments are whole hosts' parts, and each leader hands its members theirs.
//!
//! Steps: H - 1 between hosts. Bytes through each link: S less the own host's part. Scratch: S bytes with each leader.

use super::ring::{Ring, Segment};
use super::share::{Shared, share};
use super::sliced::{self, Slice};
use super::{FIRST, WHOLE, integer_average};
use crate::error::Result;
use crate::group::{Group, Reduction};
use crate::kernel::{FoldPlan, fold};
use crate::net::{Flow, Span};
use crate::types::ReduceOp;

/// Wire that reduce-scatters use.
const WIRE: u32 = 3;

/// Member m gets the next `lengths[m]` bytes of the result.
pub(crate) fn reducescatter(
    group: &mut Group,
    input: &[u8],
    lengths: &[usize],
    output: &mut [u8],
    how: &Reduction,
) -> Result<()> {
    let plan = group.plan(how)?;
    let element = how.dtype.size();
    if group.size() == 1 {
        // SAFETY: both hold `output.len()` bytes and do not overlap.
        unsafe { fold(&plan, WHOLE, output.as_mut_ptr(), None, &[input.as_ptr()], output.len() / element) };
        return Ok(());
    }
    if group.hosts.len() == 1 {
        return sliced::reducescatter(group, input, lengths, output, how, &plan);
    }
    if how.op == ReduceOp::Average && !how.dtype.is_float() {
        // Partial sums would have to travel wide: take the way that does that, and keep this rank's part.
        let start: usize = lengths[..group.me].iter().sum();
        let mut whole = input.to_vec();
        integer_average::allreduce(group, input.as_ptr(), &mut whole, how)?;
        output.copy_from_slice(&whole[start..start + output.len()]);
        return Ok(());
    }
    over_hosts(group, input, lengths, output, element, &plan)
}

fn over_hosts(
    group: &mut Group,
    input: &[u8],
    lengths: &[usize],
    output: &mut [u8],
    element: usize,
    plan: &FoldPlan,
) -> Result<()> {
    let hosts = group.hosts.len();
    let leads = group.local == 0;
    let mut scratch = if leads { vec![0u8; input.len()] } else { Vec::new() };
    let starts: Vec<usize> =
        lengths.iter().scan(0, |next, len| Some(std::mem::replace(next, *next + len))).collect();
    let scratch_at = |member: usize, scratch: &mut Vec<u8>| scratch[starts[member]..].as_mut_ptr();
    if let Some(host) = &mut group.host {
        let slices: Vec<Slice> = (0..lengths.len())
            .map(|member| Slice {
                source: input[starts[member]..].as_ptr(),
                target: if leads { scratch_at(member, &mut scratch) } else { std::ptr::null_mut() },
                len: lengths[member],
                owner: member % host.members(),
            })
            .collect();
        sliced::reduce(host, group.local, &slices, plan, FIRST, element, true, &mut || Ok(()))?;
    } else {
        // SAFETY: scratch is as long as the input and apart from it.
        unsafe { fold(plan, FIRST, scratch.as_mut_ptr(), None, &[input.as_ptr()], input.len() / element) };
    }
    if leads {
        let shared = group.shared.clone();
        let next = group.members[group.leader((group.my_host + 1) % hosts)];
        let previous = group.members[group.leader((group.my_host + hosts - 1) % hosts)];
        let ring = Ring {
            hosts,
            here: group.my_host,
            next: group.wires.get(next, WIRE)?,
            previous: group.wires.get(previous, WIRE)?,
        };
        // The folding half ends with segment here + 1, so the segment of host h has number h + 1.
        let segments: Vec<Segment> = (0..hosts)
            .map(|number| {
                let host = &group.hosts[(number + hosts - 1) % hosts];
                host.iter()
                    .map(|&member| {
                        let at = scratch_at(member, &mut scratch);
                        (at.cast_const(), Span { at, len: lengths[member] })
                    })
                    .collect()
            })
            .collect();
        let mut flow = Flow::new(&shared, Some((plan, element)));
        ring.reduce_scatter(&mut flow, &segments);
        flow.run()?;
        output.copy_from_slice(&scratch[starts[group.me]..][..output.len()]);
    }
    if let Some(host) = &mut group.host {
        let slices: Vec<Shared> = group.hosts[group.my_host]
            .iter()
            .map(|&member| Shared {
                source: if leads { scratch_at(member, &mut scratch) } else { std::ptr::null() },
                target: if member == group.me { output.as_mut_ptr() } else { std::ptr::null_mut() },
                len: lengths[member],
                owner: 0,
            })
            .collect();
        share(host, group.local, &slices)?;
    }
    Ok(())
}
