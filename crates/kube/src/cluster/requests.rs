//! What a pod takes of its node, as the scheduler counts it.
//!
//! Containers run together and add up. Init containers run one after the other before them, so the largest counts,
//! except those that restart always (sidecars): they stay, and add to everything that starts after them. A pod's overhead
//! comes on top. The same rules as in the scheduler, since what it counts is what is free.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::quantity;

/// Amounts by resource name, in thousandths.
pub(crate) type Amounts = BTreeMap<String, u64>;

/// What the pod takes altogether, as long as it has not finished.
pub(crate) fn effective(spec: &PodSpec) -> Amounts {
    let (mut highest, together) = parts(spec);
    raise(&mut highest, &together);
    highest
}

/// What the pod takes at most before its containers start, and what they take together.
pub(crate) fn parts(spec: &PodSpec) -> (Amounts, Amounts) {
    let mut sidecars = Amounts::new();
    let mut highest = Amounts::new();
    for init in spec.init_containers.iter().flatten() {
        let mut step = requested(init);
        if init.restart_policy.as_deref() == Some("Always") {
            add(&mut sidecars, &step);
            step = sidecars.clone();
        } else {
            add(&mut step, &sidecars);
        }
        raise(&mut highest, &step);
    }
    let mut together = sidecars;
    for container in &spec.containers {
        add(&mut together, &requested(container));
    }
    for part in [&mut highest, &mut together] {
        // Requests of the pod as a whole stand in place of its containers' where they name a resource.
        part.extend(spec.resources.iter().flat_map(read));
        for (name, amount) in spec.overhead.iter().flatten() {
            *part.entry(name.clone()).or_default() += quantity::thousandths(amount);
        }
    }
    (highest, together)
}

fn requested(container: &Container) -> Amounts {
    container.resources.as_ref().map(read).unwrap_or_default()
}

/// Requests; a limit without a request stands for both.
fn read(resources: &ResourceRequirements) -> Amounts {
    let amounts = |list: &Option<BTreeMap<String, Quantity>>| -> Amounts {
        list.iter().flatten().map(|(name, amount)| (name.clone(), quantity::thousandths(amount))).collect()
    };
    let mut read = amounts(&resources.limits);
    read.extend(amounts(&resources.requests));
    read
}

pub(crate) fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        *sum.entry(name.clone()).or_default() += amount;
    }
}

fn raise(highest: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let entry = highest.entry(name.clone()).or_default();
        *entry = (*entry).max(*amount);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn gpus(spec: Value) -> u64 {
        let spec: PodSpec = serde_json::from_value(spec).expect("a pod's spec");
        effective(&spec).get("nvidia.com/gpu").copied().unwrap_or(0) / 1000
    }

    fn container(gpus: u32) -> Value {
        json!({"name": "c", "resources": {"requests": {"nvidia.com/gpu": gpus.to_string()}}})
    }

    fn sidecar(gpus: u32) -> Value {
        let mut value = container(gpus);
        value["restartPolicy"] = json!("Always");
        value
    }

    #[test]
    fn pods_are_charged_as_the_scheduler_does() {
        let cases = [
            ("containers add up", json!({"containers": [container(2), container(3)]}), 5),
            (
                "the largest init container counts if it is larger",
                json!({"containers": [container(2)], "initContainers": [container(4), container(1)]}),
                4,
            ),
            (
                "and not if it is smaller",
                json!({"containers": [container(2)], "initContainers": [container(1)]}),
                2,
            ),
            (
                "a sidecar stays beside the containers",
                json!({"containers": [container(2)], "initContainers": [sidecar(1)]}),
                3,
            ),
            (
                "and beside the init containers after it, not before it",
                json!({"containers": [container(1)], "initContainers": [container(4), sidecar(2), container(3)]}),
                5,
            ),
            (
                "overhead comes on top",
                json!({"containers": [container(1)], "overhead": {"nvidia.com/gpu": "1"}}),
                2,
            ),
            (
                "a limit stands for a request",
                json!({"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "7"}}}]}),
                7,
            ),
            (
                "the pod's own requests stand in place of its containers'",
                json!({"containers": [container(2)], "resources": {"requests": {"nvidia.com/gpu": "3"}}}),
                3,
            ),
            ("nothing asked for", json!({"containers": [{"name": "c"}]}), 0),
        ];
        for (what, spec, expected) in cases {
            assert_eq!(gpus(spec), expected, "{what}");
        }
    }
}
