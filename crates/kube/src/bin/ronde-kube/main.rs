//! `ronde kube`: one file a verb. A program of its own beside `ronde`, which hands over to it: what speaks with clusters is
//! several times as large as the rest, and `ronde` is sent to every host of a job.

mod args;
mod deliver;
mod install;
mod manager;
mod plan;
mod run;
mod wishes;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use ronde_kube::job::Surroundings;
use ronde_kube::{Error, Which};

use crate::args::{AroundArgs, ClusterArgs, ContextArgs, KubeArgs, KubeVerb};

/// The image that brings this version of Ronde into pods.
const MANAGER_IMAGE: &str = concat!("ghcr.io/ronde/manager:", env!("CARGO_PKG_VERSION"));

fn main() -> ExitCode {
    match KubeArgs::parse().verb {
        KubeVerb::Plan(args) => plan::plan(&args),
        KubeVerb::Run(args) => run::run(*args),
        KubeVerb::Manager(args) => manager::manager(&args),
        KubeVerb::Install(args) => install::install(&args),
        KubeVerb::Uninstall(args) => install::uninstall(&args),
        KubeVerb::Deliver(args) => deliver::deliver(&args),
    }
}

/// Runs something that waits.
fn block_on<T>(future: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|source| Error::System { doing: "start threads", source })?;
    let result = runtime.block_on(future);
    // What still waits for an answer is not worth waiting for.
    runtime.shutdown_background();
    result
}

/// Shows an error; returns the status for it.
fn refuse(error: &Error) -> ExitCode {
    let mut text = format!("error: {error}\n");
    if let Some(hint) = error.hint() {
        text.push_str(&format!("hint: {hint}\n"));
    }
    let _ = std::io::stderr().write_all(text.as_bytes());
    match error {
        Error::Invalid(_) => ExitCode::from(2),
        _ => ExitCode::FAILURE,
    }
}

/// What was typed about the cluster, or is set in a pod.
fn which(args: &ClusterArgs) -> Which {
    placed(&args.context, args.namespace.as_ref())
}

/// The namespace that was typed, or the one of the pod that this is.
fn placed(args: &ContextArgs, namespace: Option<&String>) -> Which {
    let of_pod = || std::env::var("POD_NAMESPACE").ok().filter(|name| !name.is_empty());
    let namespace = namespace.cloned().or_else(|| args.context.is_none().then(of_pod).flatten());
    Which { context: args.context.clone(), namespace }
}

/// A cluster, whatever the namespace.
fn anywhere(args: &ContextArgs) -> Which {
    Which { context: args.context.clone(), namespace: None }
}

fn surroundings(args: &AroundArgs) -> Surroundings {
    let set = || {
        std::env::var(ronde_settings::registry::agent::MANAGER_IMAGE.name)
            .ok()
            .filter(|image| !image.is_empty())
    };
    Surroundings {
        manager_image: args.manager_image.clone().or_else(set).unwrap_or_else(|| MANAGER_IMAGE.to_owned()),
        cluster_domain: args.cluster_domain.trim_matches('.').to_owned(),
    }
}
