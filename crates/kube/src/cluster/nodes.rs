//! One node, as the planner wants to know it, before what pods hold is taken off.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use ronde_placement::{Effect, MOST_GPUS_OF_A_NODE, Taint};

use super::quantity;

/// The label that names a node's GPUs.
const PRODUCT: &str = "nvidia.com/gpu.product";
/// The label that says how many GPUs are built in.
const COUNT: &str = "nvidia.com/gpu.count";
/// The label that says into how many a GPU is time-sliced.
const REPLICAS: &str = "nvidia.com/gpu.replicas";
/// What a time-sliced product's name ends in.
const SHARED: &str = "-SHARED";

/// What matters of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NodeEntry {
    pub(super) labels: Arc<BTreeMap<String, String>>,
    pub(super) taints: Vec<Taint>,
    pub(super) cordoned: bool,
    /// Whether it is a place for new pods.
    pub(super) ready: bool,
    /// Whether its kubelet is not heard of any more. One that says that it is not ready is: its pods run on.
    pub(super) silent: bool,
    /// Whole numbers by resource name; no amounts, of bytes for example, which some plug-ins offer.
    pub(super) devices: BTreeMap<String, u32>,
    pub(super) cpu_milli: u64,
    pub(super) memory: u64,
    pub(super) pods: u32,
}

impl NodeEntry {
    pub(super) fn read(node: &Node) -> NodeEntry {
        let spec = node.spec.as_ref();
        let status = node.status.as_ref();
        let allocatable = status.and_then(|status| status.allocatable.as_ref());
        let amount = |name: &str| allocatable.and_then(|all| all.get(name));
        let devices = allocatable.into_iter().flatten().filter(|(name, _)| is_device(name));
        let devices = devices.filter_map(|(name, amount)| {
            let count = u32::try_from(quantity::whole(amount)).ok();
            count.filter(|count| *count <= MOST_GPUS_OF_A_NODE).map(|count| (name.clone(), count))
        });
        let mut conditions = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
        let readiness = conditions.find(|condition| condition.type_ == "Ready");
        let is = |word: &str| readiness.is_some_and(|condition| condition.status == word);
        let taints = spec.and_then(|spec| spec.taints.as_ref()).into_iter().flatten();
        NodeEntry {
            labels: Arc::new(node.metadata.labels.clone().unwrap_or_default()),
            taints: taints
                .filter_map(|taint| {
                    let value = taint.value.clone().unwrap_or_default();
                    Some(Taint { key: taint.key.clone(), value, effect: effect(&taint.effect)? })
                })
                .collect(),
            cordoned: spec.and_then(|spec| spec.unschedulable).unwrap_or(false),
            // One that is about to be deleted is not a place for new pods.
            ready: is("True") && node.metadata.deletion_timestamp.is_none(),
            silent: is("Unknown"),
            devices: devices.collect(),
            cpu_milli: amount("cpu").map_or(0, quantity::thousandths),
            memory: amount("memory").map_or(0, quantity::whole),
            pods: amount("pods").map_or(0, |pods| u32::try_from(quantity::whole(pods)).unwrap_or(u32::MAX)),
        }
    }

    pub(super) fn product(&self) -> Option<String> {
        self.labels.get(PRODUCT).cloned()
    }

    /// Into how many a GPU is time-sliced; 1 where it is not.
    pub(super) fn replicas(&self) -> u32 {
        let said = self.labels.get(REPLICAS).and_then(|count| count.parse().ok()).filter(|count| *count > 1);
        let is_shared = self.product().is_some_and(|product| product.ends_with(SHARED));
        said.unwrap_or(if is_shared { 2 } else { 1 })
    }

    /// GPUs that are built in and that no device plug-in offers: they are given out by DRA, or not at all.
    pub(super) fn not_counted(&self) -> Option<u32> {
        let built_in: u32 = self.labels.get(COUNT)?.parse().ok()?;
        let offered = self.devices.iter().any(|(name, count)| name.starts_with("nvidia.com/") && *count > 0);
        (built_in > 0 && !offered).then_some(built_in)
    }
}

/// Whether a resource is a device of somebody's plug-in, and not one of Kubernetes' own.
pub(super) fn is_device(resource: &str) -> bool {
    resource
        .split_once('/')
        .is_some_and(|(domain, _)| domain != "kubernetes.io" && !domain.ends_with(".kubernetes.io"))
}

fn effect(word: &str) -> Option<Effect> {
    match word {
        "NoSchedule" => Some(Effect::NoSchedule),
        "PreferNoSchedule" => Some(Effect::PreferNoSchedule),
        "NoExecute" => Some(Effect::NoExecute),
        _ => None,
    }
}
