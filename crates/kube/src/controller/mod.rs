//! The controller: looks after every `RondeJob` of the cluster.
//!
//! Of several only the one that holds the lease acts (`lease.rs`). A round goes through the jobs that have something to
//! be looked at: first those that have GPUs or give them back, then those that wait, in the order of the queue. What has
//! come about is written into the job's status, and told as an event where people look for it (`events.rs`). `serve.rs`
//! answers whoever asks how we are.

mod events;
mod lease;
mod serve;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use crate::act::{Hands, patiently};
use crate::connect::{Which, connect};
use crate::error::watching;
use crate::job::{Job, JobStatus, Phase, RondeJob, Root, RootKind, Surroundings};
use crate::manager::turn;
use crate::queue::{Waiting, turns};
use crate::view::View;
use crate::{Error, run};

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

type Jobs = Arc<Mutex<HashMap<String, RondeJob>>>;

/// What is remembered of a job between rounds: the status that was written last.
#[derive(Default)]
struct Memory {
    status: JobStatus,
}

async fn look_after(controller: &Controller, client: &Client, figures: &Figures) -> Result<(), Error> {
    let hands = Hands::new(client.clone(), controller.around.clone());
    let mut view = View::open(client);
    view.ready().await?;
    let jobs: Jobs = Jobs::default();
    let changed = Arc::new(Notify::new());
    let watching = watch_jobs(client.clone(), Arc::clone(&jobs), Arc::clone(&changed));
    let rounds = async {
        let mut memories: HashMap<String, Memory> = HashMap::new();
        let hold = SignedDuration::try_from(controller.hold_after).unwrap_or(SignedDuration::MAX);
        loop {
            let wake = round(&jobs, &mut memories, hold, &hands, &view, figures).await;
            clear_away(&hands, &view).await;
            tokio::time::sleep(REST).await;
            tokio::select! {
                () = view.changed() => {}
                () = changed.notified() => {}
                () = tokio::time::sleep(wake.min(LOOK)) => {}
            }
        }
    };
    tokio::select! {
        error = watching => Err(error),
        () = rounds => Ok(()),
    }
}

/// Keeps the list of jobs true. Ends only if the cluster does not know such jobs.
async fn watch_jobs(client: Client, jobs: Jobs, changed: Arc<Notify>) -> Error {
    let mut events = std::pin::pin!(watcher(Api::<RondeJob>::all(client), watcher::Config::default()));
    let mut listed: HashMap<String, RondeJob> = HashMap::new();
    let mut is_first = true;
    let uid = |job: &RondeJob| job.metadata.uid.clone().unwrap_or_default();
    while let Some(event) = events.next().await {
        let mut jobs = jobs.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(job)) => drop(listed.insert(uid(&job), job)),
            Ok(Event::InitDone) => {
                *jobs = std::mem::take(&mut listed);
                is_first = false;
            }
            Ok(Event::Apply(job)) => drop(jobs.insert(uid(&job), job)),
            Ok(Event::Delete(job)) => drop(jobs.remove(&uid(&job))),
            Err(error) => {
                drop(jobs);
                match watching("watch rondejobs", error) {
                    Error::Gone { .. } if is_first => return Error::NotInstalled,
                    error @ Error::Forbidden { .. } => return error,
                    _ => {}
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        }
        changed.notify_one();
    }
    Error::Passing { doing: "watch rondejobs".to_owned(), message: "the watch has ended".to_owned() }
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
    let all: Vec<RondeJob> = jobs.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
    memories.retain(|uid, _| all.iter().any(|job| job.metadata.uid.as_ref() == Some(uid)));
    let mut by_uid: HashMap<String, Job> = HashMap::new();
    for job in all {
        let Some(job) = known(job, memories) else { continue };
        by_uid.insert(job.root.uid.clone(), job);
    }
    let phase = |uid: &str| memories.get(uid).map_or(Phase::Pending, |memory| memory.status.phase);
    figures.count(by_uid.keys().map(|uid| phase(uid)));
    let waits = |uid: &str| matches!(phase(uid), Phase::Pending | Phase::Suspended);
    let now = Timestamp::now();
    let mut order: Vec<(String, Result<(), String>)> =
        by_uid.keys().filter(|uid| !waits(uid)).map(|uid| (uid.clone(), Ok(()))).collect();
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
        let (Some(job), Some(memory)) = (by_uid.get(&uid), memories.get_mut(&uid)) else { continue };
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
    let jobs: Api<RondeJob> = hands.namespaced(job);
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

/// A job as its manager knows it; what was written last counts more than what a watch may not have brought yet.
fn known(job: RondeJob, memories: &mut HashMap<String, Memory>) -> Option<Job> {
    let about = job.metadata;
    let (name, namespace, uid) = (about.name?, about.namespace?, about.uid?);
    memories.entry(uid.clone()).or_insert_with(|| Memory { status: job.status.unwrap_or_default() });
    Some(Job {
        root: Root { kind: RootKind::RondeJob, name: name.clone(), uid },
        name,
        namespace,
        created: about.creation_timestamp.map_or_else(Timestamp::now, |time| time.0),
        deleting: about.deletion_timestamp.is_some(),
        generation: about.generation,
        spec: job.spec,
    })
}

/// Jobs of `ronde kube run` that were left behind and whose time is over.
async fn clear_away(hands: &Hands, view: &View) {
    for (namespace, name) in run::expired(view, Timestamp::now()) {
        let maps: Api<ConfigMap> = Api::namespaced(hands.client.clone(), &namespace);
        // Whoever comes next will try again.
        let _ = maps.delete(&name, &DeleteParams::background()).await;
    }
}
