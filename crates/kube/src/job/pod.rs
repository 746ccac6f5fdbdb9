//! The pods: a chief, which runs the launcher and its own ranks, and workers, whose agents dial it.
//!
//! An init container from the manager's image brings our program and package into a folder of the pod, so that the user's
//! image needs nothing of ours; it is left out where that image is said to have them. Pods are gated until their set's
//! claim is safe, and pinned to their node by affinity; the scheduler still counts for itself. They ask for nothing that a
//! restricted namespace forbids. Whatever is not said here comes from the user's template.

use k8s_openapi::api::core::v1::{Pod, Toleration};
use serde_json::{Value, json};

use super::merge::over;
use super::names::{self, Role};
use super::{Gang, Job, Member, PORT, RondeJobSpec, RootKind, Surroundings, secret, ssh};
use crate::cluster::Claim;

/// The folder that our program is brought to.
const HOME: &str = "/ronde";
/// Where files that were shipped lie, and where ranks then run.
const WORK: &str = "/ronde/work";
/// Where the package lies, as the program beside it expects.
const PACKAGE: &str = "/ronde/lib/python3/site-packages";
/// By what variable the launcher knows that, which puts it before the image's own path.
const PYTHON_PATH: &str = "RONDE_PYTHON_PATH";
/// Where the secret is mounted.
const SECRET: &str = "/run/ronde/secret";
/// Where pods of a job over ssh keep what ssh must find.
const SSH: &str = "/ronde/ssh";
/// Where the config map of files is mounted for the init container.
const FILES: &str = "/run/ronde/files";

/// One pod of a set; an error says what is wrong with the user's template.
pub(crate) fn pod(job: &Job, gang: &Gang, member: &Member, around: &Surroundings) -> Result<Pod, String> {
    let mut upper = made_here(job, gang, member, around);
    let mut lower = job.spec.template.clone().unwrap_or(json!({}));
    lend_name(&mut lower);
    pin(&mut lower, &mut upper, &member.node);
    let metadata = lower.get("metadata").cloned().unwrap_or(Value::Null);
    // Of a template only these two are about its pods; a name or an owner of its own would be in the way.
    let lower = json!({
        "metadata": {"labels": metadata.get("labels"), "annotations": metadata.get("annotations")},
        "spec": lower.get("spec"),
    });
    let merged = over(lower, upper);
    serde_json::from_value(merged).map_err(|error| format!("the job's template is no pod template: {error}"))
}

/// The first container of a template is the one that trains, whatever it is called there.
fn lend_name(template: &mut Value) {
    let containers = template.pointer_mut("/spec/containers").and_then(Value::as_array_mut);
    let Some(containers) = containers else { return };
    if !containers.iter().any(|container| container["name"] == names::TRAIN)
        && let Some(first) = containers.first_mut().and_then(Value::as_object_mut)
    {
        first.insert("name".to_owned(), json!(names::TRAIN));
    }
}

/// Where the terms are of which a node must meet one.
pub(super) const TERMS: &str =
    "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";

/// Pins a pod to its node. Terms are alternatives, so each of the template's gets the pin, and none stands beside it.
fn pin(lower: &mut Value, upper: &mut Value, node: &str) {
    let pin = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    let theirs = lower.pointer_mut(TERMS).map(Value::take);
    let theirs = theirs.and_then(|terms| terms.as_array().cloned()).unwrap_or_default();
    // A term that says nothing is met by no node.
    let said = theirs.into_iter().filter(|term| term.as_object().is_some_and(|term| !term.is_empty()));
    let mut terms: Vec<Value> = said
        .map(|mut term| {
            let mut fields = term["matchFields"].as_array().cloned().unwrap_or_default();
            fields.push(pin.clone());
            term["matchFields"] = json!(fields);
            term
        })
        .collect();
    if terms.is_empty() {
        terms.push(json!({"matchFields": [pin]}));
    }
    upper["spec"]["affinity"] = json!({"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
    }});
}

