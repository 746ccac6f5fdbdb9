//! The planner: looks at every node, decides how many GPUs it can be, lets the policy choose, and says why.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

use crate::explain::Explainer;
use crate::field::Field;
use crate::plan::{Alternative, Cause, Plan, Refusal, Share};
use crate::policy::{Chooser, Grant};
use crate::reason::Reason;
use crate::request::{MOST_GPUS, Policy, Request};
use crate::snapshot::{MOST_LEVELS, Node, Snapshot};
use crate::survey::{Surveyed, holdings, survey};

/// Chooses the nodes for a job: all of its GPUs, or none.
///
/// ```
/// use ronde_placement::{DEFAULT_RESOURCE, Node, Request, Snapshot, plan};
///
/// let node = |name, free, all| Node::new(name).with_gpus(DEFAULT_RESOURCE, free, all);
/// let nodes = vec![node("node-1", 5, 8), node("node-2", 3, 4), node("node-3", 2, 8)];
/// let snapshot = Snapshot::new(0, vec![], nodes).unwrap();
/// assert_eq!(plan(&snapshot, &Request::new(6)).unwrap().summary(), "5 + 1 on node-1, node-3");
/// ```
///
/// # Errors
/// Why there is no plan, with the reason of every node.
pub fn plan(snapshot: &Snapshot, request: &Request) -> Result<Plan, Refusal> {
    let levels = levels(snapshot, request);
    check(&levels, request)?;
    let topology = request.topology.as_ref();
    let required = topology.filter(|topology| topology.required).map(|topology| topology.level.as_str());
    let mut nodes: Vec<&Node> = snapshot.nodes.iter().collect();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    let look = |node: &&Node| survey(node, request, snapshot.taken, required);
    let surveyed: Vec<Surveyed> = nodes.iter().map(look).collect();
    let cluster = Cluster { nodes: &nodes, levels: &levels, surveyed: &surveyed };
    let field = cluster.field(request, |surveyed| surveyed.usable);
    let need = largest_arena(&field).min(u64::from(request.max)) as u32;
    if need < request.min {
        return Err(refuse(&cluster, request, need, snapshot.taken));
    }
    // The largest arena has as many as are needed, so there always is a choice.
    let chooser = Chooser::new(&field, need);
    let choice = |policy| chooser.choose(policy).unwrap_or_default();
    let grants = choice(request.policy);
    let shares = cluster.shares(&grants, &field);
    let other = if request.policy == Policy::Pack { Policy::Balance } else { Policy::Pack };
    let others = cluster.shares(&choice(other), &field);
    let alternatives =
        if others == shares { vec![] } else { vec![Alternative { policy: other, shares: others }] };
    Ok(Plan {
        shares,
        gpus: need,
        resource: request.resource.clone(),
        policy: request.policy,
        nodes: Explainer::new(&cluster, request, &field, &grants).verdicts(),
        alternatives,
    })
}

/// A snapshot's nodes by name, so that an index is a place in that order, and what was found out about each.
pub(crate) struct Cluster<'a> {
    pub(crate) nodes: &'a [&'a Node],
    pub(crate) levels: &'a [String],
    pub(crate) surveyed: &'a [Surveyed],
}

impl Cluster<'_> {
    /// The nodes that give something by this measure. Levels inside one that is preferred do not count.
    fn field(&self, request: &Request, gives: impl Fn(&Surveyed) -> u32) -> Field {
        let topology = request.topology.as_ref();
        let named =
            topology.and_then(|topology| self.levels.iter().position(|level| *level == topology.level));
        let required = named.filter(|_| topology.is_some_and(|topology| topology.required));
        let counted = match (named, required) {
            (Some(named), None) => &self.levels[..=named],
            _ => self.levels,
        };
        let giving = self.surveyed.iter().enumerate();
        let giving = giving.map(|(node, surveyed)| (node, gives(surveyed), surveyed.gpus.free));
        Field::new(self.nodes, giving.filter(|(_, gives, _)| *gives > 0), counted, required)
    }

    fn shares(&self, grants: &[Grant], field: &Field) -> Vec<Share> {
        let share = |(index, grant): (usize, &Grant)| Share {
            node: self.nodes[field.candidates[grant.candidate].node].name.clone(),
            gpus: grant.gpus,
            chief: index + 1 == grants.len(),
        };
        grants.iter().enumerate().map(share).collect()
    }
}

