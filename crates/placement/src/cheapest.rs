//! The cheapest set of nodes that gives a number of GPUs: [`cover`](crate::cover), on no more nodes than can matter.
//!
//! Cost is compared in this order: domains of every counted level, the outermost first; nodes; free GPUs on them; and then
//! the nodes that come first. What is left out before the exact search cannot be part of a cheapest set:
//!
//! * If everything fits into one domain of a level, only such domains come into question, each by itself.
//! * Of nodes in one domain that give the same, only as many matter as would be enough alone: the lightest.
//! * What [`bounds`](crate::bounds) can tell to be too small, or to be in every set: first for the number of nodes (or inner
//!   domains) that no set can be below, then for one more and so on, until a set that small is found.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::bounds::{Bounds, Group, Kept, Unit};
use crate::cover::{Item, cover};
use crate::field::{Candidate, Field, runs};
use crate::snapshot::MOST_LEVELS;

/// What a set of nodes costs: compared from the first field to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cost {
    pub(crate) shape: Shape,
    /// How many GPUs are free on them.
    pub(crate) free: u64,
}

/// How a job is spread, whichever nodes it is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shape {
    /// The domains of every counted level.
    pub(crate) domains: [u32; MOST_LEVELS],
    pub(crate) nodes: u32,
}

/// A set of nodes: indexes of candidates, ascending.
#[derive(Clone, Debug)]
pub(crate) struct Set {
    pub(crate) picks: Vec<usize>,
    pub(crate) cost: Cost,
}

impl Set {
    /// These candidates, and what they cost.
    pub(crate) fn new(field: &Field, picks: Vec<usize>) -> Set {
        let chosen: Vec<Candidate> = picks.iter().map(|pick| field.candidates[*pick]).collect();
        let mut domains = [0; MOST_LEVELS];
        for (level, count) in domains.iter_mut().enumerate().take(field.levels) {
            *count = chosen.chunk_by(|a, b| a.path[level] == b.path[level]).count() as u32;
        }
        let free = chosen.iter().map(|candidate| u64::from(candidate.free)).sum();
        Set { cost: Cost { shape: Shape { domains, nodes: picks.len() as u32 }, free }, picks }
    }
}

/// The cheapest set of candidates in `arena` that together give `need` GPUs, where each gives as many as `gives` says.
/// Whoever knows that no set has a smaller shape than `least`, and wants no larger one, is answered sooner.
pub(crate) fn cheapest(
    field: &Field,
    arena: Range<usize>,
    need: u32,
    least: Option<Shape>,
    gives: impl Fn(&Candidate) -> u32,
) -> Option<Set> {
    let search = Search::new(field, arena, need, gives);
    let (pools, depth) = search.pools()?;
    let mut limit = u64::MAX;
    if let Some(least) = least {
        let groups = search.fewest(pools.first()?.clone(), depth);
        if depth < field.levels && groups > least.domains[depth] as usize {
            return None;
        }
        limit = u64::from(if depth + 1 < field.levels { least.domains[depth + 1] } else { least.nodes });
    }
    let mut best: Option<Set> = None;
    for pool in pools {
        let Some((units, picks)) = search.within(pool, depth, limit) else { continue };
        limit = units;
        let set = Set::new(field, picks);
        if best.as_ref().is_none_or(|best| set.cost < best.cost) {
            best = Some(set);
        }
    }
    best.filter(|best| least.is_none_or(|least| best.cost.shape == least))
}

/// What comes into question.
struct Search<'a> {
    field: &'a Field,
    need: u32,
    items: Vec<Item>,
    /// For every item its candidate.
    origin: Vec<usize>,
}