/// Everything that is not the user's.
fn made_here(job: &Job, gang: &Gang, member: &Member, around: &Surroundings) -> Value {
    let spec = &job.spec;
    let mut metadata = job.metadata(member.pod.clone());
    let labels = metadata.labels.get_or_insert_default();
    labels.insert(names::ROLE.to_owned(), member.role.label().to_owned());
    labels.insert(names::ATTEMPT.to_owned(), gang.attempt.to_string());
    if let Some(queue) = &spec.queue {
        labels.insert(names::QUEUE.to_owned(), queue.clone());
    }
    let claim = Claim { resource: spec.resource.clone(), nodes: gang.claim() };
    let notes = metadata.annotations.get_or_insert_default();
    notes.insert(names::CLAIM.to_owned(), json!(claim).to_string());
    notes.insert(names::TTL.to_owned(), spec.ttl_seconds_after_finished.to_string());
    notes.insert(names::START_DEADLINE.to_owned(), spec.start_deadline_seconds.to_string());
    if spec.retries > 0 {
        notes.insert(names::RETRIES.to_owned(), spec.retries.to_string());
    }
    if job.root.kind == RootKind::Pod {
        notes.insert(names::SPEC.to_owned(), spec.fingerprint());
    }
    let is_root = spec.run_as_user == 0;
    json!({
        "metadata": metadata,
        "spec": {
            "hostname": member.pod,
            "subdomain": names::service(&job.name),
            "restartPolicy": "Never",
            "schedulingGates": [{"name": names::GATE}],
            "nodeSelector": (!spec.node_selector.is_empty()).then_some(&spec.node_selector),
            "tolerations": tolerations(spec),
            "serviceAccountName": spec.service_account,
            "automountServiceAccountToken": spec.service_account.is_some(),
            "enableServiceLinks": false,
            "schedulerName": spec.scheduler,
            "priorityClassName": spec.priority_class,
            "imagePullSecrets": spec.image_pull_secrets.iter().map(|name| json!({"name": name})).collect::<Vec<_>>(),
            // A template's own counts: a checkpoint may take longer.
            "terminationGracePeriodSeconds": spec.grace_of_template().is_none().then(|| spec.grace_seconds()),
            // A pod whose manager is gone must not train for ever.
            "activeDeadlineSeconds": spec.deadline_seconds.map(|limit| longest(limit, spec.start_deadline_seconds)),
            "securityContext": {
                "runAsNonRoot": !is_root,
                "runAsUser": spec.run_as_user,
                "runAsGroup": spec.run_as_group,
                "fsGroup": spec.run_as_group,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "initContainers": spec.needs_delivery().then(|| [deliver(spec, around)]),
            "containers": [train(job, gang, member, around)],
            "volumes": volumes(job),
        },
    })
}

/// Two times together, as far as Kubernetes counts.
fn longest(one: u32, other: u32) -> u32 {
    const MOST: u32 = i32::MAX.unsigned_abs();
    one.saturating_add(other).min(MOST)
}

/// Brings program, package and shipped files.
fn deliver(spec: &RondeJobSpec, around: &Surroundings) -> Value {
    let mut mounts = vec![json!({"name": "ronde", "mountPath": HOME})];
    let mut command = vec!["ronde", "kube", "deliver", HOME];
    if spec.files.is_some() {
        command.extend(["--files", FILES]);
        mounts.push(json!({"name": "ronde-files", "mountPath": FILES, "readOnly": true}));
    }
    let little = json!({"cpu": "100m", "memory": "128Mi"});
    json!({
        "name": names::DELIVER,
        "image": around.manager_image,
        "command": command,
        "securityContext": security(true),
        "resources": {"requests": little, "limits": {"memory": "128Mi"}},
        "volumeMounts": mounts,
    })
}

/// Trains: the launcher with its own ranks in the chief, an agent in a worker.
fn train(job: &Job, gang: &Gang, member: &Member, around: &Surroundings) -> Value {
    let spec = &job.spec;
    let mut requests = serde_json::Map::new();
    let mut limits = serde_json::Map::new();
    let gpus = json!(member.gpus.to_string());
    requests.insert(spec.resource.clone(), gpus.clone());
    limits.insert(spec.resource.clone(), gpus);
    if let Some(cpu) = &spec.cpu_per_gpu {
        // No limit: one would slow ranks down without anybody gaining.
        requests.insert("cpu".to_owned(), json!(cpu.times(member.gpus)));
    }
    if let Some(memory) = &spec.memory_per_gpu {
        let memory = json!(memory.times(member.gpus));
        requests.insert("memory".to_owned(), memory.clone());
        limits.insert("memory".to_owned(), memory);
    }
    let mut mounts = vec![
        json!({"name": "ronde", "mountPath": HOME}),
        json!({"name": "ronde-secret", "mountPath": SECRET, "readOnly": true}),
        json!({"name": "ronde-shm", "mountPath": "/dev/shm"}),
    ];
    if spec.read_only_root {
        mounts.push(json!({"name": "ronde-tmp", "mountPath": "/tmp"}));
    }
    for (index, volume) in spec.volumes.iter().enumerate() {
        let name = format!("ronde-claim-{index}");
        mounts.push(json!({"name": name, "mountPath": volume.path, "readOnly": volume.read_only}));
    }
    let folder = spec.working_dir.clone().or_else(|| spec.files.as_ref().map(|_| WORK.to_owned()));
    json!({
        "name": names::TRAIN,
        "image": spec.image,
        "imagePullPolicy": spec.image_pull_policy,
        "command": command(job, gang, member, around),
        "args": [],
        "workingDir": folder,
        "env": environment(spec),
        "securityContext": security(spec.read_only_root),
        "resources": {"requests": requests, "limits": limits},
        "volumeMounts": mounts,
        // The last lines of a training that failed are then in the pod's status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    })
}

fn command(job: &Job, gang: &Gang, member: &Member, around: &Surroundings) -> Vec<String> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<String>>();
    let program = if job.spec.needs_delivery() { format!("{HOME}/bin/ronde") } else { "ronde".to_owned() };
    let secret = format!("{SECRET}/{}", secret::KEY);
    let patience = job.spec.start_deadline_seconds.to_string();
    // Over ssh a pod has one rank, which stands for all that are started in it.
    let (ranks, slots) =
        if job.spec.ssh { (gang.members.len(), 1) } else { (gang.gpus() as usize, member.gpus) };
    let slots = slots.to_string();
    match member.role {
        Role::Chief => {
            let mut command = words(&[&program, "run", "--num-proc", &ranks.to_string()]);
            if job.spec.grace_of_template().is_some() {
                command.extend(words(&["--grace", &ranks_grace(&job.spec).to_string()]));
            }
            if gang.workers() > 0 {
                let listen = format!("0.0.0.0:{PORT}");
                command.extend(words(&["--agents", &gang.workers().to_string(), "--listen", &listen]));
                command.extend(words(&["--own-slots", &slots, "--own-name", &member.pod]));
                command.extend(words(&["--secret-file", &secret, "--start-timeout", &patience]));
            }
            let theirs = match job.spec.ssh {
                true => {
                    command.extend(words(&["--led", "--no-prefix", "--quiet"]));
                    ssh::command(job, gang, around, &program, SECRET, SSH)
                }
                false => job.spec.command.clone(),
            };
            command.push("--".to_owned());
            command.extend(theirs.iter().map(|word| literal(word)));
            command
        }
        Role::Worker(_) => {
            // The dot at the end keeps the resolver from trying the search domains first.
            let service = names::chief_service(gang.chief(), &job.root.uid);
            let chief = format!("{service}.{}.svc.{}.:{PORT}", job.namespace, around.cluster_domain);
            let mut command = words(&[&program, "agent", "--connect", &chief, "--secret-file", &secret]);
            command.extend(words(&[
                "--slots",
                &slots,
                "--name",
                &member.pod,
                "--once",
                "--patience",
                &patience,
            ]));
            command
        }
    }
}

/// How long the launcher gives ranks to end before it kills them: as long as the pod has, but for what it takes itself. Of
/// little time they get what they would have without a template.
fn ranks_grace(spec: &RondeJobSpec) -> u32 {
    const OWN: u32 = 5;
    const USUAL: u32 = 4;
    let all = spec.grace_seconds();
    all.saturating_sub(OWN).max(all.min(USUAL))
}

/// A word that Kubernetes leaves as it is: it would put variables in place of `$(NAME)`, and one `$` in place of two.
fn literal(word: &str) -> String {
    word.replace('$', "$$")
}

fn environment(spec: &RondeJobSpec) -> Vec<Value> {
    let field =
        |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let mut variables = vec![
        field("NODE_NAME", "spec.nodeName"),
        field("POD_NAME", "metadata.name"),
        field("POD_NAMESPACE", "metadata.namespace"),
    ];
    let brought = spec.needs_delivery();
    if brought {
        // Only in the container it is known what the image has on the path.
        variables.push(json!({"name": PYTHON_PATH, "value": PACKAGE}));
    }
    let has_home = spec.env.iter().any(|one| one.name == "HOME") || is_in_template(spec, "HOME");
    if !has_home && spec.run_as_user != 0 {
        // The user often has no home in the image.
        let home = if brought { format!("{HOME}/home") } else { HOME.to_owned() };
        variables.push(json!({"name": "HOME", "value": home}));
    }
    variables.extend(spec.env.iter().map(|one| json!(one)));
    variables
}

/// Whether the user's template sets a variable of the container that trains.
fn is_in_template(spec: &RondeJobSpec, name: &str) -> bool {
    let containers = spec.template.as_ref().and_then(|template| template.pointer("/spec/containers"));
    let all = containers.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let train = all.iter().find(|container| container["name"] == names::TRAIN).or(all.first());
    let variables = train.and_then(|train| train["env"].as_array());
    variables.is_some_and(|variables| variables.iter().any(|one| one["name"] == name))
}

fn security(read_only: bool) -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": read_only,
        "capabilities": {"drop": ["ALL"]},
    })
}

