//! The pods that start and end together: a plan's shares, with who is chief.
//!
//! The chief has the smallest share, as the first users of this had it; of equal ones the last. Ranks are counted through
//! the chief first and then the workers, node by node: that is the order in which the launcher takes its hosts.

use std::collections::BTreeMap;

use super::names::{self, Role};

/// One set of pods of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gang {
    pub(crate) attempt: u32,
    /// The chief first, then the workers.
    pub(crate) members: Vec<Member>,
}

/// One pod of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) role: Role,
    pub(crate) pod: String,
    pub(crate) node: String,
    pub(crate) gpus: u32,
}

impl Gang {
    /// Makes pods of what is claimed of each node. The order depends on nothing else, so that a set can be completed by
    /// a manager that did not plan it.
    pub(crate) fn new(job: &str, attempt: u32, claim: &BTreeMap<String, u32>) -> Gang {
        let mut shares: Vec<(&String, u32)> = claim.iter().map(|(node, gpus)| (node, *gpus)).collect();
        shares.sort_by(|(one, few), (other, many)| many.cmp(few).then_with(|| one.cmp(other)));
        let workers = shares.len().saturating_sub(1);
        let member = |role: Role, (node, gpus): (&String, u32)| Member {
            role,
            pod: names::pod(job, attempt, role, workers),
            node: node.clone(),
            gpus,
        };
        let mut members: Vec<Member> =
            shares.pop().map(|share| member(Role::Chief, share)).into_iter().collect();
        members
            .extend(shares.into_iter().enumerate().map(|(index, share)| member(Role::Worker(index), share)));
        Gang { attempt, members }
    }

    /// What it claims of each node.
    pub(crate) fn claim(&self) -> BTreeMap<String, u32> {
        let mut claim = BTreeMap::new();
        for member in &self.members {
            *claim.entry(member.node.clone()).or_default() += member.gpus;
        }
        claim
    }

    /// How many GPUs, and so how many ranks.
    pub(crate) fn gpus(&self) -> u32 {
        self.members.iter().map(|member| member.gpus).sum()
    }

    pub(crate) fn workers(&self) -> usize {
        self.members.iter().filter(|member| member.role != Role::Chief).count()
    }

    /// The chief's pod.
    pub(crate) fn chief(&self) -> &str {
        self.members.first().map_or("", |member| &member.pod)
    }

    /// As people read it: `node-1: 5, node-3: 1`.
    pub(crate) fn nodes(&self) -> String {
        let mut members: Vec<&Member> = self.members.iter().collect();
        members.sort_by(|one, other| other.gpus.cmp(&one.gpus).then_with(|| one.node.cmp(&other.node)));
        members
            .iter()
            .map(|member| format!("{}: {}", member.node, member.gpus))
            .collect::<Vec<_>>()
            .join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chief_has_the_smallest_share_and_the_first_ranks() {
        let gang = Gang::new("mnist", 0, &[("node-1".to_owned(), 5), ("node-3".to_owned(), 1)].into());
        let seen: Vec<_> = gang.members.iter().map(|m| (m.pod.as_str(), m.node.as_str(), m.gpus)).collect();
        assert_eq!(seen, [("mnist-chief", "node-3", 1), ("mnist-worker-0", "node-1", 5)]);
        assert_eq!((gang.gpus(), gang.workers(), gang.chief()), (6, 1, "mnist-chief"));
        assert_eq!(gang.nodes(), "node-1: 5, node-3: 1");
    }

    #[test]
    fn a_job_on_one_node_has_a_chief_alone() {
        let gang = Gang::new("mnist", 3, &[("node-1".to_owned(), 4)].into());
        assert_eq!((gang.workers(), gang.chief()), (0, "mnist-chief-r3"));
    }
}
