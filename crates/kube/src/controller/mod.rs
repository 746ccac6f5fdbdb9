//! The controller: looks after every `RondeJob` of the cluster.
//!
//! Of several only the one that holds the lease acts (`lease.rs`). A round goes through the jobs that have something to
//! be looked at (`jobs.rs`): first those that have GPUs or give them back, then those that wait, in the order of the queue. What has
//! come about is written into the job's status, and told as an event where people look for it (`events.rs`). `serve.rs`
//! answers whoever asks how we are.

mod events;
mod jobs;
mod lease;
mod serve;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::{Api, Client, CustomResourceExt};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::act::{Hands, patiently};
use crate::connect::{Which, connect};
use crate::job::{Job, JobStatus, Phase, RondeJob, Surroundings};
use crate::manager::turn;
use crate::queue::{Waiting, turns};
use crate::view::View;
use crate::{Error, run};

use jobs::Jobs;
pub(crate) use serve::Figures;

/// Rounds come no closer than this.
const REST: Duration = Duration::from_millis(50);
/// Everything is looked at again after this time, whatever happened.
const LOOK: Duration = Duration::from_secs(30);

/// How the controller runs.
#[derive(Clone, Debug)]
pub struct Controller {
    /// Which cluster, and where the lease is.
    pub which: Which,
    /// What pods must know.
    pub around: Surroundings,
    /// Where health, readiness and figures are served.
    pub listen: SocketAddr,
    /// How long the first of the queue may be overtaken.
    pub hold_after: Duration,
    /// What this one is called among several.
    pub identity: String,
}

/// Runs until it is told to end, or until another has taken over.
pub async fn control(controller: Controller) -> Result<(), Error> {
    let on = |kind| signal(kind).map_err(|source| Error::System { doing: "wait for signals", source });
    let (mut interrupt, mut terminate) = (on(SignalKind::interrupt())?, on(SignalKind::terminate())?);
    let figures = Arc::new(Figures::default());
    serve::serve(controller.listen, Arc::clone(&figures)).await?;
    let connection = connect(&controller.which).await?;
    let work = async {
        let lease = lease::Lease::new(&connection, &controller.identity);
        lease.take().await?;
        figures.leads(true);
        tokio::select! {
            lost = lease.keep() => Err(lost),
            ended = look_after(&controller, &connection.client, &figures) => ended,
        }
    };
    tokio::select! {
        result = work => result,
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    }
}

/// What is remembered of a job between rounds: the status that was written last.
#[derive(Default)]
struct Memory {
    status: JobStatus,
}

async fn look_after(controller: &Controller, client: &Client, figures: &Figures) -> Result<(), Error> {
    let hands = Hands::new(client.clone(), controller.around.clone());
    let mut view = View::open(client);
    view.ready().await?;
    let jobs = Jobs::default();
    let rounds = async {
        let mut memories: HashMap<String, Memory> = HashMap::new();
        let hold = SignedDuration::try_from(controller.hold_after).unwrap_or(SignedDuration::MAX);
        loop {
            let wake = round(&jobs, &mut memories, hold, &hands, &view, figures).await;
            clear_away(&hands, &view).await;
            tokio::time::sleep(REST).await;
            tokio::select! {
                () = view.changed() => {}
                () = jobs.changed() => {}
                () = tokio::time::sleep(wake.min(LOOK)) => {}
            }
        }
    };
    tokio::select! {
        error = jobs.watch(client.clone()) => Err(error),
        () = rounds => Ok(()),
    }
}

