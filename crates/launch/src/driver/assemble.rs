//! From hosts to running ranks.
//!
//! Every host goes through the same steps at its own pace: connected, welcomed, supplied with what it lacks. Once all
//! know their addresses, each tries to reach the others; once it is clear who reaches whom how, all ranks are started.
//! Nobody waits in silence: after three seconds the hosts that are waited for are named, with what takes so long.

use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::{Duration, Instant};

use super::connect::{Gate, Program};
use super::member::{Member, Mps, Reachable, Way};
use super::sharing::Told;
use super::supply::Load;
use super::{Driver, Event, network, supply};
use crate::descendants::kill_all;
use crate::environment::{self, Place};
use crate::machine::Machine;
use crate::package::Package;
use crate::plan::Talk;
use crate::signals::News;
use crate::wire::{FromAgent, RankStart, Start, ToAgent, Welcome};
use crate::{Error, variables};

/// How long nothing is said while all goes well.
const SILENCE: Duration = Duration::from_secs(3);
/// How often something is said after that.
const AGAIN: Duration = Duration::from_secs(10);
/// How often to look at the clock.
const TICK: Duration = Duration::from_millis(200);
/// How long other hosts may take to complain, once one has.
const COMPANY: Duration = Duration::from_millis(1500);

/// Why no job came to be.
pub(super) enum Stop {
    /// What is wrong, host by host.
    Problems(Vec<Error>),
    /// Somebody told us to end.
    Signal(i32),
    /// The guardian is gone.
    GuardianGone,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Problems(vec![error])
    }
}

