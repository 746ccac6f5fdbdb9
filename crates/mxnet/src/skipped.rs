//! Operations that never run on this rank, though others wait for them.
//!
//! Where an operation of MXNet fails, those that read its result are not run; they end with its error. The other ranks know
//! nothing of that, so Python is called, which tells them. That may happen on any thread of MXNet.

use std::ffi::{CString, c_char, c_int};
use std::sync::{Mutex, PoisonError};

use ronde_bridge::Kind;

/// Gets the process set, number of the kind, name and number of tensors of an operation.
pub(crate) type Listener = extern "C" fn(set: u32, kind: c_int, name: *const c_char, tensors: usize);

static LISTENER: Mutex<Option<Listener>> = Mutex::new(None);

/// Replaces the listener. When this returns the one before is not called any more.
pub(crate) fn listen(listener: Option<Listener>) {
    *LISTENER.lock().unwrap_or_else(PoisonError::into_inner) = listener;
}

/// Calls the listener, if there is one.
pub(crate) fn tell(set: u32, kind: Kind, name: &str, tensors: usize) {
    // Held while it runs, so that none is called that has been replaced.
    let listener = LISTENER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(listener) = *listener {
        let name = CString::new(name.replace('\0', " ")).unwrap_or_default();
        listener(set, kind as c_int, name.as_ptr(), tensors);
    }
}
