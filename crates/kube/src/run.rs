//! `ronde kube run`: makes a job, manages it, shows how it gets on, and ends as the training does.
//!
//! From a laptop the root of the job is a config map that holds what was asked for; inside the cluster it is the pod that
//! this runs in. If this process is killed, the pods end by themselves; the same command with the same name goes on with
//! the job that is there.

use std::io::Write;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;

use crate::act::{Hands, patiently};
use crate::cluster::OwnPod;
use crate::connect::{Which, connect};
use crate::job::{
    Job, JobStatus, Phase, RondeJobSpec, Root, RootKind, Shipment, Surroundings, names, validate,
};
use crate::manager::turn;
use crate::progress::{Progress, gpus, span};
use crate::view::View;
use crate::{Error, follow};

/// The key of the root config map under which the job is described.
const SPEC: &str = "job.json";
/// How long to look at the cluster at most before looking again.
const LOOK: Duration = Duration::from_secs(30);
/// How long pods may take to end before the last line is said all the same.
const FAREWELL: Duration = Duration::from_secs(10);

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
    let connection = connect(&order.which).await?;
    let hands = Hands::new(connection.client.clone(), order.around.clone());
    let mut view = View::open(&connection.client);
    view.ready().await?;
    for line in crate::error::remarks(&view.ledger()) {
        say(order.quiet, &format!("note: {line}"));
    }
    clear_away(&hands, &view, &connection.namespace).await;
    let job = root(&order, &connection.namespace, &hands).await?;
    if let Some(shipment) = &order.shipment {
        hands.make(&job, "send the files", &shipment.config_map(&job)).await?;
    }
    let mut session = Session {
        pods: hands.namespaced(&job),
        job,
        hands,
        view,
        status: JobStatus::default(),
        progress: Progress::default(),
        started: Instant::now(),
        following: None,
        order,
    };
    let status = session.manage(&mut signals).await;
    if let Err(error) = &status
        && !matches!(error, Error::Gone { .. })
    {
        session.abandon().await;
    }
    status
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
    /// The chief whose output is shown, and the task that does.
    following: Option<(String, JoinHandle<()>)>,
}

impl Session {
    async fn manage(&mut self, signals: &mut Signals) -> Result<u8, Error> {
        loop {
            self.view.check()?;
            let turned = tokio::select! {
                turned = turn(&self.job, self.status.clone(), Ok(()), &self.hands, &self.view, async |_: &JobStatus| Ok(())) => turned,
                number = signals.next() => return self.interrupted(number, signals).await,
            };
            self.status = turned.status;
            self.show();
            match turned.trouble {
                None if self.status.phase.is_final() => return self.end(signals).await,
                None => {}
                Some(error) if error.is_passing() => say(self.order.quiet, &format!("{error}; trying again")),
                // The training has ended; that something is left behind does not change how.
                Some(error) if self.status.phase.is_final() => {
                    say(false, &format!("warning: {error}"));
                    return self.end(signals).await;
                }
                Some(error @ (Error::Forbidden { .. } | Error::Unauthorized { .. })) => return Err(error),
                Some(_) => {}
            }
            if matches!(self.status.reason.as_str(), "NeverEnough" | "Invalid") && !self.order.wait {
                return Err(Error::Never(self.status.message.clone()));
            }
            let wake = turned.wake.map_or(LOOK, |wake| wake.clamp(Duration::from_millis(20), LOOK));
            tokio::select! {
                () = self.view.changed() => {}
                () = tokio::time::sleep(wake) => {}
                number = signals.next() => return self.interrupted(number, signals).await,
            }
        }
    }

    /// Says what has come about, and begins to show the chief's output when there may be some.
    fn show(&mut self) {
        let ledger = self.view.ledger();
        let pods: Vec<&OwnPod> = ledger.pods_of(&self.job.root.uid);
        for line in self.progress.lines(&self.job.name, &self.status, &pods, self.started.elapsed()) {
            say(self.order.quiet, &line);
        }
        let chief = pods
            .iter()
            .find(|pod| pod.is_chief && pod.attempt == self.status.attempt && pod.started.is_some());
        if let Some(chief) = chief
            && self.following.as_ref().is_none_or(|(name, _)| *name != chief.name)
        {
            let task = tokio::spawn(follow::follow(self.pods.clone(), chief.name.clone()));
            self.following = Some((chief.name.clone(), task));
        }
    }

