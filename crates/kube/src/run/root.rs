//! The object that owns all others of a job: the pod that the command runs in, or a config map.

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::PostParams;

use super::{Order, say};
use crate::Error;
use crate::act::{Hands, in_namespace, patiently, taken};
use crate::job::{Job, Root, RootKind, names};

/// The key of the config map under which the job is described.
const SPEC: &str = "job.json";

/// The job that was asked for; and whether it was made now, and not before.
pub(super) async fn root(order: &Order, namespace: &str, hands: &Hands) -> Result<(Job, bool), Error> {
    let job = |kind, name: &str, uid: &str, created: Timestamp| Job {
        name: order.name.clone(),
        namespace: namespace.to_owned(),
        root: Root { kind, name: name.to_owned(), uid: uid.to_owned() },
        created,
        deleting: false,
        generation: None,
        spec: order.spec.clone(),
    };
    if let Some((name, uid)) = &order.own_pod {
        return Ok((job(RootKind::Pod, name, uid, hands.clock.now()), true));
    }
    let (found, is_new) = config_map(order, namespace, hands).await?;
    let created = found.metadata.creation_timestamp.map_or_else(|| hands.clock.now(), |time| time.0);
    Ok((job(RootKind::ConfigMap, &order.name, &found.metadata.uid.unwrap_or_default(), created), is_new))
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
        return Err(Error::NameTaken { name: order.name.clone(), namespace: namespace.to_owned() });
    }
    say(order.quiet, &format!("going on with job {}", order.name));
    Ok((found, false))
}
