//! Telling MXNet that an operation has ended, and how.
//!
//! The function that MXNet calls gets a pointer to a `CallbackOnComplete`: a small C++ object without a destructor, three
//! words long, which may be copied and called later from any thread. Its last argument is null, or points to a `dmlc::Error`.
//! MXNet copies that error, keeps it with the arrays that the operation should have written, and throws it where somebody
//! waits for them, or for what was computed from them; Python sees an `MXNetError`.
//!
//! A `dmlc::Error` is a `std::runtime_error` without anything of its own, and is copied as one, so one made by the C++
//! library serves. It is two words long: the table of virtual functions, and the text.

use std::ffi::{CString, c_void};

use ronde_bridge::{Cause, Failure};

use crate::library::Library;

/// A copy of MXNet's `CallbackOnComplete`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Completion {
    callback: unsafe extern "C" fn(engine: *mut c_void, parameter: *mut c_void, error: *const c_void),
    engine: *mut c_void,
    parameter: *mut c_void,
}

// SAFETY: MXNet lets the callback be called from any thread.
unsafe impl Send for Completion {}

impl Completion {
    /// Tells MXNet. What the operation was given may be freed before this returns.
    ///
    /// # Safety
    /// Called once for each operation.
    pub(crate) unsafe fn tell(self, library: &Library, outcome: Result<(), &Failure>) {
        let Err(failure) = outcome else {
            // SAFETY: no error; the rest is MXNet's own.
            return unsafe { (self.callback)(self.engine, self.parameter, std::ptr::null()) };
        };
        let text = text_of(failure);
        let mut error = [0_usize; 2];
        // SAFETY: the constructor fills the memory of one object, copying the text; MXNet copies the object; then it is
        // destroyed, once.
        unsafe {
            (library.make_error)(error.as_mut_ptr().cast(), text.as_ptr());
            (self.callback)(self.engine, self.parameter, error.as_ptr().cast());
            (library.drop_error)(error.as_mut_ptr().cast());
        }
    }
}

/// A failure as text that begins with the name under which Python has registered the exception to raise.
pub(crate) fn text_of(failure: &Failure) -> CString {
    let name = match failure.cause {
        Cause::Invalid => "HorovodArgumentError",
        Cause::NotInitialized | Cause::Mismatch | Cause::ShutDown => "HorovodInternalError",
    };
    // MXNet takes the lines after the first for a stack trace, so there is one; Python makes lines of it again. Names of
    // tensors come from scripts, so there may be anything in them.
    let text = format!("{name}: {}", failure.text).replace('\n', "\u{2028}").replace('\0', " ");
    CString::new(text).unwrap_or_default()
}
