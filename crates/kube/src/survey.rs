//! One look at a cluster, for those who only want to know.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::ListParams;

use crate::act::in_pages;
use crate::cluster::Ledger;
use crate::{Connection, Error};

/// Lists nodes and pods, once.
pub async fn survey(connection: &Connection) -> Result<Ledger, Error> {
    let mut ledger = Ledger::default();
    let nodes: Api<Node> = Api::all(connection.client.clone());
    let pods: Api<Pod> = Api::all(connection.client.clone());
    let all = ListParams::default;
    in_pages("list nodes", &nodes, all(), |page| page.iter().for_each(|node| ledger.note_node(node))).await?;
    in_pages("list pods", &pods, all(), |page| page.iter().for_each(|pod| ledger.note_pod(pod))).await?;
    Ok(ledger)
}
