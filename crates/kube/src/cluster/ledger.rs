//! Who holds what: all nodes and pods that matter, and the snapshot that the planner reads.
//!
//! A pod is charged to the node that it is bound to, nominated for, or, if it is ours, pinned to, until it has finished;
//! one that is terminating still holds its GPUs. An unbound pod of somebody else's is charged to nobody.
//!
//! Our pods come in sets, and every pod of a set that is still gated says what the whole set claims, so that a set counts
//! as a whole from its first pod on. A gated set that is older than [`STALE`] has lost its manager and counts no more: its
//! pods cannot run, and nobody may be able to delete them. Once the scheduler was let at one pod of a set, the others
//! count for as long as that one does.
//!
//! From a plan to the answer that its first pod exists nothing in the cluster says what was planned. Meanwhile the set is
//! promised: it counts for whoever plans next here, so that two jobs of one manager never choose the same GPUs.
//!
//! What is known comes from a watch, from lists and from the answers to our own requests, and none of them waits for the
//! others. So nothing replaces what is newer, and a pod that is known to be gone does not come back.
//!
//! A watch that was lost begins again with a list of all pods. It is read page by page, all of them of the moment at which
//! the first one was made, and whatever it does not have is gone; except what answers have told of since it was asked for,
//! which may be newer. The watch goes on where the list was made. So it will tell of each pod that is newer, and of its
//! deletion, however soon that comes. And where it is past the version of such a pod and has not told of it, the pod had
//! come and gone before the list was made: nobody will tell of that, so it is forgotten then.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use ronde_placement::{Gpus, Holder, Request, Snapshot, SnapshotError};

use super::nodes::NodeEntry;
use super::pods::{Claim, JobKey, OwnPod, PodEntry, Ticket};

/// After this time a claim that was not made use of counts no more. Managers give theirs up well before.
pub(crate) const STALE: SignedDuration = SignedDuration::from_secs(120);

/// Labels that say where nodes stand, from the outermost level to the innermost.
const LEVELS: [&str; 6] = [
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/block",
    "topology.kubernetes.io/rack",
    "nvidia.com/gpu.clique",
    "nvidia.com/gpu.nvlink-domain",
];

/// A set of pods: its job, and its number.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct GangKey {
    pub(crate) job: JobKey,
    pub(crate) attempt: u32,
}

/// Whose claims count.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Claims<'a> {
    /// Everybody's: for a new plan.
    All,
    /// Nobody's, and nobody holds anything: for what would be possible on an empty cluster.
    Nobody,
    /// Those of all sets but this one.
    Others(&'a GangKey),
    /// Of these only those that came first.
    Before(&'a Ticket, &'a GangKey),
}

/// A set of pods that is about to be made.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Promise {
    /// What people call its job.
    pub(crate) called: String,
    pub(crate) claim: Claim,
    /// What its pods ask for besides GPUs.
    pub(crate) request: Request,
}

/// Everything that is known of a cluster.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    nodes: BTreeMap<String, NodeEntry>,
    pods: HashMap<(String, String), PodEntry>,
    /// Where the pods of each of our jobs are.
    jobs: HashMap<JobKey, BTreeSet<(String, String)>>,
    promises: BTreeMap<GangKey, Promise>,
    /// How often something has changed.
    changes: u64,
    /// The newest version of a pod that the watch has brought; it brings them in order.
    watched: u64,
    /// Pods that answers have told of since the watch last began with a list, and that it has not told of itself: where
    /// they are, and their versions.
    ahead: HashMap<(String, String), u64>,
    gone: Gone,
}

/// A list of all our pods, as far as it matters here: a pod as the API server tells it is a hundred times as large.
#[derive(Debug, Default)]
pub(crate) struct OwnPods {
    /// The version of the list.
    pub(crate) version: u64,
    pods: Vec<((String, String), PodEntry)>,
}

impl OwnPods {
    /// Takes in a part of the list.
    pub(crate) fn add<'a>(&mut self, pods: impl IntoIterator<Item = &'a Pod>) {
        self.pods.extend(pods.into_iter().filter_map(|pod| Some((key(pod), PodEntry::read(pod)?))));
    }
}

/// The uids of our pods that were deleted last.
#[derive(Clone, Debug, Default)]
struct Gone {
    uids: HashSet<String>,
    order: VecDeque<String>,
}

impl Gone {
    /// More than can be deleted while a list is on its way.
    const MOST: usize = 4096;

