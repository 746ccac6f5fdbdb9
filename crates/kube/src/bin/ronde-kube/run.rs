//! `ronde kube run`: what was typed becomes a job.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::BuildHasher;
use std::process::ExitCode;

use ronde_kube::job::{self, RondeJobSpec, Shipment};
use ronde_kube::{Error, Order};
use ronde_settings::value::Assignment;
use serde_json::{Value, json};

use crate::args::{KubeRunArgs, PodArgs};
use crate::{block_on, refuse, surroundings, which, wishes};

pub(crate) fn run(args: KubeRunArgs) -> ExitCode {
    let order = order(args, |name| std::env::var(name).ok());
    match order.and_then(|order| block_on(ronde_kube::run(order))) {
        Ok(code) => ExitCode::from(code),
        Err(error) => refuse(&error),
    }
}

fn order(args: KubeRunArgs, var: impl Fn(&str) -> Option<String>) -> Result<Order, Error> {
    // Any number that differs from the last one will do.
    let random = RandomState::new().hash_one(std::process::id());
    let pod = var("POD_NAME").zip(var("POD_UID")).filter(|_| args.cluster.context.context.is_none());
    // A manager that runs in a pod and is started again must find its job again.
    let name = args.name.clone().or_else(|| pod.as_ref().map(|(name, _)| job::name_in_pod(name)));
    // What is in another namespace cannot belong to the pod: the garbage collector would look for it there.
    let typed = args.cluster.namespace.as_ref();
    let own_pod = pod.filter(|_| typed.is_none_or(|typed| var("POD_NAMESPACE").as_ref() == Some(typed)));
    let name = name.unwrap_or_else(|| job::invent_name(&args.command, random));
    let shipment =
        args.script.as_ref().or(args.workdir.as_ref()).map(|path| job::collect(path)).transpose()?;
    let spec = spec(&args, &name, shipment.as_ref(), &var)?;
    Ok(Order {
        which: which(&args.cluster),
        name,
        spec,
        shipment,
        around: surroundings(&args.pods.around),
        own_pod,
        wait: args.wait,
        quiet: args.quiet,
    })
}

fn spec(
    args: &KubeRunArgs,
    name: &str,
    shipment: Option<&Shipment>,
    var: impl Fn(&str) -> Option<String>,
) -> Result<RondeJobSpec, Error> {
    let mut env = Vec::new();
    for Assignment { name, value } in &args.env {
        let value = value.clone().or_else(|| var(name));
        let value = value.ok_or_else(|| Error::Invalid(vec![format!("--env {name}: it is not set here")]))?;
        env.push(json!({"name": name, "value": value}));
    }
    let env = serde_json::from_value(json!(env))
        .map_err(|error| Error::Invalid(vec![format!("--env: {error}")]))?;
    let pods = args.pods.clone();
    Ok(RondeJobSpec {
        env,
        volumes: args.volume.clone(),
        files: shipment.map(|shipment| shipment.files(name)),
        ssh: args.ssh,
        shared_memory: pods.shared_memory,
        image_has_ronde: pods.image_has_ronde,
        image_pull_secrets: pods.image_pull_secret,
        image_pull_policy: pods.image_pull_policy,
        service_account: pods.service_account,
        run_as_user: pods.run_as_user,
        run_as_group: pods.run_as_group,
        read_only_root: pods.read_only_root,
        priority_class: pods.priority_class,
        queue: pods.queue,
        retries: args.retries,
        deadline_seconds: args.deadline,
        start_deadline_seconds: args.start_deadline,
        ttl_seconds_after_finished: args.ttl,
        wait_for_better_seconds: args.wait_for_better,
        template: template(&args.pods)?,
        ..wishes::job(&args.gpus, &args.image, &args.command)?
    })
}

fn template(args: &PodArgs) -> Result<Option<Value>, Error> {
    let Some(path) = &args.template else { return Ok(None) };
    let problem = |doing, problem| Error::File { doing, path: path.clone(), problem };
    let text = fs::read_to_string(path).map_err(|error| problem("read", error.to_string()))?;
    read_template(&text).map(Some).map_err(|error| problem("use", error))
}

/// JSON is YAML, too.
fn read_template(text: &str) -> Result<Value, String> {
    let read: Value = serde_saphyr::from_str(text).map_err(|error| format!("it is not YAML: {error}"))?;
    if read.is_object() {
        Ok(read)
    } else {
        Err("it is not a pod template, with metadata and spec".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;
    use crate::args::{KubeArgs, KubeVerb};

    /// What is ordered by a command line in a pod.
    fn ordered(words: &[&str]) -> Order {
        let line = [&["ronde kube", "run", "--gpus", "1", "--image", "i"], words, &["--", "true"]].concat();
        let KubeVerb::Run(args) = KubeArgs::try_parse_from(line).expect("a command line").verb else {
            panic!("another verb");
        };
        let var = |name: &str| {
            let value = match name {
                "POD_NAME" => "manager",
                "POD_UID" => "uid",
                "POD_NAMESPACE" => "here",
                _ => return None,
            };
            Some(value.to_owned())
        };
        order(*args, var).expect("an order")
    }

    #[test]
    fn a_pod_owns_what_is_made_in_its_namespace_and_nothing_elsewhere() {
        let own = Some(("manager".to_owned(), "uid".to_owned()));
        assert_eq!(ordered(&[]).own_pod, own);
        assert_eq!(ordered(&["--namespace", "here"]).own_pod, own);
        assert_eq!(ordered(&["--context", "other"]).own_pod, None);
        let elsewhere = ordered(&["--namespace", "there"]);
        // Started again it finds its job again, also there.
        assert_eq!((elsewhere.own_pod, elsewhere.name.as_str()), (None, "manager"));
    }

    #[test]
    fn templates_are_yaml_or_json() {
        let read = json!({"spec": {"priority": 3, "nodeSelector": {"disk": "yes"}}});
        assert_eq!(
            read_template("spec:\n  priority: 3\n  nodeSelector: {disk: \"yes\"}\n"),
            Ok(read.clone())
        );
        assert_eq!(read_template(&read.to_string()), Ok(read));
    }

    #[test]
    fn what_is_no_template_is_said_to_be_none() {
        assert!(read_template("spec: [").is_err_and(|error| error.starts_with("it is not YAML: ")));
        for text in ["", "- spec", "spec"] {
            assert!(read_template(text).is_err_and(|error| error.starts_with("it is not a pod template")));
        }
    }
}
