//! Decides what runs when: requests of all ranks become one agreed log of batches.
//!
//! A pure state machine: no threads, sockets or clocks. One [`Negotiator`] per process set and rank; it takes requests,
//! frames from its neighbours and the time, and gives out frames and [`Decision`]s. Nodes form a tree: every member
//! speaks to the relay of its host (its lowest member there), every relay to the leader (the lowest member of the set),
//! and the log comes down the same way, so the leader's load grows with hosts, not with ranks.
//!
//! - Going up (`relay`): who asks for what, counted per host (`ledger`). In the steady state that is a run of slot
//!   numbers of the response cache (`cache`), a few bytes for a step of training.
//! - At the leader (`leader`): what everybody asked for is checked (`check`), waits for its group (`groups`) and is
//!   fused (`fusion`). Its order is the order for all.
//! - Coming down (`messages`): the log. Everybody applies it in order, so all caches are equal.
//!
//! Batches on devices must start in one order on all ranks, across process sets that share ranks. Those of other sets take a
//! *turn* in the log of the set of all ranks: the set's leader asks for it, and its members start the batch there.
//!
//! Two things differ from what one might expect. A hit whose slot went to another name while it was on its way is not
//! asked again: nodes remember what slots held until no hit can mean it any more. And how many rows an allgather or
//! alltoall moves is not negotiated: ranks exchange that when they run it, so it never makes a cached name new.
//!
//! The caller, on every wake-up: [`receive`](Negotiator::receive) everything that has arrived from anybody, then one
//! [`advance`](Negotiator::advance), then take [`outgoing`](Negotiator::outgoing) and [`next`](Negotiator::next) until
//! they are empty. One that only wants to pass messages on may leave out `advance` and ask
//! [`is_due`](Negotiator::is_due) instead. Time is a duration since any fixed moment, and never runs backwards.

mod apply;
mod cache;
mod check;
mod fusion;
mod groups;
mod leader;
mod ledger;
mod member;
mod messages;
mod parts;
mod relay;
mod report;
mod request;
mod seat;
mod sets;
mod stall;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ronde_collective::types::{DType, ReduceOp};

use cache::Cache;
use leader::Leader;
use ledger::Ledger;
use member::{InFlight, Own, Where};
use messages::{Down, Downward, Reader, Up, Upward};
use request::Facts;
use seat::{Neighbour, Seat};
use stall::Watch;

pub use fusion::rounded_threshold;
pub use report::{Missing, StallReport, Wait};
pub use request::{Device, GroupTag, Kind, Request, Ticket};
pub use seat::Topology;
pub use stall::PATIENCE;

/// What can be set; the same on all ranks.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Bytes that one batch holds at most, see [`rounded_threshold`]; 0 means that nothing is fused.
    pub fusion_threshold: usize,
    /// Names that are remembered; 0 means none.
    pub cache_capacity: usize,
    /// Groups, and single tensors too, never share a batch with others.
    pub disable_group_fusion: bool,
    /// After this time of waiting for a rank people are told; none or zero: never.
    pub stall_warning: Option<Duration>,
    /// After this time of waiting for a rank the job ends; none or zero: never, and never without a warning time.
    pub stall_shutdown: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            fusion_threshold: 128 << 20,
            cache_capacity: 1024,
            disable_group_fusion: false,
            stall_warning: Some(Duration::from_secs(60)),
            stall_shutdown: None,
        }
    }
}

/// Something that all ranks agreed on, or that the caller should know.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Run this now.
    Run(Batch),
    /// These requests failed; the job goes on.
    Fail {
        /// This rank's requests.
        tickets: Vec<Ticket>,
        /// Why, with what each rank asked for; the same on all ranks.
        text: String,
    },
    /// Everybody reached the barrier.
    Done {
        /// The barrier.
        ticket: Ticket,
    },
    /// All ranks have joined.
    Joined {
        /// The join.
        ticket: Ticket,
        /// Global rank of the one that joined last.
        last: usize,
    },
    /// A process set was registered.
    AddSet {
        /// The request.
        ticket: Ticket,
        /// Global ranks of its members.
        ranks: Vec<usize>,
        /// Its number.
        id: u32,
    },
    /// A process set was removed.
    RemoveSet {
        /// The request.
        ticket: Ticket,
        /// The number it had.
        id: u32,
    },
    /// The members of a process set start their batch on devices of this number now; whoever is one of them goes on with
    /// this log when it has.
    Turn {
        /// The set.
        set: u32,
        /// Which of its batches on devices, from 0.
        number: u64,
    },
    /// On the leader only: some ranks wait for others. To be logged.
    Stalled(StallReport),
    /// Others wait for this rank: [`Negotiator::answer`] what it does instead.
    Inquire,
    /// Something worth a line in the log, once.
    Note(String),
    /// The job ends. What is in flight is to be failed with this text.
    ShutDown {
        /// Why.
        text: String,
    },
}

