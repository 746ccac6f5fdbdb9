//! One job on one host: what the driver asks for is done, what happens here is told.
//!
//! The loop waits for whatever comes next: a message, a child's end, a signal, the death of the guardian or of the
//! connection, silence. Nothing in it waits for the driver to read: output has its own thread, control messages are
//! queued. When the driver is gone, for whatever reason, so is everything below this process.

use std::collections::HashSet;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ronde_trust::Secret;
use rustix::process::{Pid, Signal, WaitStatus, kill_process_group};

use super::doors::{self, Numbers};
use super::mps::{Mps, Stage};
use super::pump::Pump;
use super::ranks::{self, Surroundings};
use super::scratch::Scratch;
use super::storage::{Storage, pieces};
use crate::descendants::{adopt_orphans, kill_all, reap};
use crate::doctor;
use crate::doorway::Doorway;
use crate::ending::Ending;
use crate::gpus::mps::{Problem as NoService, Service};
use crate::heard::Heard;
use crate::memory::OutOfMemoryKills;
use crate::probe::{self, Probe};
use crate::secret_file::SecretFile;
use crate::signals::{News, watch};
use crate::wire::{
    Carrier, Destination, FromAgent, Hello, Incoming, Outbox, Outgoing, Problem, Start, ToAgent, VERSION,
    Welcome,
};
use crate::{Error, fail, gpus, guardian};

/// How often to look whether the driver is still heard of.
const LOOK: Duration = Duration::from_millis(500);
/// How long the last words may take.
const PARTING: Duration = Duration::from_secs(2);
/// Until the driver says otherwise: it speaks first, right after the greeting.
const FIRST_PATIENCE: Duration = Duration::from_secs(30);
/// How often this end says that it is there.
pub(crate) const BEAT: Duration = Duration::from_millis(500);

/// What this agent was told about itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Post {
    pub(super) name: Option<String>,
    pub(super) slots: Option<usize>,
    pub(super) data_port: Option<u16>,
    pub(super) advertise: Option<String>,
    pub(super) interfaces: Vec<String>,
}

enum Event {
    Message(Box<ToAgent>),
    DriverGone(String),
    News(News),
    /// Whether NVIDIA's MPS, which was started, answers.
    MpsAnswered(bool),
    Drained,
}

/// Serves one driver until it is done or gone; returns the status to exit with.
pub(super) fn serve(
    incoming: Incoming,
    outgoing: Outgoing,
    post: Post,
    scratch: Scratch,
    guardian: OwnedFd,
) -> u8 {
    match Agent::start(incoming, outgoing, post, scratch, guardian) {
        Ok(agent) => agent.run(),
        Err(error) => fail(&error),
    }
}

struct Agent {
    post: Post,
    outbox: Outbox<FromAgent>,
    sender: Sender<Event>,
    events: Receiver<Event>,
    guardian: OwnedFd,
    heard: Arc<Heard>,
    lost_after: Duration,
    secret: Option<Secret>,
    probe: Option<Probe>,
    doorway: Option<Doorway>,
    storage: Storage,
    /// Ranks open it by name for as long as we hold it.
    secret_file: Option<SecretFile>,
    carrier: Carrier<FromAgent>,
    numbers: Numbers,
    pump: Option<Pump>,
    ranks: Vec<(usize, Pid)>,
    /// What lets ranks share GPUs side by side, where we started it.
    mps: Option<Mps>,
    memory_before: OutOfMemoryKills,
    /// What could not be killed.
    left: Vec<Pid>,
    concluding: bool,
    winding_up: bool,
    /// What to exit with.
    status: u8,
}

impl Agent {
    fn start(
        incoming: Incoming,
        outgoing: Outgoing,
        post: Post,
        scratch: Scratch,
        guardian: OwnedFd,
    ) -> Result<Agent, Error> {
        adopt_orphans()?;
        let (sender, events) = channel();
        let news = sender.clone();
        let heard_signals = [libc::SIGCHLD, libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
        let watched = guardian.try_clone().map_err(Error::system("copy a pipe"))?;
        watch(&heard_signals, watched, move |event| news.send(Event::News(event)).is_ok())?;
        let outbox = Outbox::start(outgoing, BEAT, || FromAgent::Beat)?;
        let heard = Arc::new(Heard::now());
        listen(incoming, Arc::clone(&heard), sender.clone())?;
        outbox.send(FromAgent::Hello(Hello {
            version: VERSION.to_owned(),
            name: post.name.clone().unwrap_or_else(host_name),
            slots: post.slots,
            advertise: post.advertise.clone(),
            clock: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i128),
        }));
        let carrier = Carrier::new(outbox.clone());
        let storage = Storage::new(scratch);
        Ok(Agent {
            post,
            outbox,
            sender,
            events,
            guardian,
            heard,
            lost_after: FIRST_PATIENCE,
            secret: None,
            probe: None,
            doorway: None,
            storage,
            secret_file: None,
            carrier,
            numbers: Numbers::default(),
            pump: None,
            ranks: Vec::new(),
            mps: None,
            memory_before: OutOfMemoryKills::now(),
            left: Vec::new(),
            concluding: false,
            winding_up: false,
            status: 0,
        })
    }