/// The levels that say where nodes stand, with the one that the request names, if any node has its label: a level that
/// nobody spoke of before stands outside of those that have more domains than it.
fn levels<'a>(snapshot: &'a Snapshot, request: &Request) -> Cow<'a, [String]> {
    let known = &snapshot.levels;
    let domains = |level: &str| {
        snapshot.nodes.iter().filter_map(|node| node.labels.get(level)).collect::<HashSet<_>>().len()
    };
    let named = request.topology.as_ref().map(|topology| &topology.level);
    let Some(named) = named.filter(|named| !known.contains(named) && domains(named) > 0) else {
        return Cow::Borrowed(known);
    };
    let outside = known.iter().take_while(|level| domains(level) <= domains(named)).count();
    let mut levels = known.clone();
    levels.insert(outside, named.clone());
    // The one that is named counts more than others.
    if levels.len() > MOST_LEVELS {
        levels.remove(if outside == 0 { levels.len() - 1 } else { 0 });
    }
    Cow::Owned(levels)
}

/// What makes no sense, whatever the cluster, or in no cluster like this.
fn check(levels: &[String], request: &Request) -> Result<(), Refusal> {
    let Request { min, max, per_node, .. } = request;
    if *max == 0 {
        return Err(Refusal::invalid("a job of 0 GPUs cannot be planned; ask for at least one"));
    }
    if min > max {
        return Err(Refusal::invalid(format!("at least {min} and at most {max} GPUs is no range")));
    }
    if *max > MOST_GPUS {
        return Err(Refusal::invalid(format!("{max} GPUs are more than can be planned, {MOST_GPUS}")));
    }
    if *per_node == Some(0) {
        return Err(Refusal::invalid("with at most 0 GPUs of a node there can be no job"));
    }
    match &request.topology {
        Some(topology) if !levels.contains(&topology.level) => {
            let known = match levels {
                [] => "none is known of this cluster".to_owned(),
                levels => format!("there are {}", levels.join(", ")),
            };
            Err(Refusal::invalid(format!("there is no topology level {}; {known}", topology.level)))
        }
        _ => Ok(()),
    }
}

fn largest_arena(field: &Field) -> u64 {
    let total = |range: Range<usize>| {
        field.candidates[range].iter().map(|candidate| u64::from(candidate.usable)).sum()
    };
    field.arenas().into_iter().map(total).max().unwrap_or(0)
}

fn refuse(cluster: &Cluster, request: &Request, usable: u32, taken: u64) -> Refusal {
    let required = request.topology.as_ref().filter(|topology| topology.required);
    let level = required.map(|topology| topology.level.clone());
    let (wanted, resource) = (request.min, request.resource.clone());
    let all = largest_arena(&cluster.field(request, |surveyed| surveyed.some_day));
    let cause = match u32::try_from(all) {
        Ok(all) if all < wanted => Cause::Never { wanted, all, level, resource },
        _ => Cause::NotEnough { wanted, usable, level, resource },
    };
    let verdict = |(node, surveyed): (&&Node, &Surveyed)| {
        let gpus = surveyed.gpus;
        let held = || Reason::Held { free: gpus.free, holders: holdings(node, request, taken) };
        let reason = surveyed.limit.clone().or_else(|| (gpus.free < gpus.allocatable).then(held));
        surveyed.verdict(node, 0, reason)
    };
    Refusal { cause, nodes: cluster.nodes.iter().zip(cluster.surveyed).map(verdict).collect() }
}
