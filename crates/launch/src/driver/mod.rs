//! The driver: one a job. It brings the hosts together, serves the rendezvous, shows all output, decides, and reports.
//!
//! `connect.rs` gets a connection to each host's agent, `waiting.rs` takes those that dial in. `assemble.rs` goes from
//! there to running ranks: addresses are tried, what a host lacks is sent, ranks are started. `supervise.rs` watches
//! until all have ended, and says how it went. What happens on the hosts comes here as events, one after the other, and
//! nothing in the loop that takes them ever waits for a host or for the user's terminal.

mod assemble;
mod bootstrap;
mod connect;
mod exchange;
mod member;
mod network;
mod sharing;
mod supervise;
mod supply;
mod tail;
mod waiting;

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use ronde_rendezvous::Server;
use ronde_trust::Secret;

use crate::course::{self, Course, Order, Parting};
use crate::descendants::{adopt_orphans, kill_all};
use crate::ending::Ending;
use crate::output::{Output, Style};
use crate::plan::{Plan, Request, Talk, open_files};
use crate::signals::{News, watch};
use crate::wire::{FromAgent, Hello, Outbox, ToAgent};
use crate::{Error, Host, fail, report};
pub(crate) use connect::{Connection, Gate, Line, Program, SENDING, by_ssh, local};
use exchange::Exchange;
use member::Member;
pub(crate) use member::{Arrival, greet};

/// Something that happened.
enum Event {
    /// A host's agent has said hello.
    Up { host: usize, outbox: Outbox<ToAgent>, hello: Hello },
    /// A host could not be reached.
    Failed { host: usize, error: Error },
    /// An agent said something.
    Said { host: usize, message: Box<FromAgent> },
    /// The connection to an agent has ended.
    Gone { host: usize, why: String },
    /// A signal, or the end of the guardian.
    News(News),
    /// Nobody reads our output any more.
    OutputClosed,
}

/// Runs a job; returns the status to exit with.
///
/// `mps_folder` is where NVIDIA's MPS of this machine is to keep its sockets. Our guardian removes it, and without one we do;
/// those who work there may be killed by us or by it before they could.
pub(crate) fn drive(request: Request, mps_folder: PathBuf, guardian: OwnedFd) -> u8 {
    let task = request.task.clone();
    let status = Driver::prepare(request, mps_folder, guardian).and_then(Driver::run);
    status.unwrap_or_else(|error| {
        kill_all(&HashSet::new(), |_, _| {});
        match error {
            Error::Interrupted { signal } => Ending::Killed(signal).status(),
            error => {
                supply::tell_failure(task.as_ref(), None, &error.render());
                fail(&error)
            }
        }
    })
}

struct Driver {
    request: Request,
    /// Where NVIDIA's MPS of this machine keeps its sockets, if it has to be started.
    mps_folder: PathBuf,
    plan: Plan,
    members: Vec<Member>,
    sender: Sender<Event>,
    events: Receiver<Event>,
    secret: Secret,
    server: Server,
    exchange: Exchange,
    output: Output,
    course: Course,
    results: supply::Results,
    /// The ranks after whose end the kernel had killed processes for memory.
    out_of_memory: HashSet<usize>,
    started: Instant,
}

