//! The flags of `ronde kube`: planning, running and managing jobs on a Kubernetes cluster.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use ronde_kube::job::{Amount, Gpus};
use ronde_placement::Policy;
use ronde_settings::value::{self, Assignment};

/// Run jobs on a Kubernetes cluster.
///
/// Asks for GPUs, says where they are free, trains on them and gives them back, whatever happens.
#[derive(Debug, Parser)]
#[command(name = "ronde-kube", bin_name = "ronde kube", version, max_term_width = 100)]
pub(crate) struct KubeArgs {
    #[command(subcommand)]
    pub(crate) verb: KubeVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KubeVerb {
    Plan(KubePlanArgs),
    Run(Box<KubeRunArgs>),
    Manager(KubeManagerArgs),
    Install(KubeInstallArgs),
    Uninstall(KubeInstallArgs),
    Deliver(KubeDeliverArgs),
}

/// Which cluster.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ContextArgs {
    /// The context of the kubeconfig; without it, the current one.
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    pub(crate) context: Option<String>,
}

/// Which cluster, and where in it.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ClusterArgs {
    #[command(flatten)]
    pub(crate) context: ContextArgs,

    /// The namespace of the job; without it, the context's.
    #[arg(short = 'N', long, value_name = "NAME", help_heading = "Cluster")]
    pub(crate) namespace: Option<String>,
}

/// Which GPUs.
#[derive(Clone, Debug, Args)]
pub(crate) struct GpuArgs {
    /// How many GPUs: a number, or the fewest and the most, as in 4..8.
    #[arg(long, value_name = "N|MIN..MAX", allow_hyphen_values = true)]
    pub(crate) gpus: Gpus,

    /// How shares are chosen: pack (few nodes, small holes first), balance (equal shares), spread (many nodes),
    /// in-order (nodes by free GPUs).
    #[arg(long, value_name = "POLICY", default_value = "pack")]
    pub(crate) policy: Policy,

    /// The resource that GPUs are counted by, such as nvidia.com/mig-1g.10gb.
    #[arg(long, value_name = "RESOURCE", default_value = ronde_kube::job::GPU)]
    pub(crate) resource: String,

    /// Only GPUs whose product has this in its name.
    #[arg(long, value_name = "NAME")]
    pub(crate) product: Option<String>,

    /// The most GPUs to take of one node.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_gpus_per_node: Option<u32>,

    /// CPUs for each GPU.
    #[arg(long, value_name = "AMOUNT")]
    pub(crate) cpu_per_gpu: Option<Amount>,

    /// Memory for each GPU, such as 16Gi.
    #[arg(long, value_name = "AMOUNT")]
    pub(crate) memory_per_gpu: Option<Amount>,

    /// A node label whose values are racks, blocks or NVLink domains: shares are kept inside one where that is possible.
    #[arg(long, value_name = "LABEL")]
    pub(crate) topology: Option<String>,

    /// Wait rather than take nodes of two racks, blocks or domains.
    #[arg(long, requires = "topology")]
    pub(crate) topology_required: bool,

    /// Only nodes with this label; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pub(crate) node_selector: Vec<(String, String)>,

    /// Put up with this taint, besides the one that GPU nodes usually have; may be repeated.
    #[arg(long, value_name = "KEY[=VALUE][:EFFECT]", value_parser = toleration)]
    pub(crate) toleration: Vec<Tolerated>,
}

/// Show where GPUs are free, and which a job would get.
///
/// Nothing is reserved or changed. Every node that is not used says why.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ronde kube plan --gpus 6\n  \
    ronde kube plan --gpus 4..8 --policy balance --json\n  \
    ronde kube plan --gpus 6 --save-snapshot now.json; ronde kube plan --gpus 6 --policy in-order --snapshot now.json")]
pub(crate) struct KubePlanArgs {
    #[command(flatten)]
    pub(crate) gpus: GpuArgs,

    /// Print the plan as JSON, for other programs.
    #[arg(long)]
    pub(crate) json: bool,

    /// Plan for the cluster in this file instead of the real one.
    #[arg(long, value_name = "FILE")]
    pub(crate) snapshot: Option<PathBuf>,

    /// Save the cluster as it is now to this file.
    #[arg(long, value_name = "FILE", conflicts_with = "snapshot")]
    pub(crate) save_snapshot: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) context: ContextArgs,
}

