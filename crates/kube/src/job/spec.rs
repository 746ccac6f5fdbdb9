//! What a job is: the custom resource `RondeJob`, and what the flags of `ronde kube run` become.
//!
//! There is one description for both, so that whatever runs from a laptop runs from a manifest. Everything that a field
//! cannot say goes into `template`, a whole pod template that lies under what is made here.
//!
//! The schema says as much as it can of what makes sense, so that `kubectl apply` refuses the rest at once. What it lets
//! pass and cannot be read all the same does not hide the job: `read.rs` reads field by field.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EnvVar, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use ronde_placement::Policy;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Amount, Gpus};
use crate::fingerprint::fingerprint;

/// The largest number of a field: what fits into 32 bits with a sign, as Kubernetes has it for its own.
const LARGEST: i32 = i32::MAX;

/// How long pods may take to end when they are told to, unless the template says otherwise; in seconds.
const DEFAULT_GRACE: u32 = 30;

/// The resource that GPUs are counted by, unless a job says otherwise.
pub const GPU: &str = "nvidia.com/gpu";

/// A training job: how many GPUs, of what, and the command that every rank runs.
#[derive(Clone, Debug, PartialEq, CustomResource, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "ronde.dev",
    version = "v1alpha1",
    kind = "RondeJob",
    plural = "rondejobs",
    shortname = "rj",
    category = "all",
    namespaced,
    status = "JobStatus",
    derive = "PartialEq",
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$')").message(
        "a job's name has at most 40 small letters, digits and dashes, with a letter in front"
    ),
    printcolumn = r#"{"name":"GPUs","type":"string","jsonPath":".status.gpus"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Nodes","type":"string","jsonPath":".status.nodes"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.message","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct RondeJobSpec {
    /// How many GPUs: a number, or the fewest and the most, as in "4..8".
    pub gpus: Gpus,
    /// The image that the ranks run in. It needs Python and the framework, nothing of Ronde.
    #[schemars(length(min = 1))]
    pub image: String,
    /// Whether the image has Ronde in it: then none is brought into the pods, which start sooner. Files and ssh need it brought.
    #[serde(default)]
    pub image_has_ronde: bool,
    /// The program each rank runs, and its arguments.
    #[schemars(length(min = 1))]
    pub command: Vec<String>,
    /// The resource that GPUs are counted by.
    #[serde(default = "default_resource")]
    #[schemars(extend("pattern" = r"^[^/]*\.[^/]*/[^/]+$"))]
    pub resource: String,
    /// Only nodes whose GPUs' product (label nvidia.com/gpu.product) has this in its name, in capitals or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// How shares are chosen.
    #[serde(default)]
    #[schemars(schema_with = "policies")]
    pub policy: Policy,
    /// A node label whose values are racks, blocks or NVLink domains: shares are kept inside one where that is possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
    /// The most GPUs to take of one node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = LARGEST))]
    pub max_gpus_per_node: Option<u32>,
    /// CPUs for each GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_per_gpu: Option<Amount>,
    /// Memory for each GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_per_gpu: Option<Amount>,
    /// The most that /dev/shm may hold; it counts as memory of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_memory: Option<Amount>,
    /// Variables for every rank.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// Persistent volumes, and where ranks find them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
    /// Files that ranks find in their working folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<Files>,
    /// Whether the command is run once, in the chief, and starts its processes over ssh, as mpirun does.
    #[serde(default)]
    pub ssh: bool,
    /// The folder that the command is started in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// Only nodes with these labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that do not matter, besides the one that GPU nodes usually have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// Secrets for pulling the image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<String>,
    /// When the image is pulled: Always, IfNotPresent or Never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "pull_policies")]
    pub image_pull_policy: Option<String>,
    /// The service account of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
    /// The user that ranks run as; 0 is root, which restricted namespaces do not allow.
    #[serde(default = "default_user")]
    #[schemars(range(min = 0, max = LARGEST))]
    pub run_as_user: i64,
    /// The group of ranks and of the files on their volumes.
    #[serde(default = "default_user")]
    #[schemars(range(min = 0, max = LARGEST))]
    pub run_as_group: i64,
    /// Whether ranks may write only to volumes, /tmp and their home.
    #[serde(default)]
    pub read_only_root: bool,
    /// Jobs with a higher number go first.
    #[serde(default)]
    #[schemars(range(min = -LARGEST, max = LARGEST))]
    pub priority: i32,
    /// The class that the scheduler knows the pods' priority by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class: Option<String>,
    /// The queue of a queue system such as Kueue (label kueue.x-k8s.io/queue-name on the pods).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The scheduler that places the pods, if not the usual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<String>,
    /// Whether the job is to give its GPUs back and wait.
    #[serde(default)]
    pub suspend: bool,
    /// How often a job that failed is started again.
    #[serde(default)]
    #[schemars(range(max = LARGEST))]
    pub retries: u32,
    /// How long the training may take, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = LARGEST))]
    pub deadline_seconds: Option<u32>,
    /// How long pods may take from being placed until all run, image pulls included, in seconds.
    #[serde(default = "default_start")]
    #[schemars(range(min = 1, max = LARGEST))]
    pub start_deadline_seconds: u32,
    /// How long a finished job is kept, in seconds, for its logs.
    #[serde(default = "default_ttl")]
    #[schemars(range(max = LARGEST))]
    pub ttl_seconds_after_finished: u32,
    /// How long to wait for a placement that takes fewer nodes than what is free now would, in seconds.
    #[serde(default)]
    #[schemars(range(max = LARGEST))]
    pub wait_for_better_seconds: u32,
    /// A pod template that lies under every pod; its first container is the one that trains. Its terminationGracePeriodSeconds is how long ranks have to end when they are told to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "free_form")]
    pub template: Option<Value>,
    /// What could not be read of it, in words; such a job fails.
    #[serde(skip)]
    pub unreadable: Vec<String>,
}

