//! `ronde kube run`: makes a job, manages it, shows how it gets on, and ends as the training does.
//!
//! From a laptop the root of the job is a config map that holds what was asked for; inside the cluster it is the pod that
//! this runs in. If this process is killed, the pods end by themselves; the same command with the same name goes on with
//! the job that is there.

use std::io::Write;
use std::pin::pin;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::PostParams;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::act::{Hands, in_namespace, patiently};
use crate::cluster::OwnPod;
use crate::connect::{Connection, Which, connect};
use crate::job::{
    Job, JobStatus, Phase, RondeJobSpec, Root, RootKind, Shipment, Surroundings, names, validate,
};
use crate::manager::turn;
use crate::progress::{Progress, gpus, span};
use crate::view::View;
use crate::{Error, follow, remains};

/// The key of the root config map under which the job is described.
const SPEC: &str = "job.json";
/// How long to look at the cluster at most before looking again.
const LOOK: Duration = Duration::from_secs(30);
/// How long pods may take to end before the last line is said all the same.
const FAREWELL: Duration = Duration::from_secs(15);
/// How long a cluster that answers may take to list its nodes and pods.
const READY: Duration = Duration::from_secs(60);
/// How long another's object may have a name that the job needs: one of an earlier job goes within a moment.
const NAME_PATIENCE: Duration = Duration::from_secs(60);
/// How long the cluster may have fewer GPUs than are asked for, once it had enough: nodes and their plug-ins start anew.
const CAPACITY_PATIENCE: Duration = Duration::from_secs(300);

/// What `ronde kube run` was asked for.
#[derive(Clone, Debug)]
pub struct Order {
    /// Which cluster.
    pub which: Which,
    /// The job's name.
    pub name: String,
    /// The job.
    pub spec: RondeJobSpec,
    /// Files that go with it.
    pub shipment: Option<Shipment>,
    /// The image that brings our program, and the cluster's domain.
    pub around: Surroundings,
    /// The pod that this runs in, if it is to be the root: name and uid.
    pub own_pod: Option<(String, String)>,
    /// Whether to wait for GPUs that the cluster does not have.
    pub wait: bool,
    /// Whether to say nothing but errors.
    pub quiet: bool,
}

/// Runs a job; returns the status to exit with.
pub async fn run(order: Order) -> Result<u8, Error> {
    validate(&order.name, &order.spec).map_err(Error::Invalid)?;
    let mut signals = Signals::listen()?;
    let opened = tokio::select! {
        opened = open(&order) => opened?,
        // Nothing has been made yet.
        number = signals.next() => return Ok(told_by(number)),
    };
    let (connection, hands, view) = opened;
    for line in crate::error::remarks(&view.ledger()).into_iter().chain(clock_is_off(&hands)) {
        say(order.quiet, &format!("note: {line}"));
    }
    let (job, is_new) = {
        let mut making = pin!(root(&order, &connection.namespace, &hands));
        tokio::select! {
            made = &mut making => made?,
            number = signals.next() => {
                // The request may be on its way, so what comes of it is waited for and taken back.
                tokio::select! {
                    made = making => if let Ok((job, true)) = made {
                        let _ = hands.sweep(&job.name, &job.namespace, &job.root).await;
                    },
                    _ = signals.next() => {}
                }
                return Ok(told_by(number));
            }
        }
    };
    let mut session = Session {
        pods: hands.namespaced(&job),
        job,
        hands,
        view,
        status: JobStatus::default(),
        progress: Progress::default(),
        started: Instant::now(),
        following: None,
        trouble: String::new(),
        blocked: None,
        hoped: false,
        short: None,
        is_new,
        order,
    };
    let status = match session.send_files(&mut signals).await {
        Ok(None) => session.manage(&mut signals).await,
        Ok(Some(code)) => Ok(code),
        // A job that was there before is left as it was found.
        Err(error) if !is_new => return Err(error),
        Err(error) => Err(error),
    };
    match &status {
        // Nothing is there any more, or there are logs to keep.
        Err(Error::Gone { .. }) => {}
        Err(Error::Never(_)) if session.status.failures > 0 => {}
        Err(Error::Unauthorized { .. }) => {
            say(false, &format!("note: job {} goes on; the same command shows it again", session.job.name));
        }
        Err(_) => session.abandon().await,
        Ok(_) => {}
    }
    status
}

