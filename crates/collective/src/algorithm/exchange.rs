//! All-to-all with unequal splits.
//!
//! Parts for ranks on this host go through shared memory ([`swap`]); parts for ranks on other hosts go straight to them
//! over one wire a pair, all at once.
//!
//! Steps: 1. Bytes through each link: what its ranks send to, and receive from, other hosts.

use super::swap::{Parcel, swap};
use crate::error::Result;
use crate::group::Group;
use crate::net::{Flow, Landing, Span};

/// Wire that all-to-alls use.
const WIRE: u32 = 4;

pub(crate) fn alltoall(
    group: &mut Group,
    input: &[u8],
    sent: &[usize],
    output: &mut [u8],
    received: &[usize],
) -> Result<()> {
    let (mut from, mut to) = (0, 0);
    let parcels: Vec<Parcel> = sent
        .iter()
        .zip(received)
        .map(|(&sent, &received)| {
            let (source, target) = (input[from..].as_ptr(), output[to..].as_mut_ptr());
            from += sent;
            to += received;
            Parcel { source, sent, target, received }
        })
        .collect();
    let own = parcels[group.me];
    // SAFETY: the own parcel is as long in both buffers (checked by the group), which do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(own.source, own.target, own.sent) };

    let shared = group.shared.clone();
    let mut flow = Flow::new(&shared, None);
    for (member, parcel) in parcels.iter().enumerate() {
        if group.hosts[group.my_host].contains(&member) {
            continue;
        }
        if parcel.sent + parcel.received > 0 {
            let wire = group.wires.get(group.members[member], WIRE)?;
            let span = Span { at: parcel.target, len: parcel.received };
            flow.receive(wire.clone(), vec![Landing::Store(span)]);
            flow.send(wire, vec![Span { at: parcel.source.cast_mut(), len: parcel.sent }]);
        }
    }
    flow.advance()?;
    if let Some(host) = &mut group.host {
        let local: Vec<Parcel> = group.hosts[group.my_host].iter().map(|&member| parcels[member]).collect();
        // All must agree on the number of chunks, which only the longest parcel of all tells.
        let mine = local.iter().map(|parcel| parcel.sent as u64).max().unwrap_or(0).to_le_bytes();
        let mut longest = 0;
        // SAFETY: the slot holds eight bytes, at any alignment.
        let publish = |slot: *mut u8| unsafe { slot.cast::<[u8; 8]>().write_unaligned(mine) };
        host.round(mine.len(), publish, |lengths| {
            for &length in lengths {
                // SAFETY: every member published eight bytes.
                let bytes = unsafe { length.cast::<[u8; 8]>().read_unaligned() };
                longest = longest.max(u64::from_le_bytes(bytes));
            }
        })?;
        swap(host, group.local, &local, longest as usize)?;
    }
    flow.run()
}
