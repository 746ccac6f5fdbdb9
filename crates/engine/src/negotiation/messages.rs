//! What travels between the nodes of the tree.
//!
//! A frame is messages one after the other, so frames can be joined by appending; a relay passes the log down byte for
//! byte. Slots and positions travel as runs of neighbours: a step that asks for the same 160 cached tensors in the
//! same order as the step before is one run. All nodes are of one build, so nothing here is versioned.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::request::{Facts, Kind};

/// Neighbouring numbers: the first and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Run {
    first: u32,
    length: u32,
}

impl Run {
    pub(super) fn one(number: u32) -> Run {
        Run { first: number, length: 1 }
    }

    pub(super) fn first(self) -> u32 {
        self.first
    }

    /// The numbers of the run, provided that all lie below a limit: the length comes from outside.
    pub(super) fn below(self, limit: usize) -> Option<std::ops::Range<u32>> {
        let end = self.first.checked_add(self.length)?;
        (end as usize <= limit).then_some(self.first..end)
    }

    /// Takes in a number if it is the next one.
    pub(super) fn grow(&mut self, number: u32) -> bool {
        let is_next = self.first.checked_add(self.length) == Some(number);
        self.length += u32::from(is_next);
        is_next
    }

    /// Adds a number to a list of runs, growing the last one if it is its neighbour.
    pub(super) fn append(runs: &mut Vec<Run>, number: u32) {
        let grown = runs.last_mut().is_some_and(|run| run.grow(number));
        if !grown {
            runs.push(Run::one(number));
        }
    }

    /// The runs of some numbers, in their order.
    pub(super) fn of(numbers: impl IntoIterator<Item = usize>) -> Vec<Run> {
        let mut runs = Vec::new();
        for number in numbers {
            Run::append(&mut runs, number as u32);
        }
        runs
    }

    /// Sorts runs that have no number twice, and joins neighbours.
    pub(super) fn tidy(runs: &mut Vec<Run>) {
        runs.sort_unstable_by_key(|run| run.first);
        runs.dedup_by(|next, run| {
            let joins = run.first.checked_add(run.length) == Some(next.first);
            if joins {
                run.length += next.length;
            }
            joins
        });
    }

    /// Every number of some runs; none if one of them is not below the limit.
    pub(super) fn all_below(runs: &[Run], limit: usize) -> Option<Vec<usize>> {
        let mut numbers = Vec::new();
        for run in runs {
            numbers.extend(run.below(limit)?.map(|number| number as usize));
            // Runs of distinct positions cannot name more than there are.
            if numbers.len() > limit {
                return None;
            }
        }
        Some(numbers)
    }
}

/// One way of asking for a name, and the positions that ask so.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Variant {
    pub(super) facts: Arc<Facts>,
    pub(super) holders: Vec<Run>,
}

/// Everybody below the sender has asked for a name, or has joined.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Held {
    pub(super) variants: Vec<Variant>,
    /// Whether somebody is missing because it has joined.
    pub(super) partial: bool,
}

/// Some below the sender have asked for a name, and some have not for a long time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Presence {
    pub(super) name: Arc<str>,
    pub(super) kind: Kind,
    pub(super) waited_ms: u64,
    pub(super) holders: Vec<Run>,
}

/// From a member to its relay, and from a relay to the leader.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Up {
    /// Slots that follow are those of this version of the cache.
    Seen(u64),
    /// Everybody below the sender asks for what these slots remember.
    Hits {
        /// Everybody does.
        whole: Vec<Run>,
        /// Everybody does who has not joined.
        partial: Vec<Run>,
    },
    /// Everybody below the sender asks for a name that is not cached, or not so.
    Held(Held),
    /// A rank has joined.
    Joined(u32),
    /// Who holds what has waited long.
    Presence(Presence),
    /// The sender has said all that it knows about this inquiry.
    Counted(u64),
    /// What a rank that is waited for says about itself.
    Answer {
        /// The inquiry's number.
        inquiry: u64,
        /// Who answers.
        position: u32,
        /// What it says.
        text: String,
    },
    /// The leader of another process set asks when its next batch on devices may start.
    Turn {
        /// The set.
        set: u32,
        /// How many turns it has asked for before.
        number: u64,
    },
}

/// One or several tensors of a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Entry {
    /// As these slots remember.
    Cached(Run),
    /// As said here, to be remembered in a slot if one is given.
    New { facts: Arc<Facts>, slot: Option<u32> },
}

/// The log: from the leader to everybody, in one order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Down {
    /// Run these together.
    Batch(Vec<Entry>),
    /// These failed; what is cached of them is forgotten.
    Fail { names: Vec<Arc<str>>, text: String },
    /// Everybody reached the barrier.
    Done { name: Arc<str> },
    /// All have joined, this position last.
    AllJoined { last: u32 },
    /// A process set has this number.
    AddSet { name: Arc<str>, ranks: Vec<u32>, id: u32 },
    /// A process set is gone.
    RemoveSet { name: Arc<str>, id: u32 },
    /// Who lacks one of these names, and why?
    Inquire { inquiry: u64, names: Vec<Arc<str>> },
    /// It ends here.
    End { text: String },
    /// The members of a process set start their batch on devices of this number now.
    Turn { set: u32, number: u64 },
}

/// Appends a message to a frame.
pub(super) fn write<T: Serialize>(frame: &mut Vec<u8>, message: &T) {
    // Writing into memory fails only for types that postcard cannot describe, which ours are not; the frames of the
    // simulated networks in the tests go through here.
    *frame = postcard::to_extend(message, std::mem::take(frame)).expect("messages are of describable types");
}

