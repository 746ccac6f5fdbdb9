//! A stream of bytes from one rank to another through shared memory: a ring with one writer and one reader.
//!
//! Both ends count bytes, up and around. The writer owns the count of bytes written, the reader that of bytes read;
//! each publishes its own and keeps a private copy, so that nothing a peer writes into the shared words can make this
//! end copy outside the ring: at worst the two counts do not fit together, which is reported as [`Nonsense`].
//!
//! A writer that finds the ring full leaves a [`Mark`] beside its count, and the reader rings it when it has made room.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering};

use super::desk::{Desks, Lane};
use super::mark::Mark;

/// Bytes that fit a ring. A power of two, so that counts may wrap around.
pub(super) const RING: usize = 64 << 10;

/// The peer's count cannot be: it has read more than was written, or written more than fits.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Nonsense;

/// What the writer writes, in a cache line of its own.
#[repr(C, align(64))]
struct WriterLine {
    written: AtomicU32,
    wants_room: Mark,
}

/// What the reader writes.
#[repr(C, align(64))]
struct ReaderLine {
    read: AtomicU32,
}

/// The shared words of a ring. Zeroed memory is an empty ring.
#[repr(C)]
pub(super) struct Counters {
    writer: WriterLine,
    reader: ReaderLine,
}

impl Counters {
    /// For the writer: bytes that fit now in a ring of `size`.
    fn room(&self, written: u32, size: usize) -> Result<usize, Nonsense> {
        let used = written.wrapping_sub(self.reader.read.load(Ordering::Acquire)) as usize;
        size.checked_sub(used).ok_or(Nonsense)
    }

    /// For the writer: everything up to `written` is there.
    fn publish(&self, written: u32) {
        self.writer.written.store(written, Ordering::Release);
    }

    /// For the reader: bytes that have come and not been read.
    fn waiting(&self, read: u32, size: usize) -> Result<usize, Nonsense> {
        let waiting = self.writer.written.load(Ordering::Acquire).wrapping_sub(read) as usize;
        if waiting <= size { Ok(waiting) } else { Err(Nonsense) }
    }

    /// For the reader: everything up to `read` may be overwritten.
    fn release(&self, read: u32) {
        self.reader.read.store(read, Ordering::Release);
    }
}

/// The writing end.
pub(super) struct Writer {
    desks: Arc<Desks>,
    lane: Lane,
    written: u32,
}

impl Writer {
    /// The only writer of this lane.
    pub(super) fn new(desks: Arc<Desks>, lane: Lane) -> Writer {
        Writer { desks, lane, written: 0 }
    }

    fn counters(&self) -> &Counters {
        self.desks.counters(self.lane)
    }

    /// Bytes that fit now.
    pub(super) fn room(&self) -> Result<usize, Nonsense> {
        self.counters().room(self.written, RING)
    }

    /// Writes the front of `bytes` as far as it fits, and returns how much did.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<usize, Nonsense> {
        let len = self.room()?.min(bytes.len());
        let at = self.written as usize % RING;
        let first = len.min(RING - at);
        let ring = self.desks.ring(self.lane);
        // SAFETY: both parts lie inside the ring's `RING` bytes, which nobody reads until they are published: the
        // reader has released them. Private memory does not overlap shared memory.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), ring.add(at), first);
            std::ptr::copy_nonoverlapping(bytes[first..].as_ptr(), ring, len - first);
        }
        // Counts wrap by design; `len` is at most `RING`.
        self.written = self.written.wrapping_add(len as u32);
        self.counters().publish(self.written);
        Ok(len)
    }

    /// Asks to be rung when there is room again. The caller must try once more afterwards.
    pub(super) fn want_room(&self) {
        self.counters().writer.wants_room.set();
    }
}

/// The reading end.
pub(super) struct Reader {
    desks: Arc<Desks>,
    lane: Lane,
    read: u32,
}

impl Reader {
    /// The only reader of this lane.
    pub(super) fn new(desks: Arc<Desks>, lane: Lane) -> Reader {
        Reader { desks, lane, read: 0 }
    }

    fn counters(&self) -> &Counters {
        self.desks.counters(self.lane)
    }

    /// Bytes that have come.
    pub(super) fn waiting(&self) -> Result<usize, Nonsense> {
        self.counters().waiting(self.read, RING)
    }

