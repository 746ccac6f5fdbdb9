//! Does what was decided: every action is a request to the API server, or a few.
//!
//! Requests that met with nothing worse than a busy server are made again. What exists already and is the job's is as good
//! as made, what is gone already as good as deleted. Nothing of anybody else's is touched: what exists is asked whose it
//! is, and what is deleted is named by its uid. Anything else is told to whoever decides.

use std::collections::HashMap;
use std::fmt::Debug;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt};
use futures::{TryFutureExt, try_join};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::Error;
use crate::clock::Clock;
use crate::cluster::OwnPods;
use crate::course::Action;
use crate::job::{self, Gang, Job, Root, RootKind, Surroundings, names};

/// How many requests of one kind are under way at a time.
const AT_ONCE: usize = 16;
/// The pauses between tries of a request that a busy server turned down.
const PAUSES: [u64; 6] = [100, 300, 1000, 2000, 4000, 8000];
/// How long a request may take to be answered.
const ANSWER: Duration = Duration::from_secs(30);
/// What is being done where a service cannot be made.
const MAKE_SERVICE: &str = "create the job's service";
/// How many objects are listed at a time.
const PAGE: u32 = 500;
/// How often to make what was there a moment ago and then was not.
const TRIES: usize = 3;

/// What came of actions.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Pods that were made or changed, as they are now; also if something else did not work.
    pub(crate) pods: Vec<Pod>,
    /// All of our pods, in all namespaces, if they were listed.
    pub(crate) listed: Option<OwnPods>,
    /// What did not work.
    pub(crate) error: Option<Error>,
}

impl Outcome {
    fn of(result: Result<(), Error>) -> Outcome {
        Outcome { error: result.err(), ..Outcome::default() }
    }
}

/// An object that belongs to a namespace, as all do that are made here.
pub(crate) trait Placed:
    Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned
{
}

impl<K> Placed for K where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
{
}

/// Acts on a cluster.
#[derive(Clone)]
pub(crate) struct Hands {
    pub(crate) client: Client,
    pub(crate) clock: Clock,
    around: Surroundings,
    /// Jobs that were refused something, by what tells them apart, and until when they are let rest.
    resting: Arc<Mutex<HashMap<String, Instant>>>,
    /// Held by whoever lists pods.
    listing: Arc<tokio::sync::Mutex<()>>,
}

impl Hands {
    pub(crate) fn new(client: Client, clock: Clock, around: Surroundings) -> Hands {
        Hands { client, clock, around, resting: Arc::default(), listing: Arc::default() }
    }

    /// How long this job is still let rest.
    pub(crate) fn rest(&self, job: &str) -> Option<Duration> {
        let mut resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        resting.retain(|_, until| *until > now);
        resting.get(job).map(|until| *until - now)
    }

    /// Lets a job rest.
    pub(crate) fn rest_for(&self, job: &str, time: Duration) {
        let mut resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        resting.insert(job.to_owned(), Instant::now() + time);
    }

    /// Performs one action, or several of the same kind at once.
    pub(crate) async fn perform(&self, job: &Job, actions: &[Action]) -> Outcome {
        match actions.first() {
            Some(Action::List) => match self.list().await {
                Ok(pods) => Outcome { listed: Some(pods), ..Outcome::default() },
                Err(error) => Outcome::of(Err(error)),
            },
            Some(Action::Support { gang, chief }) => Outcome::of(self.support(job, gang, chief).await),
            Some(Action::Sweep) => Outcome::of(self.sweep(&job.name, &job.namespace, &job.root).await),
            // Pods whose owner is gone would be taken away again, and the next ones as well.
            Some(Action::CreatePod { .. }) => match self.look_for(job).await {
                Ok(()) => self.with_pods(job, actions).await,
                Err(error) => Outcome::of(Err(error)),
            },
            _ => self.with_pods(job, actions).await,
        }
    }

    /// Does something with several pods. All are tried, and what worked is told even if something did not.
    async fn with_pods(&self, job: &Job, actions: &[Action]) -> Outcome {
        let mut outcome = Outcome::default();
        let mut done =
            stream::iter(actions.iter().map(|action| self.with_pod(job, action))).buffer_unordered(AT_ONCE);
        while let Some(result) = done.next().await {
            match result {
                Ok(pod) => outcome.pods.extend(pod),
                // What is gone will be seen to be gone.
                Err(Error::Gone { .. }) => {}
                // An answer says more than none.
                Err(error) if outcome.error.as_ref().is_none_or(Error::is_passing) => {
                    outcome.error = Some(error);
                }
                Err(_) => {}
            }
        }
        outcome
    }

