//! `ronde kube install` and `ronde kube uninstall`.

use std::io::Write;
use std::process::ExitCode;

use ronde_kube::{Error, MANAGER, connect, manifests, yaml};
use serde_json::Value;

use crate::args::KubeInstallArgs;
use crate::{anywhere, block_on, refuse, surroundings};

pub(crate) fn install(args: &KubeInstallArgs) -> ExitCode {
    let objects = objects(args);
    if args.print {
        return print(&objects);
    }
    finish(block_on(async {
        let connection = connect(&anywhere(&args.context)).await?;
        ronde_kube::install(&connection, &objects, |what| say(&format!("  ✓ {what}"))).await?;
        let namespace = &args.manager_namespace;
        say(&format!("whether it has started: kubectl rollout status deployment/{MANAGER} -n {namespace}"));
        Ok(())
    }))
}

pub(crate) fn uninstall(args: &KubeInstallArgs) -> ExitCode {
    let objects = objects(args);
    if args.print {
        return print(&objects);
    }
    finish(block_on(async {
        let connection = connect(&anywhere(&args.context)).await?;
        let deleted = |what: &str| say(&format!("  ✓ {what} deleted"));
        ronde_kube::uninstall(&connection, &objects, deleted, |what| say(&format!("  … {what}"))).await
    }))
}

fn objects(args: &KubeInstallArgs) -> Vec<Value> {
    let around = surroundings(&args.around);
    manifests(&args.manager_namespace, &around.manager_image, &around.cluster_domain)
}

fn print(objects: &[Value]) -> ExitCode {
    match std::io::stdout().write_all(yaml(objects).as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn finish(result: Result<(), Error>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => refuse(&error),
    }
}

fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
