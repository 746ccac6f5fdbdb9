//! Does what was decided: every action is a request to the API server, or a few.
//!
//! Requests that met with nothing worse than a busy server are made again. What exists already is as good as made, what
//! is gone already as good as deleted. Anything else is told to whoever decides.

use std::future::Future;
use std::time::Duration;

use futures::stream::{self, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client};
use serde_json::json;

use crate::Error;
use crate::course::Action;
use crate::job::{self, Gang, Job, Role, RootKind, Surroundings, names};

/// How many requests of one kind are under way at a time.
const AT_ONCE: usize = 16;
/// The pauses between tries of a request that a busy server turned down.
const PAUSES: [u64; 6] = [100, 300, 1000, 2000, 4000, 8000];

/// What came of an action, where that is something to be known.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Done; pods that were made or changed, as they are now.
    Done(Vec<Pod>),
    /// All of our pods, in all namespaces.
    Listed(Vec<Pod>),
}

/// Acts on a cluster.
#[derive(Clone)]
pub(crate) struct Hands {
    pub(crate) client: Client,
    pub(crate) around: Surroundings,
}

impl Hands {
    /// Performs one action, or several of the same kind at once.
    pub(crate) async fn perform(&self, job: &Job, actions: &[Action]) -> Result<Outcome, Error> {
        match actions.first() {
            Some(Action::List) => self.list().await.map(Outcome::Listed),
            Some(Action::Support { gang }) => {
                self.support(job, gang).await.map(|()| Outcome::Done(Vec::new()))
            }
            Some(Action::WritePlan { gang }) => {
                self.write_plan(job, gang).await.map(|()| Outcome::Done(Vec::new()))
            }
            Some(Action::Sweep { attempts }) => {
                self.sweep(job, *attempts).await.map(|()| Outcome::Done(Vec::new()))
            }
            _ => {
                let done = stream::iter(actions.iter().map(|action| self.with_pod(job, action)))
                    .buffer_unordered(AT_ONCE);
                let pods: Vec<Option<Pod>> = done.try_collect().await?;
                Ok(Outcome::Done(pods.into_iter().flatten().collect()))
            }
        }
    }