/// Tensors that travel together.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// What is to be done.
    pub kind: Kind,
    /// Type of an element.
    pub dtype: DType,
    /// How contributions are combined, where they are.
    pub op: ReduceOp,
    /// Factor before the reduction.
    pub prescale: f64,
    /// Factor after the reduction.
    pub postscale: f64,
    /// Global rank of a broadcast's root.
    pub root: u32,
    /// Where the tensors live.
    pub device: Device,
    /// The tensors, in the same order on all ranks.
    pub items: Vec<Item>,
}

/// One tensor of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// This rank's request; none if it has joined and takes part without data.
    pub ticket: Option<Ticket>,
    /// The tensor's name.
    pub name: Arc<str>,
    /// The extents agreed on. Of allgather and alltoall the first is 0: each rank has its own.
    pub shape: Arc<[u64]>,
}

/// A request of this rank that is not decided yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The caller's number for it.
    pub ticket: Ticket,
    /// Its name.
    pub name: Arc<str>,
    /// What is to be done.
    pub kind: Kind,
}

/// Requests that were not taken; other ranks know nothing of them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// One request a name.
    #[error(
        "{kind} \"{name}\": a tensor with the same name is already being processed. Wait for it, or use a different \
         tensor name"
    )]
    InFlight {
        /// What was to be done.
        kind: Kind,
        /// The name.
        name: Arc<str>,
    },
    /// Who has joined has no more data.
    #[error("{kind} \"{name}\": this rank has joined and cannot ask for anything until all have joined")]
    Joined {
        /// What was to be done.
        kind: Kind,
        /// The name.
        name: Arc<str>,
    },
    /// A group must be handed in as a whole.
    #[error("group \"{name}\" should have {of} tensors, not {given}")]
    TornGroup {
        /// The group.
        name: Arc<str>,
        /// Tensors it should have.
        of: u32,
        /// Tensors that were handed in together.
        given: u32,
    },
    /// After [`Decision::ShutDown`] or [`Negotiator::fail_all`].
    #[error("the job has been shut down")]
    Ended,
}

/// A frame that makes no sense. Its sender and this node no longer agree on anything, so the set cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a negotiation message from {sender} makes no sense: {what}")]
pub struct Garbled {
    sender: String,
    what: &'static str,
}

/// One rank's part in deciding what a process set does.
#[derive(Debug)]
pub struct Negotiator {
    seat: Seat,
    settings: Settings,
    cache: Cache,
    own: Own,
    /// What a relay counts: the members of its host.
    host: Option<Ledger>,
    leader: Option<Leader>,
    up: Upward,
    down: Downward,
    decisions: VecDeque<Decision>,
    watch: Watch,
    /// Batches on devices in the log so far.
    device_batches: u64,
    ended: bool,
}

impl Negotiator {
    /// A node at its start. All nodes of a set start together, with the same settings.
    pub fn new(topology: Topology, settings: Settings) -> Negotiator {
        let seat = Seat::new(topology);
        let mut decisions = VecDeque::new();
        let warning = settings.stall_warning.filter(|time| !time.is_zero());
        let mut shutdown = settings.stall_shutdown.filter(|time| !time.is_zero());
        if let (Some(warning), Some(end)) = (warning, shutdown)
            && end < warning
        {
            shutdown = None;
            if seat.is_leader() {
                decisions.push_back(Decision::Note(format!(
                    "the stall shutdown time ({} s) is ignored because it is below the stall warning time ({} s)",
                    end.as_secs(),
                    warning.as_secs()
                )));
            }
        }
        Negotiator {
            cache: Cache::new(settings.cache_capacity, !seat.children.is_empty()),
            own: Own::default(),
            host: seat.is_relay().then(|| Ledger::new(seat.own_host())),
            leader: seat.is_leader().then(|| Leader::new(&seat, settings.cache_capacity)),
            up: Upward::default(),
            down: Downward::default(),
            decisions,
            watch: Watch::new(warning, shutdown),
            device_batches: 0,
            ended: false,
            seat,
            settings,
        }
    }