    /// Whether a job has not been deleted meanwhile, where nobody would tell: of config maps there is no watch, and a
    /// manager that is the root itself goes with it.
    pub(crate) async fn look_for(&self, job: &Job) -> Result<(), Error> {
        let Root { kind: RootKind::ConfigMap, name, uid } = &job.root else { return Ok(()) };
        let maps: Api<ConfigMap> = self.namespaced(job);
        let found = patiently("look for the job", || maps.get_opt(name)).await?;
        let is_there = found.is_some_and(|found| {
            found.metadata.deletion_timestamp.is_none() && found.metadata.uid.as_ref() == Some(uid)
        });
        if is_there { Ok(()) } else { Err(Error::Deleted { name: job.name.clone() }) }
    }

    /// All of our pods, as they are at this moment and not as a cache remembers them.
    async fn list(&self) -> Result<OwnPods, Error> {
        // Those who list at the same time would each hold a page.
        let _turn = self.listing.lock().await;
        let pods: Api<Pod> = Api::all(self.client.clone());
        let ours = ListParams::default().labels(&format!("{}={}", names::MANAGED_BY, names::RONDE));
        let mut all = OwnPods::default();
        all.version = in_pages("list pods", &pods, ours, |page| all.add(page)).await?;
        Ok(all)
    }

    /// Makes an object of the job's, unless it is there already.
    pub(crate) async fn make<K: Placed>(&self, job: &Job, doing: &str, object: &K) -> Result<K, Error> {
        let api: Api<K> = self.namespaced(job);
        let name = object.meta().name.clone().unwrap_or_default();
        let create = PostParams::default();
        for _ in 0..TRIES {
            match patiently(doing, || api.create(&create, object)).await {
                Err(Error::Exists { .. }) => {}
                other => return in_namespace(&job.namespace, other),
            }
            if let Some(found) = patiently(doing, || api.get_opt(&name)).await? {
                return if is_of(&found, &job.name, &job.root.uid) { Ok(found) } else { Err(taken(&found)) };
            }
        }
        Err(Error::Passing { doing: doing.to_owned(), message: format!("{name} comes and goes") })
    }

    /// Makes what pods need besides themselves, all of it at once: the scheduler is let at them only afterwards.
    async fn support(&self, job: &Job, gang: &Gang, chief: &str) -> Result<(), Error> {
        let service = job::service(job);
        let made = self.make(job, MAKE_SERVICE, &service).map_ok(drop);
        let chief = self.chief_service(job, gang, chief);
        try_join!(made, chief, self.secret(job), self.write_plan(job, gang)).map(drop)
    }

    /// The service by which workers find their chief, if there are any.
    async fn chief_service(&self, job: &Job, gang: &Gang, chief: &str) -> Result<(), Error> {
        if gang.workers() == 0 {
            return Ok(());
        }
        let service = job::chief_service(job, gang, chief);
        let found = self.make(job, MAKE_SERVICE, &service).await?;
        if found.metadata.owner_references != service.metadata.owner_references {
            // It belongs to a chief that is gone, and would go with it.
            self.delete(&found).await?;
            self.make(job, MAKE_SERVICE, &service).await?;
        }
        Ok(())
    }

    async fn secret(&self, job: &Job) -> Result<(), Error> {
        let unmade = |message: String| Error::Passing { doing: "make a secret".to_owned(), message };
        let digits = ronde_trust::Secret::random().map_err(|error| unmade(error.to_string()))?.to_hex();
        let keys = if job.spec.ssh { job::ssh_keys().map_err(unmade)? } else { Vec::new() };
        let secrets: Api<Secret> = self.namespaced(job);
        let secret = job::secret(job, &digits, keys);
        let create = PostParams::default();
        match patiently("create the job's secret", || secrets.create(&create, &secret)).await {
            // Nobody may read secrets here; the job's uid is in its name.
            Err(Error::Exists { .. }) => Ok(()),
            other => in_namespace(&job.namespace, other).map(drop),
        }
    }

