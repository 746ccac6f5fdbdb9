//! Allgather with unequal contributions.
//!
//! Inside each host everybody shares its part. Between hosts the leaders pass whole hosts' parts around a ring, straight
//! from and into their final place, and share each inside their host once it has arrived.
//!
//! Steps: H - 1 between hosts. Bytes through each link: all but the own host's part in, all but the next host's part out.

use super::extents::{Extents, Run};
use super::ring::{Ring, Segment};
use super::share::share;
use super::sliced::{Slice, one_each};
use crate::error::Result;
use crate::group::Group;
use crate::kernel::Identity;
use crate::net::{Flow, Span};

/// Wire that allgathers use.
const WIRE: u32 = 2;

/// Member m's part is `lengths[m]` bytes of `output`; this rank's is in place already.
pub(crate) fn allgather(group: &mut Group, lengths: &[usize], output: &mut [u8]) -> Result<()> {
    let base = output.as_mut_ptr();
    let run = [Run::whole(base, base, output.len())];
    let whole = Extents::new(&run, &Identity::ZERO);
    let parts = one_each(lengths, |_| 0);
    let hosts = group.hosts.len();
    if let Some(host) = &mut group.host {
        let own: Vec<Slice> = group.hosts[group.my_host]
            .iter()
            .enumerate()
            .map(|(owner, &member)| Slice { owner, ..parts[member] })
            .collect();
        share(host, group.local, &whole, &own)?;
    }
    if hosts == 1 {
        return Ok(());
    }
    let shared = group.shared.clone();
    let mut flow = Flow::new(&shared, None);
    let mut incoming = 0;
    if group.local == 0 {
        let next = group.members[group.leader((group.my_host + 1) % hosts)];
        let previous = group.members[group.leader((group.my_host + hosts - 1) % hosts)];
        let ring = Ring {
            hosts,
            here: group.my_host,
            next: group.wires.get(next, WIRE)?,
            previous: group.wires.get(previous, WIRE)?,
        };
        // A ring spreads from segment here + 1, so the segment of host h has number h + 1.
        let segments: Vec<Segment> = (0..hosts)
            .map(|number| {
                let host = &group.hosts[(number + hosts - 1) % hosts];
                host.iter()
                    .map(|&member| {
                        // SAFETY: the parts make up the output.
                        let at = unsafe { base.add(parts[member].start) };
                        (at.cast_const(), Span { at, len: parts[member].len })
                    })
                    .collect()
            })
            .collect();
        incoming = ring.allgather(&mut flow, &segments);
    }
    let mut arrived = 0;
    for step in 1..hosts {
        let from = &group.hosts[(group.my_host + hosts - step) % hosts];
        arrived += from.iter().map(|&member| lengths[member]).sum::<usize>();
        if group.local == 0 {
            flow.run_until(incoming, arrived)?;
        }
        if let Some(host) = &mut group.host {
            let remote: Vec<Slice> = from.iter().map(|&member| parts[member]).collect();
            share(host, group.local, &whole, &remote)?;
        }
    }
    flow.run()
}
