//! The object that owns all others of a job: the pod that the command runs in, or a config map.

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::PostParams;

use super::{Order, say};
use crate::Error;
use crate::act::{Hands, in_namespace, patiently, taken};
use crate::cluster::{Ledger, OwnPod};
use crate::job::{Job, Root, RootKind, names};
use crate::view::View;

/// The key of the config map under which the job is described.
const SPEC: &str = "job.json";

/// The job that was asked for; and whether it was made now, and not before.
pub(super) async fn root(
    order: &Order,
    namespace: &str,
    hands: &Hands,
    view: &View,
) -> Result<(Job, bool), Error> {
    let job = |kind, name: &str, uid: &str, created: Timestamp| Job {
        name: order.name.clone(),
        namespace: namespace.to_owned(),
        root: Root { kind, name: name.to_owned(), uid: uid.to_owned() },
        created,
        deleting: false,
        generation: None,
        spec: order.spec.clone(),
    };
    if let Some((name, uid)) = &order.own_pod
        && is_there(namespace, name, uid, hands).await?
    {
        let job = job(RootKind::Pod, name, uid, hands.clock.now());
        let is_new = is_new(&job, &view.ledger())?;
        if !is_new {
            say(order.quiet, &format!("going on with job {}", order.name));
        }
        return Ok((job, is_new));
    }
    let (found, is_new) = config_map(order, namespace, hands).await?;
    let created = found.metadata.creation_timestamp.map_or_else(|| hands.clock.now(), |time| time.0);
    Ok((job(RootKind::ConfigMap, &order.name, &found.metadata.uid.unwrap_or_default(), created), is_new))
}

/// Whether the pod that this runs in is one of this cluster and namespace: a kubeconfig may lead elsewhere, where the garbage
/// collector would delete whatever belongs to a pod that it does not find.
async fn is_there(namespace: &str, name: &str, uid: &str, hands: &Hands) -> Result<bool, Error> {
    let pods: Api<Pod> = Api::namespaced(hands.client.clone(), namespace);
    let found = patiently("look for this pod", || pods.get_metadata_opt(name)).await?;
    Ok(found.is_some_and(|pod| pod.metadata.uid.as_deref() == Some(uid)))
}

/// Whether a job that belongs to a pod has no pods yet. A pod does not say what was asked for, and may ask for several
/// jobs one after the other; so its jobs' pods do.
fn is_new(job: &Job, ledger: &Ledger) -> Result<bool, Error> {
    let is_its =
        |pod: &&OwnPod| pod.job_uid == job.root.uid && pod.namespace == job.namespace && pod.job == job.name;
    let asked = job.spec.fingerprint();
    let mut is_new = true;
    for pod in ledger.own().filter(is_its) {
        if pod.spec.as_ref().is_some_and(|spec| *spec != asked) {
            return Err(name_taken(RootKind::Pod, &job.name, &job.namespace));
        }
        is_new = false;
    }
    Ok(is_new)
}

/// Another job has the name.
pub(super) fn name_taken(kind: RootKind, name: &str, namespace: &str) -> Error {
    let delete = kubectl_delete(kind, name, namespace);
    Error::NameTaken { name: name.to_owned(), namespace: namespace.to_owned(), delete }
}

/// How people delete a job of the command's. The pod that one belongs to may be needed.
pub(super) fn kubectl_delete(kind: RootKind, name: &str, namespace: &str) -> String {
    match kind {
        RootKind::Pod => format!("kubectl delete pod,configmap -l {}={name} -n {namespace}", names::JOB),
        _ => format!("kubectl delete configmap {name} -n {namespace}"),
    }
}

/// The config map of the job, and whether it was made now.
async fn config_map(order: &Order, namespace: &str, hands: &Hands) -> Result<(ConfigMap, bool), Error> {
    let maps: Api<ConfigMap> = Api::namespaced(hands.client.clone(), namespace);
    let text = serde_json::to_string_pretty(&order.spec).unwrap_or_default();
    let labels = [
        (names::MANAGED_BY.to_owned(), names::RONDE.to_owned()),
        (names::JOB.to_owned(), order.name.clone()),
    ];
    let map = ConfigMap {
        metadata: kube::core::ObjectMeta {
            name: Some(order.name.clone()),
            labels: Some(labels.clone().into()),
            ..Default::default()
        },
        data: Some([(SPEC.to_owned(), text.clone())].into()),
        ..ConfigMap::default()
    };
    let create = PostParams::default();
    match in_namespace(namespace, patiently("create the job", || maps.create(&create, &map)).await) {
        Ok(made) => return Ok((made, true)),
        Err(Error::Exists { .. }) => {}
        Err(error) => return Err(error),
    }
    let found = patiently("read the job", || maps.get(&order.name)).await?;
    let is_labelled = |(name, value): &(String, String)| {
        found.metadata.labels.as_ref().and_then(|labels| labels.get(name)) == Some(value)
    };
    if !labels.iter().all(is_labelled) {
        return Err(taken(&found));
    }
    let is_same = found.data.as_ref().and_then(|data| data.get(SPEC)).is_some_and(|known| *known == text);
    if !is_same || found.metadata.deletion_timestamp.is_some() {
        return Err(name_taken(RootKind::ConfigMap, &order.name, namespace));
    }
    say(order.quiet, &format!("going on with job {}", order.name));
    Ok((found, false))
}
