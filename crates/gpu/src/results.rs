//! Memory for results whose size only the ranks together know: the target that the front guessed right, or the device's pool.

use std::sync::Arc;

use ronde_cuda::{Pooled, Stream};
use ronde_engine::device::DeviceMemory;
use ronde_engine::{Error, Memory, Rows, Tensor};

use crate::failure::of_cuda;

struct Owned(Pooled);

impl DeviceMemory for Owned {
    fn address(&self) -> u64 {
        self.0.address()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn ordinal(&self) -> i32 {
        self.0.ordinal()
    }

    fn release(self: Box<Self>, stream: u64) {
        self.0.release(stream);
    }
}

/// Where a result of so many rows goes, and what the caller will be told of it.
pub(crate) fn place(stream: &Arc<Stream>, tensor: &Tensor, rows: usize) -> Result<(u64, Rows), Error> {
    let bytes = rows * tensor.row_elements() * tensor.dtype.size();
    let mut shape = tensor.shape.clone();
    if let Some(first) = shape.first_mut() {
        *first = rows as u64;
    }
    if tensor.capacity == bytes && (bytes == 0 || !tensor.target.is_null()) {
        return Ok((tensor.target as u64, Rows { memory: Memory::Target, shape }));
    }
    let memory = Pooled::new(stream, bytes).map_err(of_cuda)?;
    let address = memory.address();
    Ok((address, Rows { memory: Memory::Device(Box::new(Owned(memory))), shape }))
}
