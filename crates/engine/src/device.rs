//! Where tensors live, and when they are ready: the seam between the engine and devices.
//!
//! A tensor in host memory is ready when it is submitted and its operation is finished when its bytes are written. On a device
//! both are points in a stream of work: the tensor becomes ready at an [`Event`] that the framework recorded, and the
//! operation is finished at an event that the device's [`Worker`] recorded. Negotiation does not wait for either; ranks
//! agree on the order while the device still computes. The engine waits for a readiness event only where the host itself has to
//! read the memory.
//!
//! An [`Executor`] is this rank's device; it opens one worker for each process set that has tensors there.

use std::fmt;
use std::sync::Arc;

use ronde_collective::Group;

use crate::error::Error;
use crate::negotiation::Batch;
use crate::operation::{Rows, Tensor};

/// A point in a stream of work on a device, or anything else that the engine can wait for.
pub trait Event: Send + Sync {
    /// Whether all work before it is done.
    fn reached(&self) -> bool;
    /// Returns once it is; the text says why it never will be.
    fn wait(&self) -> Result<(), String>;
    /// Has a stream of the framework, known by its handle, wait for it; the host goes on.
    fn order(&self, stream: u64) -> Result<(), String>;
    /// The stream that it is a point of, and a number that grows along the stream: whoever waits for a point has waited for
    /// those of the same stream with smaller numbers. None if it is not of a single stream.
    fn place(&self) -> Option<(u64, u64)> {
        None
    }
}

impl fmt::Debug for dyn Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.reached() { "reached" } else { "pending" })
    }
}

/// Memory on a device that the engine allocated for a result. It may be dropped as soon as a stream was named that
/// reads it: it is freed behind what that stream was given until then.
pub trait DeviceMemory: Send + Sync {
    /// Where it begins, for the device.
    fn address(&self) -> u64;
    /// How many bytes there are.
    fn len(&self) -> usize;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The number of the device.
    fn ordinal(&self) -> i32;
    /// All reading of it has been given to this stream; it may be freed behind that.
    fn release(self: Box<Self>, stream: u64);
}

impl fmt::Debug for dyn DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes on device {}", self.len(), self.ordinal())
    }
}

/// One tensor of a batch as a worker gets it, with the rows for each member where it is an all-to-all.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The tensor.
    pub tensor: &'a Tensor,
    /// Rows for each member in an all-to-all; equal ones if absent.
    pub splits: Option<&'a [usize]>,
}

/// An item of a batch; `None` where this rank has joined and takes part without data.
pub type Place<'a> = Option<Input<'a>>;

/// What a batch gives.
#[derive(Debug)]
pub struct Started {
    /// The point after which the results are there.
    pub event: Arc<dyn Event>,
    /// Results of allgather and alltoall, one an item.
    pub rows: Vec<Option<Rows>>,
    /// Rows received from each member in an all-to-all.
    pub received: Vec<usize>,
}

impl Started {
    /// Nothing but the targets, which are written before this event.
    pub fn at(event: Arc<dyn Event>) -> Started {
        Started { event, rows: Vec::new(), received: Vec::new() }
    }
}

/// A device of this rank.
pub trait Executor: Send + Sync {
    /// Prepares for batches of one process set. Called by every member, at the same point of the set's order.
    fn open(&self, group: &mut Group) -> Result<Box<dyn Worker>, Error>;
}

/// Runs the batches of one process set whose tensors are in the memory of a device.
pub trait Worker: Send {
    /// Starts a collective: orders it behind the readiness events of its tensors, in the device's own streams, and does not wait
    /// for its end. Every member of the group is called with the same batch, in the same order. After a failure no
    /// stream uses the tensors any more.
    fn run(&mut self, group: &mut Group, batch: &Batch, items: &[Place<'_>]) -> Result<Started, Error>;
}
