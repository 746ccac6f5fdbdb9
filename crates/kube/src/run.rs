//! `ronde kube run`: makes a job, manages it, shows how it gets on, and ends as the training does.
//!
//! From a laptop the root of the job is a config map that holds what was asked for; inside the cluster it is the pod that
//! this runs in. If this process is killed, the pods end by themselves; the same command with the same name goes on with
//! the job that is there.

mod root;
mod signals;

use std::io::Write;
use std::pin::pin;
use std::time::{Duration, Instant};

use crate::act::Hands;
use crate::cluster::OwnPod;
use crate::connect::{Connection, Which, connect};
use crate::follow::{self, Following};
use crate::job::{Job, JobStatus, Phase, RondeJobSpec, Shipment, Surroundings, names, validate};
use crate::manager::{Turn, turn};
use crate::progress::{Progress, gpus, span};
use crate::view::View;
use crate::{Error, remains};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use root::{kubectl_delete, name_taken, root};
use signals::Signals;

/// How long to look at the cluster at most before looking again.
const LOOK: Duration = Duration::from_secs(30);
/// How long pods may take to end before the last line is said all the same.
const FAREWELL: Duration = Duration::from_secs(15);
/// How long requests that are under way may take when a signal ends the job.
const LAST_TURN: Duration = Duration::from_secs(3);
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
        let mut making = pin!(root(&order, &connection.namespace, &hands, &view));
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
    let mut session = Session::new(order, job, hands, view, is_new);
    let status = match session.send_files(&mut signals).await {
        Ok(None) => session.manage(&mut signals).await,
        Ok(Some(code)) => Ok(code),
        // A job that was there before is left as it was found.
        Err(error) if !is_new => return Err(error),
        Err(error) => Err(error),
    };
    if let Err(error) = &status {
        tokio::select! {
            () = session.part(error) => {}
            _ = signals.next() => {}
        }
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
    /// When it was last seen to be there.
    seen: Instant,
    /// Whether this command made the job.
    is_new: bool,
}

impl Session {
    fn new(order: Order, job: Job, hands: Hands, view: View, is_new: bool) -> Session {
        Session {
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
            seen: Instant::now(),
            is_new,
            order,
        }
    }

    /// Sends the files that go with the job; a status to exit with if a signal came in between.
    async fn send_files(&mut self, signals: &mut Signals) -> Result<Option<u8>, Error> {
        let Some(shipment) = &self.order.shipment else { return Ok(None) };
        let map = shipment.config_map(&self.job);
        tokio::select! {
            sent = self.hands.make(&self.job, "send the files", &map) => match sent? {
                // They may have been changed since the job was made.
                sent if sent.binary_data == map.binary_data && sent.data == map.data => Ok(None),
                _ => Err(name_taken(self.job.root.kind, &self.job.name, &self.job.namespace)),
            },
            number = signals.next() => self.interrupted(number, signals).await.map(Some),
        }
    }

