//! The codes that CUDA's functions return, with the names and texts that it has for them.

use std::ffi::{CStr, c_char};

use crate::pointer::Out;

/// What a function returns: 0, or what is wrong.
pub(crate) type Code = u32;

/// What a function does, before it becomes a [`Code`].
pub(crate) type Result<T = ()> = std::result::Result<T, Code>;

macro_rules! codes {
    ($($short:ident = $code:literal, $name:literal, $text:literal;)*) => {
        $(
            #[allow(dead_code)] // Some come up only where a test orders them.
            pub(crate) const $short: Code = $code;
        )*

        /// Name and text of a code.
        fn words(code: Code) -> Option<(&'static CStr, &'static CStr)> {
            match code {
                $($code => Some(($name, $text)),)*
                _ => None,
            }
        }
    };
}

codes! {
    SUCCESS = 0, c"CUDA_SUCCESS", c"no error";
    INVALID_VALUE = 1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument";
    OUT_OF_MEMORY = 2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory";
    NOT_INITIALIZED = 3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error";
    DEINITIALIZED = 4, c"CUDA_ERROR_DEINITIALIZED", c"driver shutting down";
    NO_DEVICE = 100, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected";
    INVALID_DEVICE = 101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal";
    INVALID_CONTEXT = 201, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context";
    ECC_UNCORRECTABLE = 214, c"CUDA_ERROR_ECC_UNCORRECTABLE", c"uncorrectable ECC error encountered";
    INVALID_PTX = 218, c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed";
    OPERATING_SYSTEM = 304, c"CUDA_ERROR_OPERATING_SYSTEM", c"OS call failed or operation not supported on this OS";
    INVALID_HANDLE = 400, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle";
    NOT_FOUND = 500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found";
    NOT_READY = 600, c"CUDA_ERROR_NOT_READY", c"device not ready";
    ILLEGAL_ADDRESS = 700, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered";
    CONTEXT_IS_DESTROYED = 709, c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"context is destroyed";
    ALREADY_REGISTERED = 712, c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        c"part or all of the requested memory range is already mapped";
    NOT_REGISTERED = 713, c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        c"pointer does not correspond to a registered memory region";
    MISALIGNED_ADDRESS = 716, c"CUDA_ERROR_MISALIGNED_ADDRESS", c"misaligned address";
    LAUNCH_FAILED = 719, c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure";
    NOT_SUPPORTED = 801, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported";
    CAPTURE_UNSUPPORTED = 900, c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        c"operation not permitted when stream is capturing";
    CAPTURE_ISOLATION = 905, c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
        c"dependency created on uncaptured work in another stream";
    UNKNOWN = 999, c"CUDA_ERROR_UNKNOWN", c"unknown error";
}

/// `INVALID_VALUE` unless `fact` holds.
pub(crate) fn demand(fact: bool) -> Result {
    if fact { Ok(()) } else { Err(INVALID_VALUE) }
}

/// `cuGetErrorName`
pub(crate) fn name(code: Code, name: Out<*const c_char>) -> Result {
    name.put(words(code).map_or(std::ptr::null(), |words| words.0.as_ptr()))?;
    demand(words(code).is_some())
}

/// `cuGetErrorString`
pub(crate) fn text(code: Code, text: Out<*const c_char>) -> Result {
    text.put(words(code).map_or(std::ptr::null(), |words| words.1.as_ptr()))?;
    demand(words(code).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_names_and_texts_and_numbers_that_are_none_have_null() {
        let mut found = std::ptr::null();
        assert_eq!(name(NOT_READY, Out::to(&mut found)), Ok(()));
        // SAFETY: the function gave a text that lives for ever.
        assert_eq!(unsafe { CStr::from_ptr(found) }, c"CUDA_ERROR_NOT_READY");
        assert_eq!(text(12345, Out::to(&mut found)), Err(INVALID_VALUE));
        assert!(found.is_null());
    }
}
