//! A set of small numbers, as bits: members of a host, hosts of a job, positions in a process set.

/// A set of numbers below a limit that is fixed at its creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    words: Vec<u64>,
    count: usize,
}

impl Parts {
    pub(super) fn new(limit: usize) -> Parts {
        Parts { words: vec![0; limit.div_ceil(64)], count: 0 }
    }

    /// Adds a number; says whether it is new. A number past the limit is never new.
    pub(super) fn insert(&mut self, part: usize) -> bool {
        let Some(word) = self.words.get_mut(part / 64) else { return false };
        let bit = 1 << (part % 64);
        let new = *word & bit == 0;
        *word |= bit;
        self.count += usize::from(new);
        new
    }

    pub(super) fn contains(&self, part: usize) -> bool {
        self.words.get(part / 64).is_some_and(|word| word & (1 << (part % 64)) != 0)
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn clear(&mut self) {
        self.words.fill(0);
        self.count = 0;
    }

    /// The numbers, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.words.len() * 64).filter(|&part| self.contains(part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_counted_once_and_come_back_in_order() {
        let mut parts = Parts::new(130);
        for part in [129, 0, 64, 0] {
            let known = parts.contains(part);
            assert_eq!(parts.insert(part), !known);
        }
        assert_eq!(parts.iter().collect::<Vec<_>>(), [0, 64, 129]);
        assert_eq!(parts.count(), 3);
        assert!(!parts.insert(500) && !parts.contains(500));
        parts.clear();
        assert_eq!((parts.count(), parts.iter().next()), (0, None));
    }
}
