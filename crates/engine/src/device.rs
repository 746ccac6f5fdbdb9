//! Where tensors live, and when they are ready: the seam between the engine and devices.
//!
//! A tensor in host memory is ready when it is submitted and its operation is finished when its bytes are written. On a device
//! both are points in a stream of work: the tensor becomes ready at an [`Event`] that the framework recorded, and the
//! operation is finished at an event that the device's [`Executor`] recorded. Negotiation does not wait for either; ranks
//! agree on the order while the device still computes. The engine waits for a readiness event only where the host itself has to
//! read the memory.

use std::fmt;
use std::sync::Arc;

use ronde_collective::Group;

use crate::error::Error;
use crate::negotiation::Batch;
use crate::operation::Tensor;

/// A point in a stream of work on a device, or anything else that the engine can wait for.
pub trait Event: Send + Sync {
    /// Whether all work before it is done.
    fn reached(&self) -> bool;
    /// Returns once it is; the text says why it never will be.
    fn wait(&self) -> Result<(), String>;
}

impl fmt::Debug for dyn Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.reached() { "reached" } else { "pending" })
    }
}

/// One tensor of a batch as an executor gets it; `None` where this rank has joined and takes part without data.
pub type Place<'a> = Option<&'a Tensor>;

/// Runs batches of tensors in the memory of a device.
pub trait Executor: Send + Sync {
    /// Starts the collective: orders it behind the readiness events of its tensors, in the device's own streams. Returns the
    /// event after which the results are there, which the consumer's stream waits for. Every member of the group is called with
    /// the same batch, in the same order.
    fn run(&self, group: &mut Group, batch: &Batch, tensors: &[Place<'_>]) -> Result<Arc<dyn Event>, Error>;
}