impl Driver {
    /// Brings all hosts to where their ranks run.
    pub(super) fn assemble(&mut self) -> Result<(), Stop> {
        let started = Instant::now();
        let package = self.attend_all()?;
        let mut progress = Progress::default();
        loop {
            match self.events.recv_timeout(TICK) {
                Ok(Event::Up { host, outbox, hello }) => {
                    outbox.send(ToAgent::Welcome(self.welcome(host)));
                    outbox.send(ToAgent::LookAtGpus(self.looking()));
                    let own = hello.advertise.is_none() && self.members[host].is_remote;
                    let member = &mut self.members[host];
                    member.outbox = Some(outbox.clone());
                    member.hello = Some(hello);
                    match package.as_ref().filter(|_| own) {
                        Some((package, hash)) => {
                            member.doing.set("it is looking for the Python package");
                            let path = package.root.to_string_lossy().into_owned();
                            outbox.send(ToAgent::Package { path, hash: hash.clone() });
                        }
                        None => self.supply(host, None)?,
                    }
                }
                Ok(Event::Said { host, message }) => match self.take_in(host, *message) {
                    Some(FromAgent::PackageWanted(wanted)) => {
                        let package = package.as_ref().filter(|_| wanted).map(|(package, _)| package.clone());
                        self.supply(host, package)?;
                    }
                    Some(message) => self.answered(host, message)?,
                    None => {}
                },
                Ok(Event::Failed { host, error }) => return Err(self.gather_problems(host, error)),
                Ok(Event::Gone { host, why }) => {
                    let error = Error::AgentLost { host: self.members[host].name.clone(), why };
                    return Err(self.gather_problems(host, error));
                }
                Ok(Event::News(News::Signal(signal))) => return Err(Stop::Signal(signal)),
                Ok(Event::News(News::GuardianGone)) => return Err(Stop::GuardianGone),
                Ok(Event::OutputClosed) => return Err(Stop::Signal(libc::SIGPIPE)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(Error::NotWelcome.into()),
            }
            if self.advance(&mut progress)? {
                self.introduce(&progress, started);
                return Ok(());
            }
            self.check_time(started, &mut progress)?;
        }
    }

    /// Starts the threads that connect to the hosts; returns the Python package, if hosts may lack it.
    fn attend_all(&mut self) -> Result<Option<(Package, String)>, Error> {
        let names: Vec<crate::Host> =
            self.members.iter().map(|m| crate::Host { name: m.name.clone(), slots: 1 }).collect();
        let dialled = self.request.waiting.is_some();
        let local = match dialled {
            true => vec![false; names.len()],
            false => Machine::here().among(&names),
        };
        let remote = !dialled && local.contains(&false);
        let program = remote.then(Program::own).transpose()?.map(Arc::new);
        let gate = Gate::new();
        for (host, local) in local.into_iter().enumerate() {
            let arrival = self.members[host].arrival.take();
            self.members[host].is_remote = !local;
            let way = match (arrival, &program) {
                (Some(arrival), _) => Way::Dialled(arrival),
                (None, Some(program)) if !local => Way::Ssh {
                    options: self.request.ssh.clone(),
                    program: Arc::clone(program),
                    gate: Arc::clone(&gate),
                },
                _ => Way::Local,
            };
            self.members[host].attend(host, way, self.sender.clone())?;
        }
        if !remote {
            return Ok(None);
        }
        let package = Package::own();
        let hash = package.as_ref().map(Package::hash).transpose();
        let hash = hash.map_err(Error::system("read the Python package, to send it to other hosts"))?;
        Ok(package.zip(hash))
    }

    fn welcome(&self, host: usize) -> Welcome {
        Welcome {
            secret: self.secret.to_hex().to_string(),
            identity: host as u64,
            lost_after: self.request.lost_after,
            ports: self.request.ports.clone(),
            interfaces: self.interfaces(),
            others: self.members.len() > 1,
        }
    }

    /// The network interfaces that may be used: those of the flag, or the one that Horovod's variable names.
    fn interfaces(&self) -> Vec<String> {
        match self.request.interfaces.as_slice() {
            [] => {
                std::env::var("HOROVOD_GLOO_IFACE").ok().filter(|name| !name.is_empty()).into_iter().collect()
            }
            named => named.to_vec(),
        }
    }

    /// Sends a host what it lacks, on a thread, since that may take its time.
    fn supply(&mut self, host: usize, package: Option<Package>) -> Result<(), Error> {
        let member = &mut self.members[host];
        let Some(outbox) = member.outbox.clone() else { return Ok(()) };
        let payload = self.request.task.as_ref().map(|task| task.payload.clone());
        let ship = if member.is_remote { self.request.ship.clone() } else { Vec::new() };
        let load = Load { package, payload, ship };
        if load.is_empty() {
            member.supplied = true;
            return Ok(());
        }
        member.doing.set("files are being sent to it");
        let sender = self.sender.clone();
        thread::Builder::new()
            .name("ronde-supply".to_owned())
            .spawn(move || {
                if let Err(error) = load.send(&outbox) {
                    let _ = sender.send(Event::Failed { host, error });
                }
            })
            .map(drop)
            .map_err(Error::system("start a thread"))
    }

    /// What hosts answer on the way.
    fn answered(&mut self, host: usize, message: FromAgent) -> Result<(), Stop> {
        let member = &mut self.members[host];
        match message {
            FromAgent::Reachable { interfaces, port, relay } => {
                member.reachable = Some(Reachable { interfaces, port, relay });
            }
            FromAgent::Attempts(attempts) => {
                member.attempts = Some(attempts);
                if member.gpus.is_none() {
                    member.doing.set("its GPUs are being counted");
                }
            }
            FromAgent::Gpus(gpus) => member.gpus = Some(gpus),
            FromAgent::Mps(answer) => member.mps = answer.map_or_else(Mps::Failed, Mps::Ready),
            FromAgent::Stored => member.supplied = true,
            FromAgent::Started { pids } => {
                member.running = true;
                let (ranks, name) = (member.ranks.clone(), member.name.clone());
                for (rank, pid) in ranks.zip(pids) {
                    self.note(Talk::Verbose, || format!("rank {rank} is process {pid} on {name}"));
                }
            }
            FromAgent::Refused(problem) => {
                let (text, hint) = (problem.text, problem.hint);
                let error = match self.members.len() {
                    1 => Error::Refused { text, hint },
                    _ => Error::Refused { text: format!("{}: {text}", self.members[host].name), hint },
                };
                return Err(self.gather_problems(host, error));
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes the next step that all hosts are ready for; whether the job runs.
    fn advance(&mut self, progress: &mut Progress) -> Result<bool, Stop> {
        if progress.plan.is_none() && self.members.iter().all(|member| member.reachable.is_some()) {
            if !progress.reach && self.members.len() > 1 {
                progress.reach = true;
                for host in 0..self.members.len() {
                    self.members[host].doing.set("it is trying to reach the others");
                    let targets = network::targets(&self.members, host);
                    if let Some(outbox) = &self.members[host].outbox {
                        outbox.send(ToAgent::Reach(targets));
                    }
                }
            }
            if self.members.len() == 1 || self.members.iter().all(|member| member.attempts.is_some()) {
                progress.plan = Some(network::choose(&self.members)?);
                for line in progress.plan.iter().flat_map(|plan| &plan.reasons) {
                    self.note(Talk::Verbose, || line.clone());
                }
                for line in progress.plan.iter().flat_map(|plan| &plan.warnings) {
                    self.note(Talk::Sparing, || line.clone());
                }
            }
        }
        if progress.plan.is_some()
            && progress.gpus.is_none()
            && self.members.iter().all(|member| member.supplied && member.gpus.is_some())
        {
            progress.gpus = Some(self.share_gpus()?);
        }
        if let (Some(plan), Some(gpus)) = (&progress.plan, &progress.gpus)
            && !progress.starting
            && self.are_served()?
        {
            progress.starting = true;
            for (host, member) in self.members.iter().enumerate() {
                member.doing.set("its ranks are being started");
                if let Some(outbox) = &member.outbox {
                    outbox.send(ToAgent::Start(Box::new(self.start_message(host, plan, &gpus[host]))));
                }
            }
        }
        Ok(self.members.iter().all(|member| member.running))
    }

    fn start_message(&self, host: usize, plan: &network::Choice, gpus: &Told) -> Start {
        let member = &self.members[host];
        let ports = self.request.ports.as_ref();
        let ports = ports
            .map(|ports| (variables::PORT_RANGE.to_owned(), format!("{}-{}", ports.start(), ports.end())));
        let mut everybody = self.request.variables.clone();
        everybody.extend(plan.variables[host].iter().cloned());
        everybody.extend(ports);
        let rank = |(index, rank): (usize, usize)| {
            let mut variables = variables::for_rank(&self.plan.seats[rank], self.request.start_timeout);
            variables.extend(gpus.variables(index));
            variables.extend(self.service_for(gpus));
            RankStart { rank, variables }
        };
        let place = if self.request.waiting.is_some() { Place::Container } else { Place::Host };
        let environment = match member.is_remote {
            true => environment::forwarded(std::env::vars_os(), place),
            false => Vec::new(),
        };
        let bytes = |text: &std::ffi::OsStr| text.as_encoded_bytes().to_vec();
        Start {
            command: self.request.command.iter().map(|word| bytes(word)).collect(),
            folder: std::env::current_dir().map(|folder| bytes(folder.as_os_str())).unwrap_or_default(),
            environment,
            variables: everybody,
            rendezvous: (!member.is_remote).then(|| self.server.addr().to_string()),
            ranks: member.ranks.clone().enumerate().map(rank).collect(),
            task: self.request.task.is_some(),
        }
    }

    /// Says which hosts take part and how they are reached.
    fn introduce(&self, progress: &Progress, started: Instant) {
        if self.members.len() > 1 {
            for line in progress.plan.iter().flat_map(|plan| network::table(&self.members, plan)) {
                self.note(Talk::Normal, || line);
            }
            let seconds = started.elapsed().as_secs_f64();
            self.note(Talk::Normal, || format!("  ready in {seconds:.1} s"));
        }
    }

    /// Says who is waited for, and gives up if the user set a limit.
    fn check_time(&self, started: Instant, progress: &mut Progress) -> Result<(), Stop> {
        let waited = started.elapsed();
        let behind = self.members.iter().map(Member::stage).min().unwrap_or_default();
        let waiting: Vec<(&str, &str)> = self
            .members
            .iter()
            .filter(|member| !member.running && member.stage() == behind)
            .map(|member| (member.name.as_str(), member.doing.get()))
            .collect();
        if let Some(limit) = self.request.start_timeout.filter(|limit| waited > *limit) {
            let late = |(host, doing): &(&str, &str)| Error::Late {
                host: (*host).to_owned(),
                limit,
                doing: (*doing).to_owned(),
            };
            return Err(Stop::Problems(waiting.iter().map(late).collect()));
        }
        let due = progress.said.map_or(SILENCE, |said: Duration| said + AGAIN);
        if waited >= due && self.members.len() > 1 {
            progress.said = Some(waited);
            let list: Vec<String> = waiting.iter().map(|(host, doing)| format!("{host} ({doing})")).collect();
            self.note(Talk::Sparing, || format!("waiting for {}", list.join(", ")));
        }
        for member in self.members.iter().filter(|member| member.outbox.is_some()) {
            let silence = member.heard.silence();
            if silence > self.request.lost_after {
                let why = format!("nothing was heard from it for {} s", silence.as_secs());
                return Err(Error::AgentLost { host: member.name.clone(), why }.into());
            }
        }
        Ok(())
    }

    /// Waits a moment for what other hosts have to complain about, so that the user hears of all at once.
    fn gather_problems(&mut self, host: usize, error: Error) -> Stop {
        let deadline = Instant::now() + COMPANY;
        let mut problems = vec![(host, error)];
        let mut open: Vec<usize> =
            (0..self.members.len()).filter(|h| *h != host && self.members[*h].outbox.is_none()).collect();
        while !open.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left) {
                Ok(Event::Failed { host, error }) => {
                    open.retain(|other| *other != host);
                    problems.push((host, error));
                }
                Ok(Event::Up { host, .. }) => open.retain(|other| *other != host),
                Ok(Event::News(News::Signal(signal))) => return Stop::Signal(signal),
                Ok(Event::News(News::GuardianGone)) => return Stop::GuardianGone,
                Ok(_) => {}
                Err(_) => break,
            }
        }
        problems.sort_by_key(|(host, _)| *host);
        Stop::Problems(problems.into_iter().map(|(_, error)| error).collect())
    }

    /// No job came to be: ends what was begun, and says why.
    pub(super) fn give_up(self, stop: Stop) -> u8 {
        self.tell_all(|| ToAgent::Conclude);
        let patience = Instant::now() + Duration::from_secs(2);
        let mut waited_for: Vec<usize> =
            (0..self.members.len()).filter(|host| self.members[*host].outbox.is_some()).collect();
        // Agents remove what was begun on their hosts.
        while !waited_for.is_empty() && !matches!(stop, Stop::GuardianGone) {
            let left = patience.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left) {
                Ok(Event::Gone { host, .. }) => waited_for.retain(|other| *other != host),
                Ok(Event::Said { host, message }) if matches!(*message, FromAgent::Bye { .. }) => {
                    waited_for.retain(|other| *other != host);
                }
                Ok(_) => {}
                Err(_) => break,
            }
        }
        kill_all(&std::collections::HashSet::new(), |_, _| {});
        drop(self.output.finish());
        match stop {
            Stop::Problems(problems) => {
                let text: String = problems.iter().map(Error::render).collect();
                supply::tell_failure(self.request.task.as_ref(), None, &text);
                let _ = std::io::stderr().write_all(text.as_bytes());
                1
            }
            Stop::Signal(signal) => crate::ending::Ending::Killed(signal).status(),
            Stop::GuardianGone => {
                let _ = std::fs::remove_dir_all(&self.mps_folder);
                crate::last_words("error: the launcher was killed before the job began\n");
                1
            }
        }
    }
}

/// How far the hosts are together.
#[derive(Default)]
struct Progress {
    /// When something was last said about who is waited for.
    said: Option<Duration>,
    /// Whether hosts have been asked to try each other.
    reach: bool,
    /// How they reach each other.
    plan: Option<network::Choice>,
    /// What their ranks are told about GPUs.
    gpus: Option<Vec<Told>>,
    /// Whether hosts have been told to start their ranks.
    starting: bool,
}
