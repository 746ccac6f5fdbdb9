//! The memory of variables that an operation was given, for collectives that change them in place.
//!
//! TensorFlow's C interface reaches variables only up to 2.18. There it hands out a variable's own memory, after it has made
//! a copy for those who still read the old value. Later versions have no way; the front assigns what a broadcast returns.

use std::ffi::c_int;

use crate::api::{RawContext, RawTensor, api};
use crate::context::Context;
use crate::definitions::Access;
use crate::status::{Code, Refusal, Status};
use crate::tensor::Tensor;

/// The tensors of all variables among the inputs; writing to them changes the variables.
pub(super) fn tensors_of(context: Context, access: Access) -> Result<Vec<Tensor>, Refusal> {
    let Some(functions) = &context.api.variables else {
        return Err(Refusal::new(
            Code::Unimplemented,
            "this TensorFlow lets no plug-in change variables in place (2.18 was the last that did); use hvd.broadcast_ or \
             hvd.broadcast_variables, which assign the result",
        ));
    };
    let tensor = |index: c_int| {
        let (mut raw, status) = (std::ptr::null_mut(), Status::new(context.api));
        let (lock_held, is_variant, is_sparse) = (false, false, false);
        // SAFETY: the context is of a run that has not finished, and the input is a variable, as the operation says.
        unsafe {
            (functions.tensor_of)(
                context.as_ptr(),
                index,
                lock_held,
                is_variant,
                is_sparse,
                copy,
                &raw mut raw,
                status.as_ptr(),
            );
        }
        let tensor = context.given(raw, &status).map_err(|refusal| {
            let text = format!("variable {index} cannot be changed, is it initialized? {}", refusal.text());
            Refusal::new(Code::FailedPrecondition, text)
        })?;
        if access == Access::References {
            // SAFETY: as above; the operation has an output for each input.
            unsafe { (functions.forward_reference)(context.as_ptr(), index, index) };
        }
        Ok(tensor)
    };
    (0..context.inputs()).map(tensor).collect()
}

/// Copies a variable's old value into its new memory.
unsafe extern "C" fn copy(_: *mut RawContext, source: *mut RawTensor, target: *mut RawTensor) {
    let Some(api) = api() else { return };
    // SAFETY: TensorFlow gives both away.
    let tensors = unsafe { (Tensor::take(api, source), Tensor::take(api, target)) };
    if let (Some(source), Some(target)) = tensors {
        let len = source.len().min(target.len());
        if len > 0 {
            // SAFETY: so many bytes are in both, and one of them is new.
            unsafe { std::ptr::copy_nonoverlapping(source.data(), target.data(), len) };
        }
    }
}
