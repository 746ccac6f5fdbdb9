//! NCCL's answers, as this library gives them.

use std::ffi::{CStr, c_int};

/// An answer of NCCL.
pub(crate) type Code = c_int;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const UNHANDLED_CUDA_ERROR: Code = 1;
pub(crate) const SYSTEM_ERROR: Code = 2;
pub(crate) const INVALID_ARGUMENT: Code = 4;
pub(crate) const INVALID_USAGE: Code = 5;
pub(crate) const REMOTE_ERROR: Code = 6;
pub(crate) const IN_PROGRESS: Code = 7;

/// What an answer is called.
pub(crate) fn name(code: Code) -> &'static CStr {
    match code {
        SUCCESS => c"no error",
        UNHANDLED_CUDA_ERROR => c"unhandled cuda error",
        SYSTEM_ERROR => c"unhandled system error",
        INVALID_ARGUMENT => c"invalid argument",
        INVALID_USAGE => c"invalid usage",
        REMOTE_ERROR => c"remote process exited or there was a network error",
        IN_PROGRESS => c"NCCL operation in progress",
        _ => c"unknown result code",
    }
}

/// A failure with what there is to say about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Failure {
        Failure { code, text: text.into() }
    }

    /// The caller did something that NCCL's rules forbid. Said on stderr as well: a test must not overlook it.
    pub(crate) fn misuse(text: impl Into<String>) -> Failure {
        let failure = Failure::new(INVALID_USAGE, text);
        eprintln!("test NCCL: {}", failure.text);
        failure
    }
}

impl From<ronde_cuda::Error> for Failure {
    fn from(error: ronde_cuda::Error) -> Failure {
        Failure::new(UNHANDLED_CUDA_ERROR, error.to_string())
    }
}