/// Train on GPUs of the cluster.
///
/// Waits until enough GPUs are free, starts one rank on each, shows their output, and gives the GPUs back however it
/// ends, even if this command is killed. Ctrl-C deletes the job; a second Ctrl-C leaves at once. The finished job is kept
/// for its logs (--ttl).
///
/// Exit status: that of the training; 1 if it could not be run; 130, 143 or 129 after Ctrl-C, SIGTERM or SIGHUP.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ronde kube run --gpus 6 --image registry.example/train:1 -- python train.py\n  \
    ronde kube run --gpus 4..8 --image pytorch:2 --script train.py --volume data:/data -- python train.py")]
pub(crate) struct KubeRunArgs {
    /// The program each rank runs, and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,

    #[command(flatten)]
    pub(crate) gpus: GpuArgs,

    /// The image that the ranks run in. It needs Python and the framework, nothing of Ronde.
    #[arg(long, value_name = "IMAGE")]
    pub(crate) image: String,

    /// The job's name; without it, one is made of the script's.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Send this file along; ranks find it in their working folder.
    #[arg(long, value_name = "FILE", conflicts_with = "workdir")]
    pub(crate) script: Option<PathBuf>,

    /// Send this folder along, of at most 1 MiB; ranks start in it.
    #[arg(long, value_name = "DIR")]
    pub(crate) workdir: Option<PathBuf>,

    /// Mount a persistent volume claim; may be repeated.
    #[arg(long, value_name = "CLAIM:PATH[:ro]", value_parser = volume)]
    pub(crate) volume: Vec<ronde_kube::job::Volume>,

    /// Set a variable for every rank, or pass on the one that is set here; may be repeated.
    #[arg(short = 'x', long, value_name = "NAME[=VALUE]", value_parser = value::assignment)]
    pub(crate) env: Vec<Assignment>,

    /// Run the command once, in the chief, with ssh to all pods: for mpirun, and for images that bring horovodrun. The
    /// image needs ssh, sshd and a name for the user that it runs as.
    #[arg(long)]
    pub(crate) ssh: bool,

    /// How often to start again after a failure.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) retries: u32,

    /// How long the training may take, in seconds.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) deadline: Option<u32>,

    /// How long pods may take to start, image pulls included, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub(crate) start_deadline: u32,

    /// How long the finished job is kept, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    pub(crate) ttl: u32,

    /// How long to wait for a placement on fewer nodes, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(crate) wait_for_better: u32,

    /// Wait also for GPUs that the cluster does not have at all, such as those of nodes that are added on demand.
    #[arg(long)]
    pub(crate) wait: bool,

    /// Say nothing but errors.
    #[arg(short, long)]
    pub(crate) quiet: bool,

    #[command(flatten)]
    pub(crate) pods: PodArgs,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

/// What pods are like.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Pods")]
pub(crate) struct PodArgs {
    /// A secret for pulling the image; may be repeated.
    #[arg(long, value_name = "SECRET")]
    pub(crate) image_pull_secret: Vec<String>,

    /// When the image is pulled: Always, IfNotPresent or Never.
    #[arg(long, value_name = "POLICY")]
    pub(crate) image_pull_policy: Option<String>,

    /// The image has Ronde in it: nothing is brought into the pods, which start sooner.
    #[arg(long)]
    pub(crate) image_has_ronde: bool,

    /// The service account of the pods.
    #[arg(long, value_name = "NAME")]
    pub(crate) service_account: Option<String>,

    /// The user that ranks run as; 0 is root, which restricted namespaces do not allow.
    #[arg(long, value_name = "UID", default_value_t = 1000)]
    pub(crate) run_as_user: i64,

    /// The group of ranks and of the files on their volumes.
    #[arg(long, value_name = "GID", default_value_t = 1000)]
    pub(crate) run_as_group: i64,

    /// Let ranks write only to volumes, /tmp and their home.
    #[arg(long)]
    pub(crate) read_only_root: bool,

    /// The most that /dev/shm may hold.
    #[arg(long, value_name = "AMOUNT")]
    pub(crate) shared_memory: Option<Amount>,

    /// The priority class of the pods.
    #[arg(long, value_name = "NAME")]
    pub(crate) priority_class: Option<String>,

    /// The queue of a queue system such as Kueue.
    #[arg(long, value_name = "NAME")]
    pub(crate) queue: Option<String>,

    /// A file with a pod template, in YAML or JSON, for everything else; it lies under what is made here.
    #[arg(long, value_name = "FILE")]
    pub(crate) template: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) around: AroundArgs,
}

