//! The exact search: which nodes cover a number of GPUs at the least cost?
//!
//! Cost is a list that is compared from the front: opened domains of every level, then nodes, then their weight (their free
//! GPUs). Such lists can be added, and adding keeps their order, so the best way to cover `r` GPUs with the items from `i`
//! on is known once it is known for the items from `i + 1` on: a table over items and GPUs, filled from the back. What has
//! been opened already matters too, hence one table for every depth: at depth `d` the `d` outermost domains of item `i` are
//! open. A list is packed into one integer, so comparing and adding are one instruction each.
//!
//! Steps: items × GPUs × (levels + 1). One bit of each decision is kept, to walk the tables from the front: an item is
//! taken whenever some best choice takes it, so of equal choices the one with the earliest items wins.

use std::ops::{Add, Range};

use crate::field::Path;

/// Something to choose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    /// How many GPUs it gives at most; at least 1.
    pub(crate) gives: u32,
    /// What choosing it costs where all else is equal.
    pub(crate) weight: u32,
    /// Where it stands.
    pub(crate) path: Path,
}

/// The indexes of the cheapest items that give `need` GPUs together, ascending; none if all together do not.
/// The domains of these levels are counted; those of each must be neighbours.
pub(crate) fn cover(items: &[Item], levels: Range<usize>, need: u32) -> Option<Vec<usize>> {
    if items.iter().map(|item| u64::from(item.gives)).sum::<u64>() < u64::from(need) {
        return None;
    }
    if need == 0 {
        return Some(Vec::new());
    }
    let most = u64::from(need).min(items.len() as u64);
    let heaviest = items.iter().map(|item| u64::from(item.weight)).max().unwrap_or(0);
    let (weight, count) = (bits(most * heaviest), bits(most));
    let tables = Tables { items, levels: levels.clone(), need: need as usize, weight, count };
    // One bit more, so that adding to what can never be does not overflow.
    let small = weight + count * (levels.len() as u32 + 1) < u64::BITS - 1;
    Some(if small { tables.walk::<u64>() } else { tables.walk::<u128>() })
}

fn bits(most: u64) -> u32 {
    u64::BITS - most.leading_zeros()
}

/// A packed list of costs.
trait Packed: Copy + Ord + Add<Output = Self> {
    /// Nothing chosen yet.
    const ZERO: Self;
    /// More than any choice costs, and still room to add.
    const NEVER: Self;
    /// `value` at this bit.
    fn at(value: u32, bit: u32) -> Self;
}

impl Packed for u64 {
    const ZERO: u64 = 0;
    const NEVER: u64 = u64::MAX / 2;
    fn at(value: u32, bit: u32) -> u64 {
        u64::from(value) << bit
    }
}

impl Packed for u128 {
    const ZERO: u128 = 0;
    const NEVER: u128 = u128::MAX / 2;
    fn at(value: u32, bit: u32) -> u128 {
        u128::from(value) << bit
    }
}

struct Tables<'a> {
    items: &'a [Item],
    levels: Range<usize>,
    need: usize,
    /// How many bits the weights have, the lowest ones.
    weight: u32,
    /// How many bits each of the counts above has.
    count: u32,
}

