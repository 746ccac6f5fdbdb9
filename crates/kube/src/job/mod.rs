//! A job, and everything that is made for it.
//!
//! `spec.rs` says what a job is, `read.rs` reads one whatever is in it, `validate.rs` says what is wrong with one. A plan becomes a `Gang`: the pods that start and
//! end together. From there on one file makes one kind of object: `service.rs`, `secret.rs`, `plan_map.rs`, `pod.rs`
//! (with `merge.rs`, which lays a user's template under it, and `ssh.rs`, for jobs that start their processes that way),
//! `files.rs`. Nothing here speaks to a cluster.

mod amount;
mod files;
mod gang;
mod gpus;
mod merge;
pub(crate) mod names;
mod plan_map;
mod pod;
mod read;
mod request;
mod secret;
mod service;
mod spec;
mod ssh;
mod validate;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::jiff::Timestamp;

use crate::cluster::JobKey;

pub use amount::{Amount, BadAmount};
pub use files::{FilesError, Shipment, collect};
pub(crate) use gang::{Gang, Member};
pub use gpus::{BadGpus, Gpus};
pub use names::{Role, check as check_name, in_pod as name_in_pod, invent as invent_name};
pub(crate) use plan_map::plan_map;
pub(crate) use pod::pod;
pub(crate) use read::{read_spec, read_status};
pub(crate) use request::request;
pub use request::request_now;
pub(crate) use secret::secret;
pub(crate) use service::{chief_service, service};
pub use spec::{Avoided, FileItem, Files, GPU, JobStatus, Phase, RondeJob, RondeJobSpec, Topology, Volume};
pub(crate) use ssh::keys as ssh_keys;
pub use validate::validate;

/// A job as its manager knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its name, after which everything is named.
    pub name: String,
    /// Where it runs.
    pub namespace: String,
    /// Who owns everything.
    pub root: Root,
    /// When the root was created.
    pub created: Timestamp,
    /// Whether the root is being deleted.
    pub deleting: bool,
    /// Which version of the spec this is.
    pub generation: Option<i64>,
    /// What is asked for.
    pub spec: RondeJobSpec,
}

/// The object that owns all others: deleting it deletes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// What it is.
    pub kind: RootKind,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// What owns a job's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootKind {
    /// A custom resource, looked after by the controller.
    RondeJob,
    /// A config map that `ronde kube run` made.
    ConfigMap,
    /// The pod that `ronde kube run` runs in.
    Pod,
}

impl RootKind {
    fn api(self) -> (&'static str, &'static str) {
        match self {
            RootKind::RondeJob => ("ronde.dev/v1alpha1", "RondeJob"),
            RootKind::ConfigMap => ("v1", "ConfigMap"),
            RootKind::Pod => ("v1", "Pod"),
        }
    }

    /// As it stands in a label.
    pub(crate) fn label(self) -> &'static str {
        match self {
            RootKind::RondeJob => "rondejob",
            RootKind::ConfigMap => "configmap",
            RootKind::Pod => "pod",
        }
    }
}

impl Root {
    /// What objects say about their owner.
    pub(crate) fn reference(&self) -> OwnerReference {
        let (api_version, kind) = self.kind.api();
        OwnerReference {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            controller: Some(self.kind == RootKind::RondeJob),
            block_owner_deletion: None,
        }
    }
}

impl Job {
    /// What its pods are known by.
    pub(crate) fn key(&self) -> JobKey {
        let (uid, namespace) = (self.root.uid.clone(), self.namespace.clone());
        JobKey { uid, namespace, name: self.name.clone() }
    }

    /// The labels of everything that belongs to the job.
    pub(crate) fn labels(&self) -> BTreeMap<String, String> {
        [
            (names::MANAGED_BY, names::RONDE),
            (names::JOB, &self.name),
            (names::JOB_UID, &self.root.uid),
            (names::ROOT, self.root.kind.label()),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    }

    /// Name, place, labels and owner of an object of the job.
    pub(crate) fn metadata(&self, name: String) -> ObjectMeta {
        ObjectMeta {
            name: Some(name),
            namespace: Some(self.namespace.clone()),
            labels: Some(self.labels()),
            owner_references: Some(vec![self.root.reference()]),
            ..ObjectMeta::default()
        }
    }
}

/// What pods must know about the cluster and about us.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// The image that brings our program into the pods.
    pub manager_image: String,
    /// The cluster's DNS domain.
    pub cluster_domain: String,
}

/// Where the chief's launcher listens.
pub(crate) const PORT: u16 = 4321;

#[cfg(test)]
pub(crate) mod examples;
