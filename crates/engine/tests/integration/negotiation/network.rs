//! Ranks and the wires between them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use ronde_collective::types::DType;
use ronde_engine::negotiation::{Decision, Kind, Negotiator, Refused, Request, Settings, Ticket, Topology};

/// Numbers that look random and are the same in every run (SplitMix64).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// Frames and bytes that one node received.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Traffic {
    pub(crate) frames: usize,
    pub(crate) bytes: usize,
}

/// A simulated set of ranks. Positions and global ranks are the same here, except where a test wants it otherwise.
pub(crate) struct Network {
    pub(crate) nodes: Vec<Negotiator>,
    /// Frames under way from one position to another; emptied wires are removed.
    wires: BTreeMap<(usize, usize), VecDeque<Vec<u8>>>,
    pub(crate) decisions: Vec<Vec<Decision>>,
    /// The name of each ticket; tickets are unique over all ranks.
    pub(crate) names: HashMap<Ticket, String>,
    /// Positions that do nothing any more.
    stopped: Vec<bool>,
    /// Whether a child's frame waits on its wire while nothing wakes the node it is for.
    pub(crate) sleepy: bool,
    /// Positions that are awake and read everything, in a sleepy network.
    awake: Vec<bool>,
    /// Received by each position, from its own host and from others.
    pub(crate) near: Vec<Traffic>,
    pub(crate) far: Vec<Traffic>,
    host_of: Vec<usize>,
    pub(crate) now: Duration,
    pub(crate) dice: Dice,
}

impl Network {
    /// Hosts with these numbers of ranks; neighbours in rank are neighbours on a host.
    pub(crate) fn new(hosts: &[usize], settings: &Settings, seed: u64) -> Network {
        let mut next = 0;
        let hosts: Vec<Vec<usize>> = hosts
            .iter()
            .map(|&size| {
                next += size;
                (next - size..next).collect()
            })
            .collect();
        Network::laid_out((0..next).collect(), hosts, settings, seed)
    }

    pub(crate) fn laid_out(
        members: Vec<usize>,
        hosts: Vec<Vec<usize>>,
        settings: &Settings,
        seed: u64,
    ) -> Network {
        let size = members.len();
        let mut host_of = vec![0; size];
        for (host, positions) in hosts.iter().enumerate() {
            for &position in positions {
                host_of[position] = host;
            }
        }
        let host_names: Vec<String> = host_of.iter().map(|host| format!("host{host}")).collect();
        let node = |me| {
            let (members, hosts, host_names) = (members.clone(), hosts.clone(), host_names.clone());
            Negotiator::new(Topology { me, members, hosts, host_names }, settings.clone())
        };
        Network {
            nodes: (0..size).map(node).collect(),
            wires: BTreeMap::new(),
            decisions: vec![Vec::new(); size],
            names: HashMap::new(),
            stopped: vec![false; size],
            sleepy: false,
            awake: vec![false; size],
            near: vec![Traffic::default(); size],
            far: vec![Traffic::default(); size],
            host_of,
            now: Duration::ZERO,
            dice: Dice::new(seed),
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn stop(&mut self, position: usize) {
        self.stopped[position] = true;
    }

    /// Hands in requests as one submission.
    pub(crate) fn submit(&mut self, position: usize, requests: Vec<Request>) -> Result<(), Refused> {
        let first = self.names.len() as Ticket;
        let tickets: Vec<(Request, Ticket)> = requests.into_iter().zip(first..).collect();
        for (request, ticket) in &tickets {
            self.names.insert(*ticket, request.name.to_string());
        }
        self.nodes[position].submit_all(self.now, tickets)
    }

    /// Every rank hands in the same request.
    pub(crate) fn submit_everywhere(&mut self, request: &Request) {
        for position in 0..self.size() {
            self.submit(position, vec![request.clone()]).expect("nothing is in flight");
        }
    }

    /// One node's turn: it decides, sends and is heard.
    pub(crate) fn advance(&mut self, position: usize) {
        self.nodes[position].advance(self.now);
        self.collect(position);
    }

    /// Takes out what a node has to send and to say.
    pub(crate) fn collect(&mut self, position: usize) {
        let mut parent = None;
        while let Some((to, frame)) = self.nodes[position].outgoing() {
            assert!(!frame.is_empty(), "frames carry something");
            parent = parent.or(Some(to).filter(|&to| to < position));
            self.wires.entry((position, to)).or_default().push_back(frame);
        }
        if self.nodes[position].urges_parent() {
            self.awake[parent.expect("it is woken for a frame")] = true;
        }
        while let Some(decision) = self.nodes[position].next() {
            self.decisions[position].push(decision);
        }
    }

    /// Delivers the next frame of a random wire. Returns where, unless nothing is under way to a live node.
    pub(crate) fn deliver(&mut self) -> Option<usize> {
        let stopped = &self.stopped;
        self.wires.retain(|&(from, to), _| !stopped[to] && !stopped[from]);
        // Parents come before their children in every layout.
        let is_read = |&&(from, to): &&(usize, usize)| {
            !self.sleepy || from < to || self.awake[to] || self.nodes[to].wants_children()
        };
        let readable = self.wires.keys().filter(is_read).count();
        if readable == 0 {
            return None;
        }
        let at = self.dice.below(readable);
        let &(from, to) = self.wires.keys().filter(is_read).nth(at).expect("it is below their number");
        self.awake[to] = true;
        let wire = self.wires.get_mut(&(from, to)).expect("the key was just found");
        let frame = wire.pop_front().expect("empty wires are removed");
        if wire.is_empty() {
            self.wires.remove(&(from, to));
        }
        let traffic = if self.host_of[from] == self.host_of[to] { &mut self.near } else { &mut self.far };
        traffic[to].frames += 1;
        traffic[to].bytes += frame.len();
        self.nodes[to].receive(self.now, from, &frame).expect("nodes understand each other");
        Some(to)
    }

    /// Lets everybody work in random order until there is nothing more to do at this time.
    pub(crate) fn settle(&mut self) {
        self.awake = self.nodes.iter().map(|node| node.is_due(self.now)).collect();
        for position in 0..self.size() {
            if !self.stopped[position] {
                self.advance(position);
            }
        }
        while let Some(position) = self.deliver() {
            match self.dice.below(3) {
                // More may arrive before the node has its turn.
                0 if !self.wires.is_empty() => self.collect(position),
                _ => self.advance(position),
            }
            if self.wires.is_empty() {
                for position in
                    (0..self.size()).filter(|&position| !self.stopped[position]).collect::<Vec<_>>()
                {
                    self.advance(position);
                }
            }
        }
    }

    /// Lets time pass in the steps that nodes ask for, and everybody work at each.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.settle();
            let live = (0..self.size()).filter(|&position| !self.stopped[position]);
            let tick = live.filter_map(|position| self.nodes[position].next_tick()).min();
            match tick {
                Some(tick) if tick < end => self.now = self.now.max(tick) + Duration::from_millis(1),
                _ => break,
            }
        }
        self.now = end;
        self.settle();
    }