    fn run(mut self) -> u8 {
        loop {
            let quitting = self.mps.as_ref().and_then(Mps::patience);
            match self.events.recv_timeout(quitting.map_or(LOOK, |left| left.min(LOOK))) {
                Ok(Event::Message(message)) => {
                    if let Err(error) = self.handle(*message) {
                        self.refuse(&error);
                    }
                }
                // Who holds our input may know of the guardian's end, and close it, before we do.
                Ok(Event::DriverGone(_)) if guardian::is_gone(&self.guardian) => return self.orphaned(),
                Ok(Event::DriverGone(why)) => return self.abandon(&format!("the launcher is gone: {why}")),
                Ok(Event::News(News::Signal(libc::SIGCHLD))) => self.reap(),
                Ok(Event::News(News::Signal(signal))) => {
                    let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
                    self.outbox
                        .send(FromAgent::Leaving { why: format!("its agent was told to end by {name}") });
                    self.status = Ending::Killed(signal).status();
                    self.conclude();
                }
                Ok(Event::News(News::GuardianGone)) => return self.orphaned(),
                Ok(Event::MpsAnswered(answered)) => self.mps_answered(answered),
                Ok(Event::Drained) => {
                    self.outbox.send_output(FromAgent::Bye { left: self.left_pids() });
                    self.outbox.finish(self.lost_after);
                    return self.status;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.abandon("nothing can be heard any more"),
            }
            if self.mps.as_ref().and_then(Mps::patience).is_some_and(|left| left.is_zero()) {
                self.wind_up();
            }
            let silence = self.heard.silence();
            if silence > self.lost_after {
                return self
                    .abandon(&format!("nothing was heard from the launcher for {} s", silence.as_secs()));
            }
        }
    }

    fn handle(&mut self, message: ToAgent) -> Result<(), Error> {
        match message {
            ToAgent::Welcome(welcome) => self.welcome(welcome)?,
            ToAgent::Reach(targets) => {
                let secret = self.secret.clone().ok_or(Error::NotWelcome)?;
                let outbox = self.outbox.clone();
                thread::spawn(move || {
                    outbox.send(FromAgent::Attempts(probe::attempt(&secret, &targets, probe::PATIENCE)));
                });
            }
            ToAgent::LookAtGpus(looking) => {
                let outbox = self.outbox.clone();
                thread::spawn(move || outbox.send(FromAgent::Gpus(gpus::look(looking))));
            }
            ToAgent::Package { path, hash } => {
                let wanted = self.storage.look_for(&path, &hash)?;
                self.outbox.send(FromAgent::PackageWanted(wanted));
            }
            ToAgent::File { name, path, executable, bytes } => {
                self.storage.take(name, &path, executable, &bytes)?;
            }
            ToAgent::AllSent => {
                self.storage.complete_package()?;
                self.outbox.send(FromAgent::Stored);
            }
            ToAgent::StartMps { service, folder } => self.start_mps(&service, folder),
            ToAgent::Start(start) => self.start_ranks(&start)?,
            ToAgent::Signal(signal) => self.signal(signal),
            ToAgent::Kill => self.kill(),
            ToAgent::Credit { rank, stream, bytes } => {
                if let Some(pump) = &self.pump {
                    pump.credit(rank, stream, bytes);
                }
            }
            ToAgent::Carried(carried) => {
                if let Some((id, Destination::Rank(rank))) = self.carrier.take(carried) {
                    self.let_in(id, rank);
                }
            }
            ToAgent::Examine(question) => {
                let outbox = self.outbox.clone();
                thread::spawn(move || outbox.send(FromAgent::Examination(doctor::examine(question))));
            }
            ToAgent::Beat => {}
            ToAgent::Conclude => self.conclude(),
        }
        Ok(())
    }

    fn welcome(&mut self, welcome: Welcome) -> Result<(), Error> {
        let secret = Secret::from_hex(&welcome.secret)?;
        self.lost_after = welcome.lost_after;
        let named = if self.post.interfaces.is_empty() { &welcome.interfaces } else { &self.post.interfaces };
        let (mut interfaces, mut port, mut relay) = (Vec::new(), 0, None);
        if welcome.others {
            interfaces = probe::addresses(named)?;
            let probe = Probe::listen(secret.clone(), welcome.identity, welcome.ports.clone())?;
            port = probe.port();
            self.probe = Some(probe);
            relay = Some(doors::to_others(self.carrier.clone(), self.numbers.clone())?);
            let publish = self
                .post
                .data_port
                .map(|port| (SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), welcome.identity));
            self.doorway = Some(Doorway::open(secret.clone(), publish)?);
        }
        self.secret_file = Some(SecretFile::hold(&secret)?);
        self.secret = Some(secret);
        self.outbox.send(FromAgent::Reachable { interfaces, port, relay });
        Ok(())
    }

