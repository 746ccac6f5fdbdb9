//! XLA's foreign function interface, as C: the structs that a handler is called with, and the few functions it needs.
//!
//! Declared by hand from `xla/ffi/api/c_api.h`, whose layout is promised to stay within a major version. Every struct
//! begins with its size, by which a reader tells which of the later fields are there. Only what is used here is named.

use std::ffi::{c_char, c_int, c_void};

/// The major version these declarations follow.
pub(crate) const MAJOR: c_int = 0;
/// The oldest minor version they were compared with.
pub(crate) const OLDEST_MINOR: c_int = 1;

/// A failure, made by [`Api::error_create`] and given to XLA.
#[repr(C)]
pub(crate) struct Error {
    _private: [u8; 0],
}

/// Kinds of failures, by the numbers of `absl::StatusCode`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorCode {
    InvalidArgument = 3,
    FailedPrecondition = 9,
    Aborted = 10,
    Internal = 13,
}

#[repr(C)]
pub(crate) struct ExtensionBase {
    pub(crate) struct_size: usize,
    pub(crate) kind: c_int,
    pub(crate) next: *mut ExtensionBase,
}

/// The `kind` of the extension that asks a handler about itself.
pub(crate) const EXTENSION_METADATA: c_int = 1;

#[repr(C)]
pub(crate) struct ApiVersion {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *mut ExtensionBase,
    pub(crate) major: c_int,
    pub(crate) minor: c_int,
}

/// What a handler tells about itself.
#[repr(C)]
pub(crate) struct Metadata {
    pub(crate) struct_size: usize,
    pub(crate) api_version: ApiVersion,
    pub(crate) traits: u32,
}

#[repr(C)]
pub(crate) struct MetadataExtension {
    pub(crate) base: ExtensionBase,
    pub(crate) metadata: *mut Metadata,
}

#[repr(C)]
pub(crate) struct ErrorCreateArgs {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *mut ExtensionBase,
    pub(crate) message: *const c_char,
    pub(crate) code: ErrorCode,
}

/// The beginning of XLA's table of functions; the rest is not used.
#[repr(C)]
pub(crate) struct Api {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *mut ExtensionBase,
    pub(crate) api_version: ApiVersion,
    pub(crate) internal: *const c_void,
    pub(crate) error_create: unsafe extern "C" fn(*mut ErrorCreateArgs) -> *mut Error,
}

/// An operand or a result.
#[repr(C)]
pub(crate) struct Buffer {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *mut ExtensionBase,
    pub(crate) dtype: c_int,
    pub(crate) data: *mut c_void,
    pub(crate) rank: i64,
    pub(crate) dims: *const i64,
}

/// Operands, or results: `kinds` says what `values` point to.
#[repr(C)]
pub(crate) struct Values {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *mut ExtensionBase,
    pub(crate) size: i64,
    pub(crate) kinds: *const c_int,
    pub(crate) values: *const *mut c_void,
}

/// The `kind` of operands and results that are buffers.
pub(crate) const VALUE_BUFFER: c_int = 1;

#[repr(C)]
pub(crate) struct ByteSpan {
    pub(crate) start: *const c_char,
    pub(crate) len: usize,
}

#[repr(C)]
pub(crate) struct Scalar {
    pub(crate) dtype: c_int,
    pub(crate) value: *const c_void,
}

#[repr(C)]
pub(crate) struct Array {
    pub(crate) dtype: c_int,
    pub(crate) size: usize,
    pub(crate) data: *const c_void,
}

/// The `kind` of an attribute that is an [`Array`].
pub(crate) const ATTRIBUTE_ARRAY: c_int = 1;
/// The `kind` of an attribute that is a [`Scalar`].
pub(crate) const ATTRIBUTE_SCALAR: c_int = 3;
/// The `kind` of an attribute that is a [`ByteSpan`] of text.
pub(crate) const ATTRIBUTE_STRING: c_int = 4;

#[repr(C)]
pub(crate) struct Attributes {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *mut ExtensionBase,
    pub(crate) size: i64,
    pub(crate) kinds: *const c_int,
    pub(crate) names: *const *const ByteSpan,
    pub(crate) values: *const *const c_void,
}

/// The stage at which a handler does its work.
pub(crate) const STAGE_EXECUTE: c_int = 3;

/// A call of a handler. What follows the attributes is for handlers that end later than they return, which ours do not.
#[repr(C)]
pub(crate) struct CallFrame {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *mut ExtensionBase,
    pub(crate) api: *const Api,
    pub(crate) context: *mut c_void,
    pub(crate) stage: c_int,
    pub(crate) operands: Values,
    pub(crate) results: Values,
    pub(crate) attributes: Attributes,
}

/// Numbers of element types.
pub(crate) mod dtype {
    use std::ffi::c_int;

    pub(crate) const PRED: c_int = 1;
    pub(crate) const S8: c_int = 2;
    pub(crate) const S16: c_int = 3;
    pub(crate) const S32: c_int = 4;
    pub(crate) const S64: c_int = 5;
    pub(crate) const U8: c_int = 6;
    pub(crate) const U16: c_int = 7;
    pub(crate) const U32: c_int = 8;
    pub(crate) const U64: c_int = 9;
    pub(crate) const F16: c_int = 10;
    pub(crate) const F32: c_int = 11;
    pub(crate) const F64: c_int = 12;
    pub(crate) const C64: c_int = 15;
    pub(crate) const BF16: c_int = 16;
    pub(crate) const TOKEN: c_int = 17;
    pub(crate) const C128: c_int = 18;
    /// Floating-point types of one byte.
    pub(crate) const F8: [c_int; 8] = [19, 20, 23, 24, 25, 28, 29, 33];
}
