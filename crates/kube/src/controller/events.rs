//! Events: what `kubectl describe rondejob` shows.

use std::time::Duration;

use futures::TryFutureExt;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::PostParams;

use crate::act::Hands;
use crate::job::{Job, JobStatus, Phase};
use crate::{Error, MANAGER};

/// How long an event may take to be written: the job's next turn waits for it.
const ANSWER: Duration = Duration::from_secs(10);

/// Tells of a change of phase, or of a new reason to wait. That it could not be told is no reason to do anything else.
pub(super) async fn tell(hands: &Hands, job: &Job, before: &JobStatus, now: &JobStatus) -> Result<(), Error> {
    if before.phase == now.phase && before.reason == now.reason {
        return Ok(());
    }
    let events: Api<Event> = hands.namespaced(job);
    let doing = "write an event";
    let params = PostParams::default();
    let event = event(job, now, Timestamp::now());
    let told = events.create(&params, &event).map_err(|error| Error::met(doing, error));
    match tokio::time::timeout(ANSWER, told).await {
        Ok(Ok(_) | Err(Error::Gone { .. })) => Ok(()),
        Ok(Err(error)) => Err(error),
        Err(_) => {
            let message = format!("the cluster has not answered for {} s", ANSWER.as_secs());
            Err(Error::Passing { doing: doing.to_owned(), message })
        }
    }
}

fn event(job: &Job, status: &JobStatus, now: Timestamp) -> Event {
    let is_warning =
        status.phase == Phase::Failed || matches!(status.reason.as_str(), "Retrying" | "NotPlaced");
    Event {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", job.name)),
            namespace: Some(job.namespace.clone()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("ronde.dev/v1alpha1".to_owned()),
            kind: Some("RondeJob".to_owned()),
            name: Some(job.name.clone()),
            namespace: Some(job.namespace.clone()),
            uid: Some(job.root.uid.clone()),
            ..ObjectReference::default()
        },
        type_: Some(if is_warning { "Warning" } else { "Normal" }.to_owned()),
        reason: Some(status.reason.clone()),
        // The server takes 1,024 letters.
        message: Some(status.message.chars().take(1000).collect()),
        source: Some(EventSource { component: Some(MANAGER.to_owned()), host: None }),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        count: Some(1),
        ..Event::default()
    }
}
