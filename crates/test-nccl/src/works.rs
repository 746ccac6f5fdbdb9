//! The data plane of one rank in one communicator: memory, a stream of its own, and rounds.
//!
//! Every rank has two *slots* for collectives and two for each other rank, in device memory that all have mapped. A
//! collective is a number of rounds. In each, a rank fills its slot, says so, reads what it needs of the others' slots
//! once they said so, and says that too: a slot is filled again when everybody has read it, two rounds later. An exchange
//! does the same for each pair by itself. Nothing of it waits on the host: rounds are given to the stream all at once,
//! and words in the shared page put the streams in order, whenever each gets there.
//!
//! The work runs in a stream of the communicator's own, behind the point that the caller's stream has come to, and the
//! caller's stream goes on behind it; for whoever looks from outside that is as if it ran in the caller's stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ronde_collective::types::DType;
use ronde_cuda::{Device, Imported, Kernel, Launcher, Mark, Piece, Registered, Result, Shared, Stream};

use crate::call::{Collective, Kind, Reduction};
use crate::page::{Page, Stage};

/// Bytes of a slot for collectives, and of one for each other rank.
const SLOT: usize = 2 << 20;
const PARCEL: usize = 256 << 10;
/// Slots that rounds alternate between.
const SLOTS: u32 = 2;

/// Device memory that a rank has for the others.
pub(crate) fn memory(device: &Arc<Device>, ranks: usize) -> Result<Shared> {
    Shared::new(device, SLOTS as usize * (SLOT + ranks * PARCEL))
}

/// How far the rounds are that were given to the stream. Whoever gives up moves this rank's words as far, so that its
/// stream waits for nobody.
pub(crate) struct Rounds {
    page: Arc<Page>,
    me: usize,
    /// By stage, then by the rank that is waited for.
    reached: Vec<[AtomicU32; 4]>,
}

impl Rounds {
    pub(crate) fn new(page: &Arc<Page>, me: usize, size: usize) -> Rounds {
        let reached = (0..size).map(|_| Default::default()).collect();
        Rounds { page: page.clone(), me, reached }
    }

    fn reach(&self, writer: usize, stage: Stage, round: u32) {
        self.reached[writer][stage as usize].store(round, Ordering::SeqCst);
    }

    /// Ends all waits of this rank's stream, now. Others may still write its words, so this is repeated until the stream
    /// is through.
    pub(crate) fn release(&self) {
        for (writer, stages) in self.reached.iter().enumerate() {
            for stage in Stage::ALL {
                let round = stages[stage as usize].load(Ordering::SeqCst);
                self.page.word(self.me, writer, stage).store(round, Ordering::SeqCst);
            }
        }
    }
}

/// One part of an exchange: an address here, and its bytes.
#[derive(Clone, Copy)]
pub(crate) struct Parcel {
    pub(crate) address: u64,
    pub(crate) bytes: usize,
}

/// See the module's text.
pub(crate) struct Works {
    launcher: Launcher,
    me: usize,
    rounds: Arc<Rounds>,
    /// Rounds of collectives that were given to the stream, counted on modulo 2^32.
    round: u32,
    /// The same of what goes to each rank, and of what comes from it.
    sent: Vec<u32>,
    received: Vec<u32>,
    /// Where each rank's memory begins.
    bases: Vec<u64>,
    words: Registered,
    page: Arc<Page>,
    // The mappings behind the bases.
    _others: Vec<Imported>,
    _own: Shared,
}

impl Works {
    /// Maps the others' memory; `descriptors` are everybody's.
    pub(crate) fn new(
        device: &Arc<Device>,
        me: usize,
        own: Shared,
        descriptors: &[std::os::fd::OwnedFd],
        page: &Arc<Page>,
    ) -> Result<Works> {
        let (mut bases, mut others) = (Vec::new(), Vec::new());
        for (rank, descriptor) in descriptors.iter().enumerate() {
            if rank == me {
                bases.push(own.address());
            } else {
                let mapped = Imported::new(device, descriptor, own.len())?;
                bases.push(mapped.address());
                others.push(mapped);
            }
        }
        let (start, len) = page.inboxes();
        // SAFETY: the page is kept by this value, and dropped after what is registered.
        let words = unsafe { Registered::new(device, start, len) }?;
        let size = descriptors.len();
        Ok(Works {
            launcher: Launcher::new(&Arc::new(Stream::new(device)?)),
            me,
            rounds: Arc::new(Rounds::new(page, me, size)),
            round: 0,
            sent: vec![0; size],
            received: vec![0; size],
            bases,
            words,
            page: page.clone(),
            _others: others,
            _own: own,
        })
    }

    pub(crate) fn rounds(&self) -> &Arc<Rounds> {
        &self.rounds
    }

    pub(crate) fn stream(&self) -> &Arc<Stream> {
        self.launcher.stream()
    }

    fn size(&self) -> usize {
        self.bases.len()
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.me;
        (0..self.size()).filter(move |&rank| rank != me)
    }

