//! Reduce-scatter with unequal parts.
//!
//! In one host: [`sliced`] with one slice a member. Over several: each host reduces into its leader's scratch memory, the
//! leaders run the folding half of a ring whose segments are whole hosts' parts, and each leader hands its members theirs.
//!
//! Steps: H - 1 between hosts. Bytes through each link: S less the own host's part. Scratch: S bytes with each leader.

use super::extents::{Extents, Run, lay};
use super::ring::{Ring, Segment};
use super::share::share;
use super::sliced::{self, Slice, one_each};
use super::{FIRST, WHOLE, integer_average};
use crate::error::Result;
use crate::group::{Group, Reduction};
use crate::kernel::{FoldPlan, Identity, fold};
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
        let shares = one_each(lengths, |member| member);
        let runs = lay(shares.iter().enumerate().map(|(member, share)| {
            let target = if member == group.me { output.as_mut_ptr() } else { std::ptr::null_mut() };
            (input[share.start..].as_ptr(), target, share.len)
        }));
        return in_one_host(group, &Extents::new(&runs, &Identity::ZERO), &shares, &plan);
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

/// Reduces to each member its share, which is wanted by nobody else.
pub(super) fn in_one_host(
    group: &mut Group,
    extents: &Extents<'_>,
    shares: &[Slice],
    plan: &FoldPlan,
) -> Result<()> {
    let Some(host) = &mut group.host else { unreachable!("a host with several ranks") };
    sliced::reduce(host, group.local, extents, shares, plan, WHOLE, false, &mut || Ok(()))
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
    let sums = if leads { scratch.as_mut_ptr() } else { std::ptr::null_mut() };
    let shares = one_each(lengths, |_| 0);
    if let Some(host) = &mut group.host {
        let members = host.members();
        let run = [Run::whole(input.as_ptr(), sums, input.len())];
        let extents = Extents::new(&run, &Identity::ZERO);
        let dealt = one_each(lengths, |member| member % members);
        sliced::reduce(host, group.local, &extents, &dealt, plan, FIRST, true, &mut || Ok(()))?;
    } else {
        // SAFETY: scratch is as long as the input and apart from it.
        unsafe { fold(plan, FIRST, sums, None, &[input.as_ptr()], input.len() / element) };
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
                        // SAFETY: the shares make up the scratch memory.
                        let at = unsafe { sums.add(shares[member].start) };
                        (at.cast_const(), Span { at, len: shares[member].len })
                    })
                    .collect()
            })
            .collect();
        let mut flow = Flow::new(&shared, Some((plan, element)));
        ring.reduce_scatter(&mut flow, &segments);
        flow.run()?;
        output.copy_from_slice(&scratch[shares[group.me].start..][..output.len()]);
    }
    if let Some(host) = &mut group.host {
        let runs = lay(shares.iter().enumerate().map(|(member, share)| {
            let source = if leads { scratch[share.start..].as_ptr() } else { std::ptr::null() };
            let target = if member == group.me { output.as_mut_ptr() } else { std::ptr::null_mut() };
            (source, target, share.len)
        }));
        let local: Vec<Slice> = group.hosts[group.my_host].iter().map(|&member| shares[member]).collect();
        share(host, group.local, &Extents::new(&runs, &Identity::ZERO), &local)?;
    }
    Ok(())
}
