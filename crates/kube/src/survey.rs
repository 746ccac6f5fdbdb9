//! One look at a cluster, for those who only want to know.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::ListParams;

use crate::act::patiently;
use crate::cluster::Ledger;
use crate::{Connection, Error};

/// How many objects are asked for at a time.
const PAGE: u32 = 500;

/// Lists nodes and pods, once.
pub async fn survey(connection: &Connection) -> Result<Ledger, Error> {
    let mut ledger = Ledger::default();
    let nodes: Api<Node> = Api::all(connection.client.clone());
    let pods: Api<Pod> = Api::all(connection.client.clone());
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = patiently("list nodes", || nodes.list(&params)).await?;
        page.items.iter().for_each(|node| ledger.note_node(node));
        match page.metadata.continue_.filter(|more| !more.is_empty()) {
            Some(more) => params = params.continue_token(&more),
            None => break,
        }
    }
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = patiently("list pods", || pods.list(&params)).await?;
        page.items.iter().for_each(|pod| ledger.note_pod(pod));
        match page.metadata.continue_.filter(|more| !more.is_empty()) {
            Some(more) => params = params.continue_token(&more),
            None => return Ok(ledger),
        }
    }
}