fn volumes(job: &Job) -> Vec<Value> {
    let spec = &job.spec;
    let mut volumes = vec![
        json!({"name": "ronde", "emptyDir": {}}),
        json!({"name": "ronde-secret", "secret": {"secretName": names::secret(&job.name, &job.root.uid), "defaultMode": 0o440}}),
        json!({"name": "ronde-shm", "emptyDir": {"medium": "Memory", "sizeLimit": spec.shared_memory}}),
    ];
    if spec.read_only_root {
        volumes.push(json!({"name": "ronde-tmp", "emptyDir": {}}));
    }
    if let Some(files) = &spec.files {
        let items: Vec<Value> = files
            .items
            .iter()
            .map(|item| json!({"key": item.key, "path": item.path, "mode": if item.executable { 0o555 } else { 0o444 }}))
            .collect();
        let items = (!items.is_empty()).then_some(items);
        volumes.push(json!({"name": "ronde-files", "configMap": {"name": files.config_map, "items": items}}));
    }
    for (index, volume) in spec.volumes.iter().enumerate() {
        let claim = json!({"claimName": volume.claim, "readOnly": volume.read_only});
        volumes.push(json!({"name": format!("ronde-claim-{index}"), "persistentVolumeClaim": claim}));
    }
    volumes
}

/// The taints that pods put up with: those of GPU nodes, and what the job says.
pub(super) fn tolerations(spec: &RondeJobSpec) -> Vec<Toleration> {
    let maker = spec.resource.split('/').next().unwrap_or_default();
    let usual = Toleration {
        key: Some(format!("{maker}/gpu")),
        operator: Some("Exists".to_owned()),
        ..Toleration::default()
    };
    std::iter::once(usual).chain(spec.tolerations.iter().cloned()).collect()
}

#[cfg(test)]
mod tests;
