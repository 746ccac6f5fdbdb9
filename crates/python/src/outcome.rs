//! What a finished operation gives Python: nothing, a number, or memory that the engine allocated, handed over as DLPack.
//!
//! Memory crosses as a flat tensor of bytes, the one type that every version of every framework takes; the front gives it its
//! type and shape. Memory of a GPU is lent rather than given: the front copies it with a stream of its framework, behind which
//! it is freed.

use std::ffi::{CStr, c_void};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use ronde_engine::device::DeviceMemory;
use ronde_engine::{Buffer, Finished, Memory, Rows};

use crate::describe::{CUDA, DlTensor};
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
    _memory: Owned,
}

/// Memory until nobody uses it.
enum Owned {
    Host { _buffer: Buffer },
    Gpu { _lent: Lent },
}

/// Memory of a GPU that a stream reads.
struct Lent {
    memory: Option<Box<dyn DeviceMemory>>,
    stream: u64,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            memory.release(self.stream);
        }
    }
}

/// Waits for an operation and returns what it gives; see `_core.pyi`.
#[pyfunction]
pub(crate) fn wait(py: Python<'_>, handle: u64) -> PyResult<Py<PyAny>> {
    let finished = finished(py, handle)?;
    py.detach(|| finished.events.iter().try_for_each(|event| event.wait()))
        .map_err(|text| error::on_device(&text))?;
    answer(py, finished, None)
}

/// Waits until an operation is over, or has been given to its device, and returns what it gives.
pub(crate) fn finished(py: Python<'_>, handle: u64) -> PyResult<Finished> {
    // What is over already needs no waiting, and so no letting go of the interpreter.
    let over = session::current()?.finished(handle);
    match over {
        Some(outcome) => outcome.map_err(|failure| error::raise(&failure)),
        None => Ok(session::call(py, move |engine| engine.wait(handle))?.unwrap_or_default()),
    }
}

/// What Python gets of it. What lies in memory that the engine has on a GPU will be read by `stream`.
pub(crate) fn answer(py: Python<'_>, finished: Finished, stream: Option<u64>) -> PyResult<Py<PyAny>> {
    let Finished { rows, received, last_joined, .. } = finished;
    if let Some(last) = last_joined {
        return Ok(last.into_pyobject(py)?.into_any().unbind());
    }
    let mut results = rows
        .into_iter()
        .flatten()
        .map(|rows| hand_over(py, rows, stream.unwrap_or_default()))
        .collect::<PyResult<Vec<_>>>()?;
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

/// A capsule that owns the bytes (None if there are none, or they are where the caller wanted them) and the shape of what they
/// are.
fn hand_over(py: Python<'_>, rows: Rows, stream: u64) -> PyResult<(Py<PyAny>, Py<PyTuple>)> {
    let shape = PyTuple::new(py, &rows.shape)?.unbind();
    let bytes = DlTensor { dimensions: 1, type_code: UNSIGNED, bits: 8, lanes: 1, ..DlTensor::default() };
    let (tensor, len, memory) = match rows.memory {
        Memory::Target => return Ok((py.None(), shape)),
        Memory::Host(buffer) => {
            let tensor = DlTensor { data: buffer.as_ptr().cast(), device_type: CPU, ..bytes };
            (tensor, buffer.len(), Owned::Host { _buffer: buffer })
        }
        Memory::Device(memory) => {
            let data = memory.address() as *mut c_void;
            let tensor = DlTensor { data, device_type: CUDA, device_id: memory.ordinal(), ..bytes };
            (tensor, memory.len(), Owned::Gpu { _lent: Lent { memory: Some(memory), stream } })
        }
    };
    if len == 0 {
        return Ok((py.None(), shape));
    }
    let managed = Box::into_raw(Box::new(Managed {
        tensor,
        manager: std::ptr::null_mut(),
        deleter: Some(delete),
        shape: [len as i64],
        _memory: memory,
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
