//! Keeps the ledger true: watches nodes and pods of the whole cluster, and tells those who wait when something changed.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::Error;
use crate::cluster::{JobKey, Ledger};
use crate::error::watching;

/// How long to wait after a watch has failed.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a watch may take to bring what was answered already. It takes milliseconds, unless it is being made anew.
const CATCH_UP: Duration = Duration::from_millis(500);
/// How long a right may be missing in the middle of things: a server that has just started does not know all of them yet.
pub(crate) const RIGHT_PATIENCE: Duration = Duration::from_secs(5);
/// How long it may not know us.
const LOGIN_PATIENCE: Duration = Duration::from_secs(30);
/// How long a watch may fail for other reasons before that is worth telling.
const OUTAGE: Duration = Duration::from_secs(30);

/// The cluster as it is now, nearly.
pub(crate) struct View {
    ledger: Arc<Mutex<Ledger>>,
    changes: Changes,
    tasks: Vec<JoinHandle<()>>,
}

/// Tells when something has changed; as many as like may wait, each with one of its own.
#[derive(Clone)]
pub(crate) struct Changes(watch::Receiver<Progress>);

impl Changes {
    /// Waits until something has changed since this was last called.
    pub(crate) async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            // Nothing will change any more; whoever waits has other reasons to wake up.
            std::future::pending::<()>().await;
        }
        self.0.mark_unchanged();
    }
}

/// How far the watches are.
#[derive(Clone, Debug, Default)]
struct Progress {
    nodes: Watched,
    pods: Watched,
}

/// How far one of them is.
#[derive(Clone, Debug, Default)]
struct Watched {
    /// Whether everything was listed once.
    listed: bool,
    /// What it met with last, and since when it fails, until it succeeds again.
    failed: Option<(Instant, Arc<Error>)>,
}

impl Progress {
    /// What watches fail for, and for how long they have.
    fn failures(&self) -> impl Iterator<Item = (Duration, &Error)> {
        let failed = [&self.nodes, &self.pods].into_iter().filter_map(|one| one.failed.as_ref());
        failed.map(|(since, error)| (since.elapsed(), error.as_ref()))
    }

    /// A right that a watch has lacked for so long, or that we have been strangers for so long.
    fn refused(&self, right: Duration, login: Duration) -> Option<Error> {
        self.failures().find_map(|(lasts, error)| match error {
            Error::Forbidden { doing, message } if lasts >= right => {
                Some(Error::Forbidden { doing: doing.clone(), message: message.clone() })
            }
            Error::Unauthorized { message } if lasts >= login => {
                Some(Error::Unauthorized { message: message.clone() })
            }
            _ => None,
        })
    }
}

impl View {
    /// Starts to watch.
    pub(crate) fn open(client: &Client) -> View {
        let ledger = Arc::new(Mutex::new(Ledger::default()));
        let (sender, changes) = watch::channel(Progress::default());
        let sender = Arc::new(sender);
        let nodes = watcher(Api::<Node>::all(client.clone()), watcher::Config::default());
        let pods = watcher(Api::<Pod>::all(client.clone()), watcher::Config::default());
        let tasks = vec![
            tokio::spawn(keep::<Node>(nodes, Arc::clone(&ledger), Arc::clone(&sender))),
            tokio::spawn(keep::<Pod>(pods, Arc::clone(&ledger), sender)),
        ];
        View { ledger, changes: Changes(changes), tasks }
    }

    /// A cluster that stays as it is, except for what is noted of it.
    #[cfg(test)]
    pub(crate) fn still(ledger: Ledger) -> View {
        let listed = || Watched { listed: true, failed: None };
        let (_, changes) = watch::channel(Progress { nodes: listed(), pods: listed() });
        View { ledger: Arc::new(Mutex::new(ledger)), changes: Changes(changes), tasks: Vec::new() }
    }

    /// Waits until everything was listed once.
    pub(crate) async fn ready(&mut self) -> Result<(), Error> {
        loop {
            let progress = self.changes.0.borrow_and_update().clone();
            if progress.nodes.listed && progress.pods.listed {
                return Ok(());
            }
            // A right that is missing stays missing; anything else may pass.
            if let Some(error) = progress.refused(Duration::ZERO, Duration::ZERO) {
                return Err(error);
            }
            if self.changes.0.changed().await.is_err() {
                let doing = "watch nodes and pods".to_owned();
                return Err(Error::Passing { doing, message: "the watch has ended".to_owned() });
            }
        }
    }

