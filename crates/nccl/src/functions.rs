//! NCCL's C interface, as far as it is used: types, numbers, and the table of functions.
//!
//! The table is filled by a lookup of names, so the functions may come from a library that was opened or from a test.
//! Signatures are those of NCCL 2.14, which later versions keep.

use std::ffi::{CStr, c_char, c_int, c_void};

/// A communicator, as NCCL hands it out.
pub(crate) type Handle = *mut c_void;

/// An answer of NCCL. A plain number, since a newer NCCL may give ones that are not known here.
pub(crate) type Code = c_int;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const UNHANDLED_CUDA_ERROR: Code = 1;
pub(crate) const SYSTEM_ERROR: Code = 2;
pub(crate) const INTERNAL_ERROR: Code = 3;
pub(crate) const INVALID_ARGUMENT: Code = 4;
pub(crate) const INVALID_USAGE: Code = 5;
pub(crate) const REMOTE_ERROR: Code = 6;
/// Not an error: a non-blocking communicator is still busy with what it was asked.
pub(crate) const IN_PROGRESS: Code = 7;

/// `ncclScalarHostImmediate`: a factor is read from host memory during the call.
pub(crate) const SCALAR_ON_HOST: c_int = 1;

/// What the ranks of a communicator find each other by. One rank makes it and gives its bytes to the others.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UniqueId([u8; UniqueId::LEN]);

impl UniqueId {
    /// Bytes of an id.
    pub const LEN: usize = 128;

    /// An id that another rank made.
    pub fn from_bytes(bytes: [u8; UniqueId::LEN]) -> UniqueId {
        UniqueId(bytes)
    }

    /// What the other ranks need.
    pub fn bytes(&self) -> &[u8; UniqueId::LEN] {
        &self.0
    }
}

/// `ncclConfig_t` as NCCL 2.14 had it. Newer versions read from `size` and `version` which fields there are.
#[repr(C)]
pub(crate) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    /// Where later versions have a field, with their number for "not set".
    not_set: c_int,
}

impl Config {
    /// A communicator whose calls return at once.
    pub(crate) fn non_blocking() -> Config {
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: 21400,
            blocking: 0,
            not_set: c_int::MIN,
        }
    }
}

type Reducing =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, *mut c_void) -> Code;

/// The functions.
pub(crate) struct Functions {
    pub(crate) get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> Code,
    pub(crate) init_rank: unsafe extern "C" fn(*mut Handle, c_int, UniqueId, c_int, *mut Config) -> Code,
    pub(crate) finalize: unsafe extern "C" fn(Handle) -> Code,
    pub(crate) destroy: unsafe extern "C" fn(Handle) -> Code,
    pub(crate) abort: unsafe extern "C" fn(Handle) -> Code,
    pub(crate) async_error: unsafe extern "C" fn(Handle, *mut Code) -> Code,
    pub(crate) error_string: unsafe extern "C" fn(Code) -> *const c_char,
    pub(crate) last_error: Option<unsafe extern "C" fn(Handle) -> *const c_char>,
    pub(crate) all_reduce: Reducing,
    pub(crate) reduce_scatter: Reducing,
    pub(crate) reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        c_int,
        Handle,
        *mut c_void,
    ) -> Code,
    pub(crate) broadcast:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, *mut c_void) -> Code,
    pub(crate) all_gather:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Handle, *mut c_void) -> Code,
    pub(crate) send: unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Handle, *mut c_void) -> Code,
    pub(crate) recv: unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Handle, *mut c_void) -> Code,
    pub(crate) group_start: unsafe extern "C" fn() -> Code,
    pub(crate) group_end: unsafe extern "C" fn() -> Code,
    pub(crate) create_pre_mul_sum:
        unsafe extern "C" fn(*mut c_int, *mut c_void, c_int, c_int, Handle) -> Code,
    pub(crate) destroy_op: unsafe extern "C" fn(c_int, Handle) -> Code,
}

impl Functions {
    /// Fills the table, or names the function that is missing.
    ///
    /// # Safety
    /// What `lookup` finds under a name of NCCL is that function of NCCL, or one that behaves like it, and stays for
    /// as long as the table.
    pub(crate) unsafe fn find(lookup: &dyn Fn(&CStr) -> *mut c_void) -> Result<Functions, &'static CStr> {
        // SAFETY: each name belongs to a function of the type that its field has, as the caller promises.
        unsafe {
            Ok(Functions {
                get_unique_id: symbol(lookup, c"ncclGetUniqueId")?,
                init_rank: symbol(lookup, c"ncclCommInitRankConfig")?,
                finalize: symbol(lookup, c"ncclCommFinalize")?,
                destroy: symbol(lookup, c"ncclCommDestroy")?,
                abort: symbol(lookup, c"ncclCommAbort")?,
                async_error: symbol(lookup, c"ncclCommGetAsyncError")?,
                error_string: symbol(lookup, c"ncclGetErrorString")?,
                last_error: symbol(lookup, c"ncclGetLastError").ok(),
                all_reduce: symbol(lookup, c"ncclAllReduce")?,
                reduce_scatter: symbol(lookup, c"ncclReduceScatter")?,
                reduce: symbol(lookup, c"ncclReduce")?,
                broadcast: symbol(lookup, c"ncclBroadcast")?,
                all_gather: symbol(lookup, c"ncclAllGather")?,
                send: symbol(lookup, c"ncclSend")?,
                recv: symbol(lookup, c"ncclRecv")?,
                group_start: symbol(lookup, c"ncclGroupStart")?,
                group_end: symbol(lookup, c"ncclGroupEnd")?,
                create_pre_mul_sum: symbol(lookup, c"ncclRedOpCreatePreMulSum")?,
                destroy_op: symbol(lookup, c"ncclRedOpDestroy")?,
            })
        }
    }
}

/// `ncclGetVersion` alone: what can be asked of any NCCL, however old.
///
/// # Safety
/// As for [`Functions::find`].
pub(crate) unsafe fn version(lookup: &dyn Fn(&CStr) -> *mut c_void) -> Option<c_int> {
    // SAFETY: that name belongs to a function of this type, as the caller promises.
    let get: unsafe extern "C" fn(*mut c_int) -> Code = unsafe { symbol(lookup, c"ncclGetVersion") }.ok()?;
    let mut version = 0;
    // SAFETY: it writes one number.
    (unsafe { get(&raw mut version) } == SUCCESS).then_some(version)
}

/// # Safety
/// `F` is the type of a pointer to the function of that name.
unsafe fn symbol<F: Copy>(
    lookup: &dyn Fn(&CStr) -> *mut c_void,
    name: &'static CStr,
) -> Result<F, &'static CStr> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>(), "a function pointer") };
    let found = lookup(name);
    // SAFETY: of the same size, and of that type, as promised.
    if found.is_null() { Err(name) } else { Ok(unsafe { std::mem::transmute_copy(&found) }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_has_the_layout_of_2_14() {
        assert_eq!(size_of::<Config>(), 24);
        assert_eq!(std::mem::offset_of!(Config, magic), 8);
        assert_eq!(std::mem::offset_of!(Config, blocking), 16);
        assert_eq!(Config::non_blocking().size, 24);
    }
}