    /// Starts NVIDIA's MPS. The answer follows when it is known how that went: [`Agent::mps_answered`], [`Agent::mps_ended`].
    fn start_mps(&mut self, service: &Service, folder: Option<PathBuf>) {
        let folder = folder.unwrap_or_else(|| self.storage.for_mps());
        let (outbox, sender) = (self.outbox.clone(), self.sender.clone());
        let heard = move |line| {
            outbox.send(FromAgent::Note { verbose: true, text: format!("NVIDIA's MPS: {line}") });
        };
        let answered = move |answered| drop(sender.send(Event::MpsAnswered(answered)));
        match Mps::start(service, &folder, heard, answered) {
            Ok(mps) => self.mps = Some(mps),
            Err(problem) => self.outbox.send(FromAgent::Mps(Err(problem))),
        }
    }

    fn mps_answered(&mut self, answered: bool) {
        let Some(mps) = self.mps.as_mut().filter(|mps| mps.stage() == Stage::Starting) else { return };
        let answer = if answered { Ok(mps.ready()) } else { Err(mps.silent()) };
        self.outbox.send(FromAgent::Mps(answer));
    }

    fn mps_ended(&mut self, mps: &Mps, ending: Ending) {
        match mps.stage() {
            Stage::Starting => {
                self.outbox.send(FromAgent::Mps(Err(NoService::Ended(ending, mps.last_words()))));
            }
            // Those that already compute need only the server, so whether this is the end is theirs to say.
            Stage::Ready => self.outbox.send(FromAgent::Note {
                verbose: false,
                text: format!("warning: NVIDIA's MPS has ended ({ending}): ranks that share a GPU may fail"),
            }),
            Stage::Quitting(_) => self.wind_up(),
        }
    }

    fn start_ranks(&mut self, start: &Start) -> Result<(), Error> {
        // Nobody tries to reach this host any more.
        self.probe = None;
        let rendezvous = match &start.rendezvous {
            Some(address) => address.clone(),
            None => doors::to_rendezvous(self.carrier.clone(), self.numbers.clone())?.to_string(),
        };
        let task = match start.task {
            true => Some(self.storage.task_files(start.ranks.len())?),
            false => None,
        };
        let surroundings = Surroundings {
            rendezvous,
            secret_file: self.secret_file.as_ref().ok_or(Error::NotWelcome)?.path(),
            python_path: self.storage.python_path(),
            folder: self.storage.shipped(),
            doorway: self.doorway.as_ref().map(|doorway| doorway.name().to_owned()),
            task,
        };
        let started = ranks::start(start, &surroundings)?;
        for (verbose, text) in started.notes {
            self.outbox.send(FromAgent::Note { verbose, text });
        }
        self.ranks = started.ranks;
        let drained = self.sender.clone();
        let (results, outbox) = (self.storage.results(), self.outbox.clone());
        let ranks: Vec<usize> = self.ranks.iter().map(|(rank, _)| *rank).collect();
        let pump = Pump::start(started.sources, self.outbox.clone(), move || {
            for (rank, result) in ranks.into_iter().zip(results) {
                // What cannot be read is missing, which whoever waits for it notices.
                let _ = pieces(result, |bytes| outbox.send_output(FromAgent::Result { rank, bytes }));
            }
            let _ = drained.send(Event::Drained);
        })?;
        self.pump = Some(pump);
        let pids = self.ranks.iter().map(|(_, pid)| pid.as_raw_nonzero().get()).collect();
        self.outbox.send(FromAgent::Started { pids });
        Ok(())
    }

    /// A connection from a rank on a host that cannot reach ours.
    fn let_in(&self, id: u32, rank: usize) {
        let Some(doorway) = &self.doorway else { return };
        // If there is no pair, the rank that dialled is told by the end of its connection.
        if let Ok((carried, handed)) = doors::pair()
            && self.carrier.carry(id, &carried).is_ok()
        {
            doorway.hand(rank, handed);
        }
    }

    /// Says why the job cannot run here. The driver then ends it.
    fn refuse(&mut self, error: &Error) {
        self.kill();
        self.outbox.send(FromAgent::Refused(Problem { text: error.to_string(), hint: error.hint() }));
    }