impl Tables<'_> {
    fn walk<C: Packed>(&self) -> Vec<usize> {
        let depths = self.levels.len() + 1;
        let words = self.need / 64 + 1;
        let mut decisions = vec![0_u64; self.items.len() * depths * words];
        // What the levels cost that are closed at each depth: the outermost has the highest bits.
        let fees: Vec<C> = (0..depths)
            .map(|depth| {
                let closed = (depth..depths - 1).map(|level| C::at(1, self.bit(depths - 1 - level)));
                closed.fold(C::ZERO, |sum, fee| sum + fee)
            })
            .collect();
        // best[depth][r]: the least cost of r GPUs from the items seen so far, which are the last ones.
        let mut best = vec![vec![C::NEVER; self.need + 1]; depths];
        best.iter_mut().for_each(|best| best[0] = C::ZERO);
        let mut offer = vec![C::NEVER; self.need + 1];
        let mut before: u64 = self.items.iter().map(|item| u64::from(item.gives)).sum();
        let mut after = 0_u64;
        for (index, item) in self.items.iter().enumerate().rev() {
            before -= u64::from(item.gives);
            after += u64::from(item.gives);
            // Nobody will ask about fewer GPUs than all items before leave to do, or about more than are left.
            let low = (self.need as u64).saturating_sub(before).max(1) as usize;
            let high = (self.need as u64).min(after) as usize;
            let shared = self.shared(index);
            let cost = C::at(1, self.bit(0)) + C::at(item.weight, 0);
            for (r, offer) in (low..=high).zip(&mut offer[low..=high]) {
                *offer = best[shared][r.saturating_sub(item.gives as usize)] + cost;
            }
            // From the inside out: tables deeper than `shared` are left for the next domain, at its table.
            for depth in (0..depths).rev() {
                let start = (index * depths + depth) * words;
                let bits = &mut decisions[start..start + words];
                if depth > shared {
                    let (outer, inner) = best.split_at_mut(depth);
                    inner[0][low..=high].copy_from_slice(&outer[shared][low..=high]);
                }
                decide(&mut best[depth][low..=high], &offer[low..=high], fees[depth], bits, low);
            }
        }
        let (mut picks, mut depth, mut left) = (Vec::new(), 0, self.need);
        for (index, item) in self.items.iter().enumerate() {
            if left == 0 {
                break;
            }
            let word = decisions[(index * depths + depth) * words + left / 64];
            depth = depth.min(self.shared(index));
            if word >> (left % 64) & 1 == 1 {
                picks.push(index);
                left = left.saturating_sub(item.gives as usize);
                depth = self.shared(index);
            }
        }
        picks
    }

    /// Where the count with this rank begins: nodes are 0, the innermost level is 1.
    fn bit(&self, rank: usize) -> u32 {
        self.weight + self.count * rank as u32
    }

    /// How many of the outermost levels this item and the next have in common.
    fn shared(&self, index: usize) -> usize {
        let Some(next) = self.items.get(index + 1) else { return 0 };
        let here = &self.items[index];
        self.levels.clone().take_while(|level| here.path[*level] == next.path[*level]).count()
    }
}

/// Takes the offer wherever it costs no more than what is best without it, and notes where.
fn decide<C: Packed>(best: &mut [C], offer: &[C], fee: C, bits: &mut [u64], low: usize) {
    let (mut word, mut bit, mut mask) = (low / 64, low % 64, 0_u64);
    for (best, offer) in best.iter_mut().zip(offer) {
        let offer = *offer + fee;
        let taken = offer <= *best;
        *best = if taken { offer } else { *best };
        mask |= u64::from(taken) << bit;
        bit += 1;
        if bit == 64 {
            bits[word] = mask;
            (word, bit, mask) = (word + 1, 0, 0);
        }
    }
    if bit > 0 {
        bits[word] = mask;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Items in the order of their domains, two levels deep.
    fn items() -> impl Strategy<Value = Vec<Item>> {
        let item = (1..=6_u32, 0..=9_u32, 0..=2_u32, 0..=1_u32);
        let item = item.prop_map(|(gives, weight, outer, inner)| {
            let mut path = Path::default();
            (path[0], path[1]) = (outer, outer * 2 + inner);
            Item { gives, weight, path }
        });
        proptest::collection::vec(item, 1..=10).prop_map(|mut items| {
            items.sort_by_key(|item| item.path);
            items
        })
    }

    /// What a choice costs, counted: domains of both levels, items, weight, and which.
    fn cost(items: &[Item], picks: &[usize]) -> ([usize; 3], u32, Vec<usize>) {
        let chosen: Vec<&Item> = picks.iter().map(|pick| &items[*pick]).collect();
        let domains = |level: usize| chosen.chunk_by(|a, b| a.path[level] == b.path[level]).count();
        ([domains(0), domains(1), picks.len()], chosen.iter().map(|item| item.weight).sum(), picks.to_vec())
    }

    proptest! {
        #[test]
        fn narrow_and_wide_costs_find_what_trying_everything_finds(items in items(), need in 1..=40_u32) {
            let chosen = |bits: u32| (0..items.len()).filter(|item| bits >> item & 1 == 1).collect::<Vec<_>>();
            let enough = |picks: &Vec<usize>| picks.iter().map(|pick| items[*pick].gives).sum::<u32>() >= need;
            let choices = (0..1_u32 << items.len()).map(chosen).filter(enough);
            let best = choices.min_by_key(|picks| cost(&items, picks));
            prop_assert_eq!(cover(&items, 0..2, need), best.clone());
            if let Some(best) = best {
                let wide = Tables { items: &items, levels: 0..2, need: need as usize, weight: 40, count: 20 };
                prop_assert_eq!(wide.walk::<u128>(), best);
            }
        }
    }
}
