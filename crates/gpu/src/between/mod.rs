//! Collectives between GPUs, by NCCL.
//!
//! A communicator is made when a set first has tensors on GPUs, in the order in which all ranks run batches, and its collectives are
//! given to a stream of the engine's own. With `HOROVOD_NUM_NCCL_STREAMS` there are several [`Lane`]s, a stream and a communicator
//! each, which batches take in turn. Waits inside NCCL end when a rank is lost; a communicator that fails later, on the device, is noticed
//! by a [`watch`] and given up, so that no stream waits for ever.
//!
//! Small tensors are copied into one buffer, reduced there as one, and copied back; a large tensor is reduced where it lies ([`reduce`]).

mod hand;
mod lane;
mod reduce;
mod watch;

use std::sync::Arc;

use ronde_collective::{Group, Reduction};
use ronde_cuda::{Device, Mark, Stream};
use ronde_engine::Error;
use ronde_nccl::Library;

pub(crate) use self::lane::Lane;
pub(crate) use self::watch::Watch;
use crate::failure::of_cuda;
use crate::path::{Handing, Path, Sources};
use crate::spans::Span;

/// See the module's text.
pub(crate) struct Between {
    lanes: Vec<Lane>,
    /// The lane of the batch under way.
    current: usize,
    _watch: Watch,
}

impl Between {
    /// Makes communicators of all members. Collective.
    pub(crate) fn new(
        group: &mut Group,
        device: &Arc<Device>,
        library: &'static Library,
        lanes: usize,
    ) -> Result<Between, Error> {
        let mut lane = || Lane::new(group, &Arc::new(Stream::new(device).map_err(of_cuda)?), library);
        let lanes = (0..lanes.max(1)).map(|_| lane()).collect::<Result<Vec<_>, _>>()?;
        let watch = Watch::start(lanes.iter().map(Lane::communicator))?;
        Ok(Between { lanes, current: 0, _watch: watch })
    }

    fn lane(&mut self) -> &mut Lane {
        &mut self.lanes[self.current]
    }
}

impl Path for Between {
    fn entry(&self) -> &Arc<Stream> {
        self.lanes[self.current].stream()
    }

    fn allreduce(
        &mut self,
        group: &mut Group,
        sources: Sources<'_>,
        targets: &[Span],
        len: usize,
        how: &Reduction,
    ) -> Result<(), Error> {
        self.lane().allreduce(group, sources, targets, len, how)
    }

    fn reducescatter(
        &mut self,
        group: &mut Group,
        sources: &[Span],
        shares: &[Vec<Span>],
        len: usize,
        how: &Reduction,
    ) -> Result<(), Error> {
        self.lane().reducescatter(group, sources, shares, len, how)
    }

    fn hand(&mut self, group: &mut Group, what: &Handing) -> Result<(), Error> {
        self.lane().hand(group, what)
    }

    fn end(&mut self) -> Result<Arc<Mark>, Error> {
        let mark = self.lane().end();
        self.current = (self.current + 1) % self.lanes.len();
        mark
    }

    fn drain(&mut self) {
        for lane in &mut self.lanes {
            lane.give_up();
        }
    }
}