    /// All of our pods, as they are at this moment and not as a cache remembers them.
    async fn list(&self) -> Result<Vec<Pod>, Error> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        let selector = ListParams::default().labels(&format!("{}={}", names::MANAGED_BY, names::RONDE));
        patiently("list pods", || pods.list(&selector)).await.map(|list| list.items)
    }

    async fn support(&self, job: &Job, gang: &Gang) -> Result<(), Error> {
        let services: Api<Service> = self.namespaced(job);
        let create = PostParams::default();
        let mut wanted = vec![(names::service(&job.name), job::service(job))];
        if gang.workers() > 0 {
            wanted.push((gang.chief().to_owned(), job::chief_service(job, gang)));
        }
        for (name, service) in &wanted {
            match patiently("create the job's service", || services.create(&create, service)).await {
                Err(Error::Exists { .. }) => self.is_ours(job, &services, name).await?,
                other => other.map(drop)?,
            }
        }
        let digits = ronde_trust::Secret::random()
            .map_err(|error| Error::Passing {
                doing: "make a secret".to_owned(),
                message: error.to_string(),
            })?
            .to_hex();
        let secrets: Api<Secret> = self.namespaced(job);
        let secret = job::secret(job, &digits);
        match patiently("create the job's secret", || secrets.create(&create, &secret)).await {
            Err(Error::Exists { .. }) => Ok(()),
            other => other.map(drop),
        }
    }

    /// A service of an earlier job of the same name will be gone in a moment.
    async fn is_ours(&self, job: &Job, services: &Api<Service>, name: &str) -> Result<(), Error> {
        let found = patiently("read the job's service", || services.get_opt(name)).await?;
        let owner = found
            .and_then(|found| found.metadata.labels)
            .and_then(|labels| labels.get(names::JOB_UID).cloned());
        if owner.as_deref() == Some(&job.root.uid) {
            return Ok(());
        }
        let message = format!("the service {name} is another's, or left of an earlier job");
        Err(Error::Passing { doing: "create the job's service".to_owned(), message })
    }

    /// The plan of an earlier set of pods is written over.
    async fn write_plan(&self, job: &Job, gang: &Gang) -> Result<(), Error> {
        let maps: Api<ConfigMap> = self.namespaced(job);
        let map = job::plan_map(job, gang);
        let name = names::plan(&job.name);
        let (create, delete) = (PostParams::default(), DeleteParams::default());
        loop {
            match patiently("write the plan", || maps.create(&create, &map)).await {
                Err(Error::Exists { .. }) => {
                    gone(patiently("replace the plan", || maps.delete(&name, &delete)).await)?
                }
                other => return other.map(drop),
            }
        }
    }

    async fn with_pod(&self, job: &Job, action: &Action) -> Result<Option<Pod>, Error> {
        let pods: Api<Pod> = self.namespaced(job);
        match action {
            Action::CreatePod { gang, member } => {
                let member = &gang.members[*member];
                let doing = format!("create pod {}", member.pod);
                let pod = job::pod(job, gang, member, &self.around)
                    .map_err(|message| Error::Refused { doing: doing.clone(), message })?;
                let create = PostParams::default();
                match patiently(&doing, || pods.create(&create, &pod)).await {
                    Err(Error::Exists { .. }) => Ok(None),
                    other => other.map(Some),
                }
            }
            Action::Ungate { pod, uid } => {
                let doing = format!("let the scheduler at pod {pod}");
                let patch = json!({
                    "metadata": {"uid": uid, "annotations": {(names::PLACED): Timestamp::now().to_string()}},
                    "spec": {"schedulingGates": [{"$patch": "delete", "name": names::GATE}]},
                });
                let (patch, params) = (Patch::Strategic(patch), PatchParams::default());
                patiently(&doing, || pods.patch(pod, &params, &patch)).await.map(Some)
            }
            Action::DeletePod { pod, uid } => {
                let doing = format!("delete pod {pod}");
                let only = Preconditions { uid: Some(uid.clone()), resource_version: None };
                let params = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
                let deleted = patiently(&doing, || pods.delete(pod, &params)).await;
                gone(deleted).map(|()| None)
            }
            Action::Support { .. } | Action::WritePlan { .. } | Action::List | Action::Sweep { .. } => {
                Ok(None)
            }
        }
    }

    /// Deletes what is left besides pods. What owns everything takes it along, if it may be deleted.
    pub(crate) async fn sweep(&self, job: &Job, attempts: u32) -> Result<(), Error> {
        let maps: Api<ConfigMap> = self.namespaced(job);
        let params = DeleteParams::background();
        if job.root.kind == RootKind::ConfigMap {
            return gone(patiently("delete the job", || maps.delete(&job.root.name, &params)).await);
        }
        let (plan, files) = (names::plan(&job.name), names::files(&job.name));
        gone(patiently("delete the plan", || maps.delete(&plan, &params)).await)?;
        gone(patiently("delete the files", || maps.delete(&files, &params)).await)?;
        let secrets: Api<Secret> = self.namespaced(job);
        let secret = names::secret(&job.name, &job.root.uid);
        gone(patiently("delete the secret", || secrets.delete(&secret, &params)).await)?;
        let services: Api<Service> = self.namespaced(job);
        let chiefs = (0..=attempts).map(|attempt| names::pod(&job.name, attempt, Role::Chief, 0));
        for service in chiefs.chain([names::service(&job.name)]) {
            gone(patiently("delete the services", || services.delete(&service, &params)).await)?;
        }
        Ok(())
    }

    pub(crate) fn namespaced<K>(&self, job: &Job) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &job.namespace)
    }
}

/// Whatever is gone already is as good as deleted; so is what another has taken the name of.
fn gone<T>(deleted: Result<T, Error>) -> Result<(), Error> {
    match deleted {
        Ok(_) | Err(Error::Gone { .. }) => Ok(()),
        Err(Error::Passing { message, .. }) if message.contains("Precondition failed") => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes a request until it is answered by somebody who is not too busy.
pub(crate) async fn patiently<T, F>(doing: &str, request: impl Fn() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, kube::Error>>,
{
    let mut pauses = PAUSES.iter();
    loop {
        let error = match request().await {
            Ok(answer) => return Ok(answer),
            Err(error) => Error::met(doing, error),
        };
        let is_conflict =
            matches!(&error, Error::Passing { message, .. } if message.contains("Precondition failed"));
        match pauses.next() {
            Some(pause) if error.is_passing() && !is_conflict => {
                tokio::time::sleep(Duration::from_millis(*pause)).await
            }
            _ => return Err(error),
        }
    }
}
