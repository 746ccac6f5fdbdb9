//! Jobs for tests, and nodes for them.

use k8s_openapi::api::core::v1::Node;
use serde_json::json;

use super::{Job, RondeJobSpec, Root, RootKind, Surroundings};

/// A job that asks for this many GPUs.
pub(crate) fn job(name: &str, gpus: u32) -> Job {
    Job {
        name: name.to_owned(),
        namespace: "default".to_owned(),
        root: Root { kind: RootKind::RondeJob, name: name.to_owned(), uid: format!("uid-{name}") },
        created: "2026-01-01T00:00:00Z".parse().expect("a time"),
        deleting: false,
        generation: Some(1),
        spec: spec(gpus),
    }
}

/// A spec with nothing special about it.
pub(crate) fn spec(gpus: u32) -> RondeJobSpec {
    let spec = json!({"gpus": gpus, "image": "train:1", "command": ["python", "train.py"]});
    let spec: RondeJobSpec = serde_json::from_value(spec).expect("a spec");
    // What is left out of a manifest and what is left out of a command line must mean the same.
    assert_eq!(spec, RondeJobSpec::new(spec.gpus, "train:1", spec.command.clone()));
    spec
}

pub(crate) fn surroundings() -> Surroundings {
    Surroundings { manager_image: "ronde:manager".to_owned(), cluster_domain: "cluster.local".to_owned() }
}

/// A node that is ready, with GPUs and enough of everything else.
pub(crate) fn node(name: &str, gpus: u32) -> Node {
    let node = json!({
        "metadata": {"name": name},
        "status": {
            "allocatable": {"nvidia.com/gpu": gpus.to_string(), "cpu": "64", "memory": "64Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    serde_json::from_value(node).expect("a node")
}