/// Looks at every job once; returns how long nothing is to be done if nothing happens.
async fn round(
    jobs: &Jobs,
    memories: &mut HashMap<String, Memory>,
    hold: SignedDuration,
    hands: &Hands,
    view: &View,
    figures: &Figures,
) -> Duration {
    let all = jobs.all();
    memories.retain(|uid, _| all.iter().any(|listed| listed.job.root.uid == *uid));
    let mut by_uid: HashMap<&str, &Job> = HashMap::new();
    for listed in &all {
        let uid = listed.job.root.uid.as_str();
        memories.entry(uid.to_owned()).or_insert_with(|| Memory { status: listed.status.clone() });
        by_uid.insert(uid, &listed.job);
    }
    let phase = |uid: &str| memories.get(uid).map_or(Phase::Pending, |memory| memory.status.phase);
    figures.count(by_uid.keys().map(|uid| phase(uid)));
    let waits = |uid: &str| matches!(phase(uid), Phase::Pending | Phase::Suspended);
    let now = Timestamp::now();
    let mut order: Vec<(String, Result<(), String>)> =
        by_uid.keys().filter(|uid| !waits(uid)).map(|uid| ((*uid).to_owned(), Ok(()))).collect();
    order.sort_by(|one, other| one.0.cmp(&other.0));
    let waiting = by_uid.values().filter(|job| waits(&job.root.uid)).map(|job| {
        let memory = memories.get(&job.root.uid);
        let pauses =
            memory.and_then(|memory| memory.status.not_before.as_ref()).is_some_and(|time| time.0 > now);
        Waiting {
            uid: job.root.uid.clone(),
            called: format!("{}/{}", job.namespace, job.name),
            priority: job.spec.priority,
            created: job.created,
            able: !job.spec.suspend && !pauses,
        }
    });
    order.extend(turns(waiting.collect(), hold, now).into_iter().map(|(job, turn)| (job.uid, turn)));
    let mut soonest = LOOK;
    for (uid, may_claim) in order {
        let (Some(job), Some(memory)) = (by_uid.get(uid.as_str()), memories.get_mut(&uid)) else { continue };
        let wake =
            attend(job, memory, may_claim.as_ref().copied().map_err(String::as_str), hands, view).await;
        soonest = soonest.min(wake.unwrap_or(LOOK));
    }
    soonest
}

/// One job's turn.
async fn attend(
    job: &Job,
    memory: &mut Memory,
    may_claim: Result<(), &str>,
    hands: &Hands,
    view: &View,
) -> Option<Duration> {
    let told = std::cell::RefCell::new(memory.status.clone());
    let turned = turn(job, memory.status.clone(), may_claim, hands, view, async |status: &JobStatus| {
        let before = told.replace(status.clone());
        if before == *status {
            return Ok(());
        }
        write(hands, job, status).await?;
        events::tell(hands, job, &before, status).await;
        Ok(())
    })
    .await;
    memory.status = turned.status;
    turned.wake
}

/// Writes a status down, so that another manager goes on from it.
async fn write(hands: &Hands, job: &Job, status: &JobStatus) -> Result<(), Error> {
    // What is answered is not read: it may be a job that cannot be.
    let jobs: Api<DynamicObject> =
        Api::namespaced_with(hands.client.clone(), &job.namespace, &RondeJob::api_resource());
    // Fields that are not there any more must go, which a merge does only for those that say so.
    let mut body = json!(status);
    for field in
        ["notBefore", "waitingSince", "started", "finished", "exitCode", "failedPod", "avoid", "nodes"]
    {
        if body.get(field).is_none() {
            body[field] = serde_json::Value::Null;
        }
    }
    let (patch, params) = (Patch::Merge(json!({"status": body})), PatchParams::default());
    match patiently("write the job's status", || jobs.patch_status(&job.name, &params, &patch)).await {
        Ok(_) | Err(Error::Gone { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Jobs of `ronde kube run` that were left behind and whose time is over.
async fn clear_away(hands: &Hands, view: &View) {
    for (namespace, name) in run::expired(view, Timestamp::now()) {
        let maps: Api<ConfigMap> = Api::namespaced(hands.client.clone(), &namespace);
        // Whoever comes next will try again.
        let _ = maps.delete(&name, &DeleteParams::background()).await;
    }
}