    fn add(&mut self, uid: String) {
        if self.uids.insert(uid.clone()) {
            self.order.push_back(uid);
        }
        if self.order.len() > Gone::MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.uids.remove(&oldest);
        }
    }
}

/// What is to be said about a cluster besides what is free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remarks {
    /// Nodes whose GPUs no device plug-in offers, and how many: given out by DRA, or not at all.
    pub not_counted: Vec<(String, u32)>,
    /// Nodes whose GPUs are time-sliced, and into how many.
    pub shared: Vec<(String, u32)>,
}

impl Ledger {
    /// A ledger of everything that was listed.
    pub fn of<'a>(
        nodes: impl IntoIterator<Item = &'a Node>,
        pods: impl IntoIterator<Item = &'a Pod>,
    ) -> Ledger {
        let mut ledger = Ledger::default();
        nodes.into_iter().for_each(|node| ledger.note_node(node));
        pods.into_iter().for_each(|pod| ledger.note_pod(pod));
        ledger
    }

    /// A node is there, or has changed.
    pub fn note_node(&mut self, node: &Node) {
        let Some(name) = &node.metadata.name else { return };
        let entry = NodeEntry::read(node);
        // Nodes tell again and again that they are well, which is nothing new.
        if self.nodes.get(name) != Some(&entry) {
            self.nodes.insert(name.clone(), entry);
            self.changes += 1;
        }
    }

    /// A node is gone.
    pub fn forget_node(&mut self, node: &Node) {
        if let Some(name) = &node.metadata.name {
            self.nodes.remove(name);
            self.changes += 1;
        }
    }

    /// A pod is there, or has changed. What is older than what is known of one of ours is passed over: the answer to a
    /// request of our own may be newer than what the watch brings.
    pub fn note_pod(&mut self, pod: &Pod) {
        let key = key(pod);
        match PodEntry::read(pod) {
            Some(entry) => {
                let told = entry.own.as_ref().map_or(u64::MAX, |own| own.version);
                if self.ahead.get(&key).is_some_and(|answered| *answered <= told) {
                    self.ahead.remove(&key);
                }
                self.note(key, entry);
            }
            None => self.forget(&key),
        }
    }

    /// The answer to a request of our own tells of a pod, perhaps before the watch does.
    pub(crate) fn note_answer(&mut self, pod: &Pod) {
        if let Some(entry) = PodEntry::read(pod) {
            self.note_ahead(key(pod), entry);
        }
    }

    fn note_ahead(&mut self, key: (String, String), entry: PodEntry) {
        self.note(key.clone(), entry);
        // If it was passed over, what is known counts.
        let known = self.pods.get(&key).and_then(|known| known.own.as_ref());
        if let Some(version) = known.map(|own| own.version).filter(|version| *version > self.watched) {
            self.ahead.insert(key, version);
        }
    }

    fn note(&mut self, key: (String, String), entry: PodEntry) {
        let known = self.pods.get(&key).and_then(|known| known.own.as_ref());
        if let Some(told) = &entry.own {
            let is_old = known.is_some_and(|known| known.uid == told.uid && known.version > told.version);
            if is_old || self.gone.uids.contains(&told.uid) {
                return;
            }
        }
        if self.pods.get(&key) == Some(&entry) {
            return;
        }
        self.forget(&key);
        self.changes += 1;
        if let Some(own) = &entry.own {
            self.jobs.entry(own.key()).or_default().insert(key.clone());
        }
        self.pods.insert(key, entry);
    }

    /// A pod is gone.
    pub fn forget_pod(&mut self, pod: &Pod) {
        let key = key(pod);
        let known = self.pods.get(&key).and_then(|known| known.own.as_ref());
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        if known.is_none_or(|known| known.uid == uid) {
            self.forget(&key);
        }
        if pod.spec.as_ref().and_then(|spec| OwnPod::read(pod, spec)).is_some() {
            self.gone.add(uid);
        }
    }

    fn forget(&mut self, key: &(String, String)) {
        self.ahead.remove(key);
        let Some(entry) = self.pods.remove(key) else { return };
        self.changes += 1;
        let Some(own) = entry.own else { return };
        let job = own.key();
        if let Some(pods) = self.jobs.get_mut(&job) {
            pods.remove(key);
            if pods.is_empty() {
                self.jobs.remove(&job);
            }
        }
    }

    /// Keeps only these nodes: what was missed while nobody watched.
    pub(crate) fn keep_nodes(&mut self, here: impl Fn(&str) -> bool) {
        self.nodes.retain(|name, _| here(name));
        self.changes += 1;
    }

    /// The watch begins with a list of all pods. Whatever was answered before is older than that.
    pub(crate) fn will_list(&mut self) {
        self.ahead.clear();
    }

    /// Keeps only these pods, which were listed, and those that may be newer.
    pub(crate) fn keep_pods(&mut self, here: impl Fn(&(String, String)) -> bool) {
        self.ahead.retain(|key, _| !here(key));
        let is_gone = |key: &&(String, String)| !here(key) && !self.ahead.contains_key(*key);
        let gone: Vec<(String, String)> = self.pods.keys().filter(is_gone).cloned().collect();
        gone.iter().for_each(|key| self.forget(key));
    }

    /// Replaces what is known about our own pods by a list of them, except what is newer than the list.
    pub(crate) fn replace_own(&mut self, list: OwnPods) {
        let old = |entry: &PodEntry| entry.own.as_ref().is_some_and(|own| own.version <= list.version);
        let keys: Vec<_> =
            self.pods.iter().filter(|(_, entry)| old(entry)).map(|(key, _)| key.clone()).collect();
        keys.iter().for_each(|key| self.forget(key));
        list.pods.into_iter().for_each(|(key, entry)| self.note_ahead(key, entry));
    }

    /// Counts a set as if its pods were there, until they are or it is given up.
    pub(crate) fn promise(&mut self, key: GangKey, promise: Promise) {
        self.promises.insert(key, promise);
        self.changes += 1;
    }

    /// Pods of the set exist, or will not.
    pub(crate) fn give_up(&mut self, key: &GangKey) {
        self.changes += u64::from(self.promises.remove(key).is_some());
    }

    /// Whether a job is about to claim GPUs, or has claimed some.
    pub(crate) fn claims(&self, job: &JobKey) -> bool {
        self.promises.keys().any(|key| key.job == *job)
            || self.pods_of(job).iter().any(|pod| !pod.terminating && !pod.is_finished())
    }

    /// How often something has changed: where it is the same, everything is.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// The watch has brought all changes of pods up to this version.
    pub(crate) fn has_watched(&mut self, version: u64) {
        self.watched = self.watched.max(version);
        let passed = self.ahead.iter().filter(|(_, answered)| **answered <= version);
        let gone: Vec<(String, String)> = passed.map(|(key, _)| key.clone()).collect();
        gone.iter().for_each(|key| self.forget(key));
    }

    /// Whether all pods are known that were made before the newest of this job's.
    pub(crate) fn is_past(&self, job: &JobKey) -> bool {
        self.pods_of(job).iter().all(|pod| pod.version <= self.watched)
    }

    /// The pods of a job, all sets of them, by name.
    pub(crate) fn pods_of(&self, job: &JobKey) -> Vec<&OwnPod> {
        self.entries(job).filter_map(|entry| entry.own.as_deref()).collect()
    }

    fn entries(&self, job: &JobKey) -> impl Iterator<Item = &PodEntry> {
        self.jobs.get(job).into_iter().flatten().filter_map(|key| self.pods.get(key))
    }

    /// All pods that were made here.
    pub(crate) fn own(&self) -> impl Iterator<Item = &OwnPod> {
        self.pods.values().filter_map(|entry| entry.own.as_deref())
    }

    /// Whether a node is gone, or its kubelet is not heard of any more.
    pub(crate) fn is_lost(&self, node: &str) -> bool {
        self.nodes.get(node).is_none_or(|node| node.silent)
    }

    /// How many nodes there are, and how many devices of a resource on all of them.
    pub fn size(&self, resource: &str) -> (usize, u32) {
        let devices = self.nodes.values().filter_map(|node| node.devices.get(resource));
        (self.nodes.len(), devices.fold(0, |sum: u32, count| sum.saturating_add(*count)))
    }

    /// By resource name, how many devices of it there are and how many are free.
    pub(crate) fn gpus(&self, now: Timestamp) -> BTreeMap<String, (u64, u64)> {
        let held = self.held(now, Claims::All);
        let mut gpus: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for (name, node) in &self.nodes {
            for (resource, all) in &node.devices {
                let taken = held.get(name.as_str()).and_then(|held| held.devices.get(resource));
                let (sum, free) = gpus.entry(resource.clone()).or_default();
                *sum += u64::from(*all);
                *free += u64::from(all.saturating_sub(taken.copied().unwrap_or(0)));
            }
        }
        gpus
    }

    /// What is to be said besides.
    pub fn remarks(&self) -> Remarks {
        let mut remarks = Remarks::default();
        for (name, node) in &self.nodes {
            remarks.not_counted.extend(node.not_counted().map(|count| (name.clone(), count)));
            if node.replicas() > 1 && node.devices.values().any(|count| *count > 0) {
                remarks.shared.push((name.clone(), node.replicas()));
            }
        }
        remarks
    }

    /// What is free at this moment.
    pub fn free(&self, now: Timestamp) -> Result<Snapshot, SnapshotError> {
        self.snapshot(now, Claims::All)
    }

    /// What is free if these claims count.
    pub(crate) fn snapshot(&self, now: Timestamp, claims: Claims<'_>) -> Result<Snapshot, SnapshotError> {
        let held = match claims {
            Claims::Nobody => HashMap::new(),
            claims => self.held(now, claims),
        };
        let nodes =
            self.nodes.iter().map(|(name, entry)| node(name, entry, held.get(name.as_str()))).collect();
        let is_used = |level: &str| self.nodes.values().any(|node| node.labels.contains_key(level));
        let used = LEVELS.into_iter().filter(|level| is_used(level)).map(str::to_owned);
        let levels = used.take(ronde_placement::MOST_LEVELS).collect();
        Snapshot::new(u64::try_from(now.as_second()).unwrap_or(0), levels, nodes)
    }

    /// What is held of each node.
    fn held(&self, now: Timestamp, claims: Claims<'_>) -> HashMap<&str, Held> {
        let mut held: HashMap<&str, Held> = HashMap::new();
        for entry in self.pods.values().filter(|entry| entry.own.is_none()) {
            charge(&mut held, entry);
        }
        for job in self.jobs.keys() {
            let mut gangs: BTreeMap<u32, Vec<&PodEntry>> = BTreeMap::new();
            for entry in self.entries(job) {
                let attempt = entry.own.as_ref().map_or(0, |own| own.attempt);
                gangs.entry(attempt).or_default().push(entry);
            }
            for (attempt, pods) in gangs {
                let is_asking = |own: &GangKey| own.job == *job && own.attempt == attempt;
                if !matches!(claims, Claims::Before(_, own) | Claims::Others(own) if is_asking(own)) {
                    charge_gang(&mut held, &pods, now, claims);
                }
            }
        }
        if matches!(claims, Claims::All) {
            let exists = |set: &GangKey| self.pods_of(&set.job).iter().any(|own| own.attempt == set.attempt);
            let open = self.promises.iter().filter(|(set, _)| !exists(set));
            open.for_each(|(_, promise)| charge_promise(&mut held, promise, now));
        }
        held
    }
}

