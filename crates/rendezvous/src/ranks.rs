//! Naming several ranks the way a person would: `rank 3`, `ranks 0 and 2`, `ranks 3 and 5-7`.

use std::fmt;

/// A set of ranks that reads well in a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranks(Vec<usize>);

impl Ranks {
    /// The ranks in any order, repetitions dropped.
    pub fn new(ranks: impl IntoIterator<Item = usize>) -> Ranks {
        let mut ranks: Vec<usize> = ranks.into_iter().collect();
        ranks.sort_unstable();
        ranks.dedup();
        Ranks(ranks)
    }

    /// The ranks, ascending.
    pub fn as_slice(&self) -> &[usize] {
        &self.0
    }
}

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for &rank in &self.0 {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == rank => *last = rank,
                _ => runs.push((rank, rank)),
            }
        }
        let mut names = Vec::new();
        for (first, last) in runs {
            match last - first {
                0 => names.push(first.to_string()),
                // Two neighbours read better apart than as a range.
                1 => names.extend([first.to_string(), last.to_string()]),
                _ => names.push(format!("{first}-{last}")),
            }
        }
        f.write_str(match self.0.len() {
            0 => "no rank",
            1 => "rank ",
            _ => "ranks ",
        })?;
        match names.split_last() {
            None => Ok(()),
            Some((only, [])) => f.write_str(only),
            Some((last, others)) => write!(f, "{} and {last}", others.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Ranks;

    #[test]
    fn ranks_read_like_a_sentence() {
        for (ranks, text) in [
            (vec![], "no rank"),
            (vec![3], "rank 3"),
            (vec![2, 0], "ranks 0 and 2"),
            (vec![0, 1], "ranks 0 and 1"),
            (vec![3, 5, 6, 7], "ranks 3 and 5-7"),
            (vec![5, 6, 7], "ranks 5-7"),
            (vec![0, 2, 2, 4, 5], "ranks 0, 2, 4 and 5"),
        ] {
            assert_eq!(Ranks::new(ranks.clone()).to_string(), text, "{ranks:?}");
        }
    }
}
