//! The nodes that could give something, in the order in which ties are broken: by topology, then by name.
//!
//! In this order every domain of every level is one run of neighbours, which is what the search in
//! [`cheapest`](crate::cheapest) and [`cover`](crate::cover) rests on.

use std::ops::Range;

use crate::snapshot::{MOST_LEVELS, Node};

/// For every level the number of the domain. Numbers are never used twice, so equal numbers mean equal levels around it.
pub(crate) type Path = [u32; MOST_LEVELS];

/// The nodes that could give something.
#[derive(Debug)]
pub(crate) struct Field {
    /// By topology, then by name.
    pub(crate) candidates: Vec<Candidate>,
    /// How many levels count, from the outermost.
    pub(crate) levels: usize,
    /// The level of which all must be in one domain.
    pub(crate) required: Option<usize>,
}

/// A node that could give something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    /// Its place among all nodes by name.
    pub(crate) node: usize,
    /// How many GPUs it could give.
    pub(crate) usable: u32,
    /// How many it has free.
    pub(crate) free: u32,
    /// Where it stands.
    pub(crate) path: Path,
}

impl Field {
    /// Orders these nodes (place, usable, free) by the labels that `levels` names. A node without a label of a level is a
    /// domain of its own there, after all others: nothing says that it is near to anybody.
    pub(crate) fn new(
        nodes: &[&Node],
        usable: impl Iterator<Item = (usize, u32, u32)>,
        levels: &[String],
        required: Option<usize>,
    ) -> Field {
        let candidate = |(node, usable, free)| Candidate { node, usable, free, path: Path::default() };
        let mut candidates: Vec<Candidate> = usable.map(candidate).collect();
        for (level, key) in levels.iter().enumerate() {
            // Nodes that come one after the other are often in one domain, so there are fewer runs than nodes.
            let label = |candidate: &Candidate| nodes[candidate.node].labels.get(key).map(String::as_str);
            let mut runs: Vec<(Option<&str>, Range<usize>)> = Vec::new();
            for (at, candidate) in candidates.iter().enumerate() {
                let label = label(candidate);
                match runs.last_mut() {
                    Some((last, run)) if *last == label => run.end = at + 1,
                    _ => runs.push((label, at..at + 1)),
                }
            }
            // Numbers in the order of the labels, so that sorting need not compare text.
            let mut labels: Vec<&str> = runs.iter().filter_map(|(label, _)| *label).collect();
            labels.sort_unstable();
            labels.dedup();
            for (label, run) in runs {
                let number = label.and_then(|label| labels.binary_search(&label).ok());
                for candidate in &mut candidates[run] {
                    candidate.path[level] = number.unwrap_or(labels.len() + candidate.node) as u32;
                }
            }
        }
        candidates.sort_unstable_by_key(|candidate| (candidate.path, candidate.node));
        // So far a number is unique only inside the level around it.
        let mut before: Option<Path> = None;
        let mut path = Path::default();
        for candidate in &mut candidates {
            let labels = std::mem::replace(&mut candidate.path, path);
            if let Some(before) = before.replace(labels) {
                let common = (0..levels.len()).take_while(|level| labels[*level] == before[*level]).count();
                path[common..levels.len()].iter_mut().for_each(|domain| *domain += 1);
                candidate.path = path;
            }
        }
        Field { candidates, levels: levels.len(), required }
    }

    /// All candidates, or where all must be in one domain, those of each.
    pub(crate) fn arenas(&self) -> Vec<Range<usize>> {
        let all = 0..self.candidates.len();
        match self.required {
            Some(level) => runs(&self.candidates, all, |candidate| candidate.path[level]).collect(),
            None => vec![all],
        }
    }
}

/// The runs of neighbours in `range` with an equal key.
pub(crate) fn runs<T, K: PartialEq>(
    all: &[T],
    range: Range<usize>,
    key: impl Fn(&T) -> K,
) -> impl Iterator<Item = Range<usize>> {
    let mut start = range.start;
    let chunks = all[range].chunk_by(move |a, b| key(a) == key(b)).map(<[T]>::len);
    chunks.map(move |length| {
        let run = start..start + length;
        start = run.end;
        run
    })
}