/// What pods must know about the cluster and about us.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct AroundArgs {
    /// The image that brings Ronde into the pods [variable: RONDE_MANAGER_IMAGE].
    #[arg(long, value_name = "IMAGE")]
    pub(crate) manager_image: Option<String>,

    /// The cluster's DNS domain.
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    pub(crate) cluster_domain: String,
}

/// Look after all RondeJobs of the cluster.
///
/// The controller, as `ronde kube install` starts it in a pod. Of several only one acts at a time.
#[derive(Debug, Args)]
pub(crate) struct KubeManagerArgs {
    /// Where health, readiness and figures are served.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:8080")]
    pub(crate) listen: std::net::SocketAddr,

    /// How long the first job of the queue may be overtaken by smaller ones, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub(crate) hold_after: u32,

    #[command(flatten)]
    pub(crate) around: AroundArgs,

    /// The namespace in which managers agree on who acts; without it, the pod's or the context's. Jobs of all namespaces are
    /// looked after.
    #[arg(short = 'N', long, value_name = "NAME", help_heading = "Cluster")]
    pub(crate) namespace: Option<String>,

    #[command(flatten)]
    pub(crate) context: ContextArgs,
}

/// Put the controller and the definition of RondeJobs into the cluster, or take them out.
#[derive(Debug, Args)]
pub(crate) struct KubeInstallArgs {
    /// Print the manifests instead, for kubectl or for reading.
    #[arg(long)]
    pub(crate) print: bool,

    /// The namespace of the controller.
    #[arg(
        short = 'N',
        long,
        visible_alias = "namespace",
        value_name = "NAME",
        default_value = "ronde-system"
    )]
    pub(crate) manager_namespace: String,

    #[command(flatten)]
    pub(crate) around: AroundArgs,

    #[command(flatten)]
    pub(crate) context: ContextArgs,
}

/// Bring this program and its package into a folder of a pod; the first container of every pod does.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct KubeDeliverArgs {
    /// The folder.
    pub(crate) folder: PathBuf,

    /// Where files of the job are mounted.
    #[arg(long, value_name = "DIR")]
    pub(crate) files: Option<PathBuf>,
}

/// A taint to put up with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tolerated {
    pub(crate) key: String,
    pub(crate) value: Option<String>,
    pub(crate) effect: Option<String>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("a label is written as KEY=VALUE".to_owned()),
    }
}

fn toleration(text: &str) -> Result<Tolerated, String> {
    let (rest, effect) = match text.split_once(':') {
        Some((rest, effect)) => (rest, Some(effect.to_owned())),
        None => (text, None),
    };
    let known = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    if let Some(effect) = effect.as_deref().filter(|effect| !known.contains(effect)) {
        return Err(format!("{effect:?} is none of {}", known.join(", ")));
    }
    let (key, value) = match rest.split_once('=') {
        Some((key, value)) => (key, Some(value.to_owned())),
        None => (rest, None),
    };
    if key.is_empty() {
        return Err("the taint's key is missing".to_owned());
    }
    Ok(Tolerated { key: key.to_owned(), value, effect })
}

fn volume(text: &str) -> Result<ronde_kube::job::Volume, String> {
    let (rest, read_only) = match text.strip_suffix(":ro") {
        Some(rest) => (rest, true),
        None => (text, false),
    };
    match rest.split_once(':') {
        Some((claim, path)) if !claim.is_empty() && path.starts_with('/') => {
            Ok(ronde_kube::job::Volume { claim: claim.to_owned(), path: path.to_owned(), read_only })
        }
        _ => Err("a volume is written as CLAIM:/path, and :ro after it if it may only be read".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_taints_and_labels_are_read_and_mistakes_explained() {
        let read = volume("data:/data:ro").expect("a volume");
        assert_eq!((read.claim.as_str(), read.path.as_str(), read.read_only), ("data", "/data", true));
        assert!(volume("data").is_err() && volume(":/data").is_err() && volume("data:data").is_err());
        let read = toleration("team=a:NoSchedule").expect("a taint");
        assert_eq!(
            (read.key.as_str(), read.value.as_deref(), read.effect.as_deref()),
            ("team", Some("a"), Some("NoSchedule"))
        );
        assert!(toleration("team:Never").is_err_and(|problem| problem.contains("NoExecute")));
        assert_eq!(pair("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(pair("a").is_err());
    }
}