impl RondeJobSpec {
    /// A job with nothing special about it.
    pub fn new(gpus: Gpus, image: impl Into<String>, command: Vec<String>) -> RondeJobSpec {
        RondeJobSpec {
            gpus,
            image: image.into(),
            image_has_ronde: false,
            command,
            resource: default_resource(),
            product: None,
            policy: Policy::default(),
            topology: None,
            max_gpus_per_node: None,
            cpu_per_gpu: None,
            memory_per_gpu: None,
            shared_memory: None,
            env: Vec::new(),
            volumes: Vec::new(),
            files: None,
            ssh: false,
            working_dir: None,
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
            image_pull_secrets: Vec::new(),
            image_pull_policy: None,
            service_account: None,
            run_as_user: default_user(),
            run_as_group: default_user(),
            read_only_root: false,
            priority: 0,
            priority_class: None,
            queue: None,
            scheduler: None,
            suspend: false,
            retries: 0,
            deadline_seconds: None,
            start_deadline_seconds: default_start(),
            ttl_seconds_after_finished: default_ttl(),
            wait_for_better_seconds: 0,
            template: None,
            unreadable: Vec::new(),
        }
    }

    /// A number for what is asked for.
    pub(crate) fn fingerprint(&self) -> String {
        format!("{:016x}", fingerprint(serde_json::to_vec(self).unwrap_or_default()))
    }

    /// What the template says of how long its pods may take to end.
    pub(crate) fn grace_of_template(&self) -> Option<&Value> {
        self.template.as_ref()?.pointer("/spec/terminationGracePeriodSeconds")
    }

    /// How long pods may take to end when they are told to, in seconds.
    pub(crate) fn grace_seconds(&self) -> u32 {
        let said = self.grace_of_template().and_then(Value::as_u64);
        said.map_or(DEFAULT_GRACE, |seconds| u32::try_from(seconds).unwrap_or(u32::MAX))
    }