    /// Takes requests of this rank, all of them or none.
    pub fn submit_all(&mut self, now: Duration, requests: Vec<(Request, Ticket)>) -> Result<(), Refused> {
        self.refuse(&requests)?;
        for (request, ticket) in requests {
            let asked = self.submit(request, ticket);
            debug_assert_eq!(asked, Ok(()), "what is not refused can be asked for");
        }
        self.clock(now);
        Ok(())
    }

    /// Takes in a frame from a neighbour in the tree, by its position.
    pub fn receive(&mut self, now: Duration, from: usize, frame: &[u8]) -> Result<(), Garbled> {
        if self.ended {
            return Ok(());
        }
        let read = self.read(from, frame);
        self.clock(now);
        read.map_err(|what| self.garbled(from, what))
    }

    fn garbled(&self, from: usize, what: &'static str) -> Garbled {
        let sender = match (self.seat.members.get(from), self.seat.host_names.get(from)) {
            (Some(rank), Some(host)) => format!("rank {rank} ({host})"),
            _ => format!("position {from}, which does not exist"),
        };
        Garbled { sender, what }
    }

    /// Decides what is ready, if this is the leader, and looks at the clock. What piled up since the last call is fused,
    /// so call it once per wake-up.
    pub fn advance(&mut self, now: Duration) {
        self.clock(now);
        self.decide();
        self.look_for_stalls(now);
        if self.cache.is_crowded() {
            self.forget_past();
        }
    }

    /// Asks, as the leader of another process set, when that may start its batch on devices of this number. To be asked of
    /// the set of all ranks, in the order of the numbers.
    pub fn ask_turn(&mut self, now: Duration, set: u32, number: u64) -> Result<(), Garbled> {
        self.clock(now);
        if self.ended {
            return Ok(());
        }
        self.report(Up::Turn { set, number }).map_err(|what| self.garbled(self.seat.me, what))
    }

    /// How many batches on devices have come in the log. Those of the set of all ranks are in order with everything in it; the
    /// others need a turn each.
    pub fn device_batches(&self) -> u64 {
        self.device_batches
    }

    /// Whether the parent must be woken for what [`Negotiator::outgoing`] gave since this was last asked, even if it does not
    /// [want its children](Negotiator::wants_children).
    pub fn urges_parent(&mut self) -> bool {
        self.up.take_urge()
    }

    /// The next frame to send and the position it is for.
    pub fn outgoing(&mut self) -> Option<(usize, Vec<u8>)> {
        if let Some(parent) = self.seat.parent
            && let Some(frame) = self.up.take()
        {
            return Some((parent, frame));
        }
        self.down.take(&self.seat.children)
    }

    /// The next decision, in the order of the log.
    #[expect(clippy::should_implement_trait, reason = "the queue fills up again, which iterators should not")]
    pub fn next(&mut self) -> Option<Decision> {
        self.decisions.pop_front()
    }

    /// Whether [`Negotiator::next`] has something to give.
    pub fn has_decided(&self) -> bool {
        !self.decisions.is_empty()
    }

    /// Whether it is of use to wake this node when a child writes. Nothing can be complete before this rank has asked
    /// for it too, so an idle one may sleep until [`Negotiator::next_tick`]; its parent must always wake it.
    pub fn wants_children(&self) -> bool {
        let is_asking = self.leader.as_ref().is_some_and(|leader| leader.stalls.is_asking());
        !self.seat.children.is_empty() && (!self.own.is_idle() || is_asking || self.watch.is_listening())
    }

    /// Has the leader remember who asks for what, as long as somebody wants to see it.
    pub fn listen(&mut self, on: bool) {
        let own = self.host.as_mut().filter(|_| self.leader.is_some());
        for ledger in own.into_iter().chain(self.leader.as_mut().map(|leader| &mut leader.hosts)) {
            ledger.listen(on);
        }
    }

