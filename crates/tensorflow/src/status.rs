//! How TensorFlow is told of failures, and tells of its own.

use std::ffi::{CStr, CString, c_int};

use ronde_bridge::{Cause, Failure};

use crate::api::{Api, RawStatus};

/// TensorFlow's codes, as far as they are used here.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    Ok = 0,
    Unknown = 2,
    InvalidArgument = 3,
    FailedPrecondition = 9,
    Aborted = 10,
    Unimplemented = 12,
}

/// Why an operation fails.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    code: c_int,
    text: String,
}

impl Refusal {
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Refusal {
        Refusal { code: code as c_int, text: text.into() }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The same, with the name of the operation: those who catch an error look for that.
    pub(crate) fn of(self, op: &str) -> Refusal {
        Refusal { text: format!("{op}: {}", self.text), ..self }
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Refusal {
        let code = match failure.cause {
            Cause::NotInitialized | Cause::Mismatch => Code::FailedPrecondition,
            Cause::Invalid => Code::InvalidArgument,
            Cause::ShutDown => Code::Unknown,
        };
        Refusal::new(code, failure.text)
    }
}

/// A status of TensorFlow, which its functions fill in.
pub(crate) struct Status {
    api: &'static Api,
    raw: *mut RawStatus,
}

impl Status {
    pub(crate) fn new(api: &'static Api) -> Status {
        // SAFETY: makes an object, which `drop` deletes.
        Status { api, raw: unsafe { (api.functions.new_status)() } }
    }

    pub(crate) fn as_ptr(&self) -> *mut RawStatus {
        self.raw
    }

    pub(crate) fn set(&self, refusal: &Refusal) {
        // SAFETY: this value's own status.
        unsafe { set(self.api, self.raw, refusal) };
    }

    /// What it was filled in with.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        // SAFETY: this value's own status.
        unsafe { check(self.api, self.raw) }
    }
}

impl Drop for Status {
    fn drop(&mut self) {
        // SAFETY: made by `new`, deleted once.
        unsafe { (self.api.functions.delete_status)(self.raw) };
    }
}

/// Writes a failure into a status.
///
/// # Safety
/// The status is valid.
pub(crate) unsafe fn set(api: &Api, status: *mut RawStatus, refusal: &Refusal) {
    let text = CString::new(refusal.text.replace('\0', " ")).unwrap_or_default();
    // SAFETY: as promised; TensorFlow copies the text.
    unsafe { (api.functions.set_status)(status, refusal.code, text.as_ptr()) };
}

/// Reads a status.
///
/// # Safety
/// The status is valid.
pub(crate) unsafe fn check(api: &Api, status: *const RawStatus) -> Result<(), Refusal> {
    // SAFETY: as promised.
    let code = unsafe { (api.functions.get_code)(status) };
    if code == Code::Ok as c_int {
        return Ok(());
    }
    // SAFETY: as promised; the text is copied before anything changes it.
    let text = unsafe { CStr::from_ptr((api.functions.message)(status)) };
    Err(Refusal { code, text: text.to_string_lossy().into_owned() })
}
