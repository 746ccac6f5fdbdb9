//! What was typed about GPUs becomes part of a job, for those who plan as for those who run.

use ronde_kube::Error;
use ronde_kube::job::{RondeJobSpec, Topology};
use serde_json::{Value, json};

use crate::args::GpuArgs;

/// A job that wants these GPUs.
pub(super) fn job(args: &GpuArgs, image: &str, command: &[String]) -> Result<RondeJobSpec, Error> {
    let tolerations: Vec<Value> = args
        .toleration
        .iter()
        .map(|one| {
            let operator = if one.value.is_some() { "Equal" } else { "Exists" };
            json!({"key": one.key, "value": one.value, "effect": one.effect, "operator": operator})
        })
        .collect();
    let tolerations = serde_json::from_value(json!(tolerations))
        .map_err(|error| Error::Invalid(vec![format!("--toleration: {error}")]))?;
    let topology = args.topology.clone();
    Ok(RondeJobSpec {
        resource: args.resource.clone(),
        product: args.product.clone(),
        policy: args.policy,
        topology: topology.map(|label| Topology { label, required: args.topology_required }),
        max_gpus_per_node: args.max_gpus_per_node,
        cpu_per_gpu: args.cpu_per_gpu.clone(),
        memory_per_gpu: args.memory_per_gpu.clone(),
        node_selector: args.node_selector.iter().cloned().collect(),
        tolerations,
        ..RondeJobSpec::new(args.gpus, image, command.to_vec())
    })
}