/// The messages of a frame, one after the other.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(frame: &'a [u8]) -> Reader<'a> {
        Reader { rest: frame }
    }

    /// The next message, or none at the end.
    pub(super) fn next<T: Deserialize<'a>>(&mut self) -> Result<Option<T>, &'static str> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let (message, rest) = postcard::take_from_bytes(self.rest).map_err(|_| "it cannot be read")?;
        self.rest = rest;
        Ok(Some(message))
    }
}

/// Collects what goes up, so that many hits become one message and many messages one frame.
#[derive(Debug, Default)]
pub(super) struct Upward {
    frame: Vec<u8>,
    seen: u64,
    whole: Vec<Run>,
    partial: Vec<Run>,
    /// Whether something is among it for which the parent is to be woken.
    urges: bool,
}

impl Upward {
    /// Adds a hit, in terms of this version of the cache.
    pub(super) fn hit(&mut self, version: u64, slot: u32, partial: bool) {
        self.see(version);
        Run::append(if partial { &mut self.partial } else { &mut self.whole }, slot);
    }

    /// Adds any other message. What was added before stays before it.
    pub(super) fn say(&mut self, version: u64, message: &Up) {
        self.see(version);
        self.flush();
        write(&mut self.frame, message);
    }

    /// Has the parent woken for what was added.
    pub(super) fn urge(&mut self) {
        self.urges = true;
    }

    /// Whether the parent is to be woken, once everything has been taken.
    pub(super) fn take_urge(&mut self) -> bool {
        std::mem::take(&mut self.urges)
    }

    /// Everything added since the last call.
    pub(super) fn take(&mut self) -> Option<Vec<u8>> {
        self.flush();
        (!self.frame.is_empty()).then(|| std::mem::take(&mut self.frame))
    }

    fn see(&mut self, version: u64) {
        if version != self.seen {
            self.flush();
            self.seen = version;
            write(&mut self.frame, &Up::Seen(version));
        }
    }

    fn flush(&mut self) {
        if !self.whole.is_empty() || !self.partial.is_empty() {
            let hits = Up::Hits {
                whole: std::mem::take(&mut self.whole),
                partial: std::mem::take(&mut self.partial),
            };
            write(&mut self.frame, &hits);
        }
    }
}

/// Hands the same frame to every child in turn.
#[derive(Debug, Default)]
pub(super) struct Downward {
    collected: Vec<u8>,
    going: Vec<u8>,
    /// How many children still wait for what is going.
    left: usize,
}

impl Downward {
    /// Adds to the next frame.
    pub(super) fn frame(&mut self) -> &mut Vec<u8> {
        &mut self.collected
    }

    /// The next frame to send and the child it is for.
    pub(super) fn take(&mut self, children: &[usize]) -> Option<(usize, Vec<u8>)> {
        if self.left == 0 {
            if self.collected.is_empty() || children.is_empty() {
                self.collected.clear();
                return None;
            }
            self.going = std::mem::take(&mut self.collected);
            self.left = children.len();
        }
        let child = children[children.len() - self.left];
        self.left -= 1;
        let frame = if self.left == 0 { std::mem::take(&mut self.going) } else { self.going.clone() };
        Some((child, frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_of_cached_tensors_is_a_few_bytes() {
        let mut up = Upward::default();
        for slot in 0..160 {
            up.hit(0, slot, false);
        }
        assert!(up.take().expect("there is something to send").len() <= 6);
        assert_eq!(up.take(), None);
    }

    #[test]
    fn messages_keep_their_order_and_slots_their_version() {
        let mut up = Upward::default();
        up.hit(0, 7, false);
        up.say(0, &Up::Joined(3));
        up.hit(2, 8, true);
        up.hit(2, 9, true);
        let frame = up.take().expect("there is something to send");
        let mut reader = Reader::new(&frame);
        let mut read = Vec::new();
        while let Some(message) = reader.next::<Up>().expect("our own frame can be read") {
            read.push(message);
        }
        let expected = [
            Up::Hits { whole: vec![Run::one(7)], partial: vec![] },
            Up::Joined(3),
            Up::Seen(2),
            Up::Hits { whole: vec![], partial: vec![Run { first: 8, length: 2 }] },
        ];
        assert_eq!(read, expected);
    }

    #[test]
    fn every_child_gets_the_same_frame_before_the_next_one() {
        let mut down = Downward::default();
        down.frame().extend([1, 2]);
        assert_eq!(down.take(&[4, 5]), Some((4, vec![1, 2])));
        down.frame().push(3);
        assert_eq!(down.take(&[4, 5]), Some((5, vec![1, 2])));
        assert_eq!(down.take(&[4, 5]), Some((4, vec![3])));
        assert_eq!(down.take(&[4, 5]), Some((5, vec![3])));
        assert_eq!(down.take(&[4, 5]), None);
    }

    #[test]
    fn runs_from_outside_are_bounded() {
        let endless = Run { first: 1, length: u32::MAX };
        assert_eq!(endless.below(usize::MAX), None);
        assert_eq!(Run { first: 0, length: u32::MAX }.below(10), None);
        assert_eq!(Run::all_below(&[Run { first: 0, length: 2 }; 6], 10), None);
        assert_eq!(Run::all_below(&Run::of([4, 5, 9]), 10), Some(vec![4, 5, 9]));
    }
}
