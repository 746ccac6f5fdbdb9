//! Checks that all ranks launch the same things in the same order, within a communicator and across communicators.
//!
//! Two ranks share some communicators. Each counts, for each of these, how many launches it has made in which the other
//! takes part. With every launch it writes for each other rank what it launched and how its counts stood ([`Note`]);
//! whoever comes second compares. If they launched X and Y in different orders, then at X one of them has counted
//! Y and the other has not. Making a communicator is compared in the same way, through the counts from when each rank
//! began to ([`Counts`]), once everybody is there.
//!
//! A rank is known across communicators by its process and its GPU. Where two ranks of a communicator are alike in both
//! (threads of one process on one GPU) nobody could say which is which, so those are checked within a communicator only.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::call::Event;
use crate::page::{ENTRIES, ENTRY, Page};

/// Who a rank is, in all communicators: a process and its GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) process: u32,
    pub(crate) device: i32,
}

/// A rank's launches together with each other rank, by communicator.
pub(crate) type Counts = BTreeMap<u64, BTreeMap<Identity, u64>>;

/// Counts of all communicators that a note holds, at most: those of later ones are not compared.
const COMPARED: usize = (ENTRY - Event::WORDS - 1) / 2;

/// All ranks of this process.
static LEDGERS: Mutex<BTreeMap<Identity, Arc<Ledger>>> = Mutex::new(BTreeMap::new());

/// The launches of one rank.
#[derive(Default)]
pub(crate) struct Ledger {
    counts: Mutex<Counts>,
}

impl Ledger {
    /// That of a rank of this process.
    pub(crate) fn of(identity: Identity) -> Arc<Ledger> {
        lock(&LEDGERS).entry(identity).or_default().clone()
    }

    /// How it stands.
    pub(crate) fn counts(&self) -> Counts {
        lock(&self.counts).clone()
    }

    /// Begins to count for a communicator.
    pub(crate) fn open(&self, communicator: u64, others: impl Iterator<Item = Identity>) {
        lock(&self.counts).insert(communicator, others.map(|other| (other, 0)).collect());
    }

    /// Forgets a communicator.
    pub(crate) fn close(&self, communicator: u64) {
        lock(&self.counts).remove(&communicator);
    }

    /// Notes for the others, with the counts as they stand, then counts one launch with each of them. In one step, so that
    /// launches of several threads come one after the other.
    pub(crate) fn note(&self, communicator: u64, events: &[(Identity, Event)]) -> Vec<Note> {
        let mut counts = lock(&self.counts);
        let shared = |other: &Identity| {
            let counted = counts.iter().filter_map(|(&id, with)| Some((id, *with.get(other)?)));
            counted.take(COMPARED).collect()
        };
        let notes =
            events.iter().map(|(other, event)| Note { event: *event, shared: shared(other) }).collect();
        if let Some(with) = counts.get_mut(&communicator) {
            for (other, _) in events {
                with.entry(*other).and_modify(|count| *count += 1);
            }
        }
        notes
    }
}

/// What a rank launched, and what it had launched together with the reader before: (communicator, count).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Note {
    pub(crate) event: Event,
    pub(crate) shared: Vec<(u64, u64)>,
}

/// How two ranks came to differ in what they launched as their n-th together. Pure.
pub(crate) fn differ(communicator: u64, number: u64, ranks: [usize; 2], notes: [&Note; 2]) -> Option<String> {
    let [first, second] = ranks;
    if notes[0].event != notes[1].event.mirrored() {
        return Some(format!(
            "launch {number} of communicator {communicator:x} is {} on rank {first} but {} on rank {second}",
            notes[0].event, notes[1].event
        ));
    }
    let (other, [mine, theirs]) = out_of_step(&notes[0].shared, &notes[1].shared)?;
    Some(format!(
        "launches come in different orders: launch {number} of communicator {communicator:x} ({}) follows {mine} of \
         communicator {other:x} on rank {first} but {theirs} on rank {second}",
        notes[0].event
    ))
}

/// How two ranks came to differ in when they began to make a communicator. Pure.
pub(crate) fn differ_at_creation(
    communicator: u64,
    ranks: [usize; 2],
    counts: [&[(u64, u64)]; 2],
) -> Option<String> {
    let (other, [mine, theirs]) = out_of_step(counts[0], counts[1])?;
    let [first, second] = ranks;
    Some(format!(
        "communicator {communicator:x} is made after {mine} launches of communicator {other:x} on rank {first} but \
         after {theirs} on rank {second}"
    ))
}

/// A rank's counts of what it shares with another.
pub(crate) fn shared_with(counts: &Counts, other: Identity) -> Vec<(u64, u64)> {
    counts.iter().filter_map(|(&id, with)| Some((id, *with.get(&other)?))).collect()
}

/// The first communicator that both counted, differently.
fn out_of_step(mine: &[(u64, u64)], theirs: &[(u64, u64)]) -> Option<(u64, [u64; 2])> {
    mine.iter().find_map(|&(id, count)| {
        let &(_, other) = theirs.iter().find(|(theirs, _)| *theirs == id)?;
        (other != count).then_some((id, [count, other]))
    })
}

