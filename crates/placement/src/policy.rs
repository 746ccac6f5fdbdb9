//! The policies: from the nodes that could give something to the shares. What each aims at is in the prose of the crate.

use std::cell::OnceCell;
use std::cmp::Reverse;
use std::ops::Range;

use crate::cheapest::{Set, Shape, cheapest};
use crate::field::Field;
use crate::request::Policy;

/// What one candidate gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Its index among the candidates.
    pub(crate) candidate: usize,
    /// How many GPUs, at least 1.
    pub(crate) gpus: u32,
}

/// Chooses shares of `need` GPUs; what several policies ask is found out once.
pub(crate) struct Chooser<'a> {
    field: &'a Field,
    need: u32,
    /// Every arena that has enough, and its cheapest set.
    cheapest: OnceCell<Vec<(Range<usize>, Set)>>,
}

impl<'a> Chooser<'a> {
    pub(crate) fn new(field: &'a Field, need: u32) -> Chooser<'a> {
        Chooser { field, need, cheapest: OnceCell::new() }
    }

    /// The shares by this policy, the largest first, equal ones by name. None if no arena has enough.
    pub(crate) fn choose(&self, policy: Policy) -> Option<Vec<Grant>> {
        let mut grants = match policy {
            Policy::Pack => self.pack(),
            Policy::Balance => self.balance(),
            Policy::Spread => self.spread(),
            Policy::InOrder => self.in_order(),
        }?;
        grants.sort_by_key(|grant| (Reverse(grant.gpus), self.place(grant.candidate)));
        Some(grants)
    }

    fn cheapest(&self) -> &[(Range<usize>, Set)] {
        self.cheapest.get_or_init(|| {
            let found = self.arenas().filter_map(|arena| {
                let set = cheapest(self.field, arena.clone(), self.need, None, |c| c.usable)?;
                Some((arena, set))
            });
            found.collect()
        })
    }

    fn pack(&self) -> Option<Vec<Grant>> {
        let (_, set) = self.cheapest().iter().min_by_key(|(_, set)| set.cost)?;
        Some(self.fill(set.picks.clone()))
    }

    /// Most even first among the sets of the best shape, so each arena is asked for its best shape, then for the lowest
    /// top share that still has this shape, then for the highest bottom share.
    fn balance(&self) -> Option<Vec<Grant>> {
        let found = self.cheapest();
        let shape = found.iter().map(|(_, set)| set.cost.shape).min()?;
        let arenas = found.iter().filter(|(_, set)| set.cost.shape == shape).map(|(arena, _)| arena.clone());
        let sets = arenas.filter_map(|arena| self.most_even(arena, shape));
        let (.., set) = sets.min_by_key(|(top, bottom, set)| (*top, Reverse(*bottom), set.cost))?;
        Some(self.level(set.picks))
    }

    /// The cheapest of the most even sets of this shape, with its largest and smallest share.
    fn most_even(&self, arena: Range<usize>, shape: Shape) -> Option<(u32, u32, Set)> {
        let within = |top: u32, bottom: u32| {
            let gives = |usable: u32| if usable < bottom { 0 } else { usable.min(top) };
            cheapest(self.field, arena.clone(), self.need, Some(shape), |c| gives(c.usable))
        };
        let (least, most) = (self.need.div_ceil(shape.nodes), self.need / shape.nodes);
        // In most clusters the shares can simply be equal.
        if let Some(set) = within(least, most) {
            return Some((least, most, set));
        }
        let largest = self.field.candidates[arena.clone()].iter().map(|c| c.usable).max()?;
        let top = first_that(least, largest, |top| within(top, 1).is_some());
        // Counted from above: the first that is possible is the largest one.
        let bottom = most - first_that(0, most - 1, |less| within(top, most - less).is_some());
        Some((top, bottom, within(top, bottom)?))
    }

    fn spread(&self) -> Option<Vec<Grant>> {
        let sets = self.arenas().filter_map(|arena| {
            let total: u64 = self.field.candidates[arena.clone()].iter().map(|c| u64::from(c.usable)).sum();
            if total < u64::from(self.need) {
                return None;
            }
            // With more nodes than GPUs each gives one, and it is a matter of which.
            let crowded = arena.len() > self.need as usize;
            let set = if crowded {
                cheapest(self.field, arena, self.need, None, |_| 1)?
            } else {
                Set::new(self.field, arena.collect())
            };
            let grants = self.level(set.picks.clone());
            let (least, most) = (grants.iter().map(|g| g.gpus).min()?, grants.iter().map(|g| g.gpus).max()?);
            Some(((Reverse(grants.len()), most, Reverse(least), set.cost), grants))
        });
        sets.min_by_key(|(key, _)| *key).map(|(_, grants)| grants)
    }

    fn in_order(&self) -> Option<Vec<Grant>> {
        let plans = self.arenas().filter_map(|arena| {
            let total: u64 = self.field.candidates[arena.clone()].iter().map(|c| u64::from(c.usable)).sum();
            (total >= u64::from(self.need)).then(|| self.fill(arena.collect()))
        });
        plans.min_by_key(Vec::len)
    }

    /// Fills these candidates one after the other, those with the most first, until there are enough.
    fn fill(&self, mut picks: Vec<usize>) -> Vec<Grant> {
        picks.sort_by_key(|pick| (Reverse(self.usable(*pick)), self.place(*pick)));
        let mut left = self.need;
        let mut grants = Vec::new();
        for candidate in picks {
            let gpus = left.min(self.usable(candidate));
            left -= gpus;
            if gpus > 0 {
                grants.push(Grant { candidate, gpus });
            }
        }
        grants
    }

    /// Takes equally of these candidates, and of those with less all they have. What does not divide goes to those with
    /// the most, equal ones by name.
    fn level(&self, mut picks: Vec<usize>) -> Vec<Grant> {
        picks.sort_by_key(|pick| (self.usable(*pick), Reverse(self.place(*pick))));
        let (mut left, mut remaining) = (self.need, picks.len() as u32);
        let mut grants = Vec::new();
        for candidate in picks {
            let gpus = self.usable(candidate).min(left / remaining);
            (left, remaining) = (left - gpus, remaining - 1);
            grants.push(Grant { candidate, gpus });
        }
        grants
    }

    fn arenas(&self) -> impl Iterator<Item = Range<usize>> {
        self.field.arenas().into_iter()
    }

    fn usable(&self, candidate: usize) -> u32 {
        self.field.candidates[candidate].usable
    }

    /// Its place by name.
    fn place(&self, candidate: usize) -> usize {
        self.field.candidates[candidate].node
    }
}

/// The least number from `low` to `high` that has a property which all larger ones have too; `high` if none is found.
fn first_that(mut low: u32, mut high: u32, has: impl Fn(u32) -> bool) -> u32 {
    while low < high {
        let middle = low + (high - low) / 2;
        if has(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}
