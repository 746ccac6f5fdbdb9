//! Collectives over all ranks that return when they are done, on slices: for programs in Rust, measurements and tests.

use ronde_collective::types::{DType, ReduceOp};

use crate::common::WORLD;
use crate::engine::Engine;
use crate::error::Error;
use crate::negotiation::Kind;
use crate::operation::{Finished, Rows, Submission, Tensor};

type Result<T> = std::result::Result<T, Error>;

fn tensor(source: *const u8, target: *mut u8, shape: &[usize], dtype: DType) -> Tensor {
    let shape = shape.iter().map(|&extent| extent as u64).collect();
    Tensor { source, target, shape, dtype, stored: None, ready: None, capacity: 0 }
}

impl Engine {
    /// Reduces `buffer` over all ranks, in place.
    pub fn allreduce(&self, name: &str, buffer: &mut [u8], dtype: DType, op: ReduceOp) -> Result<()> {
        let elements = buffer.len() / dtype.size();
        let tensors = vec![tensor(buffer.as_ptr(), buffer.as_mut_ptr(), &[elements], dtype)];
        self.complete(Submission { op, ..Submission::new(Kind::Allreduce, name, tensors) }).map(drop)
    }

    /// Gives everybody the bytes of rank `root`.
    pub fn broadcast(&self, name: &str, buffer: &mut [u8], root: usize) -> Result<()> {
        let tensors = vec![tensor(buffer.as_ptr(), buffer.as_mut_ptr(), &[buffer.len()], DType::U8)];
        self.complete(Submission { root, ..Submission::new(Kind::Broadcast, name, tensors) }).map(drop)
    }

    /// Concatenates everybody's bytes.
    pub fn allgather(&self, name: &str, input: &[u8]) -> Result<Rows> {
        let tensors = vec![tensor(input.as_ptr(), std::ptr::null_mut(), &[input.len()], DType::U8)];
        rows(self.complete(Submission::new(Kind::Allgather, name, tensors))?)
    }

    /// Sends an equal share of `input` to everybody.
    pub fn alltoall(&self, name: &str, input: &[u8]) -> Result<Rows> {
        let tensors = vec![tensor(input.as_ptr(), std::ptr::null_mut(), &[input.len()], DType::U8)];
        rows(self.complete(Submission::new(Kind::Alltoall, name, tensors))?)
    }

    /// Returns once every rank has called it.
    pub fn barrier(&self, name: &str) -> Result<()> {
        self.complete(Submission::new(Kind::Barrier, name, Vec::new())).map(drop)
    }

    /// Submits and waits. The memory is the caller's again when this returns, so a wait that is interrupted ends the engine.
    fn complete(&self, submission: Submission) -> Result<Finished> {
        // SAFETY: the borrows of the callers above outlive this call, at whose end the operation is finished.
        let handle = unsafe { self.submit(WORLD, Submission { awaited: true, ..submission }) }?;
        match self.wait(handle) {
            Err(Error::Interrupted) => {
                self.shut_down();
                Err(Error::Interrupted)
            }
            outcome => Ok(outcome?.unwrap_or_default()),
        }
    }
}

fn rows(finished: Finished) -> Result<Rows> {
    let first = finished.rows.into_iter().next().flatten();
    first.ok_or_else(|| Error::ShutDown("the operation ended without a result".into()))
}