    async fn manage(&mut self, signals: &mut Signals) -> Result<u8, Error> {
        let mut was_there = !self.is_new;
        loop {
            self.view.check()?;
            let turned = match self.turn_or_signal(signals).await {
                Ok(turned) => turned,
                Err(number) => return self.interrupted(number, signals).await,
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
                Some(error @ Error::Deleted { .. }) => return Err(error),
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

    /// Brings the job on by one turn, or says which signal came. Requests may then be on their way, so what comes of them is
    /// waited for, or nobody would take it back; not for ever, and not beyond another signal.
    async fn turn_or_signal(&mut self, signals: &mut Signals) -> Result<Turn, i32> {
        let mut turning = pin!(self.turn());
        let number = tokio::select! {
            turned = &mut turning => return Ok(turned),
            number = signals.next() => number,
        };
        tokio::select! {
            _ = tokio::time::timeout(LAST_TURN, turning) => {}
            _ = signals.next() => {}
        }
        Err(number)
    }

    /// Brings the job on by one turn. While it waits it is also looked for: what has no pods is not seen to go.
    async fn turn(&mut self) -> Turn {
        let is_due = self.status.phase == Phase::Pending && self.seen.elapsed() >= LOOK;
        if is_due {
            self.seen = Instant::now();
            if let Err(error @ Error::Deleted { .. }) = self.hands.look_for(&self.job).await {
                return Turn { status: self.status.clone(), wake: None, trouble: Some(error) };
            }
        }
        let had_failed = self.status.phase == Phase::Failed;
        let (hands, job) = (&self.hands, &self.job);
        // Pods of a job that was deleted fail as they are told to end, which is not what happened to the job. What cannot
        // be found out does not change what is known; what was swept is gone because of us.
        let said = async |status: &JobStatus| match status.phase {
            Phase::Failed if !had_failed && !status.swept => {
                hands.look_for(job).await.or_else(|error| match error {
                    Error::Deleted { .. } => Err(error),
                    _ => Ok(()),
                })
            }
            _ => Ok(()),
        };
        turn(job, self.status.clone(), Ok(()), hands, &self.view, said).await
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
        let Job { name, namespace, root, .. } = &self.job;
        let delete = kubectl_delete(root.kind, name, namespace);
        let line = format!("job {name} has ended before; this is its output. To run it again: {delete}");
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
        // Also of an attempt that has failed since, or it would not be shown at all.
        let chief =
            pods.iter().filter(|pod| pod.is_chief && pod.started.is_some()).max_by_key(|pod| pod.attempt);
        let is_next = |chief: &&&OwnPod| {
            self.following.as_ref().is_none_or(|following| following.attempt < chief.attempt)
        };
        if let Some(chief) = chief.filter(is_next) {
            let (quiet, namespace) = (self.order.quiet, self.job.namespace.clone());
            let first = rest_of(self.following.take(), quiet, namespace);
            self.following = Some(Following::start(self.pods.clone(), &chief.name, chief.attempt, first));
        }
        if let Some(following) = &self.following {
            let chief = pods.iter().find(|pod| pod.name == following.pod);
            if chief.is_none_or(|chief| chief.ended.is_some() || chief.is_finished()) {
                following.has_ended();
            }
        }
    }

    /// All is over: the rest of the output, the GPUs, the last word.
    async fn end(&mut self, signals: &mut Signals) -> Result<u8, Error> {
        let rest = rest_of(self.following.take(), self.order.quiet, self.job.namespace.clone());
        let free = async {
            rest.await;
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
                let swept = tokio::select! {
                    swept = self.hands.sweep(&self.job.name, &self.job.namespace, &self.job.root) => swept,
                    _ = signals.next() => Ok(()),
                };
                if let Err(error) = swept {
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
            // The API server waits for the pod's node, which may say nothing.
            let last = tokio::select! {
                last = tokio::time::timeout(FAREWELL, follow::tail(&self.pods, &pod, 20)) => last.unwrap_or_default(),
                _ = signals.next() => Vec::new(),
            };
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
        format!("{} (kept {kept})", kubectl_logs(pod, &self.job.namespace))
    }

    /// Sees to it that no pod of the job holds a GPU; not for ever.
    async fn free(&mut self) -> bool {
        let freeing = async {
            while self.is_held() {
                let turned = self.turn().await;
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

    /// What becomes of the job if this command cannot go on with it.
    async fn part(&self, error: &Error) {
        match error {
            // Nothing is there any more, or there are logs to keep.
            Error::Gone { .. } => {}
            Error::Never(_) if self.status.failures > 0 => {}
            // What we may not see or do says nothing about a training.
            Error::Unauthorized { .. } => self.say_it_goes_on(),
            Error::Forbidden { .. } if self.may_train() => self.say_it_goes_on(),
            _ => self.abandon().await,
        }
    }

    /// Whether the job may be more than a claim: it was there before, or pods of it were let go.
    fn may_train(&self) -> bool {
        let is_let_go = matches!(self.status.phase, Phase::Placing | Phase::Scheduled | Phase::Running);
        !self.is_new || is_let_go || self.status.failures > 0
    }

    fn say_it_goes_on(&self) {
        say(false, &format!("note: job {} goes on; the same command shows it again", self.job.name));
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

/// Shows the rest of a chief's output, or says that there is more.
async fn rest_of(following: Option<Following>, quiet: bool, namespace: String) {
    let Some(following) = following else { return };
    let logs = kubectl_logs(&following.pod, &namespace);
    if !following.finish(FAREWELL).await {
        say(quiet, &format!("note: not all of the output could be shown; {logs} has it"));
    }
}

/// How people see a pod's output.
fn kubectl_logs(pod: &str, namespace: &str) -> String {
    match namespace {
        "default" => format!("kubectl logs {pod}"),
        namespace => format!("kubectl logs {pod} -n {namespace}"),
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

/// Says something about the job; its output goes elsewhere.
fn say(quiet: bool, line: &str) {
    if !quiet {
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}

#[cfg(test)]
mod tests;
