//! Memory in the place of tensors that this rank does not have since it has joined, in a batch with some that it has.

use std::sync::Arc;

use ronde_collective::Reduction;
use ronde_cuda::{Kernel, Launcher, Mark, Pooled, Stream};
use ronde_engine::Error;

use crate::failure::of_cuda;
use crate::packing::piece;
use crate::path::neutral;

/// Holds what changes nothing in a reduction, until the result of that lies there.
pub(crate) struct StandIn {
    memory: Pooled,
    stream: Arc<Stream>,
}

impl StandIn {
    /// So many bytes, for what is given to this stream from now on. Waits for the stream, which is well for what is this rare.
    pub(crate) fn new(stream: &Arc<Stream>, bytes: usize, how: &Reduction) -> Result<StandIn, Error> {
        let memory = Pooled::new(stream, bytes).map_err(of_cuda)?;
        let pieces = [piece(0, memory.address(), bytes, 1)];
        // SAFETY: the memory is that long, and is freed behind this in the stream.
        unsafe { Launcher::new(stream).launch(&Kernel::Fill, &pieces, &[neutral(how)]) }.map_err(of_cuda)?;
        Ok(StandIn { memory, stream: stream.clone() })
    }

    pub(crate) fn address(&self) -> u64 {
        self.memory.address()
    }

    /// Has it freed, when it is dropped, only after a point in any stream.
    pub(crate) fn keep_until(&self, mark: &Mark) -> Result<(), Error> {
        // Dropping it frees it in the order of its own stream, after this wait.
        self.stream.wait(mark).map_err(of_cuda)
    }
}
