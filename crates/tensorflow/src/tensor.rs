//! A tensor of TensorFlow, held by this library: its memory stays as long as the value.

use std::ffi::{c_int, c_void};

use ronde_bridge::{DType, Rows};

use crate::api::{Api, RawTensor};
use crate::dtype;
use crate::status::{Code, Refusal};

/// A tensor.
pub(crate) struct Tensor {
    api: &'static Api,
    raw: *mut RawTensor,
}

// SAFETY: TensorFlow counts references to a tensor's memory atomically, and does not mind who deletes a tensor.
unsafe impl Send for Tensor {}

impl Tensor {
    /// Takes a tensor over; `None` for a null pointer.
    ///
    /// # Safety
    /// The tensor is nobody else's to delete.
    pub(crate) unsafe fn take(api: &'static Api, raw: *mut RawTensor) -> Option<Tensor> {
        (!raw.is_null()).then_some(Tensor { api, raw })
    }

    /// Makes a tensor of memory that the engine has allocated, without copying it.
    pub(crate) fn of_rows(api: &'static Api, number: c_int, rows: Rows) -> Option<Tensor> {
        let shape = signed(rows.shape());
        let (data, len) = (rows.data(), rows.len());
        let owner = Box::into_raw(Box::new(rows));
        // SAFETY: the memory is valid until `release` is called, which is when nobody uses the tensor any more.
        let raw = unsafe {
            (api.functions.new_tensor)(
                number,
                shape.as_ptr(),
                shape.len() as c_int,
                data.cast(),
                len,
                release,
                owner.cast(),
            )
        };
        // SAFETY: new, and given to nobody else.
        unsafe { Tensor::take(api, raw) }
    }

    pub(crate) fn as_ptr(&self) -> *mut RawTensor {
        self.raw
    }

    /// TensorFlow's number of the element type.
    pub(crate) fn number(&self) -> c_int {
        // SAFETY: a valid tensor, as in all of this.
        unsafe { (self.api.functions.tensor_type)(self.raw) }
    }

    /// The element type.
    pub(crate) fn dtype(&self) -> Result<DType, Refusal> {
        dtype::of_tensorflow(self.number()).ok_or_else(|| {
            let text = format!("tensors of TensorFlow's type {} cannot be exchanged", self.number());
            Refusal::new(Code::InvalidArgument, text)
        })
    }

    pub(crate) fn shape(&self) -> Vec<u64> {
        // SAFETY: see above.
        let dimensions = unsafe { (self.api.functions.num_dims)(self.raw) };
        // SAFETY: see above.
        let extent = |dimension| unsafe { (self.api.functions.dim)(self.raw, dimension) };
        (0..dimensions).map(|dimension| extent(dimension).unsigned_abs()).collect()
    }

    /// How many bytes it has.
    pub(crate) fn len(&self) -> usize {
        // SAFETY: see above.
        unsafe { (self.api.functions.tensor_byte_size)(self.raw) }
    }

    /// Where its bytes are; may be null if it has none.
    pub(crate) fn data(&self) -> *mut u8 {
        // SAFETY: see above.
        unsafe { (self.api.functions.tensor_data)(self.raw) }.cast()
    }

    /// The numbers in a tensor of `int32`.
    pub(crate) fn numbers(&self) -> &[i32] {
        let len = self.len() / size_of::<i32>();
        if self.number() != dtype::INT32 || len == 0 {
            return &[];
        }
        // SAFETY: so many elements of that type, which stay as long as this value.
        unsafe { std::slice::from_raw_parts(self.data().cast(), len) }
    }

    /// Writes into a tensor of `int32` of this library's making; as many numbers as there are and fit.
    pub(crate) fn write_numbers(&mut self, numbers: &[i32]) {
        let len = numbers.len().min(self.len() / size_of::<i32>());
        if len > 0 {
            // SAFETY: room for so many, and nobody reads an output before its kernel has finished.
            unsafe { std::ptr::copy_nonoverlapping(numbers.as_ptr(), self.data().cast(), len) };
        }
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: this value's own, deleted once.
        unsafe { (self.api.functions.delete_tensor)(self.raw) };
    }
}

/// Extents as TensorFlow counts them.
pub(crate) fn signed(shape: &[u64]) -> Vec<i64> {
    shape.iter().map(|&extent| i64::try_from(extent).unwrap_or(i64::MAX)).collect()
}

unsafe extern "C" fn release(_: *mut c_void, _: usize, owner: *mut c_void) {
    // SAFETY: the box that `of_rows` gave away, given back once.
    drop(unsafe { Box::from_raw(owner.cast::<Rows>()) });
}
