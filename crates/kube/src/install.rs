//! Puts the controller into a cluster, and takes it out again.

use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::Value;

use crate::act::patiently;
use crate::{Connection, Error};

/// Who the server remembers as the one that set a field.
const FIELD_MANAGER: &str = "ronde-install";

/// Applies all objects; may be repeated. `said` hears of each.
pub async fn install(
    connection: &Connection,
    objects: &[Value],
    mut said: impl FnMut(&str),
) -> Result<(), Error> {
    for object in objects {
        let (api, name, called) = place(&connection.client, object);
        let (patch, params) = (Patch::Apply(object.clone()), PatchParams::apply(FIELD_MANAGER).force());
        patiently(&format!("apply {called}"), || api.patch(&name, &params, &patch)).await?;
        said(&called);
    }
    Ok(())
}

/// Deletes all objects, the last one first; with the definition go all jobs.
pub async fn uninstall(
    connection: &Connection,
    objects: &[Value],
    mut said: impl FnMut(&str),
) -> Result<(), Error> {
    let params = DeleteParams::background();
    for object in objects.iter().rev() {
        let (api, name, called) = place(&connection.client, object);
        match patiently(&format!("delete {called}"), || api.delete(&name, &params)).await {
            Ok(_) => said(&called),
            Err(Error::Gone { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
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
