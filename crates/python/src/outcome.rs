//! What a finished operation gives Python: nothing, a number, or memory that the engine allocated, handed over as DLPack.
//!
//! Memory crosses as a flat tensor of bytes, the one type that every version of every framework takes; the front gives it its
//! type and shape.

use std::ffi::{CStr, c_void};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use ronde_engine::{Buffer, Finished, Rows};

use crate::describe::DlTensor;
use crate::{error, session};

const NAME: &CStr = c"dltensor";
const CPU: i32 = 1;
const UNSIGNED: u8 = 1;

/// DLPack's `DLManagedTensor`, with what it manages behind it.
#[repr(C)]
struct Managed {
    tensor: DlTensor,
    manager: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
    shape: [i64; 1],
    _memory: Buffer,
}

/// Waits for an operation and returns what it gives; see `_core.pyi`.
#[pyfunction]
pub(crate) fn wait(py: Python<'_>, handle: u64) -> PyResult<Py<PyAny>> {
    // What is over already needs no waiting, and so no letting go of the interpreter.
    let over = session::current()?.finished(handle);
    let finished = match over {
        Some(outcome) => outcome.map_err(|failure| error::raise(&failure))?,
        None => session::call(py, move |engine| engine.wait(handle))?.unwrap_or_default(),
    };
    let Finished { rows, received, last_joined, .. } = finished;
    if let Some(last) = last_joined {
        return Ok(last.into_pyobject(py)?.into_any().unbind());
    }
    let mut results =
        rows.into_iter().flatten().map(|rows| hand_over(py, rows)).collect::<PyResult<Vec<_>>>()?;
    if !received.is_empty()
        && let Some((memory, shape)) = results.pop()
    {
        return Ok((memory, shape, received).into_pyobject(py)?.into_any().unbind());
    }
    if results.is_empty() {
        return Ok(py.None());
    }
    Ok(PyList::new(py, results)?.into_any().unbind())
}

/// A capsule that owns the bytes (None if there are none) and the shape of what they are.
fn hand_over(py: Python<'_>, rows: Rows) -> PyResult<(Py<PyAny>, Py<PyTuple>)> {
    let shape = PyTuple::new(py, &rows.shape)?.unbind();
    if rows.buffer.is_empty() {
        return Ok((py.None(), shape));
    }
    let managed = Box::into_raw(Box::new(Managed {
        tensor: DlTensor {
            data: rows.buffer.as_ptr().cast(),
            device_type: CPU,
            dimensions: 1,
            type_code: UNSIGNED,
            bits: 8,
            lanes: 1,
            ..DlTensor::default()
        },
        manager: std::ptr::null_mut(),
        deleter: Some(delete),
        shape: [rows.buffer.len() as i64],
        _memory: rows.buffer,
    }));
    // SAFETY: the box was just made and is not shared yet; its address is its own until it is deleted.
    unsafe {
        (*managed).tensor.shape = (&raw const (*managed).shape).cast();
        let capsule = ffi::PyCapsule_New(managed.cast(), NAME.as_ptr(), Some(unclaimed));
        if capsule.is_null() {
            delete(managed);
            return Err(PyErr::fetch(py));
        }
        Ok((Bound::from_owned_ptr(py, capsule).unbind(), shape))
    }
}

/// Called once by whoever has the tensor last.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: DLPack calls this exactly once, with what `hand_over` made.
    drop(unsafe { Box::from_raw(managed) });
}

/// Called when the capsule goes: whoever took the tensor has renamed it.
unsafe extern "C" fn unclaimed(capsule: *mut ffi::PyObject) {
    // SAFETY: the interpreter gives the capsule that is going, with the lock held.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        }
    }
}
