//! The agent: parent of the ranks, home of the rendezvous, and the one who acts.
//!
//! It waits for whatever comes next (a child's end, a signal, the guardian's death, a closed
//! output, the clock), turns it into an event for [`Course`], and carries out the orders that come
//! back. Nothing here waits for the user's terminal: all output goes through the output thread.

use std::collections::HashSet;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ronde_rendezvous::Server;
use ronde_trust::Secret;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitStatus, kill_process_group, set_parent_process_death_signal};

use crate::course::{Cause, Course, Event, Order, Parting};
use crate::descendants::{adopt_orphans, kill_all, reap};
use crate::ending::Ending;
use crate::gathering::Gathering;
use crate::memory::OutOfMemoryKills;
use crate::output::{Output, Tails};
use crate::plan::{Plan, Talk};
use crate::report::{self, Failed};
use crate::secret_file::SecretFile;
use crate::signals::Signals;
use crate::{Error, spawn, variables};

/// How often to look who has joined, while not everybody has.
const GATHERING_TICK: Duration = Duration::from_millis(200);

/// Runs the planned job; returns the status to exit with.
pub(crate) fn serve(plan: Plan, guardian: OwnedFd) -> u8 {
    match Agent::start(plan, guardian) {
        Ok(agent) => agent.run(),
        Err(error) => {
            kill_all(&HashSet::new(), |_, _| {});
            let _ = write!(std::io::stderr(), "{}", error.render());
            1
        }
    }
}

struct Agent {
    plan: Plan,
    guardian: OwnedFd,
    signals: Signals,
    output: Output,
    server: Server,
    /// Ranks open it by name for as long as we hold it.
    _secret_file: SecretFile,
    pids: Vec<Pid>,
    course: Course,
    gathering: Gathering,
    /// Nobody reads our output any more, and that has been dealt with.
    output_closed: bool,
    started: Instant,
    memory_before: OutOfMemoryKills,
}

