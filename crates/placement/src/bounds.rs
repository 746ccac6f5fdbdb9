//! What cannot be part of a cheapest set and what must be, told without searching.
//!
//! Groups (domains, say racks) consist of units (the domains inside them, or nodes). A set must reach `need` with `k`
//! groups and `m` units. For any threshold `v` a unit of size `s` brings at most `v` plus what it has above `v`, so such a set
//! brings at most `m · v` plus what its `k` groups have above `v` in all their units together. A group that falls short of
//! `need` at some threshold even with the best `k - 1` others is in no such set; nor is a unit of it that wastes too
//! much, being smaller than `v`. Where there is only one group, a unit is in every set if without it too little is above `v`.
//!
//! Nodes of a group that give the same are taken in a fixed order, so one is taken only with those before it, and left out
//! only with those after it. Every threshold gives a true bound, so a few of them will do.

use std::ops::Range;

/// How many thresholds are spread over all sizes; nodes have few different ones.
const SPREAD: usize = 16;
/// How many more on each side of the size at which the largest units are enough, where bounds are sharpest.
const NEAR: usize = 8;

/// Domains or nodes that are together in a domain.
pub(crate) struct Group {
    /// What it consists of.
    pub(crate) units: Vec<Unit>,
}

/// A domain or a node.
pub(crate) struct Unit {
    /// The items in it.
    pub(crate) items: Range<usize>,
    /// How many GPUs it gives.
    pub(crate) size: u64,
    /// Its place, from 1, among those of its group that it can be exchanged for.
    pub(crate) place: u64,
    /// How many these are. None for a domain: that it is in every set says nothing of all that is in it.
    pub(crate) peers: u64,
}

/// What a search has to look at.
#[derive(Default)]
pub(crate) struct Kept {
    /// Items of every set.
    pub(crate) sure: Vec<usize>,
    /// Items that may be in a set.
    pub(crate) open: Vec<usize>,
}

/// What sets with the fewest groups can reach.
pub(crate) struct Bounds {
    groups: Vec<Group>,
    need: u64,
    thresholds: Vec<Threshold>,
}

/// What groups have above one size.
struct Threshold {
    size: u64,
    /// By group.
    above: Vec<u64>,
    /// The `k - 1` groups with the most, together.
    others: u64,
    /// The `k`th.
    last: u64,
}

impl Bounds {
    /// Of sets with `fewest` of these groups, of which there are as many.
    pub(crate) fn new(groups: Vec<Group>, need: u32, fewest: usize) -> Bounds {
        let need = u64::from(need);
        let sizes = groups.iter().flat_map(|group| &group.units).map(|unit| unit.size).collect();
        let thresholds = thresholds(sizes, need).into_iter();
        let thresholds = thresholds.map(|size| Threshold::new(size, &groups, fewest)).collect();
        Bounds { groups, need, thresholds }
    }

    /// No set has fewer units than this.
    pub(crate) fn least_units(&self) -> u64 {
        let units = self.thresholds.iter().filter(|threshold| threshold.size > 0).map(|threshold| {
            let short = self.need.saturating_sub(threshold.others + threshold.last);
            short.div_ceil(threshold.size)
        });
        units.max().unwrap_or(0)
    }

    /// What sets with so many units consist of.
    pub(crate) fn kept(&self, units: u64) -> Kept {
        let mut kept = Kept::default();
        let alone = self.groups.len() == 1;
        for (index, group) in self.groups.iter().enumerate() {
            // By threshold, how much less than it can reach is still enough.
            let spares = self.thresholds.iter().map(|threshold| {
                let above = threshold.above[index].min(threshold.last);
                let spare = (units * threshold.size + threshold.others + above).checked_sub(self.need)?;
                Some((threshold.size, spare))
            });
            let Some(spares) = spares.collect::<Option<Vec<(u64, u64)>>>() else { continue };
            for unit in &group.units {
                let Unit { items, size, place, peers } = unit;
                let missed = |threshold: u64| (peers + 1 - place) * size.saturating_sub(threshold);
                let wasted = |threshold: u64| place * threshold.saturating_sub(*size);
                if alone && spares.iter().any(|(threshold, spare)| missed(*threshold) > *spare) {
                    kept.sure.extend(items.clone());
                } else if spares.iter().all(|(threshold, spare)| wasted(*threshold) <= *spare) {
                    kept.open.extend(items.clone());
                }
            }
        }
        kept
    }
}

/// Some of these sizes, and 0.
fn thresholds(mut sizes: Vec<u64>, need: u64) -> Vec<u64> {
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let mut sum = 0;
    let enough = sizes.iter().find(|size| {
        sum += **size;
        sum >= need
    });
    let enough = enough.copied().unwrap_or(0);
    sizes.dedup();
    let at = sizes.iter().position(|size| *size == enough).unwrap_or(0);
    let near = &sizes[at.saturating_sub(NEAR)..sizes.len().min(at + NEAR)];
    let step = sizes.len().div_ceil(SPREAD).max(1);
    let mut chosen: Vec<u64> = [0].iter().chain(near).chain(sizes.iter().step_by(step)).copied().collect();
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

impl Threshold {
    fn new(size: u64, groups: &[Group], fewest: usize) -> Threshold {
        let excess = |group: &Group| group.units.iter().map(|unit| unit.size.saturating_sub(size)).sum();
        let above: Vec<u64> = groups.iter().map(excess).collect();
        let mut descending = above.clone();
        descending.sort_unstable_by(|a, b| b.cmp(a));
        let others = descending[..fewest - 1].iter().sum();
        Threshold { size, others, last: descending[fewest - 1], above }
    }
}