    /// All is over: the rest of the output, the GPUs, the last word.
    async fn end(&mut self, signals: &mut Signals) -> Result<u8, Error> {
        let free = async {
            if let Some((_, task)) = self.following.take() {
                let _ = tokio::time::timeout(FAREWELL, task).await;
            }
            self.are_free().await
        };
        let are_free = tokio::select! {
            are_free = free => are_free,
            _ = signals.next() => false,
        };
        let took = span(self.started.elapsed());
        let count = gpus(&self.status.gpus);
        let freed = if are_free { format!("{count} free again") } else { format!("{count} are being freed") };
        let kept = span(Duration::from_secs(u64::from(self.job.spec.ttl_seconds_after_finished)));
        let namespace = match self.job.namespace.as_str() {
            "default" => String::new(),
            namespace => format!(" -n {namespace}"),
        };
        let logs = |pod: &str| format!("kubectl logs {pod}{namespace} (kept {kept})");
        if self.status.phase == Phase::Succeeded {
            let chief = names::pod(&self.job.name, self.status.attempt, crate::job::Role::Chief, 0);
            say(self.order.quiet, &format!("done in {took} · {freed} · {}", logs(&chief)));
            return Ok(0);
        }
        let mut text = format!("error: {}\n", self.status.message);
        if let Some(pod) = &self.status.failed_pod {
            let is_shown = pod.contains("-chief");
            let last = if is_shown { Vec::new() } else { follow::tail(&self.pods, pod, 20).await };
            if !last.is_empty() {
                text.push_str(&format!("  last output of {pod}:\n"));
                last.iter().for_each(|line| text.push_str(&format!("    {line}\n")));
            }
            text.push_str(&format!("failed after {took} · {freed} · {}\n", logs(pod)));
        }
        let _ = std::io::stderr().write_all(text.as_bytes());
        let code = self.status.exit_code.unwrap_or(1);
        Ok(u8::try_from(code).ok().filter(|code| *code > 0).unwrap_or(1))
    }

    /// Waits until no pod of the job holds a GPU; not for ever. Those on nodes that do not answer are not waited for.
    async fn are_free(&mut self) -> bool {
        let uid = self.job.root.uid.clone();
        let is_held = |view: &View| {
            let ledger = view.ledger();
            let pods = ledger.pods_of(&uid);
            pods.iter().any(|pod| pod.bound && !pod.is_finished() && ledger.is_ready(&pod.pinned))
        };
        let waiting = async {
            while is_held(&self.view) {
                self.view.changed().await;
            }
        };
        tokio::time::timeout(FAREWELL, waiting).await.is_ok()
    }

    /// Ctrl-C deletes the job; another one leaves at once, and the pods end by themselves.
    async fn interrupted(&mut self, number: i32, signals: &mut Signals) -> Result<u8, Error> {
        say(self.order.quiet, &format!("deleting job {} (once more to leave at once)", self.job.name));
        let status = u8::try_from(128 + number).unwrap_or(130);
        tokio::select! {
            () = self.abandon() => {}
            _ = signals.next() => return Ok(status),
        }
        let are_free = tokio::select! {
            are_free = self.are_free() => are_free,
            _ = signals.next() => return Ok(status),
        };
        let count = gpus(&self.status.gpus);
        let words = if are_free { "free again" } else { "being freed" };
        say(self.order.quiet, &format!("job {} deleted · {count} {words}", self.job.name));
        Ok(status)
    }

    /// Deletes everything.
    async fn abandon(&self) {
        let names: Vec<String> =
            self.view.ledger().pods_of(&self.job.root.uid).iter().map(|pod| pod.name.clone()).collect();
        for name in names {
            let _ = self.pods.delete(&name, &DeleteParams::default()).await;
        }
        if let Err(error) = self.hands.sweep(&self.job.name, &self.job.namespace, &self.job.root).await {
            say(false, &format!("warning: {error}"));
        }
    }
}

/// The object that owns all others: this pod, or a config map that is made now or was made before.
async fn root(order: &Order, namespace: &str, hands: &Hands) -> Result<Job, Error> {
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
        return Ok(job(RootKind::Pod, name, uid, Timestamp::now()));
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
    let found = match made {
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
    let created = found.metadata.creation_timestamp.map_or_else(Timestamp::now, |time| time.0);
    Ok(job(RootKind::ConfigMap, &order.name, &found.metadata.uid.unwrap_or_default(), created))
}

/// Jobs of this namespace that nobody looks after any more and whose time is over.
async fn clear_away(hands: &Hands, view: &View, namespace: &str) {
    let over: Vec<String> = expired(view, Timestamp::now())
        .into_iter()
        .filter_map(|(place, name)| (place == namespace).then_some(name))
        .collect();
    let maps: Api<ConfigMap> = Api::namespaced(hands.client.clone(), namespace);
    for name in over {
        // Whoever comes next will try again.
        let _ = maps.delete(&name, &DeleteParams::background()).await;
    }
}

/// Finished jobs of `ronde kube run` that were kept long enough: namespace and name.
pub(crate) fn expired(view: &View, now: Timestamp) -> Vec<(String, String)> {
    let ledger = view.ledger();
    let chiefs = ledger.own().filter(|pod| pod.is_chief && pod.root == RootKind::ConfigMap.label());
    let over = chiefs.filter(|pod| {
        let ended = pod.ended.as_ref().and_then(|ended| ended.at).filter(|_| pod.is_finished());
        let kept = ended.map(|ended| now.duration_since(ended).as_secs());
        kept.zip(pod.ttl).is_some_and(|(kept, ttl)| kept > i64::from(ttl))
    });
    over.map(|pod| (pod.namespace.clone(), pod.job.clone())).collect()
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
