//! The links between this rank and all others, and what is known about their health.
//!
//! A rank first listens ([`Listening`]), which gives its [`Card`]; the caller carries cards between ranks
//! (this crate knows no rendezvous). [`Listening::connect`] then finds out *by trying* who shares memory
//! with whom, and starts one attendant thread that accepts connections, receives shared memory from
//! neighbours and watches them die. Groups open what they need on top: shared segments inside a host
//! ([`crate::host`]), TCP wires across ([`crate::net`]), the latter only when first used.
//!
//! Everything a blocked collective must learn from outside goes through [`Shared`]: a loss poisons the
//! shared segments (waking sleepers in the kernel) and rings the alarm (waking those who poll sockets).

mod attendant;
mod doorway;
mod neighbour;
mod partition;
mod ports;
mod routes;
mod seating;
mod shared;

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use ronde_trust::Secret;
use serde::{Deserialize, Serialize};

pub use partition::partition;
pub use routes::{Route, Routes};
pub(crate) use seating::Seating;
pub(crate) use shared::Shared;

use self::doorway::Doorway;
use crate::control::{Bell, Sleeper, Tree};
use crate::error::{Error, Result};
use crate::group::Group;

/// Asked now and then while waiting: should the wait be given up (Ctrl-C)?
pub type Interrupt = Arc<dyn Fn() -> bool + Send + Sync>;

/// How this rank reaches another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkKind {
    /// It is this rank.
    Itself,
    /// Through memory both map.
    SharedMemory,
    /// Through the network.
    Tcp,
}

/// What other ranks need to know to reach this one. Travels through the caller's rendezvous.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Card {
    /// What the host is called: in messages, and in the [`Routes`] to it.
    pub host: String,
    /// Identity of the running kernel: ranks under different ones never try to share memory.
    kernel: String,
    /// Name of the abstract unix socket, which is only reachable inside one network namespace.
    unix: [u8; 24],
    /// Where TCP wires are accepted.
    pub(crate) tcp: SocketAddr,
}

/// A rank that has opened its doors but knows nobody yet.
pub struct Listening {
    tcp: TcpListener,
    unix: UnixListener,
    card: Card,
    routes: Routes,
    doorway: Option<String>,
    patience: Duration,
}

/// How long a rank that does not answer is waited for, unless said otherwise.
const PATIENCE: Duration = Duration::from_secs(30);

impl Listening {
    /// Listens on `address`, at a port of the given range or any free one, and on an unguessable abstract unix socket.
    pub fn open(address: IpAddr, range: Option<RangeInclusive<u16>>) -> Result<Listening> {
        let tcp = ports::listen(address, range)?;
        let unix = neighbour::name()?;
        let listener = std::os::unix::net::SocketAddr::from_abstract_name(unix)
            .and_then(|name| UnixListener::bind_addr(&name))
            .map_err(Error::system("listening on a unix socket"))?;
        let kernel = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map_err(Error::system("reading the kernel's boot id"))?;
        let card = Card {
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            kernel: kernel.trim().to_owned(),
            unix,
            tcp: tcp.local_addr().map_err(Error::system("reading the listening address"))?,
        };
        let routes = Routes::default();
        Ok(Listening { tcp, unix: listener, card, routes, doorway: None, patience: PATIENCE })
    }

    /// Calls this rank's host by this name instead of the system's.
    pub fn named(mut self, host: String) -> Listening {
        self.card.host = host;
        self
    }

    /// Reaches ranks of other hosts by these routes. A host that has none: the higher rank dials the address of the card.
    pub fn routed(mut self, routes: Routes) -> Listening {
        self.routes = routes;
        self
    }

    /// Also takes connections that the host's doorway (an abstract unix socket of this name) hands over.
    pub fn at_doorway(mut self, name: String) -> Listening {
        self.doorway = Some(name);
        self
    }

    /// Keeps this rank from sharing memory with ranks of another label, as if they were on another host.
    pub fn apart(mut self, label: &str) -> Listening {
        self.card.kernel.push_str(label);
        self
    }

    /// Gives up a rank that does not answer after this time: while a wire to it is opened, and when its host has gone silent.
    pub fn patient(mut self, patience: Duration) -> Listening {
        self.patience = patience;
        self
    }

    /// This rank's card.
    pub fn card(&self) -> &Card {
        &self.card
    }

