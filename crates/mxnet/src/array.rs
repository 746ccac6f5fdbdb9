//! An array of MXNet, and what has to be known of it.
//!
//! All of it comes from MXNet's C interface but for two things. Arrays that share memory, such as slices of one, are told by
//! the first word of the C++ object, which points to that memory. And before an array is pushed it is *straightened*: oneDNN
//! leaves results of convolutions in an order of its own, and asking for their address would have MXNet restore the plain
//! order and wait for that, which, asked by the operation that holds the array, never ends.

use std::collections::HashSet;
use std::ffi::c_int;
use std::ptr::null_mut;

use ronde_bridge::DType;

use crate::library::{Handle, Library};

/// An array, kept alive.
pub(crate) struct Array {
    handle: Handle,
    library: &'static Library,
}

impl Array {
    /// Makes another array of the same memory, which lives as long as this value.
    ///
    /// # Safety
    /// The handle is that of an array of MXNet.
    pub(crate) unsafe fn share(library: &'static Library, handle: Handle) -> Option<Array> {
        let mut copy = null_mut();
        // SAFETY: a handle, as promised, and a place for another.
        let status = unsafe { (library.shallow_copy)(handle, &raw mut copy) };
        (status == 0).then_some(Array { handle: copy, library })
    }

    /// The array, as MXNet's functions take it.
    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    /// What MXNet orders operations by: arrays that share memory, such as slices, have it in common.
    pub(crate) fn memory(&self) -> usize {
        // SAFETY: an NDArray begins with the pointer to the memory it shares.
        unsafe { *self.handle.cast::<usize>() }
    }

    /// Where the elements lie; null if it has never had any.
    pub(crate) fn data(&self) -> Option<*mut u8> {
        let mut data = null_mut();
        // SAFETY: a handle of our own, and a place for a pointer.
        let status = unsafe { (self.library.data)(self.handle, &raw mut data) };
        (status == 0).then_some(data.cast())
    }

    /// The extents, if they are known.
    pub(crate) fn shape(&self) -> Option<Vec<u64>> {
        let (mut dimensions, mut extents) = (0, std::ptr::null());
        // SAFETY: a handle of our own, and places for the answers.
        let status = unsafe { (self.library.shape)(self.handle, &raw mut dimensions, &raw mut extents) };
        // A negative number of dimensions, or a negative extent, is not known yet.
        let dimensions = usize::try_from(dimensions).ok().filter(|_| status == 0)?;
        if dimensions == 0 {
            return Some(Vec::new());
        }
        // SAFETY: MXNet keeps the extents until this thread asks for another shape.
        let extents = unsafe { std::slice::from_raw_parts(extents, dimensions) };
        extents.iter().map(|&extent| u64::try_from(extent).ok()).collect()
    }

    /// The type of the elements, if the engine knows it.
    pub(crate) fn dtype(&self) -> Option<DType> {
        let mut number: c_int = -1;
        // SAFETY: a handle of our own, and a place for a number.
        let status = unsafe { (self.library.dtype)(self.handle, &raw mut number) };
        Some(match (status, number) {
            (0, 0) => DType::F32,
            (0, 1) => DType::F64,
            (0, 2) => DType::F16,
            (0, 3) => DType::U8,
            (0, 4) => DType::I32,
            (0, 5) => DType::I8,
            (0, 6) => DType::I64,
            (0, 7) => DType::Bool,
            (0, 12) => DType::BF16,
            _ => return None,
        })
    }

    /// Has MXNet put the elements in plain order, should oneDNN have left them in another.
    pub(crate) fn straighten(&self, shape: &[u64], dtype: DType) {
        let can_differ = shape.len() > 1 && matches!(dtype, DType::F32 | DType::BF16 | DType::I8 | DType::U8);
        if let Some(reorder) = self.library.reorder_to_default.filter(|_| can_differ) {
            // SAFETY: a handle of our own; MXNet puts an operation in its queue, which holds what it needs.
            unsafe { reorder(self.handle) };
        }
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        // SAFETY: a handle of our own, freed once. There is nothing to do about a failure.
        unsafe { (self.library.free)(self.handle) };
    }
}

// SAFETY: MXNet's arrays may be used and freed on any thread.
unsafe impl Send for Array {}
// SAFETY: asking for the memory, which is all that is done with an array once it is pushed, is done by one thread.
unsafe impl Sync for Array {}

/// Arrays without those whose memory came before or is among `others`: MXNet would wait for itself.
pub(crate) fn distinct<'a>(arrays: impl Iterator<Item = &'a Array>, others: &[&Array]) -> Vec<&'a Array> {
    let mut seen: HashSet<usize> = others.iter().map(|array| array.memory()).collect();
    arrays.filter(|array| seen.insert(array.memory())).collect()
}