    /// What follows waits for the point that a stream of the caller's has come to.
    pub(crate) fn follow(&self, stream: u64) -> Result<()> {
        self.stream().wait(&*Mark::record(self.stream().device(), stream)?)
    }

    /// The point after all that was given so far.
    pub(crate) fn end(&mut self) -> Result<Arc<Mark>> {
        self.launcher.end()
    }

    /// What follows waits until this rank gives up.
    pub(crate) fn hang(&self) -> Result<()> {
        // Nobody writes the line that a rank has for itself.
        self.wait(self.me, Stage::Filled, 1)
    }

    /// Has the stream wait for a word of this rank's inbox.
    fn wait(&self, writer: usize, stage: Stage, round: u32) -> Result<()> {
        self.rounds.reach(writer, stage, round);
        let address = self.words.address() + self.page.offset(self.me, writer, stage) as u64;
        // SAFETY: a word of the registered page, which stays until the stream is through.
        unsafe { self.stream().wait_for(address, round) }
    }

    /// Has the stream write a word into another rank's inbox.
    fn write(&self, reader: usize, stage: Stage, round: u32) -> Result<()> {
        let address = self.words.address() + self.page.offset(reader, self.me, stage) as u64;
        // SAFETY: as above.
        unsafe { self.stream().write(address, round) }
    }

    /// Has the stream copy.
    ///
    /// # Safety
    /// The caller of NCCL vouches for its own memory; slots are this crate's.
    unsafe fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        if from == to || bytes == 0 {
            return Ok(());
        }
        // SAFETY: as the caller promises.
        unsafe { self.stream().copy(from, to, bytes) }
    }

    /// Gives a collective to the stream.
    ///
    /// # Safety
    /// `src` and `dst` are memory of this rank's device, as large as the collective makes of them, until the stream is past.
    pub(crate) unsafe fn collective(&mut self, what: &Collective, src: u64, dst: u64) -> Result<()> {
        let width = what.dtype.size();
        // A slot holds as many parts as a rank gives in one round.
        let parts = if what.kind == Kind::ReduceScatter { self.size() } else { 1 };
        let most = SLOT / parts / width;
        let mut done = 0;
        while done < what.count {
            let count = most.min(what.count - done);
            // SAFETY: as the caller promises.
            unsafe { self.round(what, src, dst, [done, count]) }?;
            done += count;
        }
        Ok(())
    }

    /// One round: `count` elements of each part, after those that are `done`.
    ///
    /// # Safety
    /// As for `collective`.
    unsafe fn round(
        &mut self,
        what: &Collective,
        src: u64,
        dst: u64,
        [done, count]: [usize; 2],
    ) -> Result<()> {
        self.round = self.round.wrapping_add(1);
        let (me, round, width) = (self.me, self.round, what.dtype.size());
        let bytes = count * width;
        let at = |part: usize| ((part * what.count + done) * width) as u64;
        let slots: Vec<u64> =
            self.bases.iter().map(|base| base + u64::from(round % SLOTS) * SLOT as u64).collect();
        for other in self.others() {
            self.wait(other, Stage::Taken, round.wrapping_sub(SLOTS))?;
        }
        // SAFETY: as the caller promises; a round fits a slot.
        unsafe {
            match what.kind {
                Kind::Broadcast if me != what.root => {}
                Kind::ReduceScatter => {
                    for part in 0..self.size() {
                        self.copy(src + at(part), slots[me] + (part * bytes) as u64, bytes)?;
                    }
                }
                _ => self.copy(src + at(0), slots[me], bytes)?,
            }
        }
        for other in self.others() {
            self.write(other, Stage::Filled, round)?;
        }
        let reads = |other: usize| match what.kind {
            Kind::Broadcast => other == what.root,
            Kind::Reduce => me == what.root,
            _ => true,
        };
        for other in self.others().filter(|&other| reads(other)) {
            self.wait(other, Stage::Filled, round)?;
        }
        // SAFETY: as the caller promises.
        unsafe {
            match (what.kind, what.reduction) {
                (Kind::Broadcast, _) => self.copy(slots[what.root], dst + at(0), bytes)?,
                (Kind::Reduce, _) if me != what.root => {}
                (Kind::ReduceScatter, Some(reduction)) => {
                    self.fold(&slots, (me * bytes) as u64, dst + at(0), count, what.dtype, &reduction)?;
                }
                (_, Some(reduction)) => self.fold(&slots, 0, dst + at(0), count, what.dtype, &reduction)?,
                (_, None) => {
                    for (part, slot) in slots.iter().enumerate() {
                        self.copy(*slot, dst + at(part), bytes)?;
                    }
                }
            }
        }
        for other in self.others() {
            self.write(other, Stage::Taken, round)?;
        }
        Ok(())
    }

    /// Folds everybody's elements at an offset of their slots.
    ///
    /// # Safety
    /// `dst` is memory for so many elements, until the stream is past.
    unsafe fn fold(
        &mut self,
        slots: &[u64],
        offset: u64,
        dst: u64,
        count: usize,
        dtype: DType,
        reduction: &Reduction,
    ) -> Result<()> {
        let scaled = !reduction.is_plain();
        let kernel = Kernel::Fold { dtype, to: dtype, fold: reduction.fold, sources: slots.len(), scaled };
        let mut words = slots.to_vec();
        if scaled {
            let divide = if reduction.average { slots.len() as u64 } else { 1 };
            words.extend([reduction.factor.to_bits(), 1f64.to_bits(), divide]);
        }
        let pieces = [Piece { a: offset, b: dst, n: count as u64 }];
        // SAFETY: slots of all ranks, and as the caller promises.
        unsafe { self.launcher.launch(&kernel, &pieces, &words) }
    }

    /// Gives an exchange to the stream: what goes to each rank, and what comes from it, each in order.
    ///
    /// # Safety
    /// All parcels are memory of this rank's device, until the stream is past.
    pub(crate) unsafe fn exchange(&mut self, sends: &[Vec<Parcel>], recvs: &[Vec<Parcel>]) -> Result<()> {
        let me = self.me;
        for (from, to) in sends[me].iter().zip(&recvs[me]) {
            // SAFETY: as the caller promises; both are of one size, which was checked.
            unsafe { self.copy(from.address, to.address, from.bytes) }?;
        }
        let chunks =
            |parcels: &[Vec<Parcel>], rank: usize| if rank == me { Vec::new() } else { cut(&parcels[rank]) };
        let sends: Vec<Vec<Parcel>> = (0..self.size()).map(|rank| chunks(sends, rank)).collect();
        let recvs: Vec<Vec<Parcel>> = (0..self.size()).map(|rank| chunks(recvs, rank)).collect();
        let steps = sends.iter().chain(&recvs).map(Vec::len).max().unwrap_or(0);
        // In each step everybody first sends and then receives, so nobody waits for a slot that is never read.
        for step in 0..steps {
            for (to, chunks) in sends.iter().enumerate() {
                if let Some(chunk) = chunks.get(step) {
                    // SAFETY: as the caller promises.
                    unsafe { self.send(to, chunk) }?;
                }
            }
            for (from, chunks) in recvs.iter().enumerate() {
                if let Some(chunk) = chunks.get(step) {
                    // SAFETY: as the caller promises.
                    unsafe { self.receive(from, chunk) }?;
                }
            }
        }
        Ok(())
    }

    /// # Safety
    /// As for `exchange`.
    unsafe fn send(&mut self, to: usize, chunk: &Parcel) -> Result<()> {
        let round = self.sent[to].wrapping_add(1);
        self.sent[to] = round;
        self.wait(to, Stage::Received, round.wrapping_sub(SLOTS))?;
        // SAFETY: a chunk fits its slot; for the rest as the caller promises.
        unsafe { self.copy(chunk.address, self.parcel(self.me, to, round), chunk.bytes) }?;
        self.write(to, Stage::Sent, round)
    }

    /// # Safety
    /// As for `exchange`.
    unsafe fn receive(&mut self, from: usize, chunk: &Parcel) -> Result<()> {
        let round = self.received[from].wrapping_add(1);
        self.received[from] = round;
        self.wait(from, Stage::Sent, round)?;
        // SAFETY: as above.
        unsafe { self.copy(self.parcel(from, self.me, round), chunk.address, chunk.bytes) }?;
        self.write(from, Stage::Received, round)
    }

    /// Where one rank's slot for another begins.
    fn parcel(&self, from: usize, to: usize, round: u32) -> u64 {
        let slots = SLOTS as usize * SLOT;
        let slot = to * SLOTS as usize + (round % SLOTS) as usize;
        self.bases[from] + (slots + slot * PARCEL) as u64
    }
}