    /// Whether the ledger is kept true; not for want of a right that is there to list but not to watch, or of a login.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.changes.0.borrow().refused(RIGHT_PATIENCE, LOGIN_PATIENCE).map_or(Ok(()), Err)
    }

    /// Why the ledger has not been kept true for a while, if it has not.
    pub(crate) fn outage(&self) -> Option<Error> {
        let progress = self.changes.0.borrow();
        let (_, error) = progress.failures().find(|(lasts, _)| *lasts >= OUTAGE)?;
        let doing = "learn how things are".to_owned();
        Some(Error::Passing { doing, message: format!("{error}, for more than {} s now", OUTAGE.as_secs()) })
    }

    /// The ledger, for a moment.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }

    /// Waits until something has changed since this was last called.
    pub(crate) async fn changed(&mut self) {
        self.changes.next().await;
    }

    /// Changes from now on, for one more who waits for them.
    pub(crate) fn changes(&self) -> Changes {
        self.changes.clone()
    }

    /// Waits until all pods are known that were made before the newest of this job's, as a list of them would tell;
    /// false if the watch does not get that far within a moment.
    pub(crate) async fn is_past(&self, job: &JobKey) -> bool {
        let mut changes = self.changes();
        let waiting = async {
            while !self.ledger().is_past(job) {
                changes.next().await;
            }
        };
        tokio::time::timeout(CATCH_UP, waiting).await.is_ok()
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// What the ledger does with a kind of object.
trait Noted: Resource + Sized {
    fn note(&self, ledger: &mut Ledger);
    fn forget(&self, ledger: &mut Ledger);
    fn begin(_ledger: &mut Ledger) {}
    fn passed(_ledger: &mut Ledger, _version: u64) {}
    fn keep(ledger: &mut Ledger, here: &HashSet<(String, String)>);
    fn watched(progress: &mut Progress) -> &mut Watched;
}

impl Noted for Node {
    fn note(&self, ledger: &mut Ledger) {
        ledger.note_node(self);
    }
    fn forget(&self, ledger: &mut Ledger) {
        ledger.forget_node(self);
    }
    fn keep(ledger: &mut Ledger, here: &HashSet<(String, String)>) {
        ledger.keep_nodes(|name| here.contains(&(String::new(), name.to_owned())));
    }
    fn watched(progress: &mut Progress) -> &mut Watched {
        &mut progress.nodes
    }
}

impl Noted for Pod {
    fn note(&self, ledger: &mut Ledger) {
        ledger.note_pod(self);
    }
    fn forget(&self, ledger: &mut Ledger) {
        ledger.forget_pod(self);
    }
    fn begin(ledger: &mut Ledger) {
        ledger.will_list();
    }
    fn passed(ledger: &mut Ledger, version: u64) {
        ledger.has_watched(version);
    }
    fn keep(ledger: &mut Ledger, here: &HashSet<(String, String)>) {
        ledger.keep_pods(|key| here.contains(key));
    }
    fn watched(progress: &mut Progress) -> &mut Watched {
        &mut progress.pods
    }
}

/// Writes down what a watch says, for as long as anybody listens.
async fn keep<K: Noted>(
    events: impl Stream<Item = Result<Event<K>, watcher::Error>>,
    ledger: Arc<Mutex<Ledger>>,
    progress: Arc<watch::Sender<Progress>>,
) {
    let mut events = std::pin::pin!(events);
    let mut here: HashSet<(String, String)> = HashSet::new();
    // Of what is being listed.
    let mut newest = 0;
    while let Some(event) = events.next().await {
        match event {
            // The list is asked for after this, so that nothing has worked yet.
            Ok(Event::Init) => {
                here.clear();
                K::begin(&mut lock(&ledger));
                continue;
            }
            Ok(Event::InitApply(object)) => {
                here.insert(key(&object));
                newest = version(&object).max(newest);
                object.note(&mut lock(&ledger));
                continue;
            }
            Ok(Event::InitDone) => {
                let mut ledger = lock(&ledger);
                K::keep(&mut ledger, &here);
                K::passed(&mut ledger, newest);
                here = HashSet::new();
                progress.send_modify(|progress| K::watched(progress).listed = true);
            }
            Ok(Event::Apply(object)) => {
                let mut ledger = lock(&ledger);
                object.note(&mut ledger);
                K::passed(&mut ledger, version(&object));
            }
            Ok(Event::Delete(object)) => {
                let mut ledger = lock(&ledger);
                object.forget(&mut ledger);
                K::passed(&mut ledger, version(&object));
            }
            Err(error) => {
                let error = watching("watch nodes and pods", error);
                progress.send_modify(|progress| {
                    let failed = &mut K::watched(progress).failed;
                    let since = failed.as_ref().map_or_else(Instant::now, |(since, _)| *since);
                    *failed = Some((since, Arc::new(error)));
                });
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        }
        // Also tells those who wait that something has changed.
        progress.send_modify(|progress| K::watched(progress).failed = None);
    }
}

/// The number that counts all that is written; 0 if it is none.
fn version<K: Resource>(object: &K) -> u64 {
    object.meta().resource_version.as_ref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

fn key<K: Resource>(object: &K) -> (String, String) {
    let about = object.meta();
    (about.namespace.clone().unwrap_or_default(), about.name.clone().unwrap_or_default())
}

fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use futures::{future, stream};

    use super::*;
    use crate::job::{Gang, examples, pod};

    /// What happens, one thing after the other.
    enum Step {
        Watch(Event<Pod>),
        Answer(Pod),
    }
    use Step::{Answer, Watch};

    /// The chief of a job, written at this version.
    fn chief(job: &str, version: u64) -> Pod {
        let gang = Gang::new(job, 0, &[("node-1".to_owned(), 1)].into());
        let job = examples::job(job, 1);
        let mut pod = pod(&job, &gang, &gang.members[0], &examples::surroundings()).expect("a pod");
        pod.metadata.uid = Some(format!("pod-{}", job.name));
        pod.metadata.resource_version = Some(version.to_string());
        pod
    }

    /// The jobs of which pods are known afterwards.
    async fn after(steps: Vec<Step>) -> Vec<String> {
        let ledger = Arc::new(Mutex::new(Ledger::default()));
        let (progress, _) = watch::channel(Progress::default());
        let heard = Arc::clone(&ledger);
        let events = stream::iter(steps).filter_map(move |step| {
            future::ready(match step {
                Watch(event) => Some(Ok(event)),
                Answer(pod) => {
                    lock(&heard).note_answer(&pod);
                    None
                }
            })
        });
        keep(events, Arc::clone(&ledger), Arc::new(progress)).await;
        let mut jobs: Vec<String> = lock(&ledger).own().map(|own| own.job.clone()).collect();
        jobs.sort();
        jobs
    }

    /// A list of a job that was there before, while which another's chief is answered to have been made.
    fn list_with(answer: Pod, old: u64) -> Vec<Step> {
        let old = Watch(Event::InitApply(chief("old", old)));
        vec![Watch(Event::Init), old, Answer(answer), Watch(Event::InitDone)]
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_begins_to_list_anew_has_not_worked_again() {
        let fails = || Err(watcher::Error::WatchError(Box::default()));
        let list = [Ok(Event::Init), Ok(Event::InitDone)];
        for (then, lasts) in
            [(vec![Ok(Event::Init), fails()], true), (list.into_iter().chain([fails()]).collect(), false)]
        {
            let (progress, seen) = watch::channel(Progress::default());
            let began_anew = Arc::new(Mutex::new(Instant::now()));
            let heard = Arc::clone(&began_anew);
            let events = stream::iter([fails()].into_iter().chain(then)).map(move |event| {
                if let Ok(Event::Init) = event {
                    *heard.lock().expect("a time") = Instant::now();
                }
                event
            });
            keep::<Pod>(events, Arc::default(), Arc::new(progress)).await;
            let (since, _) = seen.borrow().pods.failed.clone().expect("it fails");
            assert_eq!(since < *began_anew.lock().expect("a time"), lasts);
        }
    }

    #[tokio::test]
    async fn a_pod_that_is_made_while_all_are_listed_is_not_forgotten() {
        assert_eq!(after(list_with(chief("new", 9), 5)).await, ["new", "old"]);
        // The watch will tell of it, and of its end, though that be before the last page was read.
        let mut steps = list_with(chief("new", 9), 5);
        steps.push(Watch(Event::Apply(chief("new", 9))));
        steps.push(Watch(Event::Apply(chief("old", 10))));
        assert_eq!(after(steps).await, ["new", "old"]);
        let mut steps = list_with(chief("new", 9), 5);
        steps.push(Watch(Event::Delete(chief("new", 10))));
        assert_eq!(after(steps).await, ["old"]);
    }

    #[tokio::test]
    async fn a_pod_that_was_gone_before_the_list_was_made_does_not_stay() {
        // The list has something newer, and does not have it.
        assert_eq!(after(list_with(chief("gone", 9), 12)).await, ["old"]);
        // The next change of any pod is newer, and nothing was told of it.
        let mut steps = list_with(chief("gone", 9), 5);
        steps.push(Watch(Event::Apply(chief("old", 10))));
        assert_eq!(after(steps).await, ["old"]);
        // It was answered before the list was asked for.
        let mut steps = list_with(chief("new", 9), 5);
        steps.insert(0, Answer(chief("gone", 8)));
        assert_eq!(after(steps).await, ["new", "old"]);
    }

    #[tokio::test]
    async fn an_answer_that_comes_after_the_list_has_told_of_its_pod_says_nothing_new() {
        let mut steps = list_with(chief("old", 5), 5);
        steps.push(Watch(Event::Apply(chief("late", 7))));
        assert_eq!(after(steps).await, ["late", "old"]);
        // Nor does a change that the watch has still to bring make it look gone.
        let mut steps = list_with(chief("old", 8), 5);
        steps.push(Watch(Event::Apply(chief("late", 7))));
        steps.push(Watch(Event::Apply(chief("old", 8))));
        steps.push(Watch(Event::Apply(chief("late", 9))));
        assert_eq!(after(steps).await, ["late", "old"]);
    }
}
