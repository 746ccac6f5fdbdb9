//! The tensors of one run of a collective: addresses for the engine, and the handles that keep the memory there.

use std::ffi::c_int;

use ronde_bridge::DType;

use crate::context::Context;
use crate::status::Refusal;
use crate::tensor::Tensor;

/// One tensor of a collective, and what keeps its memory.
pub(super) struct Part {
    source: *const u8,
    target: *mut u8,
    pub(super) shape: Vec<u64>,
    dtype: DType,
    /// TensorFlow's number of the type.
    pub(super) number: c_int,
    _input: Option<Tensor>,
    _output: Option<Tensor>,
}

// SAFETY: the memory the addresses point to is kept by the tensors, which may be sent.
unsafe impl Send for Part {}

impl Part {
    /// The tensor, as the engine takes it, with the shape that was taken from here.
    pub(super) fn of_shape<'a>(&self, shape: &'a [u64]) -> ronde_bridge::Tensor<'a> {
        ronde_bridge::Tensor { source: self.source, target: self.target, shape, dtype: self.dtype }
    }

    /// For results that the engine allocates.
    pub(super) fn read_only(input: Tensor) -> Result<Part, Refusal> {
        Ok(Part {
            source: input.data(),
            target: std::ptr::null_mut(),
            shape: input.shape(),
            dtype: input.dtype()?,
            number: input.number(),
            _input: Some(input),
            _output: None,
        })
    }

    /// For a result that replaces the tensor.
    pub(super) fn in_place(tensor: Tensor) -> Result<Part, Refusal> {
        let target = tensor.data();
        Ok(Part { target, ..Part::read_only(tensor)? })
    }

    /// For a result of the input's shape; in the input's memory, if nobody else needs that.
    pub(super) fn with_output(context: Context, index: c_int) -> Result<Part, Refusal> {
        let shape = context.input(index)?.shape();
        // This library must not hold the input itself now: TensorFlow would take it for somebody who needs it.
        let (output, forwarded) = context.forward_or_allocate(index, &shape)?;
        if forwarded {
            return Part::in_place(output);
        }
        let input = Part::read_only(context.input(index)?)?;
        Ok(Part { target: output.data(), _output: Some(output), ..input })
    }

    /// For a result that has this rank's share of the rows; the first ranks get one more if it is uneven.
    pub(super) fn with_share(
        context: Context,
        index: c_int,
        share: Option<(u64, u64)>,
    ) -> Result<Part, Refusal> {
        let part = Part::read_only(context.input(index)?)?;
        let mut shape = part.shape.clone();
        let (Some(rows), Some((rank, size))) = (shape.first_mut(), share) else {
            // A scalar: the engine refuses it, and tells the other ranks.
            return Ok(part);
        };
        *rows = rows_of(*rows, rank, size);
        let len = shape.iter().product::<u64>() as usize * part.dtype.size();
        let output = context.allocate(index, part.number, &shape, len)?;
        Ok(Part { target: output.data(), _output: Some(output), ..part })
    }
}

fn rows_of(rows: u64, rank: u64, size: u64) -> u64 {
    rows / size + u64::from(rank < rows % size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_rows_add_up_and_the_first_ranks_get_one_more() {
        let shares: Vec<u64> = (0..4).map(|rank| rows_of(10, rank, 4)).collect();
        assert_eq!(shares, [3, 3, 2, 2]);
        assert_eq!((rows_of(1, 0, 3), rows_of(1, 1, 3), rows_of(0, 0, 3)), (1, 0, 0));
    }
}
