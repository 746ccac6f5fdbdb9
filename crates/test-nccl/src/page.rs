//! The host memory that all ranks of a communicator share.
//!
//! It holds three things, each at a place that follows from the number of ranks:
//! - *words* by which streams wait for each other. They lie in the reader's inbox, one line for each writer, so that a
//!   rank that gives up lets its own stream go on without touching what others wait for;
//! - *logs*: what each rank launched, one for each pair, written by one and read by the other ([`crate::ledger`]);
//! - the *verdict*, if ranks disagreed: a text, written once, that all of them report.
//!
//! Ranks may be processes or threads of one process. Everything in it is atomic.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

/// What a word of an inbox counts rounds of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    /// The writer's slot is filled, for a collective.
    Filled = 0,
    /// The writer has read the reader's slot.
    Taken = 1,
    /// The writer's parcel for the reader is there.
    Sent = 2,
    /// The writer has taken the reader's parcel.
    Received = 3,
}

impl Stage {
    pub(crate) const ALL: [Stage; 4] = [Stage::Filled, Stage::Taken, Stage::Sent, Stage::Received];
}

const PAGE: usize = 4096;
const LINE: usize = 64;
/// Longest text of a verdict.
const TEXT: usize = 1024;
/// Entries a log holds before the oldest is overwritten.
pub(crate) const ENTRIES: u64 = 128;
/// Eight-byte words of an entry.
pub(crate) const ENTRY: usize = 48;
const LOG: usize = LINE + ENTRIES as usize * ENTRY * size_of::<u64>();

/// States of the verdict.
const NONE: u64 = 0;
const WRITING: u64 = 1;
const WRITTEN: u64 = 2;

/// See the module's text.
pub(crate) struct Page {
    base: NonNull<u8>,
    len: usize,
    ranks: usize,
    memory: OwnedFd,
}

// SAFETY: the mapping lives as long as the value, and only atomics are in it.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// New memory for so many ranks.
    pub(crate) fn create(ranks: usize) -> rustix::io::Result<Page> {
        let memory = rustix::fs::memfd_create("ronde-test-nccl", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&memory, len(ranks) as u64)?;
        Page::adopt(memory, ranks)
    }

    /// Memory that rank 0 made.
    pub(crate) fn adopt(memory: OwnedFd, ranks: usize) -> rustix::io::Result<Page> {
        let len = len(ranks);
        if usize::try_from(rustix::fs::fstat(&memory)?.st_size) != Ok(len) {
            return Err(rustix::io::Errno::INVAL);
        }
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, &memory, 0)
        }?;
        let base = NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Page { base, len, ranks, memory })
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// The pages that hold the inboxes, for the device to know.
    pub(crate) fn inboxes(&self) -> (*mut u8, usize) {
        (self.base.as_ptr(), inboxes(self.ranks))
    }

    /// Where a word lies, from the beginning of the inboxes.
    pub(crate) fn offset(&self, reader: usize, writer: usize, stage: Stage) -> usize {
        (reader * self.ranks + writer) * LINE + stage as usize * size_of::<u32>()
    }

    /// A word of an inbox.
    pub(crate) fn word(&self, reader: usize, writer: usize, stage: Stage) -> &AtomicU32 {
        self.at(self.offset(reader, writer, stage))
    }

    /// How many entries a rank has written for another.
    pub(crate) fn written(&self, writer: usize, reader: usize) -> &AtomicU64 {
        self.at(self.log(writer, reader))
    }

    /// An entry that a rank writes for another.
    pub(crate) fn entry(&self, writer: usize, reader: usize, number: u64) -> &[AtomicU64; ENTRY] {
        let slot = usize::try_from(number % ENTRIES).unwrap_or(0);
        self.at(self.log(writer, reader) + LINE + slot * ENTRY * size_of::<u64>())
    }

    /// Says what ranks disagreed about, unless somebody has.
    pub(crate) fn pass_verdict(&self, text: &str) {
        let state: &AtomicU64 = self.at(self.verdict_at());
        if state.compare_exchange(NONE, WRITING, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            let place: &[AtomicU8; TEXT] = self.at(self.verdict_at() + LINE);
            for (to, from) in place.iter().zip(text.bytes()) {
                to.store(from, Ordering::Relaxed);
            }
            state.store(WRITTEN, Ordering::Release);
        }
    }

    /// What ranks disagreed about.
    pub(crate) fn verdict(&self) -> Option<String> {
        let state: &AtomicU64 = self.at(self.verdict_at());
        if state.load(Ordering::Acquire) != WRITTEN {
            return None;
        }
        let place: &[AtomicU8; TEXT] = self.at(self.verdict_at() + LINE);
        let bytes = place.iter().map(|byte| byte.load(Ordering::Relaxed)).take_while(|&byte| byte != 0);
        Some(String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned())
    }

    fn verdict_at(&self) -> usize {
        inboxes(self.ranks)
    }

    fn log(&self, writer: usize, reader: usize) -> usize {
        self.verdict_at() + LINE + TEXT + (writer * self.ranks + reader) * LOG
    }

    fn at<T>(&self, offset: usize) -> &T {
        assert!(offset + size_of::<T>() <= self.len, "inside the page");
        // SAFETY: inside the mapping; offsets are multiples of what their types, all atomics, are aligned to.
        unsafe { self.base.add(offset).cast::<T>().as_ref() }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped by this value; nothing borrowed from it outlives it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

fn inboxes(ranks: usize) -> usize {
    (ranks * ranks * LINE).next_multiple_of(PAGE)
}

fn len(ranks: usize) -> usize {
    (inboxes(ranks) + LINE + TEXT + ranks * ranks * LOG).next_multiple_of(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_rank_writes_the_other_reads_and_no_places_overlap() {
        let page = Page::create(3).expect("memory");
        let other = Page::adopt(page.memory.try_clone().expect("duplicate"), 3).expect("the same memory");
        let mut value = 0;
        for reader in 0..3 {
            for writer in 0..3 {
                for stage in Stage::ALL {
                    value += 1;
                    page.word(reader, writer, stage).store(value, Ordering::Relaxed);
                }
                page.written(writer, reader).store(u64::from(value), Ordering::Relaxed);
                for number in 0..ENTRIES {
                    page.entry(writer, reader, number)[ENTRY - 1].store(number, Ordering::Relaxed);
                }
            }
        }
        assert_eq!(other.word(2, 2, Stage::Received).load(Ordering::Relaxed), value);
        assert_eq!(other.word(0, 0, Stage::Filled).load(Ordering::Relaxed), 1);
        assert_eq!(other.written(2, 2).load(Ordering::Relaxed), u64::from(value));
        assert_eq!(other.entry(0, 1, 5)[ENTRY - 1].load(Ordering::Relaxed), 5);
        assert_eq!(other.verdict(), None);
        assert!(Page::adopt(page.memory.try_clone().expect("duplicate"), 4).is_err(), "of another size");
    }

    #[test]
    fn the_first_verdict_stays() {
        let page = Page::create(2).expect("memory");
        page.pass_verdict("different counts");
        page.pass_verdict("something else");
        assert_eq!(page.verdict().as_deref(), Some("different counts"));
    }
}
