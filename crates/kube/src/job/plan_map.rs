//! A config map with the hostfile and the plan, for those who look. No pod reads it.

use std::fmt::Write;

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;

use super::{Gang, Job, names};

/// What was decided for a set of pods.
pub(crate) fn plan_map(job: &Job, gang: &Gang) -> ConfigMap {
    let mut hostfile = String::new();
    for member in &gang.members {
        let _ = writeln!(hostfile, "{} slots={}", member.pod, member.gpus);
    }
    let shares: Vec<_> = gang
        .members
        .iter()
        .map(|member| {
            json!({"node": member.node, "gpus": member.gpus, "pod": member.pod, "role": member.role.label()})
        })
        .collect();
    let plan = json!({"job": job.name, "attempt": gang.attempt, "gpus": gang.gpus(), "shares": shares});
    let data = [("hostfile".to_owned(), hostfile), ("plan.json".to_owned(), format!("{plan:#}\n"))];
    ConfigMap {
        metadata: job.metadata(names::plan(&job.name)),
        data: Some(data.into()),
        ..ConfigMap::default()
    }
}