    /// The plan of an earlier set of pods is written over.
    async fn write_plan(&self, job: &Job, gang: &Gang) -> Result<(), Error> {
        let doing = "write the plan";
        let map = job::plan_map(job, gang);
        for _ in 0..TRIES {
            let found = self.make(job, doing, &map).await?;
            if found.data == map.data {
                return Ok(());
            }
            self.delete(&found).await?;
        }
        Err(Error::Passing { doing: doing.to_owned(), message: "another writes it too".to_owned() })
    }

    /// Deletes this object, and no other that has its name.
    async fn delete<K: Placed>(&self, object: &K) -> Result<(), Error> {
        let about = object.meta();
        let (name, place) = (about.name.as_deref(), about.namespace.as_deref());
        let api: Api<K> = Api::namespaced(self.client.clone(), place.unwrap_or_default());
        let doing = format!("delete {} {}", kind::<K>(), name.unwrap_or_default());
        let params = only(about.uid.as_deref().unwrap_or_default());
        gone(patiently(&doing, || api.delete(name.unwrap_or_default(), &params)).await)
    }

    async fn with_pod(&self, job: &Job, action: &Action) -> Result<Option<Pod>, Error> {
        let pods: Api<Pod> = self.namespaced(job);
        match action {
            Action::CreatePod { gang, member } => {
                let member = &gang.members[*member];
                let doing = format!("create pod {}", member.pod);
                let pod = job::pod(job, gang, member, &self.around)
                    .map_err(|message| Error::Refused { doing: doing.clone(), message })?;
                self.make(job, &doing, &pod).await.map(Some)
            }
            Action::Ungate { pod, uid } => {
                let doing = format!("let the scheduler at pod {pod}");
                let patch = json!({
                    "metadata": {"uid": uid, "annotations": {(names::PLACED): self.clock.now().to_string()}},
                    "spec": {"schedulingGates": [{"$patch": "delete", "name": names::GATE}]},
                });
                let (patch, params) = (Patch::Strategic(patch), PatchParams::default());
                patiently(&doing, || pods.patch(pod, &params, &patch)).await.map(Some)
            }
            Action::DeletePod { pod, uid } => {
                let doing = format!("delete pod {pod}");
                let params = only(uid);
                // The answer says that it is about to go, so that nobody asks for it again.
                let answer = patiently(&doing, || pods.delete(pod, &params)).await?;
                Ok(answer.left())
            }
            Action::EndPod { pod, uid, why } => {
                let doing = format!("end pod {pod}");
                // The kubelet ends what has been active for longer than this, and leaves it where it is.
                let patch = json!({
                    "metadata": {"uid": uid, "annotations": {(names::ENDED): why}},
                    "spec": {"activeDeadlineSeconds": 1},
                });
                let (patch, params) = (Patch::Strategic(patch), PatchParams::default());
                patiently(&doing, || pods.patch(pod, &params, &patch)).await.map(Some)
            }
            Action::Support { .. } | Action::List | Action::Sweep => Ok(None),
        }
    }

    /// Deletes what is left of a job besides pods, to which their services belong. What owns everything takes it along,
    /// if it may be deleted.
    pub(crate) async fn sweep(&self, job: &str, namespace: &str, root: &Root) -> Result<(), Error> {
        if root.kind == RootKind::ConfigMap {
            let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
            let params = only(&root.uid);
            return gone(patiently("delete the job", || maps.delete(&root.name, &params)).await);
        }
        for map in [names::plan(job), names::files(job)] {
            self.clear::<ConfigMap>(namespace, &map, job, &root.uid).await?;
        }
        self.clear::<Service>(namespace, &names::service(job), job, &root.uid).await?;
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let secret = names::secret(job, &root.uid);
        let params = DeleteParams::background();
        gone(patiently("delete the secret", || secrets.delete(&secret, &params)).await)
    }

    /// Deletes an object if it is of the job that has this name and uid.
    async fn clear<K: Placed>(&self, namespace: &str, name: &str, job: &str, uid: &str) -> Result<(), Error> {
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        let doing = format!("delete {} {name}", kind::<K>());
        match patiently(&doing, || api.get_opt(name)).await? {
            Some(found) if is_of(&found, job, uid) => self.delete(&found).await,
            _ => Ok(()),
        }
    }

