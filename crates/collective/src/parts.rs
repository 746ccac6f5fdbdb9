//! Batches: many tensors in one collective.
//!
//! Frameworks make hundreds of small tensors. Reduced one by one, each would cost a meeting of all ranks; a batch costs about
//! what one tensor of the total size would. A batch is a list of addresses: tensors stay where they are, and are packed and
//! unpacked by the copies into and out of shared memory that a collective makes anyway.
//!
//! All members of a group call with equally many parts of equal lengths, in the same order. Addresses are each rank's own
//! affair: a rank may work in place, have no data (then it contributes what changes nothing), or not want the result.
//! Who calls has to vouch for the addresses, hence `unsafe`; lengths are checked here. How the bytes move is told in
//! `algorithm/batch.rs`.

use crate::algorithm::batch;
use crate::error::{Error, Result};
use crate::group::{Group, Reduction, elements};
use crate::types::ReduceOp;

/// One tensor of a batch to be reduced. It may be in place: `source == target`.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// This rank's input. Null: it has no data and contributes the identity of the reduction (zeros for sums).
    pub source: *const u8,
    /// Where the result goes. Null: this rank does not want it.
    pub target: *mut u8,
    /// Bytes, a multiple of the element size.
    pub len: usize,
}

/// One tensor of a batch whose reduction is scattered.
#[derive(Clone, Debug)]
pub struct ScatterPart {
    /// This rank's input, all shares of it. Null: it has no data and contributes the identity of the reduction.
    pub source: *const u8,
    /// Where this rank's share of the result goes. Null: it does not want it.
    pub target: *mut u8,
    /// Elements of each member's share.
    pub lengths: Vec<usize>,
}

/// One tensor of a batch to be gathered.
#[derive(Clone, Debug)]
pub struct GatherPart {
    /// This rank's contribution; it may lie at its place in `target`. May be null if it is empty.
    pub source: *const u8,
    /// Where all contributions go, one behind the other. Null: this rank does not want them.
    pub target: *mut u8,
    /// Bytes of each member's contribution.
    pub lengths: Vec<usize>,
}

impl Group {
    /// Reduces every part over all members into every member's target.
    ///
    /// # Safety
    /// Sources that are not null must be valid for reads and targets for writes of their part's length, at any
    /// alignment, until this returns. A target may be its own part's source exactly; otherwise it overlaps nothing
    /// else in the batch.
    pub unsafe fn allreduce_parts(&mut self, parts: &[Part], how: &Reduction) -> Result<()> {
        for part in parts {
            elements(part.len, how.dtype)?;
        }
        total(parts.iter().map(|part| part.len))?;
        self.guarded(|group| batch::allreduce(group, parts, how))
    }

    /// Reduces every part over all members; member `m` gets the next `lengths[m]` elements of each result.
    ///
    /// # Safety
    /// Sources that are not null must be valid for reads of all shares and targets for writes of this member's share,
    /// at any alignment, until this returns. A target overlaps nothing else in the batch.
    pub unsafe fn reducescatter_parts(&mut self, parts: &[ScatterPart], how: &Reduction) -> Result<()> {
        for part in parts {
            self.expect_one_each("reducescatter", &part.lengths)?;
        }
        let size = how.dtype.size();
        total(parts.iter().flat_map(|part| &part.lengths).map(|count| count.saturating_mul(size)))?;
        if how.op == ReduceOp::Adasum {
            return Err(Error::Unsupported { op: how.op, dtype: how.dtype });
        }
        self.guarded(|group| batch::reducescatter(group, parts, how))
    }

    /// Concatenates everybody's contribution to every part, in order.
    ///
    /// # Safety
    /// Sources must be valid for reads of `lengths[rank]` bytes, unless that is zero, and targets that are not null for
    /// writes of the sum of `lengths`, until this returns. A target overlaps nothing else in the batch, but a source may
    /// lie in its own part's target where it belongs.
    pub unsafe fn allgather_parts(&mut self, parts: &[GatherPart]) -> Result<()> {
        for part in parts {
            self.expect_one_each("allgather", &part.lengths)?;
            let own = part.lengths[self.rank()];
            if part.source.is_null() && own > 0 {
                return Err(Error::Invalid(format!(
                    "allgather: no source for a contribution of {own} bytes"
                )));
            }
        }
        total(parts.iter().flat_map(|part| &part.lengths).copied())?;
        self.guarded(|group| batch::allgather(group, parts))
    }
}

/// Refuses lengths that no memory holds together, so that adding them up later is safe.
fn total(mut lengths: impl Iterator<Item = usize>) -> Result<()> {
    lengths
        .try_fold(0usize, usize::checked_add)
        .filter(|&total| isize::try_from(total).is_ok())
        .map(drop)
        .ok_or_else(|| Error::Invalid("a batch is longer than memory can be".into()))
}