/// Cuts parcels to the size of slots; empty ones vanish.
fn cut(parcels: &[Parcel]) -> Vec<Parcel> {
    let mut chunks = Vec::new();
    for parcel in parcels {
        for start in (0..parcel.bytes).step_by(PARCEL) {
            let bytes = PARCEL.min(parcel.bytes - start);
            chunks.push(Parcel { address: parcel.address + start as u64, bytes });
        }
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parcels_are_cut_to_slots_and_nothing_is_lost() {
        let parcels = [Parcel { address: 100, bytes: 0 }, Parcel { address: 1000, bytes: 2 * PARCEL + 5 }];
        let chunks: Vec<(u64, usize)> =
            cut(&parcels).iter().map(|chunk| (chunk.address, chunk.bytes)).collect();
        let slot = PARCEL as u64;
        assert_eq!(chunks, [(1000, PARCEL), (1000 + slot, PARCEL), (1000 + 2 * slot, 5)]);
    }

    #[test]
    fn giving_up_moves_only_the_own_words_to_where_the_stream_waits() {
        let page = Arc::new(Page::create(2).expect("memory"));
        let rounds = Rounds::new(&page, 1, 2);
        rounds.reach(0, Stage::Filled, 9);
        rounds.release();
        assert_eq!(page.word(1, 0, Stage::Filled).load(Ordering::SeqCst), 9);
        assert_eq!(page.word(0, 1, Stage::Filled).load(Ordering::SeqCst), 0);
    }
}
