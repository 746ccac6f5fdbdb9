//! Puts the controller into a cluster, and takes it out again.
//!
//! Out it goes in an order that leaves nothing behind: first the controller, so that nobody makes anything more; then the
//! jobs and all that was made for them; and the definition only when their pods are gone. The cluster's own garbage collector
//! would not do: it knows nothing of what belonged to objects whose definition is gone, or is new to it.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams};
use kube::{Api, Client, CustomResourceExt, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::act::patiently;
use crate::job::{RondeJob, RootKind, names};
use crate::manifests::selector;
use crate::{Connection, Error};

/// Who the server remembers as the one that set a field.
const FIELD_MANAGER: &str = "ronde-install";
/// How long pods may take to end. They have half a minute to do so when they are told to.
const PATIENCE: Duration = Duration::from_secs(90);
/// How often it is looked whether they have.
const LOOK: Duration = Duration::from_millis(300);

/// Applies all objects; may be repeated. `said` hears of each.
pub async fn install(
    connection: &Connection,
    objects: &[Value],
    mut said: impl FnMut(&str),
) -> Result<(), Error> {
    nowhere_else(&connection.client, objects).await?;
    for object in objects {
        let (api, name, called) = place(&connection.client, object);
        if is_of_others(&api, &name, object).await? {
            said(&format!("{called}, which was there, is left as it is"));
            continue;
        }
        let (patch, params) = (Patch::Apply(object.clone()), PatchParams::apply(FIELD_MANAGER).force());
        patiently(&format!("apply {called}"), || api.patch(&name, &params, &patch)).await?;
        said(&called);
    }
    Ok(())
}

/// Deletes all jobs and then all objects, the last one first. `said` hears of each, and `waiting` of what is waited for.
pub async fn uninstall(
    connection: &Connection,
    objects: &[Value],
    mut said: impl FnMut(&str),
    mut waiting: impl FnMut(&str),
) -> Result<(), Error> {
    let client = &connection.client;
    nowhere_else(client, objects).await?;
    for object in objects.iter().filter(is_controller) {
        delete(client, object, &mut said).await?;
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        gone(&pods, &ListParams::default().labels(&selector()), "the controller", &mut waiting).await?;
    }
    delete_jobs(client, &mut said, &mut waiting).await?;
    for object in objects.iter().rev().filter(|object| !is_controller(object)) {
        delete(client, object, &mut said).await?;
    }
    Ok(())
}

fn is_controller(object: &&Value) -> bool {
    object["kind"] == "Deployment"
}

/// Makes sure that the controller is in no other namespace: two would have one set of rights and of definitions, and the
/// one that is left would go on.
async fn nowhere_else(client: &Client, objects: &[Value]) -> Result<(), Error> {
    let controllers: Api<Deployment> = Api::all(client.clone());
    let meant = ListParams::default().labels(&selector());
    let found = match patiently("list deployments", || controllers.list_metadata(&meant)).await {
        Ok(found) => found.items,
        // Who may not look may still do the rest.
        Err(Error::Forbidden { .. }) => return Ok(()),
        Err(error) => return Err(error),
    };
    let here = |namespace: &str| {
        objects.iter().filter(is_controller).any(|object| object["metadata"]["namespace"] == namespace)
    };
    let mut namespaces = found.into_iter().map(|controller| about(&controller).0);
    namespaces
        .find(|namespace| !here(namespace))
        .map_or(Ok(()), |namespace| Err(Error::Elsewhere { namespace }))
}

/// Deletes every `RondeJob` and all that was made for them, and waits until their pods have ended.
async fn delete_jobs(
    client: &Client,
    said: &mut impl FnMut(&str),
    waiting: &mut impl FnMut(&str),
) -> Result<(), Error> {
    // Not as jobs: there may be some that cannot be read.
    let jobs: Api<DynamicObject> = Api::all_with(client.clone(), &RondeJob::api_resource());
    let all = ListParams::default();
    let found = match patiently("list rondejobs", || jobs.list_metadata(&all)).await {
        Ok(found) => found.items,
        // There is no definition, so there are none.
        Err(Error::Gone { .. }) => Vec::new(),
        Err(error) => return Err(error),
    };
    let params = DeleteParams::background();
    for job in &found {
        let (namespace, name) = about(job);
        let jobs: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), &namespace, &RondeJob::api_resource());
        let called = format!("rondejob {namespace}/{name}");
        match patiently(&format!("delete {called}"), || jobs.delete(&name, &params)).await {
            Ok(_) => said(&called),
            Err(Error::Gone { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let theirs =
        format!("{}={},{}={}", names::MANAGED_BY, names::RONDE, names::ROOT, RootKind::RondeJob.label());
    let theirs = ListParams::default().labels(&theirs);
    delete_all::<Pod>(client, &theirs).await?;
    delete_all::<Service>(client, &theirs).await?;
    delete_all::<ConfigMap>(client, &theirs).await?;
    delete_all::<Secret>(client, &theirs).await?;
    gone(&Api::<Pod>::all(client.clone()), &theirs, "the jobs' pods", waiting).await
}

/// Deletes all objects of a kind that are meant, in all namespaces.
async fn delete_all<K>(client: &Client, meant: &ListParams) -> Result<(), Error>
where
    K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let kind = K::plural(&()).into_owned();
    let everywhere: Api<K> = Api::all(client.clone());
    let found = patiently(&format!("list {kind}"), || everywhere.list_metadata(meant)).await?;
    for object in &found.items {
        let (namespace, name) = about(object);
        let here: Api<K> = Api::namespaced(client.clone(), &namespace);
        let params = DeleteParams::default();
        match patiently(&format!("delete {kind} {namespace}/{name}"), || here.delete(&name, &params)).await {
            Ok(_) | Err(Error::Gone { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Waits until no such pod is there any more, and says which are waited for.
async fn gone(
    pods: &Api<Pod>,
    meant: &ListParams,
    whose: &str,
    waiting: &mut impl FnMut(&str),
) -> Result<(), Error> {
    let start = Instant::now();
    let mut told = String::new();
    loop {
        let found = patiently("list pods", || pods.list_metadata(meant)).await?;
        let left: BTreeSet<String> =
            found.items.iter().map(about).map(|(place, name)| format!("{place}/{name}")).collect();
        if left.is_empty() {
            return Ok(());
        }
        let names = some(&left);
        if start.elapsed() > PATIENCE {
            return Err(Error::Lingering { whose: whose.to_owned(), pods: names });
        }
        if names != told {
            waiting(&format!("waiting for {whose} to end: {names}"));
            told = names;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The first few of many.
fn some(names: &BTreeSet<String>) -> String {
    const MOST: usize = 4;
    let first: Vec<&str> = names.iter().take(MOST).map(String::as_str).collect();
    match names.len().checked_sub(MOST) {
        Some(more) if more > 0 => format!("{} and {more} more", first.join(", ")),
        _ => first.join(", "),
    }
}

async fn delete(client: &Client, object: &Value, said: &mut impl FnMut(&str)) -> Result<(), Error> {
    let (api, name, called) = place(client, object);
    if is_of_others(&api, &name, object).await? {
        return Ok(());
    }
    let params = DeleteParams::background();
    match patiently(&format!("delete {called}"), || api.delete(&name, &params)).await {
        Ok(_) => said(&called),
        Err(Error::Gone { .. }) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Whether it is a namespace that was not made here: others may have things in it.
async fn is_of_others(api: &Api<DynamicObject>, name: &str, object: &Value) -> Result<bool, Error> {
    if object["kind"] != "Namespace" {
        return Ok(false);
    }
    let found = patiently(&format!("look for namespace {name}"), || api.get_opt(name)).await?;
    let is_ours = |found: &DynamicObject| {
        let label = |(key, value): (&str, &str)| found.labels().get(key).is_some_and(|known| known == value);
        selector().split_once('=').is_some_and(label)
    };
    Ok(found.is_some_and(|found| !is_ours(&found)))
}

/// An object's namespace and name.
fn about<K: Resource>(object: &K) -> (String, String) {
    let about = object.meta();
    (about.namespace.clone().unwrap_or_default(), about.name.clone().unwrap_or_default())
}

/// Where an object belongs, its name, and what people call it.
fn place(client: &Client, object: &Value) -> (Api<DynamicObject>, String, String) {
    let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (kind, name, namespace) = (text("/kind"), text("/metadata/name"), text("/metadata/namespace"));
    let version = text("/apiVersion");
    let (group, version) = version.split_once('/').unwrap_or(("", &version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
    let api = match namespace.as_str() {
        "" => Api::all_with(client.clone(), &resource),
        namespace => Api::namespaced_with(client.clone(), namespace, &resource),
    };
    let called = format!("{} {name}", kind.to_lowercase());
    (api, name, called)
}