impl Search<'_> {
    fn new(field: &Field, arena: Range<usize>, need: u32, gives: impl Fn(&Candidate) -> u32) -> Search<'_> {
        let mut search = Search { field, need, items: Vec::new(), origin: Vec::new() };
        let innermost =
            |candidate: &Candidate| field.levels.checked_sub(1).map(|level| candidate.path[level]);
        for run in runs(&field.candidates, arena, innermost) {
            let giving = run.map(|origin| (origin, gives(&field.candidates[origin]).min(need)));
            let giving: Vec<(usize, u32)> = giving.filter(|(_, gives)| *gives > 0).collect();
            for (origin, gives) in search.lightest(giving) {
                let Candidate { free, path, .. } = field.candidates[origin];
                search.items.push(Item { gives, weight: free, path });
                search.origin.push(origin);
            }
        }
        search
    }

    /// Of these candidates, and what they give, as many of each kind as would be enough alone.
    fn lightest(&self, giving: Vec<(usize, u32)>) -> Vec<(usize, u32)> {
        let most = giving.iter().map(|(_, gives)| *gives).max().unwrap_or(1);
        if giving.len() <= self.need.div_ceil(most) as usize {
            return giving;
        }
        // By how much they give: their weights and origins.
        let mut kinds: BTreeMap<u32, Vec<(u32, usize)>> = BTreeMap::new();
        for (origin, gives) in giving {
            kinds.entry(gives).or_default().push((self.field.candidates[origin].free, origin));
        }
        let mut kept = Vec::new();
        for (gives, mut kind) in kinds {
            let enough = self.need.div_ceil(gives) as usize;
            if kind.len() > enough {
                kind.select_nth_unstable(enough);
                kind.truncate(enough);
            }
            kept.extend(kind.into_iter().map(|(_, origin)| (origin, gives)));
        }
        kept.sort_unstable();
        kept
    }

    /// Where to look: runs of items of which each is enough, and of how many levels each is in one domain.
    fn pools(&self) -> Option<(Vec<Range<usize>>, usize)> {
        let all = 0..self.items.len();
        if self.total(all.clone()) < u64::from(self.need) {
            return None;
        }
        let (mut pools, mut depth) = (vec![all], 0);
        for level in 0..self.field.levels {
            let inner = pools.iter().flat_map(|pool| self.domains(pool.clone(), level));
            let inner: Vec<_> =
                inner.filter(|domain| self.total(domain.clone()) >= u64::from(self.need)).collect();
            if inner.is_empty() {
                break;
            }
            (pools, depth) = (inner, level + 1);
        }
        // Fewest of the next level's domains, or nodes where there is no such level; no other pool can win.
        let counts: Vec<usize> = pools.iter().map(|pool| self.fewest(pool.clone(), depth)).collect();
        let least = counts.iter().copied().min()?;
        let pools = pools.into_iter().zip(counts).filter(|(_, count)| *count == least).map(|(pool, _)| pool);
        Some((pools.collect(), depth))
    }

    /// The cheapest set inside this pool, as indexes of candidates, after the number of its units: domains of the second
    /// level inside the pool, or nodes. None if it has more than `limit`.
    fn within(&self, pool: Range<usize>, depth: usize, limit: u64) -> Option<(u64, Vec<usize>)> {
        let levels = self.field.levels;
        let (fewest, groups) = if depth < levels {
            (self.fewest(pool.clone(), depth), self.domains(pool, depth).collect())
        } else {
            (1, vec![pool])
        };
        let group = |group: Range<usize>| Group {
            units: if depth + 1 < levels {
                let unit =
                    |items: Range<usize>| Unit { size: self.total(items.clone()), items, place: 1, peers: 0 };
                self.domains(group, depth + 1).map(unit).collect()
            } else {
                self.nodes(group)
            },
        };
        let bounds = Bounds::new(groups.into_iter().map(group).collect(), self.need, fewest);
        for units in bounds.least_units()..=limit.min(self.items.len() as u64) {
            let Kept { sure, open } = bounds.kept(units);
            let found: u64 = sure.iter().map(|item| u64::from(self.items[*item].gives)).sum();
            let left = u64::from(self.need).saturating_sub(found) as u32;
            let items: Vec<Item> = open.iter().map(|item| self.items[*item]).collect();
            let Some(picks) = cover(&items, depth..levels, left) else { continue };
            let mut picks: Vec<usize> = picks.into_iter().map(|pick| open[pick]).chain(sure).collect();
            picks.sort_unstable();
            let chosen: Vec<&Item> = picks.iter().map(|pick| &self.items[*pick]).collect();
            let domains = |level: usize| chosen.chunk_by(|a, b| a.path[level] == b.path[level]).count();
            let found = if depth + 1 < levels { domains(depth + 1) } else { chosen.len() };
            if found as u64 <= units && (depth == levels || domains(depth) == fewest) {
                return Some((units, picks.into_iter().map(|pick| self.origin[pick]).collect()));
            }
        }
        None
    }

    /// The nodes of one innermost domain as units. Of those that give the same the lightest are taken first.
    fn nodes(&self, domain: Range<usize>) -> Vec<Unit> {
        let unit = |item: usize| Unit {
            items: item..item + 1,
            size: u64::from(self.items[item].gives),
            place: 1,
            peers: 1,
        };
        let mut units: Vec<Unit> = domain.clone().map(unit).collect();
        let mut order: Vec<usize> = domain.clone().collect();
        order.sort_unstable_by_key(|item| (self.items[*item].gives, self.items[*item].weight, *item));
        for class in order.chunk_by(|a, b| self.items[*a].gives == self.items[*b].gives) {
            for (item, place) in class.iter().zip(1..) {
                let unit = &mut units[item - domain.start];
                (unit.place, unit.peers) = (place, class.len() as u64);
            }
        }
        units
    }

    /// The least number of the level's domains, or of nodes, that is enough.
    fn fewest(&self, pool: Range<usize>, depth: usize) -> usize {
        let mut sum = 0;
        let mut short = |size: &u64| {
            let short = sum < u64::from(self.need);
            sum += size;
            short
        };
        self.sizes(pool, depth).iter().take_while(|size| short(size)).count()
    }

    /// How much the level's domains give, or the nodes where there is no such level; the largest first.
    fn sizes(&self, pool: Range<usize>, depth: usize) -> Vec<u64> {
        let mut sizes: Vec<u64> = if depth < self.field.levels {
            self.domains(pool, depth).map(|domain| self.total(domain)).collect()
        } else {
            self.items[pool].iter().map(|item| u64::from(item.gives)).collect()
        };
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        sizes
    }

    fn domains(&self, pool: Range<usize>, level: usize) -> impl Iterator<Item = Range<usize>> {
        runs(&self.items, pool, move |item| item.path[level])
    }

    fn total(&self, range: Range<usize>) -> u64 {
        self.items[range].iter().map(|item| u64::from(item.gives)).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::snapshot::Node;

    /// Up to 80 nodes with labels of three levels, of which some are missing, that give so many of their free GPUs.
    fn fields() -> impl Strategy<Value = Field> {
        let node = (1..=12_u32, 0..=8_u32, proptest::collection::vec(0..=4_u8, 3));
        let field = |(levels, nodes): (usize, Vec<(u32, u32, Vec<u8>)>)| {
            let keys: Vec<String> = (0..levels).map(|level| format!("level-{level}")).collect();
            let node = |(index, (.., labels)): (usize, &(u32, u32, Vec<u8>))| {
                let labels = keys.iter().zip(labels).filter(|(_, label)| **label > 0);
                labels.fold(Node::new(format!("node-{index:02}")), |node, (key, label)| {
                    node.with_label(key, &label.to_string())
                })
            };
            let named: Vec<Node> = nodes.iter().enumerate().map(node).collect();
            let named: Vec<&Node> = named.iter().collect();
            let giving =
                nodes.iter().enumerate().map(|(node, (usable, more, _))| (node, *usable, usable + more));
            Field::new(&named, giving, &keys, None)
        };
        (0..=3_usize, proptest::collection::vec(node, 1..=80)).prop_map(field)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

        #[test]
        fn what_is_left_out_or_taken_for_sure_changes_nothing(field in fields(), need in 1..=400_u32) {
            let item = |c: &Candidate| Item { gives: c.usable, weight: c.free, path: c.path };
            let items: Vec<Item> = field.candidates.iter().map(item).collect();
            let found = cheapest(&field, 0..items.len(), need, None, |c| c.usable).map(|set| set.picks);
            prop_assert_eq!(found, cover(&items, 0..field.levels, need));
        }
    }
}
