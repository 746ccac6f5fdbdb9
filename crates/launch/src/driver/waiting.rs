//! Agents that dial in: containers and pods that were started first and wait for a launcher.
//!
//! The port is open to strangers until all agents are there. Each connection proves the secret before anything it says
//! is looked at, on a thread of its own and within seconds, so that one that is silent holds up nobody. If this machine
//! is to have ranks as well, its agent is started here and stands in line with the others.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use ronde_trust::{Role, Sealed, Secret};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Event;
use super::connect::local;
use super::member::{Arrival, greet};
use crate::agent::BEAT;
use crate::heard::Heard;
use crate::plan::{Request, Talk, Waiting};
use crate::signals::News;
use crate::wire::{FromAgent, Incoming, Outbox, Outgoing, PURPOSE, ToAgent, VERSION};
use crate::{Error, Host, last_words};

/// How long a connection may take to prove itself.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How many may be at it at a time.
const UNPROVEN: usize = 64;
/// How often to look whether enough have come.
const TICK: Duration = Duration::from_millis(200);
/// How long nothing is said, and how often something is after that.
const SILENCE: Duration = Duration::from_secs(3);
const AGAIN: Duration = Duration::from_secs(30);

/// Waits until enough agents have come; returns them as hosts, by name.
pub(super) fn gather(
    waiting: &Waiting,
    request: &Request,
    events: &Receiver<Event>,
) -> Result<(Vec<Host>, Vec<Arrival>), Error> {
    let secret = Secret::read_file(&waiting.secret_file)?;
    let problem = |source| Error::Listen { address: waiting.listen, source };
    let listener = TcpListener::bind(waiting.listen).map_err(problem)?;
    listener.set_nonblocking(true).map_err(problem)?;
    let address = listener.local_addr().map_err(problem)?;
    if request.talk >= Talk::Normal {
        last_words(&format!(
            "waiting for {} at {address}\n",
            crate::report::counted(waiting.agents, "agent")
        ));
    }
    let (sender, arrivals) = channel();
    let unproven = Arc::new(AtomicUsize::new(0));
    let (started, mut said) = (Instant::now(), None);
    let mut here: Vec<Arrival> = waiting.own.iter().map(own).collect::<Result<_, _>>()?;
    let wanted = waiting.agents + here.len();
    while here.len() < wanted {
        accept(&listener, &secret, &sender, &unproven);
        here.extend(arrivals.try_iter());
        // Those that left again are not waited with.
        here.retain(|arrival| !arrival.incoming.is_closed());
        match events.recv_timeout(Duration::ZERO) {
            Ok(Event::News(News::Signal(signal))) => return Err(Error::Interrupted { signal }),
            Ok(Event::News(News::GuardianGone)) => return Err(Error::Interrupted { signal: libc::SIGKILL }),
            Ok(_) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
        let waited = started.elapsed();
        if let Some(limit) = request.start_timeout.filter(|limit| waited > *limit) {
            let names = here.iter().map(|arrival| arrival.hello.name.clone()).collect();
            return Err(Error::TooFewAgents { wanted, here: names, limit, address });
        }
        if waited >= said.map_or(SILENCE, |said: Duration| said + AGAIN) && request.talk >= Talk::Sparing {
            said = Some(waited);
            let names: Vec<&str> = here.iter().map(|arrival| arrival.hello.name.as_str()).collect();
            let have = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let missing = crate::report::counted(wanted - here.len(), "more agent");
            last_words(&format!("waiting for {missing} at {address} (here so far: {have})\n"));
        }
    }
    here.sort_by(|one, other| one.hello.name.cmp(&other.hello.name));
    Ok((hosts(&here, request.np, wanted), here))
}

/// The agent of this machine, for the ranks that run here.
fn own(host: &Host) -> Result<Arrival, Error> {
    let (mut arrival, _) = greet(local()?, &host.name, &Arc::new(Heard::now()))?;
    arrival.hello.name.clone_from(&host.name);
    arrival.hello.slots = Some(host.slots);
    Ok(arrival)
}

/// Takes in whoever dials within a moment.
fn accept(listener: &TcpListener, secret: &Secret, sender: &Sender<Arrival>, unproven: &Arc<AtomicUsize>) {
    let limit = Timespec::try_from(TICK).ok();
    let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], limit.as_ref());
    while let Ok((stream, _)) = listener.accept() {
        if unproven.load(Ordering::Relaxed) >= UNPROVEN {
            continue;
        }
        unproven.fetch_add(1, Ordering::Relaxed);
        let (secret, sender, count) = (secret.clone(), sender.clone(), Arc::clone(unproven));
        let admit = move || {
            if let Some(arrival) = admit(stream, &secret) {
                let _ = sender.send(arrival);
            }
            count.fetch_sub(1, Ordering::Relaxed);
        };
        if thread::Builder::new().name("ronde-admit".to_owned()).spawn(admit).is_err() {
            unproven.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Lets a connection prove itself and say hello. A stranger is turned away without a word.
fn admit(stream: TcpStream, secret: &Secret) -> Option<Arrival> {
    stream.set_nonblocking(false).ok()?;
    stream.set_nodelay(true).ok()?;
    let sealed = Sealed::open_within(stream, secret, Role::Listener, PURPOSE, HANDSHAKE).ok()?;
    let (reader, writer) = sealed.into_split().ok()?;
    let mut incoming = Incoming::Sealed(reader);
    let Ok(FromAgent::Hello(hello)) = incoming.receive() else { return None };
    if hello.version != VERSION {
        let (name, other) = (&hello.name, &hello.version);
        last_words(&format!(
            "warning: {name} runs ronde {other}, not {VERSION}; its agent was turned away\n"
        ));
        return None;
    }
    let outbox = Outbox::start(Outgoing::Sealed(writer), BEAT, || ToAgent::Beat).ok()?;
    Some(Arrival { incoming, outbox, hello, heard: Arc::new(Heard::now()) })
}

/// The agents as hosts: each with the slots it has, or its share of what is asked for; each with a name of its own, since
/// containers are often called alike.
fn hosts(arrivals: &[Arrival], np: usize, agents: usize) -> Vec<Host> {
    let share = np.div_ceil(agents.max(1)).max(1);
    let mut hosts: Vec<Host> = Vec::with_capacity(arrivals.len());
    for arrival in arrivals {
        let base = plain(&arrival.hello.name);
        let taken = |name: &String| hosts.iter().any(|host| host.name == *name);
        let numbered = (2..).map(|number| format!("{base}-{number}"));
        let name =
            std::iter::once(base.clone()).chain(numbered).find(|name| !taken(name)).unwrap_or(base.clone());
        hosts.push(Host { name, slots: arrival.hello.slots.unwrap_or(share) });
    }
    hosts
}

/// A name that can stand in a list of hosts, whatever an agent calls itself.
fn plain(name: &str) -> String {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    let plain: String = name.chars().map(|letter| if fits(letter) { letter } else { '-' }).collect();
    if plain.is_empty() { "agent".to_owned() } else { plain }
}
