//! Starting collectives on one stream.
//!
//! A [`Launch`] binds what the calls of one batch have in common: the communicator, the stream, and the caller's look
//! at the rest of the job, which decides how long to wait for NCCL. Calls return once NCCL has put its work on the
//! stream; the stream runs it later.

use std::ffi::c_void;
use std::fmt::Display;

use ronde_collective::types::DType;

use crate::call::{Call, Group};
use crate::communicator::Communicator;
use crate::elements::Op;
use crate::error::Error;
use crate::functions::{IN_PROGRESS, SUCCESS};

/// See the module's text. Failures are the caller's own kind: those of its `check` come back as they are.
pub struct Launch<'a, E> {
    communicator: &'a Communicator,
    stream: u64,
    check: &'a dyn Fn() -> Result<(), E>,
}

impl Communicator {
    /// Calls on this stream of the communicator's device, made while `check` finds no reason to stop.
    ///
    /// # Safety
    /// The stream is alive and belongs to the communicator's device, whose context is current in this thread. Memory
    /// given to the calls is that device's, large enough, and stays until the stream has passed the call.
    pub unsafe fn on<'a, E>(&'a self, stream: u64, check: &'a dyn Fn() -> Result<(), E>) -> Launch<'a, E> {
        Launch { communicator: self, stream, check }
    }
}

impl<E: From<Error> + Display> Launch<'_, E> {
    /// Everybody gets the reduction of everybody's `count` elements.
    pub fn all_reduce(
        &self,
        src: u64,
        dst: u64,
        count: usize,
        dtype: DType,
        op: impl Into<Op>,
    ) -> Result<(), E> {
        self.group(|group| group.all_reduce(src, dst, count, dtype, op))
    }

    /// Of `count` times as many elements as there are ranks, rank r gets the r-th part of the reduction.
    pub fn reduce_scatter(
        &self,
        src: u64,
        dst: u64,
        count: usize,
        dtype: DType,
        op: impl Into<Op>,
    ) -> Result<(), E> {
        self.group(|group| group.reduce_scatter(src, dst, count, dtype, op))
    }

    /// The root gets the reduction of everybody's `count` elements; `dst` matters only there.
    pub fn reduce(
        &self,
        src: u64,
        dst: u64,
        count: usize,
        dtype: DType,
        op: impl Into<Op>,
        root: usize,
    ) -> Result<(), E> {
        self.group(|group| group.reduce(src, dst, count, dtype, op, root))
    }

    /// Everybody gets the root's `count` elements; `src` matters only there.
    pub fn broadcast(&self, src: u64, dst: u64, count: usize, dtype: DType, root: usize) -> Result<(), E> {
        self.group(|group| group.broadcast(src, dst, count, dtype, root))
    }

    /// Everybody gets everybody's `count` elements, in the order of ranks.
    pub fn all_gather(&self, src: u64, dst: u64, count: usize, dtype: DType) -> Result<(), E> {
        self.group(|group| group.all_gather(src, dst, count, dtype))
    }

    /// Gives `count` elements to a rank that receives them.
    pub fn send(&self, src: u64, count: usize, dtype: DType, peer: usize) -> Result<(), E> {
        self.group(|group| group.send(src, count, dtype, peer))
    }

    /// Takes `count` elements from a rank that sends them.
    pub fn recv(&self, dst: u64, count: usize, dtype: DType, peer: usize) -> Result<(), E> {
        self.group(|group| group.recv(dst, count, dtype, peer))
    }

    /// Starts all calls that `fill` puts into the group as one. If it fails, none is started.
    pub fn group(&self, fill: impl FnOnce(&mut Group) -> Result<(), Error>) -> Result<(), E> {
        let mut group = Group::default();
        fill(&mut group)?;
        let _start = self.communicator.start()?;
        let (what, code) = match group.calls.as_slice() {
            [] => return Ok(()),
            [call] => (call.name(), self.issue(call)?),
            calls => self.issue_all(calls)?,
        };
        self.communicator.settle(what, code, self.check)
    }

    fn issue(&self, call: &Call) -> Result<i32, Error> {
        let turn = self.communicator.turn()?;
        // SAFETY: the handle is alive while the turn is held; for stream and memory the caller of `on` has promised.
        Ok(unsafe { call.issue(turn.functions(), turn.handle(), self.stream as *mut c_void) })
    }

    /// Between the start and the end of a group nobody else may come in, and the end is told whatever happens: NCCL
    /// counts starts and ends by thread.
    fn issue_all(&self, calls: &[Call]) -> Result<(&'static str, i32), Error> {
        let turn = self.communicator.turn()?;
        // SAFETY: no arguments.
        let started = unsafe { (turn.functions().group_start)() };
        if started != SUCCESS {
            return Ok(("ncclGroupStart", started));
        }
        let failed = calls.iter().find_map(|call| {
            // SAFETY: as in `issue`.
            let code = unsafe { call.issue(turn.functions(), turn.handle(), self.stream as *mut c_void) };
            (code != SUCCESS && code != IN_PROGRESS).then_some((call.name(), code))
        });
        // SAFETY: the group was started by this thread.
        let ended = unsafe { (turn.functions().group_end)() };
        Ok(failed.unwrap_or(("ncclGroupEnd", ended)))
    }
}