    fn signal(&self, signal: i32) {
        let Some(signal) = Signal::from_named_raw(signal) else {
            return;
        };
        for (_, pid) in &self.ranks {
            let _ = kill_process_group(*pid, signal);
            // A rank that somebody stopped would not hear it otherwise.
            let _ = kill_process_group(*pid, Signal::CONT);
        }
    }

    fn reap(&mut self) {
        let mut ended = Vec::new();
        reap(&mut |pid, status| ended.push((pid, status)));
        // Nobody knows in which order they ended; who was killed did not end because of another.
        ended.sort_by_key(|(_, status)| !Ending::from_wait(*status).is_some_and(Ending::is_from_outside));
        self.tell(ended);
    }

    fn kill(&mut self) {
        // Its end is no news then.
        let mps = self.mps.take();
        self.kill_all_but(&HashSet::new());
        if mps.is_some_and(|mps| mps.patience().is_some()) {
            self.wind_up();
        }
    }

    fn kill_all_but(&mut self, spared: &HashSet<Pid>) {
        let mut ended = Vec::new();
        self.left = kill_all(spared, |pid, status| ended.push((pid, status)));
        self.tell(ended);
    }

    /// Tells the ends of ranks, and of MPS; others are descendants that nobody else waited for.
    fn tell(&mut self, ended: Vec<(Pid, WaitStatus)>) {
        for (pid, status) in ended {
            if let Some(ending) = Ending::from_wait(status)
                && let Some(mps) = self.mps.take_if(|mps| mps.pid() == pid)
            {
                self.mps_ended(&mps, ending);
                continue;
            }
            let Some(at) = self.ranks.iter().position(|(_, known)| *known == pid) else {
                continue;
            };
            if let Some(ending) = Ending::from_wait(status) {
                // Its number may soon be somebody else's.
                let (rank, _) = self.ranks.remove(at);
                let out_of_memory = OutOfMemoryKills::now().rose_since(self.memory_before);
                self.outbox.send(FromAgent::Ended { rank, ending, out_of_memory });
            }
        }
    }

    /// Ends everything here and lets the rest of the output out; [`Event::Drained`] comes after it.
    fn conclude(&mut self) {
        if std::mem::replace(&mut self.concluding, true) {
            return;
        }
        // MPS first loses its clients and then may go in peace; its end, or the end of our patience, leads on.
        if let Some(service) = self.mps.as_ref().filter(|mps| mps.stage() == Stage::Ready).map(Mps::pid) {
            self.kill_all_but(&HashSet::from([service]));
            if self.mps.as_mut().is_some_and(Mps::quit) {
                return;
            }
        }
        self.wind_up();
    }

    /// The second half of [`Agent::conclude`].
    fn wind_up(&mut self) {
        if std::mem::replace(&mut self.winding_up, true) {
            return;
        }
        self.kill();
        match &self.pump {
            Some(pump) => pump.finish(),
            None => {
                let _ = self.sender.send(Event::Drained);
            }
        }
    }

    /// The guardian is gone, so everything here ends while somebody can still see to it.
    fn orphaned(mut self) -> u8 {
        self.outbox.send(FromAgent::Leaving { why: "its guardian was killed".to_owned() });
        self.kill();
        self.outbox.finish(PARTING);
        1
    }

    /// The driver is gone, so nobody hears us any more, except perhaps through ssh's own log.
    fn abandon(mut self, why: &str) -> u8 {
        // Should the way there be open still, it hears that ranks end because of us, before they do.
        self.outbox.send(FromAgent::Leaving { why: why.to_owned() });
        self.kill();
        if !self.concluding {
            crate::last_words(&format!(
                "ronde agent on {}: {why}; all ranks here were stopped\n",
                host_name()
            ));
        }
        1
    }

    fn left_pids(&self) -> Vec<i32> {
        self.left.iter().map(|pid| pid.as_raw_nonzero().get()).collect()
    }
}

/// Reads messages until there are no more.
fn listen(mut incoming: Incoming, heard: Arc<Heard>, sender: Sender<Event>) -> Result<(), Error> {
    thread::Builder::new()
        .name("ronde-inbox".to_owned())
        .spawn(move || {
            loop {
                match incoming.receive::<ToAgent>() {
                    Ok(message) => {
                        heard.again();
                        if !matches!(message, ToAgent::Beat)
                            && sender.send(Event::Message(Box::new(message))).is_err()
                        {
                            return;
                        }
                    }
                    Err(error) => {
                        let _ = sender.send(Event::DriverGone(error.to_string()));
                        return;
                    }
                }
            }
        })
        .map(drop)
        .map_err(Error::system("start a thread"))
}

pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
