//! The functions of `libmxnet.so` that are called here, looked up at run time in the copy that Python has loaded.
//!
//! All but two are MXNet's C interface. The exceptions are the constructor and the destructor of `std::runtime_error`, which
//! come from the C++ library that MXNet itself uses ([`crate::completion`] says what for), and `NDArray::Reorder2DefaultAsync`,
//! which has no C name: it undoes the layouts that oneDNN gives to arrays, and is missing where MXNet is built without that.

use std::ffi::{CStr, c_char, c_int, c_void};

/// An `NDArray` of MXNet, which the C interface hands out as a pointer.
pub(crate) type Handle = *mut c_void;

/// What MXNet calls when the arrays of an operation are ready: run context, on-complete callback, parameter.
pub(crate) type AsyncFunction = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void);

/// Frees the parameter.
pub(crate) type Deleter = unsafe extern "C" fn(*mut c_void);

type PushAsync = unsafe extern "C" fn(
    function: AsyncFunction,
    parameter: *mut c_void,
    deleter: Deleter,
    context: *const Context,
    constant: *const Handle,
    constants: c_int,
    mutable: *const Handle,
    mutables: c_int,
    property: *const c_int,
    priority: c_int,
    name: *const c_char,
    wait: bool,
) -> c_int;

/// MXNet's `Context`: where an operation runs.
#[repr(C)]
pub(crate) struct Context {
    pub(crate) device_type: i32,
    pub(crate) device: i32,
}

/// The functions. Signatures are those of MXNet 1.9's `c_api.h`; functions return 0 unless they fail.
pub(crate) struct Library {
    pub(crate) push_async: PushAsync,
    pub(crate) shallow_copy: unsafe extern "C" fn(Handle, *mut Handle) -> c_int,
    pub(crate) free: unsafe extern "C" fn(Handle) -> c_int,
    pub(crate) data: unsafe extern "C" fn(Handle, *mut *mut c_void) -> c_int,
    pub(crate) dtype: unsafe extern "C" fn(Handle, *mut c_int) -> c_int,
    pub(crate) shape: unsafe extern "C" fn(Handle, *mut c_int, *mut *const i64) -> c_int,
    pub(crate) set_last_error: unsafe extern "C" fn(*const c_char),
    pub(crate) reorder_to_default: Option<unsafe extern "C" fn(Handle)>,
    pub(crate) make_error: unsafe extern "C" fn(*mut c_void, *const c_char),
    pub(crate) drop_error: unsafe extern "C" fn(*mut c_void),
}

impl Library {
    /// Finds the functions in a library that is loaded already; `None` if it is not, or lacks one of them.
    pub(crate) fn find(path: &CStr) -> Option<Library> {
        // SAFETY: the path is a C string; the library is not loaded by this, so no code of it runs.
        let loaded = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if loaded.is_null() {
            return None;
        }
        // SAFETY: each name belongs to a function of the type that its field has.
        unsafe {
            Some(Library {
                push_async: symbol(loaded, c"MXEnginePushAsyncND")?,
                shallow_copy: symbol(loaded, c"MXShallowCopyNDArray")?,
                free: symbol(loaded, c"MXNDArrayFree")?,
                data: symbol(loaded, c"MXNDArrayGetData")?,
                dtype: symbol(loaded, c"MXNDArrayGetDType")?,
                shape: symbol(loaded, c"MXNDArrayGetShapeEx64")?,
                set_last_error: symbol(loaded, c"_Z17MXAPISetLastErrorPKc")?,
                reorder_to_default: symbol(loaded, c"_ZNK5mxnet7NDArray20Reorder2DefaultAsyncEv"),
                make_error: symbol(loaded, c"_ZNSt13runtime_errorC1EPKc")?,
                drop_error: symbol(loaded, c"_ZNSt13runtime_errorD1Ev")?,
            })
        }
    }
}

/// # Safety
/// `loaded` comes from `dlopen`, and `F` is the type of a pointer to the function of that name.
unsafe fn symbol<F: Copy>(loaded: *mut c_void, name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>(), "a function pointer") };
    // SAFETY: as promised.
    let found = unsafe { libc::dlsym(loaded, name.as_ptr()) };
    // SAFETY: of the same size, and of that type, as promised.
    (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
}