impl Agent {
    fn start(mut plan: Plan, guardian: OwnedFd) -> Result<Agent, Error> {
        adopt_orphans()?;
        let heard = [libc::SIGCHLD, libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
        let signals = Signals::listen(&heard)?;
        let memory_before = OutOfMemoryKills::now();
        let secret = Secret::random()?;
        let secret_file = SecretFile::hold(&secret)?;
        let np = plan.request.np;
        let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let server = Server::start(anywhere, secret, np)?;

        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let is_set = |name: &str| std::env::var_os(name).is_some();
        let defaults = variables::defaults(is_set, cores, np);
        greet(&plan, &defaults)?;

        let (mut pids, mut sources) = (Vec::new(), Vec::new());
        for rank in 0..np {
            let timeout = plan.request.start_timeout;
            let mut variables =
                variables::for_rank(&plan.seats[rank], server.addr(), &secret_file.path(), timeout);
            variables.extend(defaults.iter().cloned());
            let (pid, pipes) = spawn::start(&mut plan, rank, variables)?;
            pids.push(pid);
            sources.extend(pipes);
        }
        let output = Output::start(sources, np, plan.request.timestamps)?;
        let agent = Agent {
            plan,
            guardian,
            signals,
            output,
            server,
            _secret_file: secret_file,
            pids,
            course: Course::new(np),
            gathering: Gathering::default(),
            output_closed: false,
            started: Instant::now(),
            memory_before,
        };
        for (rank, pid) in agent.pids.iter().enumerate() {
            let host = &agent.plan.seats[rank].host;
            let pid = pid.as_raw_nonzero();
            agent.note(Talk::Verbose, || format!("rank {rank} is process {pid} on {host}"));
        }
        Ok(agent)
    }

    fn run(mut self) -> u8 {
        while !self.course.is_over() {
            self.wait();
            for signal in self.guardians_signals() {
                self.handle(Event::Signal(signal));
            }
            for signal in self.signals.take() {
                match signal {
                    libc::SIGCHLD => self.reap(),
                    _ => self.handle(Event::Signal(signal)),
                }
            }
            if !self.output_closed && is_readable(self.output.closed()) {
                self.output_closed = true;
                self.handle(Event::OutputClosed);
            }
            self.handle(Event::Tick);
            if !self.gathering.is_complete() {
                let seen = self.gathering.look(self.started.elapsed(), &self.server.joined());
                if let Some(line) = seen {
                    self.note(Talk::Sparing, || line);
                }
            }
        }
        self.conclude()
    }

    /// Waits until there may be something to do.
    fn wait(&self) {
        let mut waits = vec![PollFd::new(&self.guardian, PollFlags::IN)];
        let closed = self.output.closed();
        if !self.output_closed {
            waits.push(PollFd::from_borrowed_fd(closed, PollFlags::IN));
        }
        waits.extend(self.signals.poll_fds());
        let gathering = (!self.gathering.is_complete()).then_some(GATHERING_TICK);
        let due = self.course.next_tick().map(|due| due.saturating_sub(self.started.elapsed()));
        let limit = gathering.into_iter().chain(due).min();
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        // Interrupted or not, everything is looked at again.
        let _ = poll(&mut waits, limit.as_ref());
    }

    /// The signals the guardian passes on. If it is gone, so are we, and everything below us.
    fn guardians_signals(&self) -> Vec<i32> {
        if !is_readable(self.guardian.as_fd()) {
            return Vec::new();
        }
        let mut bytes = [0; 64];
        match rustix::io::read(&self.guardian, &mut bytes) {
            Ok(0) => {
                kill_all(&HashSet::new(), |_, _| {});
                last_words("error: the launcher was killed; all ranks were stopped\n");
                // Without waiting for threads: one may be stuck on an output nobody reads.
                std::process::exit(1);
            }
            Ok(length) => bytes[..length].iter().map(|&signal| i32::from(signal)).collect(),
            Err(_) => Vec::new(),
        }
    }

    fn reap(&mut self) {
        let mut ended = Vec::new();
        reap(&mut |pid, status| ended.push((pid, status)));
        self.take_in(ended);
    }

    /// Records the ends of ranks; others are descendants that nobody else waited for.
    fn take_in(&mut self, ended: Vec<(Pid, WaitStatus)>) {
        for (pid, status) in ended {
            let Some(rank) = self.pids.iter().position(|known| *known == pid) else {
                continue;
            };
            if let Some(ending) = Ending::from_wait(status) {
                self.server.report(rank, ending.to_string());
                self.handle(Event::Ended { rank, ending });
            }
        }
    }

    fn handle(&mut self, event: Event) {
        let partings: Vec<Parting> = self
            .server
            .departures()
            .iter()
            .map(|departure| Parting {
                rank: departure.rank,
                at: departure.at.saturating_duration_since(self.started),
                orderly: departure.orderly,
            })
            .collect();
        for order in self.course.handle(self.started.elapsed(), event, &partings) {
            match order {
                Order::Signal(signal) => self.signal(signal),
                Order::Kill => {
                    let mut ended = Vec::new();
                    kill_all(&HashSet::new(), |pid, status| ended.push((pid, status)));
                    self.take_in(ended);
                }
            }
        }
    }

    fn signal(&self, signal: i32) {
        if signal == libc::SIGINT {
            self.note(Talk::Sparing, || {
                "interrupted: the ranks were told; Ctrl-C again kills them".to_owned()
            });
        }
        let Some(signal) = Signal::from_named_raw(signal) else {
            return;
        };
        for rank in self.course.running() {
            let _ = kill_process_group(self.pids[rank], signal);
            // A rank that somebody stopped would not hear it otherwise.
            let _ = kill_process_group(self.pids[rank], Signal::CONT);
        }
    }

    /// All ranks have ended: clean up, show the rest of their output, and say how it went.
    fn conclude(self) -> u8 {
        let left = kill_all(&HashSet::new(), |_, _| {});
        let gone = self.started.elapsed();
        // Nothing of ours can be orphaned any more, so whatever kills the guardian may take us
        // along, even while the user's pager holds up our last output.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        self.guardians_signals();
        let memory_after = OutOfMemoryKills::now();
        let loss = self.server.loss();
        let tails: Tails = self.output.finish();
        match self.course.cause() {
            None => 0,
            Some(Cause::Signal(signal)) => Ending::Killed(*signal).status(),
            Some(Cause::OutputClosed) => Ending::Killed(libc::SIGPIPE).status(),
            Some(Cause::Failure(failure)) => {
                let loss = loss.filter(|loss| loss.rank == Some(failure.rank));
                let last_lines: Vec<String> =
                    tails.get(failure.rank).into_iter().flatten().cloned().collect();
                let text = Failed {
                    failure,
                    host: &self.plan.seats[failure.rank].host,
                    hosts: &self.plan.hosts(),
                    ranks: self.plan.request.np,
                    lost_because: loss.as_ref().map(|loss| loss.reason.as_str()),
                    out_of_memory: memory_after.rose_since(self.memory_before),
                    last_lines: &last_lines,
                    stopped_after: gone.saturating_sub(failure.at),
                    left: &left,
                    output_folder: self.plan.request.output_folder.as_deref(),
                }
                .text();
                let _ = std::io::stderr().write_all(text.as_bytes());
                failure.status
            }
        }
    }

    fn note(&self, loudness: Talk, text: impl FnOnce() -> String) {
        if self.plan.request.talk >= loudness {
            self.output.note(text());
        }
    }
}

/// The first line, and what was set without being asked for.
fn greet(plan: &Plan, defaults: &[(&'static str, String)]) -> Result<(), Error> {
    if plan.request.talk < Talk::Normal {
        return Ok(());
    }
    let mut job = [0; 2];
    getrandom::fill(&mut job)
        .map_err(|error| std::io::Error::other(error.to_string()))
        .map_err(Error::system("name the job"))?;
    let job = format!("{:04x}", u16::from_be_bytes(job));
    let unicode = report::is_unicode(|name| std::env::var(name).ok());
    let mut text = report::header(plan.request.np, plan.hosts().len(), &job, unicode);
    text.push('\n');
    if plan.request.talk >= Talk::Verbose {
        for (name, value) in defaults {
            text.push_str(&format!("{name}={value} for every rank, since it was not set\n"));
        }
    }
    let _ = std::io::stderr().write_all(text.as_bytes());
    Ok(())
}

fn is_readable(descriptor: BorrowedFd<'_>) -> bool {
    let mut waits = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    matches!(poll(&mut waits, Some(&Timespec::default())), Ok(1..))
}

/// Says something if that is possible at once.
fn last_words(text: &str) {
    let stderr = rustix::stdio::stderr();
    let mut waits = [PollFd::new(&stderr, PollFlags::OUT)];
    if matches!(poll(&mut waits, Some(&Timespec::default())), Ok(1..)) {
        let _ = rustix::io::write(stderr, text.as_bytes());
    }
}
