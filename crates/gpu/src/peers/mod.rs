//! Collectives of the ranks that share one GPU, inside its memory.
//!
//! Every rank owns a buffer of two *slots* that the others have mapped. An operation is a number of *rounds*: each rank copies
//! some of its bytes into a slot, and then all read each other's slots ([`operations`]). Streams of different processes are put in order by words in shared
//! host memory ([`flags`]): a stream writes one when it has come to a point, others wait for it. Kernels of two processes do not run at
//! the same moment, so none ever spins for another's.
//!
//! A stream is only told to wait for what has been given to its peer's stream already: in each round the ranks meet on the host
//! after they have given their copies to their streams, and before they give waits to them. So every wait is for work that was
//! submitted before it, whatever else the streams carry and however the driver maps them to queues, and no order of operations can
//! end in a circle. When a rank is lost, what it had submitted is gone with it; then all words are moved on, so that no stream waits
//! for ever, and the results are worth nothing, which the next call says.
//!
//! The meeting orders giving, not doing: the host goes on while the GPU still computes what the tensors are made of.

mod buffers;
mod flags;
mod operations;

use std::sync::Arc;

use ronde_collective::{Alarm, Group};
use ronde_cuda::{Kernel, Launcher, Piece, Stream};
use ronde_engine::Error;

use self::buffers::Buffers;
use self::flags::{Flags, LINE, Releaser, Stage};
use crate::failure::{agree, of_cuda};

/// See the module's text.
pub(crate) struct Peers {
    launcher: Launcher,
    flags: Arc<Flags>,
    _releaser: Arc<dyn Alarm>,
    buffers: Buffers,
    /// Rounds begun, counted on modulo 2^32.
    round: u32,
    /// The ranks on this GPU.
    group: Group,
}

impl Peers {
    /// Bytes that fit one round on every GPU.
    pub(crate) const ALWAYS: usize = buffers::LEAST;

    /// Meets the ranks of a group, all of which are on the GPU of the stream. Collective.
    pub(crate) fn new(mut group: Group, stream: &Arc<Stream>) -> Result<Peers, Error> {
        let pages = group.share_pages(group.size() * LINE)?;
        let flags = Flags::new(pages, group.size(), stream.device());
        agree(&mut group, flags.as_ref().err())?.fine()?;
        let flags = Arc::new(flags.map_err(of_cuda)?);
        let releaser: Arc<dyn Alarm> = Arc::new(Releaser(flags.clone()));
        group.on_loss(Arc::downgrade(&releaser))?;
        let launcher = Launcher::new(stream);
        Ok(Peers { launcher, flags, _releaser: releaser, buffers: Buffers::default(), round: 0, group })
    }

    fn stream(&self) -> &Arc<Stream> {
        self.launcher.stream()
    }

    pub(crate) fn me(&self) -> usize {
        self.group.rank()
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.me();
        (0..self.group.size()).filter(move |&member| member != me)
    }

    /// Launches a kernel on what was cut.
    ///
    /// # Safety
    /// As for [`Launcher::launch`].
    pub(crate) unsafe fn launch(
        &mut self,
        kernel: &Kernel,
        pieces: &[Piece],
        words: &[u64],
    ) -> Result<(), Error> {
        // SAFETY: as the caller promises.
        unsafe { self.launcher.launch(kernel, pieces, words) }.map_err(of_cuda)
    }

    /// Makes room for rounds of up to so many bytes a rank, which all members say alike; returns the bytes of a round.
    pub(crate) fn prepare(&mut self, bytes: usize) -> Result<usize, Error> {
        let stream = self.stream().clone();
        self.buffers.grow(&mut self.group, &stream, bytes)
    }

    /// Begins a round: what follows in the stream may write this rank's slot. Returns where everybody's slots begin.
    pub(crate) fn begin(&mut self) -> Result<Vec<u64>, Error> {
        self.round = self.round.wrapping_add(1);
        // The slot was last used two rounds ago; that its readers have been given to their streams is known since the meeting
        // of the last round.
        for member in self.others() {
            self.flags
                .wait(self.stream(), member, Stage::Taken, self.round.wrapping_sub(2))
                .map_err(of_cuda)?;
        }
        Ok(self.buffers.slots(self.round))
    }

    /// This rank has given all that fills its slot to the stream; what follows there comes after everybody's.
    pub(crate) fn publish(&mut self) -> Result<(), Error> {
        self.meet(Stage::Filled)
    }

    /// The same for what was folded into this rank's slot.
    pub(crate) fn publish_folded(&mut self) -> Result<(), Error> {
        self.meet(Stage::Folded)
    }

    fn meet(&mut self, stage: Stage) -> Result<(), Error> {
        self.flags.write(self.stream(), self.me(), stage, self.round).map_err(of_cuda)?;
        self.group.barrier()?;
        for member in self.others() {
            self.flags.wait(self.stream(), member, stage, self.round).map_err(of_cuda)?;
        }
        Ok(())
    }

    /// Returns once nothing of this rank is under way. What a GPU that failed was given it will not do, so then those who wait for
    /// it are let go.
    fn settle(&self) {
        if self.stream().synchronize().is_err() {
            self.flags.release();
        }
    }

    /// This rank has given all that reads the others' slots to the stream.
    pub(crate) fn finish(&mut self) -> Result<(), Error> {
        self.flags.write(self.stream(), self.me(), Stage::Taken, self.round).map_err(of_cuda)
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        // Peers may still wait for what is in the stream, and the stream use the slots. Nothing in it waits for ever: a loss
        // moves the words on.
        self.settle();
        // Those who still read this rank's slot have it mapped themselves.
    }
}
