//! One host of the job, as the driver knows it, and the thread that attends to it.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::Event;
use super::connect::{self, Connection, Gate, Line, Program};
use crate::Error;
use crate::agent::BEAT;
use crate::gpus::{Gpus, mps};
use crate::heard::Heard;
use crate::plan::{Plan, Ssh};
use crate::probe::{Attempt, Interface};
use crate::wire::{FromAgent, Hello, Incoming, Outbox, ToAgent, VERSION, WireError};

/// What is known about a host.
pub(super) struct Member {
    pub(super) name: String,
    pub(super) ranks: Range<usize>,
    /// Whether it is another machine than this.
    pub(super) is_remote: bool,
    /// An agent that has dialled in and is not attended to yet.
    pub(super) arrival: Option<Arrival>,
    /// Where messages to its agent go, while there is one.
    pub(super) outbox: Option<Outbox<ToAgent>>,
    pub(super) hello: Option<Hello>,
    pub(super) heard: Arc<Heard>,
    /// What takes time at the moment.
    pub(super) doing: Doing,
    /// How it may be reached, once it is known.
    pub(super) reachable: Option<Reachable>,
    /// How its attempts to reach the others went.
    pub(super) attempts: Option<Vec<Attempt>>,
    /// Which GPUs it has, once it is known.
    pub(super) gpus: Option<Gpus>,
    /// The service that lets its ranks share GPUs side by side.
    pub(super) mps: Mps,
    /// Whether everything that had to be sent is there.
    pub(super) supplied: bool,
    pub(super) running: bool,
    pub(super) said_goodbye: bool,
    pub(super) lost: bool,
    /// Processes there that could not be killed.
    pub(super) left: Vec<i32>,
}

/// How a host may be reached.
#[derive(Clone, Debug)]
pub(super) struct Reachable {
    pub(super) interfaces: Vec<Interface>,
    /// Where it answers those who try.
    pub(super) port: u16,
    /// Where its ranks enter connections that we carry.
    pub(super) relay: Option<SocketAddr>,
}

/// NVIDIA's MPS on a host, as far as the job starts it.
#[derive(Debug, Default)]
pub(super) enum Mps {
    #[default]
    NotAsked,
    Asked,
    /// The variables by which ranks find it.
    Ready(Vec<(String, String)>),
    Failed(mps::Problem),
}

/// An agent that has dialled in and said hello.
pub(crate) struct Arrival {
    pub(crate) incoming: Incoming,
    pub(crate) outbox: Outbox<ToAgent>,
    pub(crate) hello: Hello,
    pub(crate) heard: Arc<Heard>,
}

/// What takes time at the moment; copies share it.
#[derive(Clone)]
pub(super) struct Doing(Arc<Mutex<&'static str>>);

impl Doing {
    fn new(doing: &'static str) -> Doing {
        Doing(Arc::new(Mutex::new(doing)))
    }

    pub(super) fn set(&self, doing: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = doing;
    }

    pub(super) fn get(&self) -> &'static str {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a host is reached.
pub(super) enum Way {
    Local,
    Ssh { options: Ssh, program: Arc<Program>, gate: Arc<Gate> },
    Dialled(Arrival),
}

impl Member {
    /// The hosts of a plan; `arrivals`, if there are any, are those of its agents.
    pub(super) fn all(plan: &Plan, arrivals: Vec<Arrival>) -> Vec<Member> {
        let mut arrivals = arrivals.into_iter();
        plan.shares
            .iter()
            .map(|share| {
                let arrival = arrivals.next();
                Member {
                    name: share.host.clone(),
                    ranks: share.ranks.clone(),
                    is_remote: false,
                    heard: arrival.as_ref().map_or_else(|| Arc::new(Heard::now()), |a| Arc::clone(&a.heard)),
                    arrival,
                    outbox: None,
                    hello: None,
                    doing: Doing::new("it has not been asked yet"),
                    reachable: None,
                    attempts: None,
                    gpus: None,
                    mps: Mps::NotAsked,
                    supplied: false,
                    running: false,
                    said_goodbye: false,
                    lost: false,
                    left: Vec::new(),
                }
            })
            .collect()
    }

    /// How far it is on its way to running ranks: those that are furthest behind are the ones waited for.
    pub(super) fn stage(&self) -> usize {
        let steps = [
            self.outbox.is_some(),
            self.reachable.is_some(),
            self.supplied,
            self.attempts.is_some(),
            self.gpus.is_some(),
            self.running,
        ];
        steps.iter().take_while(|done| **done).count()
    }

    /// Starts the thread that connects to this host and then listens to it.
    pub(super) fn attend(&self, host: usize, way: Way, sender: Sender<Event>) -> Result<(), Error> {
        let (name, heard, doing) = (self.name.clone(), Arc::clone(&self.heard), self.doing.clone());
        thread::Builder::new()
            .name("ronde-host".to_owned())
            .spawn(move || {
                let connected = match way {
                    Way::Dialled(arrival) => Ok((arrival, Line::Dialled)),
                    Way::Local => connect::local().and_then(|connection| greet(connection, &name, &heard)),
                    Way::Ssh { options, program, gate } => {
                        connect::by_ssh(&options, &name, &program, &gate, |what| doing.set(what))
                            .and_then(|connection| greet(connection, &name, &heard))
                    }
                };
                match connected {
                    Ok((arrival, line)) => {
                        doing.set("its agent is getting ready");
                        listen(host, arrival, line, &sender);
                    }
                    // Nobody listens only if the driver is gone.
                    Err(error) => drop(sender.send(Event::Failed { host, error })),
                }
            })
            .map(drop)
            .map_err(Error::system("start a thread"))
    }
}

/// Waits for the agent's first words.
pub(crate) fn greet(
    connection: Connection,
    name: &str,
    heard: &Arc<Heard>,
) -> Result<(Arrival, Line), Error> {
    let Connection { mut incoming, outgoing, mut line } = connection;
    let hello = match incoming.receive() {
        Ok(FromAgent::Hello(hello)) => hello,
        Ok(_) => {
            return Err(Error::AgentLost { host: name.to_owned(), why: "it did not say hello".to_owned() });
        }
        Err(error) => {
            let why = line.why_it_ended(&error.to_string());
            return Err(Error::AgentLost { host: name.to_owned(), why });
        }
    };
    if hello.version != VERSION {
        return Err(Error::OtherVersion { host: name.to_owned(), version: hello.version });
    }
    heard.again();
    let outbox = Outbox::start(outgoing, BEAT, || ToAgent::Beat)?;
    Ok((Arrival { incoming, outbox, hello, heard: Arc::clone(heard) }, line))
}

/// Passes on what the agent says, until it says no more.
fn listen(host: usize, arrival: Arrival, mut line: Line, sender: &Sender<Event>) {
    let Arrival { mut incoming, outbox, hello, heard } = arrival;
    heard.again();
    if sender.send(Event::Up { host, outbox, hello }).is_err() {
        return;
    }
    let why = loop {
        match incoming.receive::<FromAgent>() {
            Ok(message) => {
                heard.again();
                if !matches!(message, FromAgent::Beat)
                    && sender.send(Event::Said { host, message: Box::new(message) }).is_err()
                {
                    return;
                }
            }
            Err(WireError::Closed) => break line.why_it_ended("its connection was closed"),
            Err(error) => break line.why_it_ended(&error.to_string()),
        }
    };
    let _ = sender.send(Event::Gone { host, why });
}