    /// What a position decided since the last call.
    pub(crate) fn take(&mut self, position: usize) -> Vec<Decision> {
        std::mem::take(&mut self.decisions[position])
    }

    /// The log as a rank saw it, one word an entry, to compare between ranks: tensors of batches, names of failures.
    pub(crate) fn story(&self, position: usize) -> Vec<String> {
        let told = |ticket: &Ticket| self.names[ticket].clone();
        let word = |decision: &Decision| match decision {
            Decision::Run(batch) => {
                let mut names = Vec::new();
                for item in &batch.items {
                    if let Some(ticket) = item.ticket {
                        assert_eq!(told(&ticket), *item.name, "a ticket is for the tensor it was given for");
                    }
                    names.push(format!("{}{:?}", item.name, item.shape));
                }
                Some(format!("{:?} {:?} {}", batch.kind, batch.dtype, names.join("+")))
            }
            Decision::Fail { tickets, .. } => {
                Some(format!("fail {:?}", tickets.iter().map(told).collect::<Vec<_>>()))
            }
            Decision::Done { ticket } => Some(format!("done {}", told(ticket))),
            Decision::Joined { last, .. } => Some(format!("joined, last {last}")),
            Decision::AddSet { id, ranks, .. } => Some(format!("set {id} {ranks:?}")),
            Decision::RemoveSet { id, .. } => Some(format!("no set {id}")),
            Decision::Turn { set, number } => Some(format!("turn {number} of set {set}")),
            Decision::ShutDown { text } => Some(format!("down {text}")),
            Decision::Stalled(_) | Decision::Inquire | Decision::Note(_) => None,
        };
        self.decisions[position].iter().filter_map(word).collect()
    }

    /// How often each ticket of a rank was decided.
    pub(crate) fn ends(&self, position: usize) -> HashMap<Ticket, usize> {
        let mut ends = HashMap::new();
        for decision in &self.decisions[position] {
            let tickets: Vec<Ticket> = match decision {
                Decision::Run(batch) => batch.items.iter().filter_map(|item| item.ticket).collect(),
                Decision::Fail { tickets, .. } => tickets.clone(),
                Decision::Done { ticket }
                | Decision::Joined { ticket, .. }
                | Decision::AddSet { ticket, .. }
                | Decision::RemoveSet { ticket, .. } => vec![*ticket],
                _ => Vec::new(),
            };
            for ticket in tickets {
                *ends.entry(ticket).or_insert(0) += 1;
            }
        }
        ends
    }

    /// Nothing is under way and nobody waits.
    pub(crate) fn assert_quiet(&self) {
        assert!(self.wires.is_empty(), "nothing is under way");
        for (position, node) in self.nodes.iter().enumerate() {
            assert!(node.is_idle(), "position {position} still waits for {:?}", node.pending());
        }
    }
}

/// An allreduce of four floats.
pub(crate) fn allreduce(name: &str) -> Request {
    Request::new(Kind::Allreduce, name, DType::F32, [4])
}

/// Settings without a clock.
pub(crate) fn timeless() -> Settings {
    Settings { stall_warning: None, ..Settings::default() }
}
