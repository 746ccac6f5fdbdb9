//! What TensorFlow hands a kernel: a construction when it is made, a context each time it runs.

use std::ffi::{CStr, c_char, c_int};

use crate::api::{Api, RawConstruction, RawContext};
use crate::node::Node;
use crate::status::{Code, Refusal, Status};
use crate::tensor::{Tensor, signed};

/// A kernel being made: its node and the attributes of that.
pub(crate) struct Construction {
    api: &'static Api,
    raw: *mut RawConstruction,
}

impl Construction {
    /// # Safety
    /// `raw` was given to a create function that has not returned, nor does it while this value is used.
    pub(crate) unsafe fn new(api: &'static Api, raw: *mut RawConstruction) -> Construction {
        Construction { api, raw }
    }

    /// Has TensorFlow refuse the node.
    pub(crate) fn fail(&self, refusal: &Refusal) {
        let status = Status::new(self.api);
        status.set(refusal);
        // SAFETY: valid, as promised to `new`; this holds for all calls in this block.
        unsafe { (self.api.functions.construction_failure)(self.raw, status.as_ptr()) };
    }

    pub(crate) fn node(&self) -> Result<Node, Refusal> {
        let status = Status::new(self.api);
        // SAFETY: see above.
        let buffer = unsafe { (self.api.functions.node_of)(self.raw, status.as_ptr()) };
        status.check()?;
        if buffer.is_null() {
            return Err(Refusal::new(Code::InvalidArgument, "the node cannot be read"));
        }
        // SAFETY: the buffer is valid until it is deleted, below.
        let (data, len) = unsafe { ((*buffer).data, (*buffer).length) };
        let bytes: &[u8] = if data.is_null() {
            &[]
        } else {
            // SAFETY: so many bytes, until the buffer is deleted.
            unsafe { std::slice::from_raw_parts(data.cast(), len) }
        };
        let node = Node::read(bytes);
        // SAFETY: given to this function, deleted once.
        unsafe { (self.api.functions.delete_buffer)(buffer) };
        node.ok_or_else(|| Refusal::new(Code::InvalidArgument, "the node cannot be read"))
    }

    pub(crate) fn int(&self, name: &CStr) -> Result<i64, Refusal> {
        let (mut value, status) = (0, Status::new(self.api));
        // SAFETY: see above.
        unsafe {
            (self.api.functions.attribute_int)(self.raw, name.as_ptr(), &raw mut value, status.as_ptr())
        };
        status.check().map(|()| value)
    }

    pub(crate) fn float(&self, name: &CStr) -> Result<f64, Refusal> {
        let (mut value, status) = (0.0, Status::new(self.api));
        // SAFETY: see above.
        unsafe {
            (self.api.functions.attribute_float)(self.raw, name.as_ptr(), &raw mut value, status.as_ptr())
        };
        status.check().map(|()| f64::from(value))
    }

    pub(crate) fn bool(&self, name: &CStr) -> Result<bool, Refusal> {
        let (mut value, status) = (0, Status::new(self.api));
        // SAFETY: see above.
        unsafe {
            (self.api.functions.attribute_bool)(self.raw, name.as_ptr(), &raw mut value, status.as_ptr())
        };
        status.check().map(|()| value != 0)
    }

