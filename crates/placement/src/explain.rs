//! Why each node was used as it was, once the shares are known.

use std::collections::BTreeSet;

use crate::field::{Candidate, Field};
use crate::plan::Verdict;
use crate::planner::Cluster;
use crate::policy::Grant;
use crate::reason::Reason;
use crate::request::{Policy, Request};

/// What every reason is made of.
pub(crate) struct Explainer<'a> {
    cluster: &'a Cluster<'a>,
    request: &'a Request,
    field: &'a Field,
    /// `6 = 5 + 1`.
    sum: String,
    /// By node, how many are taken.
    taken: Vec<u32>,
    /// By level, the domains that are used.
    used: Vec<BTreeSet<u32>>,
    /// The share that could most easily be somebody else's: the last one, and where shares are even, the one whose node
    /// has the most free.
    loosest: Option<(Candidate, u32)>,
    smallest: u32,
}

impl<'a> Explainer<'a> {
    /// Of these grants, the largest first.
    pub(crate) fn new(
        cluster: &'a Cluster<'a>,
        request: &'a Request,
        field: &'a Field,
        grants: &[Grant],
    ) -> Explainer<'a> {
        let granted = || grants.iter().map(|grant| (field.candidates[grant.candidate], grant.gpus));
        let mut taken = vec![0; cluster.nodes.len()];
        granted().for_each(|(candidate, gpus)| taken[candidate.node] = gpus);
        let domains = |level: usize| granted().map(|(candidate, _)| candidate.path[level]).collect();
        let loosest = match request.policy {
            Policy::Balance | Policy::Spread => granted().max_by_key(|(candidate, _)| candidate.free),
            Policy::Pack | Policy::InOrder => granted().next_back(),
        };
        Explainer {
            cluster,
            request,
            field,
            sum: sum(grants),
            taken,
            used: (0..field.levels).map(domains).collect(),
            loosest,
            smallest: grants.last().map_or(0, |grant| grant.gpus),
        }
    }

    /// What became of every node, by name.
    pub(crate) fn verdicts(&self) -> Vec<Verdict> {
        let mut reasons: Vec<Option<Reason>> =
            self.cluster.surveyed.iter().map(|surveyed| surveyed.limit.clone()).collect();
        for candidate in &self.field.candidates {
            let taken = self.taken[candidate.node];
            if taken == 0 {
                reasons[candidate.node] = Some(self.passed_over(candidate));
            } else if taken < candidate.usable {
                reasons[candidate.node] = Some(Reason::Enough);
            }
        }
        let nodes = self.cluster.nodes.iter().zip(self.cluster.surveyed).zip(&self.taken).zip(reasons);
        nodes.map(|(((node, surveyed), taken), reason)| surveyed.verdict(node, *taken, reason)).collect()
    }

    /// Why a node that could give something gives nothing.
    fn passed_over(&self, candidate: &Candidate) -> Reason {
        if let Some(reason) = self.elsewhere(candidate) {
            return reason;
        }
        let not_needed = Reason::NotNeeded { sum: self.sum.clone() };
        let Some((loosest, share)) = self.loosest.filter(|_| self.request.policy != Policy::InOrder) else {
            return not_needed;
        };
        let name = || self.cluster.nodes[loosest.node].name.clone();
        if candidate.usable < self.smallest {
            Reason::TooSmall { sum: self.sum.clone(), smallest: self.smallest }
        } else if candidate.usable < share || candidate.free < loosest.free {
            not_needed
        } else if candidate.free > loosest.free {
            Reason::Looser { sum: self.sum.clone(), last: share, taken: name() }
        } else {
            Reason::Later { taken: name() }
        }
    }

    /// Whether it stands in another domain than all that is used, at a level where that counts.
    fn elsewhere(&self, candidate: &Candidate) -> Option<Reason> {
        let levels = match (self.request.policy, self.field.required) {
            (Policy::InOrder, required) => required.map_or(0, |level| level + 1),
            _ => self.field.levels,
        };
        let level = (0..levels).find(|level| !self.used[*level].contains(&candidate.path[*level]))?;
        let used = &self.used[level];
        let label = &self.cluster.levels[level];
        // Where one domain is used, every share is in it.
        let member = self.loosest.filter(|_| used.len() == 1).map(|(member, _)| member.node);
        let domain = member.and_then(|member| self.cluster.nodes[member].labels.get(label));
        Some(Reason::Elsewhere { level: label.clone(), domain: domain.cloned(), domains: used.len() as u32 })
    }
}

/// `6 = 5 + 1`; with many shares, how often each size is there: `512 = 63 × 8 + 2 × 4`.
fn sum(grants: &[Grant]) -> String {
    const MOST: usize = 4;
    let total: u64 = grants.iter().map(|grant| u64::from(grant.gpus)).sum();
    let sizes: Vec<String> = if grants.len() <= MOST {
        grants.iter().map(|grant| grant.gpus.to_string()).collect()
    } else {
        let equal = grants.chunk_by(|a, b| a.gpus == b.gpus);
        equal.map(|equal| format!("{} × {}", equal.len(), equal[0].gpus)).collect()
    };
    let mut sizes = sizes.iter().map(String::as_str);
    let mut shown: Vec<&str> = sizes.by_ref().take(MOST).collect();
    if sizes.next().is_some() {
        shown.push("…");
    }
    format!("{total} = {}", shown.join(" + "))
}
