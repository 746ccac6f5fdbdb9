//! Reads a tensor by one call of its library: DLPack's exchange interface for C.
//!
//! A class that offers it has a capsule with a table of functions, one of which fills in a `DLTensor` for an object without
//! making another, and one tells the current stream. PyTorch has it since 2.10. Asking the tensor attribute by attribute takes
//! twenty times as long.

use std::ffi::{CStr, c_int, c_void};

use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::describe::{CUDA, DlTensor};

const NAME: &CStr = c"dlpack_exchange_api";
const MAJOR: u32 = 1;

/// DLPack's `DLPackExchangeAPIHeader`, which stays as it is in all versions.
#[repr(C)]
struct Header {
    major: u32,
    minor: u32,
    older: *const Header,
}

/// DLPack's `DLPackExchangeAPI`, of major version 1.
#[repr(C)]
struct Functions {
    header: Header,
    allocate: *const c_void,
    take: *const c_void,
    give: *const c_void,
    view: Option<View>,
    stream: Option<Stream>,
}

type View = unsafe extern "C" fn(object: *mut c_void, tensor: *mut DlTensor) -> c_int;
type Stream = unsafe extern "C" fn(device_type: i32, device_id: i32, stream: *mut *mut c_void) -> c_int;

/// The interface of one class.
pub(crate) struct Exchange {
    view: View,
    stream: Option<Stream>,
}

impl Exchange {
    /// The interface of a class, if it has one of a version that is known here.
    pub(crate) fn of(class: &Bound<'_, PyAny>) -> Option<Exchange> {
        let capsule = class.getattr("__dlpack_c_exchange_api__").ok()?.cast_into::<PyCapsule>().ok()?;
        let mut header = capsule.pointer_checked(Some(NAME)).ok()?.cast::<Header>().as_ptr().cast_const();
        // SAFETY: by DLPack, a capsule of this name holds such a table, which lives as long as the process, and so do the older
        // ones that it leads to.
        unsafe {
            while !header.is_null() && (*header).major > MAJOR {
                header = (*header).older;
            }
            if header.is_null() || (*header).major != MAJOR {
                return None;
            }
            let functions = &*header.cast::<Functions>();
            functions.view.map(|view| Exchange { view, stream: functions.stream })
        }
    }

    /// Where an object of that class lies; its shape is lent until the object changes. None: the library cannot say.
    pub(crate) fn view(&self, object: &Bound<'_, PyAny>) -> Option<DlTensor> {
        let mut tensor = DlTensor::default();
        // SAFETY: the object is of the class whose function this is, the interpreter is held, and the tensor may be written.
        let status = unsafe { (self.view)(object.as_ptr().cast(), &raw mut tensor) };
        if status != 0 {
            drop(PyErr::take(object.py()));
            return None;
        }
        Some(tensor)
    }

    /// The stream that the library works on now, on one of CUDA's devices. None: it cannot say.
    pub(crate) fn current_stream(&self, py: Python<'_>, device: i32) -> Option<u64> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: the interpreter is held, and the stream may be written.
        let status = unsafe { self.stream?(CUDA, device, &raw mut stream) };
        if status != 0 {
            drop(PyErr::take(py));
            return None;
        }
        Some(stream as u64)
    }
}