    /// Deletes these pods, by name and uid; what is gone is as good as deleted.
    pub(crate) async fn delete_pods(&self, namespace: &str, pods: &[(String, String)]) -> Result<(), Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let mut done = stream::iter(pods.iter().map(|(pod, uid)| {
            let api = &api;
            async move {
                let params = only(uid);
                gone(patiently(&format!("delete pod {pod}"), || api.delete(pod, &params)).await)
            }
        }))
        .buffer_unordered(AT_ONCE);
        let mut result = Ok(());
        while let Some(one) = done.next().await {
            result = result.and(one);
        }
        result
    }

    pub(crate) fn namespaced<K: Placed>(&self, job: &Job) -> Api<K> {
        Api::namespaced(self.client.clone(), &job.namespace)
    }
}

/// Whether an object is of this job, and not of another that had its name before or that is run from inside the same pod.
fn is_of<K: Placed>(object: &K, job: &str, uid: &str) -> bool {
    let label = |name: &str| object.meta().labels.as_ref().and_then(|labels| labels.get(name));
    label(names::JOB).is_some_and(|name| name == job)
        && label(names::JOB_UID).is_some_and(|known| known == uid)
}

/// Says whose an object is that is not this job's.
pub(crate) fn taken<K: Placed>(object: &K) -> Error {
    let about = object.meta();
    let label = |name: &str| about.labels.as_ref().and_then(|labels| labels.get(name));
    let mut whose = match label(names::JOB_UID).and(label(names::JOB)) {
        Some(job) => format!("that of another job {job}"),
        None => "somebody else's".to_owned(),
    };
    if about.deletion_timestamp.is_some() {
        whose.push_str(" and about to go");
    }
    Error::Taken {
        kind: kind::<K>(),
        name: about.name.clone().unwrap_or_default(),
        namespace: about.namespace.clone().unwrap_or_default(),
        whose,
    }
}

/// What `kubectl` calls it.
fn kind<K: Placed>() -> String {
    K::kind(&()).to_lowercase()
}

/// Of creating something: what is not there can only be the namespace.
pub(crate) fn in_namespace<T>(namespace: &str, created: Result<T, Error>) -> Result<T, Error> {
    match created {
        Err(Error::Gone { .. }) => Err(Error::NoNamespace { namespace: namespace.to_owned() }),
        other => other,
    }
}

/// Deletes only what has this uid.
pub(crate) fn only(uid: &str) -> DeleteParams {
    let only = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    DeleteParams { preconditions: Some(only), ..DeleteParams::background() }
}

/// Whatever is gone already is as good as deleted.
pub(crate) fn gone<T>(deleted: Result<T, Error>) -> Result<(), Error> {
    match deleted {
        Ok(_) | Err(Error::Gone { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Lists objects a page at a time, so that never many of them are in memory; returns the version of the list. The first page
/// is of this moment, and the others are of the same.
pub(crate) async fn in_pages<K>(
    doing: &str,
    api: &Api<K>,
    which: ListParams,
    mut take: impl FnMut(&[K]),
) -> Result<u64, Error>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut params = which.limit(PAGE);
    loop {
        let page = match patiently(doing, || api.list(&params)).await {
            Err(Error::Gone { doing }) if params.continue_token.is_some() => {
                return Err(Error::Passing {
                    doing,
                    message: "the list was too old for its next page".to_owned(),
                });
            }
            answer => answer?,
        };
        take(&page.items);
        match page.metadata.continue_.filter(|more| !more.is_empty()) {
            Some(more) => params = params.continue_token(&more),
            None => {
                let version = page.metadata.resource_version.and_then(|version| version.parse().ok());
                return Ok(version.unwrap_or(u64::MAX));
            }
        }
    }
}

/// Makes a request until it is answered by somebody who is not too busy.
pub(crate) async fn patiently<T, F>(doing: &str, request: impl Fn() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, kube::Error>>,
{
    let mut pauses = PAUSES.iter();
    loop {
        let error = match tokio::time::timeout(ANSWER, request()).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => Error::met(doing, error),
            Err(_) => {
                let message = format!("the cluster has not answered for {} s", ANSWER.as_secs());
                return Err(Error::Passing { doing: doing.to_owned(), message });
            }
        };
        match pauses.next() {
            Some(pause) if error.is_passing() => tokio::time::sleep(Duration::from_millis(*pause)).await,
            _ => return Err(error),
        }
    }
}