/// What is held of one node.
#[derive(Clone, Debug, Default)]
struct Held {
    devices: BTreeMap<String, u32>,
    cpu_milli: u64,
    memory: u64,
    pods: u32,
    holders: Vec<Holder>,
}

impl Held {
    fn take(&mut self, resource: &str, count: u32, called: &str, since: Timestamp) {
        let taken = self.devices.entry(resource.to_owned()).or_default();
        *taken = taken.saturating_add(count);
        let since = u64::try_from(since.as_second()).unwrap_or(0);
        let known = self.holders.iter_mut().find(|one| one.name == called && one.resource == resource);
        match known {
            Some(holder) => {
                holder.gpus = holder.gpus.saturating_add(count);
                holder.since = holder.since.min(since);
            }
            None => self.holders.push(Holder {
                name: called.to_owned(),
                resource: resource.to_owned(),
                gpus: count,
                since,
            }),
        }
    }
}

/// Charges one set of our pods: those that are let at the scheduler one by one, those still gated as a whole.
fn charge_gang<'a>(
    held: &mut HashMap<&'a str, Held>,
    pods: &[&'a PodEntry],
    now: Timestamp,
    claims: Claims<'_>,
) {
    let is_claim = |own: &OwnPod| own.gated && !own.bound;
    let mut covered: BTreeMap<&str, u32> = BTreeMap::new();
    for entry in pods {
        let Some(own) = entry.own.as_deref().filter(|own| !is_claim(own)) else { continue };
        *covered.entry(own.pinned.as_str()).or_default() += own.gpus;
        charge(held, entry);
    }
    // A claim that is being deleted is given up.
    let gated = || {
        pods.iter()
            .filter_map(|entry| entry.own.as_deref().map(|own| (*entry, own)))
            .filter(|(_, own)| is_claim(own) && !own.terminating)
    };
    let own = || pods.iter().filter_map(|entry| entry.own.as_deref());
    let Some(ticket) = own().map(OwnPod::ticket).min() else { return };
    let is_safe = own().any(|own| !own.gated && !own.terminating && !own.is_finished());
    let counts = match claims {
        _ if is_safe => true,
        Claims::Before(mine, _) if ticket >= *mine => false,
        _ => now.duration_since(ticket.created) < STALE,
    };
    let Some((first, claim)) = gated().find_map(|(entry, own)| Some((entry, own.claim.as_ref()?))) else {
        return;
    };
    if !counts {
        return;
    }
    // The pods that exist say what they take besides GPUs.
    for (entry, _) in gated() {
        if let Some(node) = &entry.node {
            let held = held.entry(node).or_default();
            held.cpu_milli += entry.holds.get("cpu").copied().unwrap_or(0);
            held.memory += entry.holds.get("memory").copied().unwrap_or(0).div_ceil(1000);
            held.pods += 1;
        }
    }
    for (node, gpus) in &claim.nodes {
        let open = gpus.saturating_sub(covered.get(node.as_str()).copied().unwrap_or(0));
        if open > 0 {
            let held = held.entry(node).or_default();
            held.take(&claim.resource, open, &first.called, first.since);
        }
    }
}