/// Connects, and learns what there is.
async fn open(order: &Order) -> Result<(Connection, Hands, View), Error> {
    let connection = connect(&order.which).await?;
    let hands = Hands::new(connection.client.clone(), connection.clock.clone(), order.around.clone());
    let mut view = View::open(&connection.client);
    match tokio::time::timeout(READY, view.ready()).await {
        Ok(ready) => ready?,
        Err(_) => {
            let problem = format!("its nodes and pods could not be listed within {} s", READY.as_secs());
            return Err(Error::Unreachable { url: connection.url, problem });
        }
    }
    remains::clear_away(&hands, &view, Some(&connection.namespace)).await;
    Ok((connection, hands, view))
}

struct Session {
    order: Order,
    job: Job,
    hands: Hands,
    view: View,
    pods: Api<Pod>,
    status: JobStatus,
    progress: Progress,
    started: Instant,
    /// The chief whose output is shown.
    following: Option<Following>,
    /// What was said last of requests that did not work.
    trouble: String,
    /// Since when a name that the job needs has been another's.
    blocked: Option<Instant>,
    /// Whether the cluster has had enough GPUs, if perhaps not free ones.
    hoped: bool,
    /// Since when it has too few.
    short: Option<Instant>,
    /// Whether this command made the job.
    is_new: bool,
}

