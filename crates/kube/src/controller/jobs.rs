//! All `RondeJob`s of the cluster: a watch keeps the list true.
//!
//! Objects are read field by field (`job/read.rs`), so that one that makes no sense is one job that fails, and hides
//! nobody. Of what a watch brings only new versions of what is asked for count: most of it are statuses that we wrote.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt};
use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, CustomResourceExt};
use ronde_placement::Request;
use tokio::sync::Notify;

use crate::Error;
use crate::error::watching;
use crate::job::{Job, JobStatus, RondeJob, Root, RootKind, read_spec, read_status, request_now};
use crate::view::RIGHT_PATIENCE;

/// How long to wait after a watch has failed.
const PAUSE: Duration = Duration::from_secs(1);

/// A job, and the status that it had when it was first seen: from then on whoever manages it knows better.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) job: Job,
    pub(super) status: JobStatus,
    /// What it asks of nodes, whatever the number of GPUs.
    pub(super) needs: Arc<Request>,
}

impl Listed {
    pub(super) fn new(job: Job, status: JobStatus) -> Listed {
        let needs = Request { min: 0, max: 0, ..request_now(&job.spec) };
        Listed { needs: Arc::new(needs), job, status }
    }
}

/// The list, by uid.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    all: Mutex<HashMap<String, Arc<Listed>>>,
    changed: Notify,
}

impl Jobs {
    /// All of them.
    pub(super) fn all(&self) -> Vec<Arc<Listed>> {
        self.lock().values().cloned().collect()
    }

    /// Waits until one has come, has gone, or asks for something else.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Keeps the list true. Ends only if the cluster does not know such jobs, or does not let us see them.
    pub(super) async fn watch(&self, client: Client) -> Error {
        let objects: Api<DynamicObject> = Api::all_with(client, &RondeJob::api_resource());
        self.follow(watcher(objects, watcher::Config::default())).await
    }

    async fn follow(
        &self,
        events: impl Stream<Item = Result<Event<DynamicObject>, watcher::Error>>,
    ) -> Error {
        let mut events = std::pin::pin!(events);
        let mut listed: HashMap<String, Arc<Listed>> = HashMap::new();
        let mut is_first = true;
        let mut refused: Option<Instant> = None;
        while let Some(event) = events.next().await {
            let is_news = match event {
                // The list is asked for after this, so that nothing has worked yet.
                Ok(Event::Init) => {
                    listed.clear();
                    continue;
                }
                Ok(Event::InitApply(object)) => {
                    listed.extend(read(object));
                    false
                }
                Ok(Event::InitDone) => {
                    *self.lock() = std::mem::take(&mut listed);
                    is_first = false;
                    true
                }
                Ok(Event::Apply(object)) => read(object).is_some_and(|(uid, new)| self.note(uid, new)),
                Ok(Event::Delete(object)) => {
                    object.metadata.uid.is_some_and(|uid| self.lock().remove(&uid).is_some())
                }
                Err(error) => {
                    match watching("watch rondejobs", error) {
                        Error::Gone { .. } if is_first => return Error::NotInstalled,
                        error @ Error::Forbidden { .. } => {
                            let since = *refused.get_or_insert_with(Instant::now);
                            if is_first || since.elapsed() >= RIGHT_PATIENCE {
                                return error;
                            }
                        }
                        _ => refused = None,
                    }
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            refused = None;
            if is_news {
                self.changed.notify_one();
            }
        }
        Error::Passing { doing: "watch rondejobs".to_owned(), message: "the watch has ended".to_owned() }
    }

    /// Takes note of a job; whether it is another than before.
    pub(super) fn note(&self, uid: String, new: Arc<Listed>) -> bool {
        let mut all = self.lock();
        let asked = |listed: &Listed| (listed.job.generation, listed.job.deleting);
        if all.get(&uid).is_some_and(|known| asked(known) == asked(&new) && new.job.generation.is_some()) {
            return false;
        }
        all.insert(uid, new);
        true
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Listed>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A job, and the uid that it is known by; none if it has not even a name.
fn read(object: DynamicObject) -> Option<(String, Arc<Listed>)> {
    let about = object.metadata;
    let (name, namespace, uid) = (about.name?, about.namespace?, about.uid?);
    let job = Job {
        root: Root { kind: RootKind::RondeJob, name: name.clone(), uid: uid.clone() },
        name,
        namespace,
        created: about.creation_timestamp.map_or_else(Timestamp::now, |time| time.0),
        deleting: about.deletion_timestamp.is_some(),
        generation: about.generation,
        spec: read_spec(&object.data["spec"]),
    };
    Some((uid, Arc::new(Listed::new(job, read_status(&object.data["status"])))))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::course::{Observed, decide};
    use crate::job::Phase;

    fn object(name: &str, generation: i64, spec: Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "ronde.dev/v1alpha1",
            "kind": "RondeJob",
            "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "generation": generation},
            "spec": spec,
        }))
        .expect("an object")
    }

    fn spec(gpus: Value) -> Value {
        json!({"gpus": gpus, "image": "train:1", "command": ["true"]})
    }

    async fn after(events: Vec<Event<DynamicObject>>) -> Jobs {
        let jobs = Jobs::default();
        let error = jobs.follow(futures::stream::iter(events.into_iter().map(Ok))).await;
        assert!(error.is_passing(), "{error}");
        jobs
    }

    fn names(jobs: &Jobs) -> Vec<String> {
        let mut names: Vec<String> = jobs.all().iter().map(|listed| listed.job.name.clone()).collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn one_job_that_cannot_be_read_hides_no_other_and_fails_with_the_reason() {
        let jobs = after(vec![
            Event::Init,
            Event::InitApply(object("good", 1, spec(json!(2)))),
            Event::InitApply(object("bad", 1, spec(json!("8..4")))),
            Event::InitDone,
            Event::Apply(object("late", 1, spec(json!(1)))),
        ])
        .await;
        assert_eq!(names(&jobs), ["bad", "good", "late"]);
        let ledger = crate::cluster::Ledger::default();
        for listed in jobs.all() {
            let seen = Observed {
                job: &listed.job,
                status: &listed.status,
                ledger: &ledger,
                listed: false,
                turn: Ok(()),
                now: Timestamp::now(),
            };
            let status = decide(&seen).status;
            if listed.job.name == "bad" {
                assert_eq!((status.phase, status.reason.as_str()), (Phase::Failed, "Invalid"));
                assert!(status.message.contains("gpus: 8..4 goes down"), "{}", status.message);
            } else {
                assert_eq!(status.phase, Phase::Pending);
            }
        }
    }

    #[tokio::test]
    async fn only_what_is_asked_for_makes_a_job_another_one() {
        let jobs = after(vec![Event::Apply(object("one", 1, spec(json!(2))))]).await;
        jobs.changed().await;
        let mut written = object("one", 1, spec(json!(2)));
        written.data["status"] = json!({"phase": "Running"});
        assert!(!read(written).is_some_and(|(uid, new)| jobs.note(uid, new)));
        assert!(read(object("one", 2, spec(json!(3)))).is_some_and(|(uid, new)| jobs.note(uid, new)));
        assert_eq!(jobs.all()[0].job.spec.gpus.max(), 3);
    }
}