    /// Appends all bytes that have come to `into`, and returns how many.
    pub(super) fn read(&mut self, into: &mut Vec<u8>) -> Result<usize, Nonsense> {
        let len = self.waiting()?;
        if len == 0 {
            return Ok(0);
        }
        let at = self.read as usize % RING;
        let first = len.min(RING - at);
        let ring = self.desks.ring(self.lane);
        into.reserve(len);
        // SAFETY: both parts lie inside the ring's `RING` bytes, which the writer has published and leaves alone until
        // they are released; there is room for `len` bytes behind the vector's end, all of which are then written.
        unsafe {
            let end = into.as_mut_ptr().add(into.len());
            std::ptr::copy_nonoverlapping(ring.add(at), end, first);
            std::ptr::copy_nonoverlapping(ring, end.add(first), len - first);
            into.set_len(into.len() + len);
        }
        self.read = self.read.wrapping_add(len as u32);
        self.counters().release(self.read);
        Ok(len)
    }

    /// Whether the writer waits for the room that was just made, and must be rung.
    pub(super) fn writer_waits(&self) -> bool {
        self.counters().writer.wants_room.take()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::desk::Direction;
    use super::*;

    /// Both ends of a ring whose counts start at `count`.
    fn ring_at(count: u32) -> (Writer, Reader) {
        let desks = Arc::new(Desks::create(2).expect("shared memory"));
        let lane = Lane { member: 1, direction: Direction::Up };
        desks.counters(lane).publish(count);
        desks.counters(lane).release(count);
        let mut ends = (Writer::new(desks.clone(), lane), Reader::new(desks, lane));
        (ends.0.written, ends.1.read) = (count, count);
        ends
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|index| (index * 31 + index / 251) as u8).collect()
    }

    #[test]
    fn bytes_come_out_as_they_went_in_across_both_kinds_of_wrapping() {
        for start in [0, RING as u32 - 5, u32::MAX - 70_000] {
            let (mut writer, mut reader) = ring_at(start);
            let sent = pattern(1_000_003);
            let (mut offset, mut got) = (0, Vec::new());
            for step in [1, 777, 40_000, RING, 3].into_iter().cycle() {
                offset += writer.write(&sent[offset..sent.len().min(offset + step)]).expect("sense");
                if offset % 3 != 0 || got.len() + RING / 2 < offset {
                    reader.read(&mut got).expect("sense");
                }
                if got.len() == sent.len() {
                    break;
                }
            }
            assert!(got == sent, "start {start}");
        }
    }

    #[test]
    fn a_full_ring_takes_nothing_and_its_writer_is_rung_when_there_is_room() {
        let (mut writer, mut reader) = ring_at(9);
        assert_eq!(writer.write(&pattern(RING + 10)), Ok(RING));
        assert_eq!(writer.write(&[1]), Ok(0));
        writer.want_room();
        let mut got = Vec::new();
        assert_eq!(reader.read(&mut got), Ok(RING));
        assert!(reader.writer_waits());
        assert!(!reader.writer_waits());
        assert_eq!(writer.room(), Ok(RING));
    }

    #[test]
    fn counts_that_cannot_be_are_reported_and_not_followed() {
        let (mut writer, mut reader) = ring_at(100);
        reader.counters().release(101);
        assert_eq!(writer.write(&[1]), Err(Nonsense));
        writer.counters().publish(100 + RING as u32 + 1);
        let mut got = Vec::new();
        assert_eq!(reader.read(&mut got), Err(Nonsense));
        writer.counters().publish(99);
        assert_eq!(reader.read(&mut got), Err(Nonsense));
        assert!(got.is_empty());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::thread;

    const SIZE: usize = 2;

    /// Three bytes through a ring of two: loom checks that no cell is touched by both ends at once.
    #[test]
    fn loom_bytes_are_read_after_they_are_written_and_overwritten_after_they_are_read() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let ring = loom::sync::Arc::new((
                Counters {
                    writer: WriterLine { written: AtomicU32::new(0), wants_room: Mark::unset() },
                    reader: ReaderLine { read: AtomicU32::new(0) },
                },
                [UnsafeCell::new(0u8), UnsafeCell::new(0u8)],
            ));
            let writer = {
                let ring = ring.clone();
                thread::spawn(move || {
                    for written in 0..3u32 {
                        while ring.0.room(written, SIZE) == Ok(0) {
                            thread::yield_now();
                        }
                        ring.1[written as usize % SIZE].with_mut(|cell| {
                            // SAFETY: there is room, so the reader is done with the cell; loom checks exactly that.
                            unsafe { *cell = written as u8 + 1 }
                        });
                        ring.0.publish(written + 1);
                    }
                })
            };
            for read in 0..3u32 {
                while ring.0.waiting(read, SIZE) == Ok(0) {
                    thread::yield_now();
                }
                // SAFETY: the byte was published, so the writer is done with the cell.
                let byte = ring.1[read as usize % SIZE].with(|cell| unsafe { *cell });
                assert_eq!(byte, read as u8 + 1);
                ring.0.release(read + 1);
            }
            writer.join().expect("no panic");
        });
    }
}