impl Driver {
    fn prepare(request: Request, mps_folder: PathBuf, guardian: OwnedFd) -> Result<Driver, Error> {
        let started = Instant::now();
        adopt_orphans()?;
        let (sender, events) = channel();
        let news = sender.clone();
        let signals = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
        watch(&signals, guardian, move |event| news.send(Event::News(event)).is_ok())?;

        let (hosts, arrivals) = match &request.waiting {
            Some(waiting) => waiting::gather(waiting, &request, &events)?,
            None => (named_hosts(&request), Vec::new()),
        };
        let np = if request.np == 0 { hosts.iter().map(|host| host.slots).sum() } else { request.np };
        let plan = Plan::make(&hosts, np)?;
        let files = match &request.output_folder {
            Some(folder) => open_files(folder, np)?,
            None => Vec::new(),
        };
        let results = supply::Results::into_folder(request.task.as_ref())?;
        let style = Style { labels: request.labels, timestamps: request.timestamps, files };
        let closed = sender.clone();
        let output = Output::start(np, style, move || {
            let _ = closed.send(Event::OutputClosed);
        })?;
        let secret = Secret::random()?;
        let server = Server::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), secret.clone(), np)?;
        let members = Member::all(&plan, arrivals);
        let course = Course::new(np, request.grace).led(request.led);
        Ok(Driver {
            request,
            mps_folder,
            plan,
            members,
            sender,
            events,
            secret,
            server,
            exchange: Exchange::default(),
            output,
            course,
            results,
            out_of_memory: HashSet::new(),
            started,
        })
    }

    fn run(mut self) -> Result<u8, Error> {
        self.greet()?;
        match self.assemble() {
            Ok(()) => Ok(self.supervise()),
            Err(problems) => Ok(self.give_up(problems)),
        }
    }

    fn np(&self) -> usize {
        self.plan.seats.len()
    }

    fn note(&self, loudness: Talk, text: impl FnOnce() -> String) {
        if self.request.talk >= loudness {
            self.output.note(text());
        }
    }

    /// The first line.
    fn greet(&self) -> Result<(), Error> {
        self.output.hosts(self.plan.seats.iter().map(|seat| seat.host.clone()).collect());
        let mut job = [0; 2];
        getrandom::fill(&mut job)
            .map_err(|error| Error::system("name the job")(std::io::Error::other(error.to_string())))?;
        let job = format!("{:04x}", u16::from_be_bytes(job));
        let unicode = report::is_unicode(|name| std::env::var(name).ok());
        self.note(Talk::Normal, || report::header(self.np(), self.members.len(), &job, unicode));
        Ok(())
    }

    /// Takes in what agents say at any time; gives back what only some phase understands.
    fn take_in(&mut self, host: usize, message: FromAgent) -> Option<FromAgent> {
        match message {
            FromAgent::Output { rank, stream, bytes } if self.has(host, rank) => {
                if let Some(outbox) = &self.members[host].outbox {
                    self.output.show(rank, stream, bytes, outbox.clone());
                }
            }
            FromAgent::Note { verbose, text } => {
                let loudness = if verbose { Talk::Verbose } else { Talk::Sparing };
                self.note(loudness, || format!("{}: {text}", self.members[host].name));
            }
            FromAgent::Carried(carried) => self.carry(host, carried),
            FromAgent::Result { rank, bytes } if self.has(host, rank) => {
                if let Err(error) = self.results.take(rank, &bytes) {
                    self.note(Talk::Quiet, || format!("error: {error}"));
                }
            }
            FromAgent::Ended { rank, ending, out_of_memory } if self.has(host, rank) => {
                self.ended(rank, ending, out_of_memory);
            }
            FromAgent::Leaving { why } => self.lose(host, why),
            FromAgent::Bye { left } => {
                let member = &mut self.members[host];
                member.left = left;
                member.said_goodbye = true;
            }
            FromAgent::Beat => {}
            other => return Some(other),
        }
        None
    }

    /// Whether a rank is one of this host's: agents speak for their own only.
    fn has(&self, host: usize, rank: usize) -> bool {
        self.members[host].ranks.contains(&rank)
    }

    fn ended(&mut self, rank: usize, ending: Ending, out_of_memory: bool) {
        if out_of_memory {
            self.out_of_memory.insert(rank);
        }
        self.server.report(rank, ending.to_string());
        self.handle(course::Event::Ended { rank, ending });
    }

    /// A host is gone, and its ranks with it.
    fn lose(&mut self, host: usize, why: String) {
        let member = &mut self.members[host];
        if std::mem::replace(&mut member.lost, true) {
            return;
        }
        member.outbox = None;
        let (ranks, name) = (member.ranks.clone(), member.name.clone());
        for rank in ranks.clone() {
            self.server.report(rank, format!("its host {name} was lost: {why}"));
        }
        self.handle(course::Event::HostLost { host, ranks, why });
    }

    fn handle(&mut self, event: course::Event) {
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
                Order::Signal(signal) => self.tell_all(|| ToAgent::Signal(signal)),
                Order::Kill => self.tell_all(|| ToAgent::Kill),
            }
        }
    }

    fn tell_all(&self, message: impl Fn() -> ToAgent) {
        for outbox in self.members.iter().filter_map(|member| member.outbox.as_ref()) {
            outbox.send(message());
        }
    }
}

/// The hosts that were named, or this machine.
fn named_hosts(request: &Request) -> Vec<Host> {
    let this_machine = || vec![Host { name: "localhost".to_owned(), slots: request.np }];
    request.hosts.clone().unwrap_or_else(this_machine)
}
