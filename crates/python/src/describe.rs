//! Reads where the elements of a foreign array lie, without knowing the library that made it.
//!
//! The stable interface of Python 3.9 has no buffer functions, so arrays are read through two older
//! agreements that need only a capsule: NumPy's array struct (one attribute, the fast way) and
//! DLPack (everybody else's). Both structs are laid down in their standards and are declared here
//! field by field.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::slice;

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use ronde_collective::types::DType;

use crate::dtype;

/// NumPy's `PyArrayInterface`.
#[repr(C)]
struct ArrayStruct {
    two: c_int,
    dimensions: c_int,
    kind: c_char,
    itemsize: c_int,
    flags: c_int,
    shape: *const isize,
    strides: *const isize,
    data: *mut c_void,
}

const C_CONTIGUOUS: c_int = 0x1;
const ALIGNED: c_int = 0x100;
const NATIVE_BYTE_ORDER: c_int = 0x200;
const WRITEABLE: c_int = 0x400;

/// Where the elements of an array lie: address, count, type code, and whether they may be written.
type Description = (usize, usize, u8, bool);

/// Describes an array that has `__array_struct__`. `None` if its elements must be copied into plain
/// order first.
#[pyfunction]
pub(crate) fn describe_array(array: &Bound<'_, PyAny>) -> PyResult<Option<Description>> {
    let capsule = array.getattr(pyo3::intern!(array.py(), "__array_struct__"))?.cast_into::<PyCapsule>()?;
    // SAFETY: the capsule of `__array_struct__` holds a PyArrayInterface by the array interface
    // protocol, which stays valid while the capsule lives; `two` guards against anything else
    // before further fields are used.
    let found = unsafe { capsule.pointer_checked(None)?.cast::<ArrayStruct>().as_ref() };
    if found.two != 2 {
        return Err(PyBufferError::new_err("__array_struct__ does not follow the array interface"));
    }
    let itemsize = usize::try_from(found.itemsize)?;
    let dtype = match dtype::of_kind(found.kind as u8, itemsize) {
        Some(dtype) => dtype,
        // Types that NumPy learns from other packages, bfloat16 above all, have only their name.
        None => dtype::of_name(&array.getattr("dtype")?.getattr("name")?.extract::<String>()?)?,
    };
    let plain = C_CONTIGUOUS | ALIGNED | NATIVE_BYTE_ORDER;
    if found.flags & plain != plain {
        return Ok(None);
    }
    // SAFETY: `shape` holds `dimensions` entries.
    let count = unsafe { elements(found.shape, usize::try_from(found.dimensions)?) };
    Ok(Some((found.data as usize, count, dtype as u8, found.flags & WRITEABLE != 0)))
}

/// DLPack's `DLTensor`.
#[repr(C)]
pub(crate) struct DlTensor {
    pub(crate) data: *mut c_void,
    pub(crate) device_type: i32,
    pub(crate) device_id: i32,
    pub(crate) dimensions: i32,
    pub(crate) type_code: u8,
    pub(crate) bits: u8,
    pub(crate) lanes: u16,
    pub(crate) shape: *const i64,
    pub(crate) strides: *const i64,
    pub(crate) byte_offset: u64,
}

/// DLPack's `DLManagedTensorVersioned` up to the tensor.
#[repr(C)]
struct DlVersioned {
    major: u32,
    minor: u32,
    manager: *mut c_void,
    deleter: *mut c_void,
    flags: u64,
    tensor: DlTensor,
}

const UNVERSIONED: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const READ_ONLY: u64 = 1;
/// Memory that the CPU reads and writes: its own, and what CUDA and ROCm pin for transfers.
const HOST_MEMORY: [i32; 3] = [1, 3, 11];

/// Describes the tensor in a DLPack capsule, which the caller keeps while the memory is in use:
/// address, shape, type code, whether it may be written, and whether its elements lie in plain
/// order.
#[pyfunction]
pub(crate) fn describe_dlpack(
    capsule: &Bound<'_, PyCapsule>,
) -> PyResult<(usize, Vec<usize>, u8, bool, bool)> {
    let (tensor, writable) = if capsule.is_valid_checked(Some(VERSIONED)) {
        // SAFETY: by DLPack, a capsule of this name that nobody has consumed holds a
        // DLManagedTensorVersioned, valid while the capsule lives.
        let managed = unsafe { capsule.pointer_checked(Some(VERSIONED))?.cast::<DlVersioned>().as_ref() };
        if managed.major != 1 {
            return Err(PyBufferError::new_err(format!(
                "DLPack {}.{} is not known here",
                managed.major, managed.minor
            )));
        }
        (&managed.tensor, managed.flags & READ_ONLY == 0)
    } else {
        // SAFETY: a capsule of this name holds a DLManagedTensor, which begins with its tensor.
        let tensor = unsafe { capsule.pointer_checked(Some(UNVERSIONED))?.cast::<DlTensor>().as_ref() };
        (tensor, true)
    };
    if !HOST_MEMORY.contains(&tensor.device_type) {
        return Err(PyValueError::new_err("the tensor is not in the memory of the CPU; move it there first"));
    }
    let dtype = dtype_of(tensor)?;
    let dimensions = usize::try_from(tensor.dimensions)?;
    // SAFETY: `shape` and, where given, `strides` hold `dimensions` entries.
    let (shape, strides) =
        unsafe { (entries(tensor.shape, dimensions), entries(tensor.strides, dimensions)) };
    let shape = shape.iter().map(|&extent| usize::try_from(extent)).collect::<Result<Vec<_>, _>>()?;
    let address = tensor.data as usize + tensor.byte_offset as usize;
    let plain = strides.is_empty() || in_plain_order(&shape, strides);
    Ok((address, shape, dtype as u8, writable, plain))
}

fn dtype_of(tensor: &DlTensor) -> PyResult<DType> {
    let kind = match tensor.type_code {
        0 => "int",
        1 => "uint",
        2 => "float",
        4 => "bfloat",
        5 => "complex",
        6 if tensor.bits == 8 => return Ok(DType::Bool),
        _ => "opaque",
    };
    let name = format!("{kind}{}", tensor.bits);
    if tensor.lanes == 1 {
        dtype::of_name(&name)
    } else {
        Err(dtype::unsupported(&format!("{name}x{}", tensor.lanes)))
    }
}

/// Whether strides (in elements) are those of rows one after the other. Dimensions of one element
/// may have any.
fn in_plain_order(shape: &[usize], strides: &[i64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut expected = 1;
    for (&extent, &stride) in shape.iter().zip(strides).rev() {
        if extent != 1 && stride != expected {
            return false;
        }
        expected *= extent as i64;
    }
    true
}

/// The numbers of an array in a foreign struct; none for a null pointer.
///
/// # Safety
/// `first` is null or points at `count` values that live as long as `'a`.
unsafe fn entries<'a, T>(first: *const T, count: usize) -> &'a [T] {
    if first.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { slice::from_raw_parts(first, count) }
}

/// How many elements a shape has.
///
/// # Safety
/// As for [`entries`].
unsafe fn elements(shape: *const isize, dimensions: usize) -> usize {
    // SAFETY: as the caller promises.
    unsafe { entries(shape, dimensions) }.iter().map(|&extent| extent as usize).product()
}