    /// On the leader: names and the positions that asked for them since this was last called. Of other hosts the leader hears
    /// once all their members have asked.
    pub fn take_heard(&mut self) -> Vec<(Arc<str>, usize)> {
        let Some(leader) = &mut self.leader else { return Vec::new() };
        let own_host = self.seat.host();
        let mut heard = self.host.as_mut().map(Ledger::take_heard).unwrap_or_default();
        let others = leader.hosts.take_heard();
        heard.extend(others.into_iter().filter(|&(_, at)| self.seat.host_of(at) != own_host));
        heard
    }

    /// This rank's requests in flight, by ticket; a join is not among them.
    pub fn pending(&self) -> Vec<Pending> {
        let named = self.own.all().filter_map(|(place, request)| {
            let name = match place {
                Where::Slot(slot) => &self.cache.facts(slot)?.name,
                Where::Name(name) => name,
            };
            Some(Pending { ticket: request.ticket, name: Arc::clone(name), kind: request.kind })
        });
        let mut pending: Vec<Pending> = named.collect();
        pending.sort_unstable_by_key(|pending| pending.ticket);
        pending
    }

    /// Whether this rank waits for nobody: it has nothing in flight and has not joined.
    pub fn is_idle(&self) -> bool {
        self.own.is_idle()
    }

    /// Ends this node's part: everything in flight here, a join included. Frames that come later are ignored.
    pub fn fail_all(&mut self) -> Vec<Ticket> {
        self.ended = true;
        self.own.drain()
    }

    fn refuse(&self, requests: &[(Request, Ticket)]) -> Result<(), Refused> {
        if self.ended {
            return Err(Refused::Ended);
        }
        let mut joined = self.own.joined.is_some();
        let mut names = HashSet::new();
        let mut groups: HashMap<&GroupTag, u32> = HashMap::new();
        for (request, _) in requests {
            let Request { kind, ref name, .. } = *request;
            if joined {
                return Err(Refused::Joined { kind, name: name.clone() });
            }
            joined = kind == Kind::Join;
            let is_double = requests.len() > 1 && !names.insert(name);
            if is_double || self.own.holds(name, self.cache.slot_of(name)) {
                return Err(Refused::InFlight { kind, name: name.clone() });
            }
            if let Some(tag) = &request.group {
                *groups.entry(tag).or_default() += 1;
            }
        }
        match groups.into_iter().find(|(tag, given)| tag.of != *given) {
            Some((tag, given)) => Err(Refused::TornGroup { name: tag.name.clone(), of: tag.of, given }),
            None => Ok(()),
        }
    }

    fn submit(&mut self, request: Request, ticket: Ticket) -> Result<(), &'static str> {
        if request.kind == Kind::Join {
            self.own.joined = Some(ticket);
            return self.join();
        }
        let in_flight = InFlight { ticket, kind: request.kind, rows: request.rows() };
        if let Some(slot) = self.cache.slot_of(&request.name)
            && self.cache.facts(slot).is_some_and(|facts| facts.cover(&request))
        {
            self.own.put_slot(slot, in_flight);
            return self.ask_slot(slot);
        }
        let facts = Arc::new(Facts::of(request));
        self.own.put_name(Arc::clone(&facts.name), in_flight);
        self.ask(facts)
    }

    fn read(&mut self, from: usize, frame: &[u8]) -> Result<(), &'static str> {
        let mut reader = Reader::new(frame);
        match self.seat.neighbour(from).ok_or("it is no neighbour in the tree")? {
            Neighbour::Parent => {
                while let Some(message) = reader.next::<Down>()? {
                    self.apply(&message)?;
                }
                if !self.seat.children.is_empty() {
                    self.down.frame().extend_from_slice(frame);
                }
                Ok(())
            }
            Neighbour::Member(place) => {
                while let Some(message) = reader.next::<Up>()? {
                    self.member_says(place, message)?;
                }
                Ok(())
            }
            Neighbour::Relay(host) => {
                while let Some(message) = reader.next::<Up>()? {
                    self.relay_says(host, message)?;
                }
                Ok(())
            }
        }
    }
}