    /// Whether something has to be brought into the pods before they train.
    pub(crate) fn needs_delivery(&self) -> bool {
        !self.image_has_ronde || self.files.is_some() || self.ssh
    }
}

/// A level of the cluster that a job is kept in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Topology {
    /// The node label, such as topology.kubernetes.io/rack.
    #[schemars(length(min = 1))]
    pub label: String,
    /// Whether the job waits rather than take nodes of two.
    #[serde(default)]
    pub required: bool,
}

/// A persistent volume in the ranks' file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    /// The persistent volume claim.
    #[schemars(length(min = 1))]
    pub claim: String,
    /// Where it is mounted.
    #[schemars(extend("pattern" = "^/."))]
    pub path: String,
    /// Whether it may only be read.
    #[serde(default)]
    pub read_only: bool,
}

/// Files from a config map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Files {
    /// The config map.
    pub config_map: String,
    /// Where each key goes in the working folder; without it every key is a file of that name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<FileItem>,
}

/// One file of a config map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileItem {
    /// Its key.
    pub key: String,
    /// Its path in the working folder.
    pub path: String,
    /// Whether it may be run.
    #[serde(default)]
    pub executable: bool,
}

/// How far a job is. The manager of a `RondeJob` keeps it in the resource; `ronde kube run` in memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobStatus {
    /// How far it is, in a word.
    #[serde(default)]
    pub phase: Phase,
    /// Why it is there, in a word for programs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The same for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// How many GPUs it has, or asks for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub gpus: String,
    /// The nodes and their shares, as in "node-1: 5, node-3: 1".
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub nodes: String,
    /// Which set of pods is the current one; every new plan has a new number.
    #[serde(default)]
    pub attempt: u32,
    /// How many attempts have failed.
    #[serde(default)]
    pub failures: u32,
    /// How often in a row it had to begin anew: another job was first, a pod got no place, a name was taken.
    #[serde(default)]
    pub yields: u32,
    /// When the next attempt may be made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Time>,
    /// Nodes that are left out for a while.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub avoid: Vec<Avoided>,
    /// Since when it waits for GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_since: Option<Time>,
    /// Since when a pod that has its place cannot start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stuck_since: Option<Time>,
    /// When the training started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Time>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<Time>,
    /// What the training exited with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The pod that failed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_pod: Option<String>,
    /// Whether what was kept of it after its end has been deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub swept: bool,
    /// The generation of the job that this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What has come about, with times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// A node that is left out for a while.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Avoided {
    /// Its name.
    pub node: String,
    /// How long.
    pub until: Time,
    /// What happened there.
    pub why: String,
}

/// How far a job is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// Waits for GPUs.
    #[default]
    Pending,
    /// Gives its GPUs back and waits to be resumed.
    Suspended,
    /// Its pods exist, and the scheduler must not place them yet.
    Claimed,
    /// Its pods may be placed.
    Placing,
    /// All pods have their nodes.
    Scheduled,
    /// All pods run.
    Running,
    /// The training ended well.
    Succeeded,
    /// It did not.
    Failed,
}

impl Phase {
    /// Whether nothing will come after it.
    pub fn is_final(self) -> bool {
        matches!(self, Phase::Succeeded | Phase::Failed)
    }
}

fn default_resource() -> String {
    GPU.to_owned()
}

fn default_user() -> i64 {
    1000
}

fn default_start() -> u32 {
    600
}

fn default_ttl() -> u32 {
    3600
}

/// The API server checks what is in it when a pod is made of it.
fn free_form(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// The words of Kubernetes for when images are pulled.
pub(super) const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];

fn pull_policies(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "nullable": true, "enum": PULL_POLICIES})
}

/// The words of the planner's policies.
fn policies(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": Policy::ALL.map(Policy::word)})
}
