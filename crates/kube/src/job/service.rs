//! Two services: a headless one that gives every pod of the job a name, and one for each set's chief.
//!
//! Agents dial the chief by the second. The name of a headless service's pod is there only once the pod has an address;
//! whoever asks too early is told that there is no such name, and a DNS server may go on saying so for half a minute. The
//! name of the chief's service is there before any pod is.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::{Gang, Job, PORT, names};

/// The service that gives pods their names.
pub(crate) fn service(job: &Job) -> Service {
    Service {
        metadata: job.metadata(names::service(&job.name)),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            // Agents must find the chief while it starts, and the chief is ready only when they have.
            publish_not_ready_addresses: Some(true),
            selector: Some(selector(job, [])),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

/// The service by which a set's agents find their chief. It belongs to the chief, which has this uid, and goes with it:
/// every set has another.
pub(crate) fn chief_service(job: &Job, gang: &Gang, chief: &str) -> Service {
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: gang.chief().to_owned(),
        uid: chief.to_owned(),
        ..OwnerReference::default()
    };
    let mut metadata = job.metadata(names::chief_service(gang.chief(), &job.root.uid));
    metadata.owner_references = Some(vec![owner]);
    let chief = names::Role::Chief.label().to_owned();
    let selector = selector(job, [(names::ATTEMPT, gang.attempt.to_string()), (names::ROLE, chief)]);
    Service {
        metadata,
        spec: Some(ServiceSpec {
            publish_not_ready_addresses: Some(true),
            selector: Some(selector),
            ports: Some(vec![ServicePort { port: i32::from(PORT), ..ServicePort::default() }]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

/// Finds the job's pods, or those of them that have these labels too. With its name, since jobs that are run from inside
/// one pod have one uid.
fn selector<const N: usize>(job: &Job, more: [(&str, String); N]) -> BTreeMap<String, String> {
    let of_job = [(names::JOB_UID, job.root.uid.clone()), (names::JOB, job.name.clone())];
    of_job.into_iter().chain(more).map(|(name, value)| (name.to_owned(), value)).collect()
}