/// Writes a note into the log for another rank, as number `number` (from 0). `false` if the reader is so far behind that
/// there is no room yet.
pub(crate) fn write(page: &Page, me: usize, other: usize, number: u64, note: &Note) -> bool {
    // The reader compares entry n after it has written its own n, so it is done with it once it has written n + 1.
    if number + 2 > page.written(other, me).load(Ordering::SeqCst) + ENTRIES {
        return false;
    }
    let entry = page.entry(me, other, number);
    let words = note.event.encode().into_iter().chain([note.shared.len() as u64]);
    let words = words.chain(note.shared.iter().flat_map(|&(id, count)| [id, count]));
    for (to, from) in entry.iter().zip(words) {
        to.store(from, Ordering::Relaxed);
    }
    page.written(me, other).store(number + 1, Ordering::SeqCst);
    true
}

/// Reads what another rank wrote as that number, if it has.
pub(crate) fn read(page: &Page, me: usize, other: usize, number: u64) -> Option<Note> {
    if page.written(other, me).load(Ordering::SeqCst) <= number {
        return None;
    }
    let words = page.entry(other, me, number).each_ref().map(|word| word.load(Ordering::Relaxed));
    let mut event = [0; Event::WORDS];
    event.copy_from_slice(&words[..Event::WORDS]);
    let shared = usize::try_from(words[Event::WORDS]).unwrap_or(0).min(COMPARED);
    let pairs = words[Event::WORDS + 1..].chunks_exact(2).take(shared);
    Some(Note { event: Event::decode(event)?, shared: pairs.map(|pair| (pair[0], pair[1])).collect() })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use ronde_collective::types::DType;

    use super::*;
    use crate::call::{Collective, Kind, Reduction};

    const OTHER: Identity = Identity { process: 2, device: 0 };

    fn gather(count: usize) -> Event {
        Event::Collective(Collective {
            kind: Kind::AllGather,
            count,
            dtype: DType::U8,
            reduction: None,
            root: 0,
        })
    }

    fn note(event: Event, shared: &[(u64, u64)]) -> Note {
        Note { event, shared: shared.to_vec() }
    }

    #[test]
    fn equal_notes_agree_and_what_only_one_has_counted_says_nothing() {
        let notes = [note(gather(1), &[(7, 3), (8, 1)]), note(gather(1), &[(8, 1), (9, 4)])];
        assert_eq!(differ(8, 1, [0, 1], [&notes[0], &notes[1]]), None);
    }

    #[test]
    fn different_launches_are_named_on_both_sides() {
        let sum = Collective {
            kind: Kind::AllReduce,
            count: 4,
            dtype: DType::F32,
            reduction: Reduction::built_in(0),
            root: 0,
        };
        let text = differ(0xab, 6, [0, 2], [&note(gather(4), &[]), &note(Event::Collective(sum), &[])]);
        let expected = "launch 6 of communicator ab is ncclAllGather of 4 uint8 on rank 0 but \
                        ncclAllReduce of 4 float32, sum on rank 2";
        assert_eq!(text.as_deref(), Some(expected));
    }

    #[test]
    fn two_communicators_in_different_orders_are_found_at_either() {
        let (mine, theirs) = (Ledger::default(), Ledger::default());
        for ledger in [&mine, &theirs] {
            for communicator in [1, 2] {
                ledger.open(communicator, [OTHER].into_iter());
            }
        }
        let launch =
            |ledger: &Ledger, communicator| ledger.note(communicator, &[(OTHER, gather(1))]).remove(0);
        let [mine_1, mine_2] = [1, 2].map(|communicator| launch(&mine, communicator));
        let [theirs_2, theirs_1] = [2, 1].map(|communicator| launch(&theirs, communicator));
        let text = differ(1, 0, [0, 1], [&mine_1, &theirs_1]).expect("they differ");
        assert!(text.contains("follows 0 of communicator 2 on rank 0 but 1 on rank 1"), "{text}");
        assert!(differ(2, 0, [0, 1], [&mine_2, &theirs_2]).is_some());
        let after = [launch(&mine, 1), launch(&theirs, 1)];
        assert_eq!(differ(1, 1, [0, 1], [&after[0], &after[1]]), None, "in step again");
        assert_eq!(shared_with(&mine.counts(), OTHER), [(1, 2), (2, 1)]);
        mine.close(1);
        assert_eq!(shared_with(&mine.counts(), OTHER), [(2, 1)]);
    }

    #[test]
    fn communicators_made_in_different_orders_are_found() {
        let text = differ_at_creation(3, [0, 1], [&[(1, 4)], &[(1, 5)]]).expect("they differ");
        assert!(
            text.contains("after 4 launches of communicator 1 on rank 0 but after 5 on rank 1"),
            "{text}"
        );
        assert_eq!(differ_at_creation(3, [0, 1], [&[(1, 4)], &[(2, 5)]]), None);
    }

    #[test]
    fn notes_wait_in_the_log_for_a_reader_that_is_behind() {
        let page = Page::create(2).expect("memory");
        let noted = note(gather(5), &[(7, 3), (8, 1)]);
        assert_eq!(read(&page, 1, 0, 0), None);
        let room = (0..).take_while(|&number| write(&page, 0, 1, number, &noted)).count();
        assert_eq!(room as u64, ENTRIES - 1);
        assert_eq!(read(&page, 1, 0, 0), Some(noted.clone()));
        assert!(write(&page, 1, 0, 0, &noted));
        assert!(write(&page, 0, 1, ENTRIES - 1, &noted), "the reader moved on");
    }
}