/// Charges a set whose pods are about to be made.
fn charge_promise<'a>(held: &mut HashMap<&'a str, Held>, promise: &'a Promise, now: Timestamp) {
    for (node, gpus) in &promise.claim.nodes {
        let held = held.entry(node).or_default();
        held.take(&promise.claim.resource, *gpus, &promise.called, now);
        held.cpu_milli += promise.request.cpu_milli(*gpus);
        held.memory += promise.request.memory(*gpus);
        held.pods += 1;
    }
}

/// Charges a pod to its node.
fn charge<'a>(held: &mut HashMap<&'a str, Held>, entry: &'a PodEntry) {
    let Some(node) = entry.node.as_deref().filter(|_| !entry.finished) else { return };
    let held = held.entry(node).or_default();
    held.pods += 1;
    for (resource, amount) in &entry.holds {
        match resource.as_str() {
            "cpu" => held.cpu_milli += amount,
            "memory" => held.memory += amount.div_ceil(1000),
            device => {
                let count = u32::try_from(amount.div_ceil(1000)).unwrap_or(u32::MAX);
                held.take(device, count, &entry.called, entry.since);
            }
        }
    }
}

fn node(name: &str, entry: &NodeEntry, held: Option<&Held>) -> ronde_placement::Node {
    let nothing = Held::default();
    let held = held.unwrap_or(&nothing);
    let gpus = entry.devices.iter().map(|(resource, allocatable)| {
        let taken = held.devices.get(resource).copied().unwrap_or(0);
        let replicas = if resource.starts_with("nvidia.com/") { entry.replicas() } else { 1 };
        let gpus = Gpus { allocatable: *allocatable, free: allocatable.saturating_sub(taken), replicas };
        (resource.clone(), gpus)
    });
    let mut holders = held.holders.clone();
    holders.sort_by(|one, other| other.gpus.cmp(&one.gpus).then_with(|| one.name.cmp(&other.name)));
    ronde_placement::Node {
        name: name.to_owned(),
        gpus: gpus.collect(),
        product: entry.product(),
        labels: Arc::clone(&entry.labels),
        taints: entry.taints.clone(),
        cordoned: entry.cordoned,
        ready: entry.ready,
        cpu_milli: entry.cpu_milli,
        memory: entry.memory,
        free_cpu_milli: entry.cpu_milli.saturating_sub(held.cpu_milli),
        free_memory: entry.memory.saturating_sub(held.memory),
        free_pods: entry.pods.saturating_sub(held.pods),
        holders,
    }
}

/// Where a pod is found again: namespace and name.
fn key(pod: &Pod) -> (String, String) {
    (pod.metadata.namespace.clone().unwrap_or_default(), pod.metadata.name.clone().unwrap_or_default())
}

#[cfg(test)]
mod tests;
