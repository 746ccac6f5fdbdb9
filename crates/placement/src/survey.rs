//! The first look at every node: how many GPUs could this job have of it, and if fewer than are free, why.

use crate::affinity;
use crate::plan::Verdict;
use crate::reason::{Holding, Reason};
use crate::request::Request;
use crate::snapshot::{Effect, Gpus, Holder, Node};

/// What one node could give.
pub(crate) struct Surveyed {
    /// What it has of the resource.
    pub(crate) gpus: Gpus,
    /// How many GPUs the job could have.
    pub(crate) usable: u32,
    /// How many it could have if the node were empty, in order and not left out; none if it is not meant at all.
    pub(crate) some_day: u32,
    /// Why it is not all that are free. There is one whenever nothing is usable.
    pub(crate) limit: Option<Reason>,
}

impl Surveyed {
    /// What became of this node, with nothing decided yet.
    pub(crate) fn verdict(&self, node: &Node, taken: u32, reason: Option<Reason>) -> Verdict {
        Verdict {
            node: node.name.clone(),
            all: self.gpus.allocatable,
            free: self.gpus.free,
            usable: self.usable,
            taken,
            replicas: self.gpus.replicas,
            reason,
        }
    }
}

/// Looks at one node. `taken` is when the snapshot was taken; `required` the topology level that a node must have a label of.
pub(crate) fn survey(node: &Node, request: &Request, taken: u64, required: Option<&str>) -> Surveyed {
    let none = Gpus { allocatable: 0, free: 0, replicas: 1 };
    let gpus = node.gpus.get(&request.resource).copied().unwrap_or(none);
    if let Some(reason) = not_meant(node, &gpus, request, required) {
        return Surveyed { gpus, usable: 0, some_day: 0, limit: Some(reason) };
    }
    let some_day = most(
        gpus.allocatable,
        request,
        node.cpu_milli.max(node.free_cpu_milli),
        node.memory.max(node.free_memory),
    );
    let (usable, limit) = match not_now(node, &gpus, request, taken) {
        Some(reason) => (0, Some(reason)),
        None => room(node, &gpus, request),
    };
    Surveyed { gpus, usable, some_day, limit }
}

/// Why this is no node for this job, even if nothing ran on it.
fn not_meant(node: &Node, gpus: &Gpus, request: &Request, required: Option<&str>) -> Option<Reason> {
    if gpus.allocatable == 0 {
        return Some(Reason::NoSuchGpus { resource: request.resource.clone() });
    }
    if let Some((key, value)) =
        request.node_selector.iter().find(|(key, value)| node.labels.get(*key) != Some(value))
    {
        return Some(Reason::Unselected { key: key.clone(), value: value.clone() });
    }
    if !request.affinity.is_empty() && !request.affinity.iter().any(|term| term.fits(node)) {
        return Some(Reason::Unfit { wanted: affinity::words(&request.affinity) });
    }
    if let Some(wanted) = &request.product {
        let product = node.product.as_ref();
        if !product.is_some_and(|product| product.to_lowercase().contains(&wanted.to_lowercase())) {
            return Some(Reason::OtherProduct { product: product.cloned(), wanted: wanted.clone() });
        }
    }
    let level = required.filter(|level| !node.labels.contains_key(*level))?;
    Some(Reason::Nowhere { level: level.to_owned() })
}

/// Why it gives nothing at the moment: all of this may pass. A cordoned or broken node has taints that say so too, in
/// longer words.
fn not_now(node: &Node, gpus: &Gpus, request: &Request, taken: u64) -> Option<Reason> {
    if let Some(why) = request.excluded.get(&node.name) {
        return Some(Reason::Excluded { why: why.clone() });
    }
    if node.cordoned {
        return Some(Reason::Cordoned);
    }
    if !node.ready {
        return Some(Reason::NotReady);
    }
    let tolerated = |taint| request.tolerations.iter().any(|toleration| toleration.tolerates(taint));
    let repels = |effect| effect != Effect::PreferNoSchedule;
    if let Some(taint) = node.taints.iter().find(|taint| repels(taint.effect) && !tolerated(taint)) {
        return Some(Reason::Tainted { taint: taint.clone() });
    }
    if gpus.free == 0 {
        return Some(Reason::Full { holders: holdings(node, request, taken) });
    }
    (node.free_pods == 0).then_some(Reason::NoPods)
}

/// How many of these GPUs a pod can have with this much CPU and memory.
fn most(gpus: u32, request: &Request, cpu_milli: u64, memory: u64) -> u32 {
    let per_node = request.per_node.unwrap_or(u32::MAX);
    gpus.min(per_node).min(by_cpu(request, cpu_milli)).min(by_memory(request, memory))
}

fn by_cpu(request: &Request, free: u64) -> u32 {
    fit(free, request.cpu_milli_per_gpu, request.cpu_milli_per_pod, request.cpu_milli_at_least)
}

fn by_memory(request: &Request, free: u64) -> u32 {
    fit(free, request.memory_per_gpu, request.memory_per_pod, request.memory_at_least)
}

/// How often `each` is in what `besides` leaves of `free`; as often as one likes if it is nothing.
fn fit(free: u64, each: u64, besides: u64, at_least: u64) -> u32 {
    let left = free.checked_sub(besides).filter(|_| free >= at_least);
    let times =
        |left: u64| left.checked_div(each).map_or(u32::MAX, |times| times.try_into().unwrap_or(u32::MAX));
    left.map_or(0, times)
}

/// What a pod needs whatever its share. What runs before the job matters only where there is too little for it.
fn besides(free: u64, besides: u64, at_least: u64) -> u64 {
    if free < at_least { besides.max(at_least) } else { besides }
}

/// How many of the free GPUs a pod can have, and what limits it the most. Of equal limits the first is named.
fn room(node: &Node, gpus: &Gpus, request: &Request) -> (u32, Option<Reason>) {
    let usable = most(gpus.free, request, node.free_cpu_milli, node.free_memory);
    let limit = if usable == gpus.free {
        None
    } else if usable == by_cpu(request, node.free_cpu_milli) {
        let free_milli = node.free_cpu_milli;
        let pod_milli = besides(free_milli, request.cpu_milli_per_pod, request.cpu_milli_at_least);
        Some(Reason::Cpu { free_milli, each_milli: request.cpu_milli_per_gpu, pod_milli })
    } else if usable == by_memory(request, node.free_memory) {
        let free = node.free_memory;
        let pod = besides(free, request.memory_per_pod, request.memory_at_least);
        Some(Reason::Memory { free, each: request.memory_per_gpu, pod })
    } else {
        Some(Reason::Limit { per_node: usable })
    };
    (usable, limit)
}

/// Who has GPUs of the resource on this node, the largest first.
pub(crate) fn holdings(node: &Node, request: &Request, taken: u64) -> Vec<Holding> {
    let mut holders: Vec<&Holder> =
        node.holders.iter().filter(|holder| holder.resource == request.resource && holder.gpus > 0).collect();
    holders.sort_by(|a, b| b.gpus.cmp(&a.gpus).then_with(|| a.name.cmp(&b.name)));
    let holding = |holder: &Holder| Holding {
        name: holder.name.clone(),
        gpus: holder.gpus,
        seconds: taken.saturating_sub(holder.since),
    };
    holders.into_iter().map(holding).collect()
}