/// A pod whose output is shown, and the task that does.
struct Following {
    pod: String,
    ended: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Session {
    /// Sends the files that go with the job; a status to exit with if a signal came in between.
    async fn send_files(&mut self, signals: &mut Signals) -> Result<Option<u8>, Error> {
        let Some(shipment) = &self.order.shipment else { return Ok(None) };
        let map = shipment.config_map(&self.job);
        tokio::select! {
            sent = self.hands.make(&self.job, "send the files", &map) => match sent? {
                // They may have been changed since the job was made.
                sent if sent.binary_data == map.binary_data && sent.data == map.data => Ok(None),
                _ => Err(Error::NameTaken { name: self.job.name.clone(), namespace: self.job.namespace.clone() }),
            },
            number = signals.next() => self.interrupted(number, signals).await.map(Some),
        }
    }

    async fn manage(&mut self, signals: &mut Signals) -> Result<u8, Error> {
        let mut was_there = !self.is_new;
        loop {
            self.view.check()?;
            let turned = tokio::select! {
                turned = turn(&self.job, self.status.clone(), Ok(()), &self.hands, &self.view, async |_: &JobStatus| Ok(())) => turned,
                number = signals.next() => return self.interrupted(number, signals).await,
            };
            self.status = turned.status;
            // The error will say it.
            if let Some(error) = self.hopeless() {
                return Err(error);
            }
            if std::mem::take(&mut was_there) && self.status.phase.is_final() {
                self.say_it_has_ended();
            }
            self.show();
            match turned.trouble {
                None if self.status.phase.is_final() => return self.end(signals).await,
                None => match self.view.outage() {
                    Some(outage) => self.say_trouble(&outage),
                    None => self.trouble.clear(),
                },
                Some(error) if error.is_passing() => self.say_trouble(&error),
                // The training has ended; that something is left behind does not change how.
                Some(error) if self.status.phase.is_final() => {
                    say(false, &format!("warning: {error}"));
                    return self.end(signals).await;
                }
                Some(error @ (Error::Forbidden { .. } | Error::Unauthorized { .. })) => return Err(error),
                Some(_) => {}
            }
            let wake = turned.wake.map_or(LOOK, |wake| wake.clamp(Duration::from_millis(20), LOOK));
            tokio::select! {
                () = self.view.changed() => {}
                () = tokio::time::sleep(wake) => {}
                number = signals.next() => return self.interrupted(number, signals).await,
            }
        }
    }

    /// Why there is no point in waiting, if there is none.
    fn hopeless(&mut self) -> Option<Error> {
        let is_blocked = self.status.reason == "NameTaken";
        self.blocked = self.blocked.filter(|_| is_blocked).or_else(|| is_blocked.then(Instant::now));
        let is_taken = self.blocked.is_some_and(|since| since.elapsed() > NAME_PATIENCE);
        let is_short = self.status.reason == "NeverEnough";
        self.short = self.short.filter(|_| is_short).or_else(|| is_short.then(Instant::now));
        // Of a job that has not been decided about yet nothing is known.
        self.hoped |= !is_short && !self.status.reason.is_empty();
        let lasts = self.short.is_some_and(|since| !self.hoped || since.elapsed() > CAPACITY_PATIENCE);
        let is_never = self.status.reason == "Invalid" || lasts;
        (is_never && !self.order.wait || is_taken).then(|| Error::Never(self.status.message.clone()))
    }

    /// Says that the job is not run again.
    fn say_it_has_ended(&self) {
        let Job { name, namespace, .. } = &self.job;
        let line = format!(
            "job {name} has ended before; this is its output. To run it again: kubectl delete configmap {name} -n {namespace}"
        );
        say(self.order.quiet, &line);
    }

    /// Says what does not work at the moment, once.
    fn say_trouble(&mut self, error: &Error) {
        let line = format!("{error}; trying again");
        if line != self.trouble {
            say(self.order.quiet, &line);
            self.trouble = line;
        }
    }

    /// Says what has come about, and begins to show the chief's output when there may be some.
    fn show(&mut self) {
        let ledger = self.view.ledger();
        let pods: Vec<&OwnPod> = ledger.pods_of(&self.job.key());
        for line in self.progress.lines(&self.job.name, &self.status, &pods, self.started.elapsed()) {
            say(self.order.quiet, &line);
        }
        let chief = pods
            .iter()
            .find(|pod| pod.is_chief && pod.attempt == self.status.attempt && pod.started.is_some());
        let Some(chief) = chief else { return };
        if self.following.as_ref().is_none_or(|following| following.pod != chief.name) {
            let (ended, is_over) = watch::channel(false);
            let task = tokio::spawn(follow::follow(self.pods.clone(), chief.name.clone(), is_over));
            self.following = Some(Following { pod: chief.name.clone(), ended, task });
        }
        if let Some(following) =
            self.following.as_ref().filter(|_| chief.ended.is_some() || chief.is_finished())
        {
            following.ended.send_replace(true);
        }
    }

    /// All is over: the rest of the output, the GPUs, the last word.
    async fn end(&mut self, signals: &mut Signals) -> Result<u8, Error> {
        let following = self.following.take();
        let free = async {
            if let Some(Following { ended, task, .. }) = following {
                ended.send_replace(true);
                let _ = tokio::time::timeout(FAREWELL, task).await;
            }
            self.free().await
        };
        let are_free = tokio::select! {
            are_free = free => are_free,
            _ = signals.next() => false,
        };
        let took = span(self.started.elapsed());
        let count = gpus(&self.status.gpus);
        let freed = if are_free { format!("{count} free again") } else { format!("{count} are being freed") };
        let chief = names::pod(&self.job.name, self.status.attempt, crate::job::Role::Chief, 0);
        let failed = self.status.failed_pod.clone();
        let shown = failed.iter().chain([&chief]).find(|pod| self.has_logs(pod));
        let logs = match shown {
            Some(pod) => self.logs(pod),
            None => {
                // Whoever comes later would not know of it any more.
                if let Err(error) =
                    self.hands.sweep(&self.job.name, &self.job.namespace, &self.job.root).await
                {
                    say(false, &format!("warning: {error}"));
                }
                "nothing of it is kept".to_owned()
            }
        };
        if self.status.phase == Phase::Succeeded {
            say(self.order.quiet, &format!("done in {took} · {freed} · {logs}"));
            return Ok(0);
        }
        let mut text = format!("error: {}\n", self.status.message);
        if let Some(pod) = failed.filter(|pod| *pod != chief && self.has_logs(pod)) {
            let last = follow::tail(&self.pods, &pod, 20).await;
            if !last.is_empty() {
                text.push_str(&format!("  last output of {pod}:\n"));
                last.iter().for_each(|line| text.push_str(&format!("    {line}\n")));
            }
        }
        text.push_str(&format!("failed after {took} · {freed} · {logs}\n"));
        let _ = std::io::stderr().write_all(text.as_bytes());
        let code = self.status.exit_code.unwrap_or(1);
        Ok(u8::try_from(code).ok().filter(|code| *code > 0).unwrap_or(1))
    }

    /// Whether a pod has output, and stays.
    fn has_logs(&self, pod: &str) -> bool {
        if self.status.swept {
            return false;
        }
        let ledger = self.view.ledger();
        let mut pods = ledger.pods_of(&self.job.key()).into_iter();
        pods.any(|own| own.name == pod && own.started.is_some() && !own.terminating)
    }

    /// How to see a pod's output, and for how long.
    fn logs(&self, pod: &str) -> String {
        let kept = span(Duration::from_secs(u64::from(self.job.spec.ttl_seconds_after_finished)));
        let namespace = match self.job.namespace.as_str() {
            "default" => String::new(),
            namespace => format!(" -n {namespace}"),
        };
        format!("kubectl logs {pod}{namespace} (kept {kept})")
    }

    /// Sees to it that no pod of the job holds a GPU; not for ever.
    async fn free(&mut self) -> bool {
        let freeing = async {
            while self.is_held() {
                let said = async |_: &JobStatus| Ok(());
                let turned =
                    turn(&self.job, self.status.clone(), Ok(()), &self.hands, &self.view, said).await;
                self.status = turned.status;
                let wake = turned.wake.unwrap_or(LOOK);
                tokio::select! {
                    () = self.view.changed() => {}
                    () = tokio::time::sleep(wake) => {}
                }
            }
        };
        tokio::time::timeout(FAREWELL, freeing).await.is_ok()
    }

    /// Whether a pod of the job holds a GPU. Those on nodes that do not answer are not waited for.
    fn is_held(&self) -> bool {
        let ledger = self.view.ledger();
        let pods = ledger.pods_of(&self.job.key());
        pods.iter().any(|pod| pod.bound && !pod.is_finished() && !ledger.is_lost(&pod.pinned))
    }

    /// Ctrl-C deletes the job; another one leaves at once, and the pods end by themselves.
    async fn interrupted(&mut self, number: i32, signals: &mut Signals) -> Result<u8, Error> {
        say(self.order.quiet, &format!("deleting job {} (once more to leave at once)", self.job.name));
        let status = told_by(number);
        tokio::select! {
            () = self.abandon() => {}
            _ = signals.next() => return Ok(status),
        }
        let freeing = async {
            while self.is_held() {
                self.view.changed().await;
            }
        };
        let are_free = tokio::select! {
            are_free = tokio::time::timeout(FAREWELL, freeing) => are_free.is_ok(),
            _ = signals.next() => return Ok(status),
        };
        let count = gpus(&self.status.gpus);
        let words = if are_free { "free again" } else { "being freed" };
        say(self.order.quiet, &format!("job {} deleted · {count} {words}", self.job.name));
        Ok(status)
    }

    /// Deletes everything.
    async fn abandon(&self) {
        let pods: Vec<(String, String)> = {
            let ledger = self.view.ledger();
            let pods = ledger.pods_of(&self.job.key()).into_iter();
            pods.map(|pod| (pod.name.clone(), pod.uid.clone())).collect()
        };
        let job = &self.job;
        let deleted = self.hands.delete_pods(&job.namespace, &pods).await;
        let swept = self.hands.sweep(&job.name, &job.namespace, &job.root).await;
        if let Err(error) = deleted.and(swept) {
            say(false, &format!("warning: {error}"));
        }
    }
}

/// That the clock here is not the cluster's, if it is far off.
fn clock_is_off(hands: &Hands) -> Option<String> {
    let behind = hands.clock.behind().as_secs();
    let word = if behind > 0 { "behind" } else { "ahead of" };
    let line = || format!("the clock here is {} s {word} the cluster's, whose time counts", behind.abs());
    (behind != 0).then(line)
}

/// The status to exit with after a signal.
fn told_by(number: i32) -> u8 {
    u8::try_from(128 + number).unwrap_or(130)
}

/// The object that owns all others: this pod, or a config map; and whether that was made now, and not before.
async fn root(order: &Order, namespace: &str, hands: &Hands) -> Result<(Job, bool), Error> {
    let job = |kind, name: &str, uid: &str, created: Timestamp| Job {
        name: order.name.clone(),
        namespace: namespace.to_owned(),
        root: Root { kind, name: name.to_owned(), uid: uid.to_owned() },
        created,
        deleting: false,
        generation: None,
        spec: order.spec.clone(),
    };
    if let Some((name, uid)) = &order.own_pod {
        return Ok((job(RootKind::Pod, name, uid, hands.clock.now()), true));
    }
    let maps: Api<ConfigMap> = Api::namespaced(hands.client.clone(), namespace);
    let text = serde_json::to_string_pretty(&order.spec).unwrap_or_default();
    let labels = [
        (names::MANAGED_BY.to_owned(), names::RONDE.to_owned()),
        (names::JOB.to_owned(), order.name.clone()),
    ];
    let map = ConfigMap {
        metadata: kube::core::ObjectMeta {
            name: Some(order.name.clone()),
            labels: Some(labels.into()),
            ..Default::default()
        },
        data: Some([(SPEC.to_owned(), text.clone())].into()),
        ..ConfigMap::default()
    };
    let create = PostParams::default();
    let made = patiently("create the job", || maps.create(&create, &map)).await;
    let is_new = made.is_ok();
    let found = match in_namespace(namespace, made) {
        Ok(made) => made,
        Err(Error::Exists { .. }) => {
            let found = patiently("read the job", || maps.get(&order.name)).await?;
            let is_same =
                found.data.as_ref().and_then(|data| data.get(SPEC)).is_some_and(|known| *known == text);
            if !is_same || found.metadata.deletion_timestamp.is_some() {
                return Err(Error::NameTaken { name: order.name.clone(), namespace: namespace.to_owned() });
            }
            say(order.quiet, &format!("going on with job {}", order.name));
            found
        }
        Err(error) => return Err(error),
    };
    let created = found.metadata.creation_timestamp.map_or_else(|| hands.clock.now(), |time| time.0);
    Ok((job(RootKind::ConfigMap, &order.name, &found.metadata.uid.unwrap_or_default(), created), is_new))
}

/// The signals that end a job.
struct Signals([Signal; 3]);

impl Signals {
    fn listen() -> Result<Signals, Error> {
        let on = |kind| signal(kind).map_err(|source| Error::System { doing: "wait for signals", source });
        Ok(Signals([on(SignalKind::interrupt())?, on(SignalKind::terminate())?, on(SignalKind::hangup())?]))
    }

    /// The number of the next one.
    async fn next(&mut self) -> i32 {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => SignalKind::interrupt().as_raw_value(),
            _ = terminate.recv() => SignalKind::terminate().as_raw_value(),
            _ = hangup.recv() => SignalKind::hangup().as_raw_value(),
        }
    }
}

/// Says something about the job; its output goes elsewhere.
fn say(quiet: bool, line: &str) {
    if !quiet {
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}