    /// Connects to everybody. `cards` is in rank order; `exchange` carries bytes from every rank to every
    /// rank (in rank order) and is called exactly once.
    pub fn connect(
        self,
        rank: usize,
        cards: Vec<Card>,
        secret: Secret,
        interrupted: Interrupt,
        exchange: impl FnOnce(Vec<u8>) -> Result<Vec<Vec<u8>>>,
    ) -> Result<Fabric> {
        // Entered before anybody knows this rank, so that what is for it does not have to wait there.
        let doorway = match &self.doorway {
            Some(name) => Some(Doorway::enter(name, &secret, rank)?),
            None => None,
        };
        let shared = Arc::new(Shared::new(rank, cards, secret, self.routes, self.patience, interrupted)?);
        shared.remember_listeners([self.tcp.as_raw_fd(), self.unix.as_raw_fd()]);
        shared.remember_listeners(doorway.iter().map(|doorway| doorway.0.as_raw_fd()));
        let attendant = attendant::start(shared.clone(), self.tcp, self.unix, doorway)?;
        let mut fabric = Fabric { shared, hosts: Vec::new(), attendant: Some(attendant) };
        let mut reached = vec![0u8; fabric.size()];
        for (peer, mark) in reached.iter_mut().enumerate().take(rank) {
            *mark = u8::from(neighbour::try_dial(&fabric.shared, peer)?);
        }
        let answers = exchange(reached)?;
        let links = partition::Links::from_answers(&answers)?;
        for peer in rank + 1..fabric.size() {
            if links.linked(rank, peer) {
                fabric.shared.await_neighbour(peer)?;
            }
        }
        fabric.hosts = partition(fabric.size(), |a, b| links.linked(a, b));
        Ok(fabric)
    }
}

/// The connected whole; see the module's text.
pub struct Fabric {
    shared: Arc<Shared>,
    hosts: Vec<Vec<usize>>,
    attendant: Option<JoinHandle<()>>,
}

impl Fabric {
    /// A job of one rank, which needs no links.
    pub fn alone(interrupted: Interrupt) -> Result<Fabric> {
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let card = Card { host: String::new(), kernel: String::new(), unix: [0; 24], tcp: nowhere };
        let secret = Secret::random().map_err(|error| Error::Invalid(error.to_string()))?;
        let shared = Arc::new(Shared::new(0, vec![card], secret, Routes::default(), PATIENCE, interrupted)?);
        Ok(Fabric { shared, hosts: vec![vec![0]], attendant: None })
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.shared.rank
    }

    /// Ranks in the job.
    pub fn size(&self) -> usize {
        self.shared.cards.len()
    }

    /// How each rank is reached.
    pub fn links(&self) -> Vec<LinkKind> {
        let own = self.hosts.iter().find(|host| host.contains(&self.rank()));
        (0..self.size())
            .map(|peer| match own {
                _ if peer == self.rank() => LinkKind::Itself,
                Some(host) if host.contains(&peer) => LinkKind::SharedMemory,
                _ => LinkKind::Tcp,
            })
            .collect()
    }

    /// All sockets of this fabric: a forked child must close them, or it hides this rank's death from the others.
    pub fn sockets(&self) -> Vec<RawFd> {
        self.shared.sockets()
    }

    /// Forms a group of the given ranks (ascending, this one among them). Collective over its members, who must all
    /// give the same `id`, not used for another living group; returns once all are there.
    pub fn group(&self, id: u64, members: &[usize]) -> Result<Group> {
        Group::form(&self.shared, &self.hosts, id, members)
    }

    /// Ranks by host, hosts ordered by their first rank.
    pub fn hosts(&self) -> &[Vec<usize>] {
        &self.hosts
    }

    /// The name of the host that a rank runs on.
    pub fn host_of(&self, rank: usize) -> String {
        self.shared.host_of(rank)
    }

    /// Tells the ranks on this host that this one is about to end, and why, so that they fail with that reason.
    pub fn fail(&self, reason: &str) {
        self.shared.failing(reason);
    }

    /// Builds the tree that control messages of the given ranks climb (ascending, this one among them). Collective over
    /// its members, who must all give the same `id` (below 2⁶³, not used for another living tree; a group may have the
    /// same). Pipes are open when it returns, but others may still be on their way.
    pub fn control(&self, id: u64, members: &[usize]) -> Result<(Tree, Sleeper, Bell)> {
        Tree::form(&self.shared, &self.hosts, id, members)
    }

    /// Tells this rank's collectives that a rank is lost (learnt from outside, for example from the
    /// rendezvous). Whatever is under way ends with an error that names it.
    pub fn lose(&self, rank: Option<usize>, host: &str, reason: &str) {
        self.reporter()(rank, host, reason);
    }

    /// An error that names the rank which was lost first, if one was.
    pub fn check_loss(&self) -> Result<()> {
        self.shared.check_loss()
    }

    /// The first loss, if it becomes known within moments: ask before blaming a rank that has left in order, since it may
    /// have given up because of another.
    pub fn loss_soon(&self) -> Option<Error> {
        self.shared.loss_soon()
    }

    /// [`Fabric::lose`] as a function that can be handed to another thread and outlives the fabric harmlessly.
    pub fn reporter(&self) -> impl Fn(Option<usize>, &str, &str) + Send + 'static {
        let shared = Arc::downgrade(&self.shared);
        move |rank, host, reason| {
            if let Some(shared) = shared.upgrade() {
                shared.lose(match rank {
                    Some(rank) => Error::PeerLost { rank, host: host.to_owned(), reason: reason.to_owned() },
                    None => Error::RendezvousLost(reason.to_owned()),
                });
            }
        }
    }
}

impl Drop for Fabric {
    /// Says goodbye, so that others see a rank that left rather than one that died.
    fn drop(&mut self) {
        self.shared.goodbye();
        if let Some(attendant) = self.attendant.take() {
            let _ = attendant.join();
        }
    }
}

/// How long a handshake may take before a connection is given up.
const HANDSHAKE: Duration = Duration::from_secs(10);