    pub(crate) fn string(&self, name: &CStr) -> Result<String, Refusal> {
        let (_, len) = self.size(name)?;
        let mut bytes = vec![0_u8; len];
        if len > 0 {
            let status = Status::new(self.api);
            let target = bytes.as_mut_ptr().cast::<c_char>();
            // SAFETY: see above; there is room for so many bytes.
            unsafe {
                (self.api.functions.attribute_string)(self.raw, name.as_ptr(), target, len, status.as_ptr())
            };
            status.check()?;
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// How many elements a list has, -1 for no list; and how many bytes all of it takes.
    pub(crate) fn size(&self, name: &CStr) -> Result<(i32, usize), Refusal> {
        let (mut elements, mut bytes, status) = (0, 0, Status::new(self.api));
        // SAFETY: see above.
        unsafe {
            (self.api.functions.attribute_size)(
                self.raw,
                name.as_ptr(),
                &raw mut elements,
                &raw mut bytes,
                status.as_ptr(),
            );
        }
        status.check().map(|()| (elements, usize::try_from(bytes).unwrap_or(0)))
    }
}

/// One run of a kernel. Valid until TensorFlow is told that the kernel has finished.
#[derive(Clone, Copy)]
pub(crate) struct Context {
    pub(crate) api: &'static Api,
    raw: *mut RawContext,
}

// SAFETY: TensorFlow lets an asynchronous kernel use its context on any thread, one at a time, until it has finished.
unsafe impl Send for Context {}

impl Context {
    /// # Safety
    /// `raw` was given to a compute function whose kernel has not finished, nor does it while this value is used.
    pub(crate) unsafe fn new(api: &'static Api, raw: *mut RawContext) -> Context {
        Context { api, raw }
    }

    pub(crate) fn as_ptr(self) -> *mut RawContext {
        self.raw
    }

    /// Makes this run fail. If it has failed before, the first failure counts.
    pub(crate) fn fail(self, refusal: &Refusal) {
        let status = Status::new(self.api);
        status.set(refusal);
        // SAFETY: valid, as promised to `new`; this holds for all calls in this block.
        unsafe { (self.api.functions.context_failure)(self.raw, status.as_ptr()) };
    }

    pub(crate) fn inputs(self) -> c_int {
        // SAFETY: see above.
        unsafe { (self.api.functions.num_inputs)(self.raw) }
    }

    pub(crate) fn input(self, index: c_int) -> Result<Tensor, Refusal> {
        let (mut raw, status) = (std::ptr::null_mut(), Status::new(self.api));
        // SAFETY: see above.
        unsafe { (self.api.functions.get_input)(self.raw, index, &raw mut raw, status.as_ptr()) };
        self.given(raw, &status)
    }

    /// Makes an output, in new memory.
    pub(crate) fn allocate(
        self,
        index: c_int,
        number: c_int,
        shape: &[u64],
        len: usize,
    ) -> Result<Tensor, Refusal> {
        let (extents, status) = (signed(shape), Status::new(self.api));
        let dimensions = extents.len() as c_int;
        // SAFETY: see above.
        let raw = unsafe {
            (self.api.functions.allocate_output)(
                self.raw,
                index,
                number,
                extents.as_ptr(),
                dimensions,
                len,
                status.as_ptr(),
            )
        };
        self.given(raw, &status)
    }

    /// Makes an output like the input of the same index: in that input's memory if nobody else needs it, which the second
    /// value says, or else in new memory.
    pub(crate) fn forward_or_allocate(self, index: c_int, shape: &[u64]) -> Result<(Tensor, bool), Refusal> {
        let (extents, status) = (signed(shape), Status::new(self.api));
        let mut forwarded = -1;
        // SAFETY: see above; the one candidate is only read.
        let raw = unsafe {
            (self.api.functions.forward_or_allocate)(
                self.raw,
                &raw const index,
                1,
                index,
                extents.as_ptr(),
                extents.len() as c_int,
                &raw mut forwarded,
                status.as_ptr(),
            )
        };
        Ok((self.given(raw, &status)?, forwarded == index))
    }

    /// Makes a tensor an output.
    pub(crate) fn set_output(self, index: c_int, tensor: &Tensor) -> Result<(), Refusal> {
        let status = Status::new(self.api);
        // SAFETY: see above.
        unsafe { (self.api.functions.set_output)(self.raw, index, tensor.as_ptr(), status.as_ptr()) };
        status.check()
    }

    /// Takes over a tensor that TensorFlow's function made, unless it reported why not.
    pub(crate) fn given(self, raw: *mut crate::api::RawTensor, status: &Status) -> Result<Tensor, Refusal> {
        // SAFETY: TensorFlow's functions give their caller a handle of its own, or null.
        let tensor = unsafe { Tensor::take(self.api, raw) };
        status.check()?;
        tensor.ok_or_else(|| Refusal::new(Code::InvalidArgument, "TensorFlow gave no tensor"))
    }
}
