//! Pipelined tree broadcast.
//!
//! Between hosts the bytes go down a tree of one member a host (the root on its own host, the lowest member elsewhere):
//! a chain for large tensors, where every link carries the data once in each direction, a binary tree for small ones.
//! A host passes bytes on as they arrive. Inside hosts that member shares what has arrived, block by block.
//!
//! Steps: the depth of the tree (H - 1, or log2 H), pipelined. Bytes through each link: S in, and S for each child out.

use super::extents::{Extents, Run};
use super::share::share;
use super::sliced::Slice;
use super::table;
use crate::error::Result;
use crate::group::Group;
use crate::kernel::Identity;
use crate::net::{Flow, Landing, Span};

/// Wire that broadcasts use.
const WIRE: u32 = 1;
/// Bytes shared inside a host at a time, while more arrive.
const BLOCK: usize = 2 << 20;

pub(crate) fn broadcast(group: &mut Group, buffer: &mut [u8], root: usize) -> Result<()> {
    if group.size() == 1 || buffer.is_empty() {
        return Ok(());
    }
    let shared = group.shared.clone();
    let hosts = group.hosts.len();
    let home = group.hosts.iter().position(|host| host.contains(&root)).unwrap_or(0);
    let speaker = |host: usize| {
        if host == home { root } else { group.hosts[host][0] }
    };
    let owner =
        group.hosts[group.my_host].iter().position(|&member| member == speaker(group.my_host)).unwrap_or(0);
    let whole = Span { at: buffer.as_mut_ptr(), len: buffer.len() };

    let mut flow = Flow::new(&shared, None);
    let mut arriving = None;
    if owner == group.local && hosts > 1 {
        let arity = if buffer.len() >= table::CHAIN { 1 } else { 2 };
        let place = (group.my_host + hosts - home) % hosts;
        let rank_at = |place: usize| group.members[speaker((place + home) % hosts)];
        let (parent, children) = family(place, hosts, arity);
        let parent = parent.map(rank_at);
        let children: Vec<usize> = children.map(rank_at).collect();
        if let Some(parent) = parent {
            arriving = Some(flow.receive(group.wires.get(parent, WIRE)?, vec![Landing::Store(whole)]));
        }
        for child in children {
            let wire = group.wires.get(child, WIRE)?;
            match arriving {
                Some(incoming) => flow.send_following(wire, vec![whole], incoming, 0),
                None => flow.send(wire, vec![whole]),
            }
        }
        flow.advance()?;
    }
    if let Some(host) = &mut group.host {
        let block = if hosts == 1 { buffer.len() } else { BLOCK };
        for start in (0..buffer.len()).step_by(block) {
            let len = block.min(buffer.len() - start);
            if let Some(incoming) = arriving {
                flow.run_until(incoming, start + len)?;
            }
            let at = buffer[start..].as_mut_ptr();
            let run = [Run::whole(at, at, len)];
            let extents = Extents::new(&run, &Identity::ZERO);
            share(host, group.local, &extents, &[Slice { start: 0, len, owner }])?;
            flow.advance()?;
        }
    }
    flow.run()
}

/// Parent and children of a place in a tree of this arity, place 0 being the root.
fn family(place: usize, places: usize, arity: usize) -> (Option<usize>, impl Iterator<Item = usize>) {
    let parent = place.checked_sub(1).map(|above| above / arity);
    (parent, (place * arity + 1..=place * arity + arity).filter(move |&child| child < places))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_has_one_parent_that_counts_it_as_child() {
        for arity in [1, 2] {
            for places in 1..40 {
                let mut parents = vec![0; places];
                for place in 0..places {
                    let (parent, children) = family(place, places, arity);
                    assert_eq!(parent.is_none(), place == 0);
                    for child in children {
                        parents[child] += 1;
                        assert_eq!(family(child, places, arity).0, Some(place));
                    }
                }
                assert!(parents[1..].iter().all(|&count| count == 1), "arity {arity}, {places} places");
            }
        }
    }
}
