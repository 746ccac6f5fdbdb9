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
#[derive(Debug)]
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

/// Nothing, to be filled in.
impl Default for DlTensor {
    fn default() -> DlTensor {
        DlTensor {
            data: std::ptr::null_mut(),
            device_type: 0,
            device_id: 0,
            dimensions: 0,
            type_code: 0,
            bits: 0,
            lanes: 0,
            shape: std::ptr::null(),
            strides: std::ptr::null(),
            byte_offset: 0,
        }
    }
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
/// Memory of one of CUDA's devices.
pub(crate) const CUDA: i32 = 2;

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
    if !tensor.is_in_host_memory() {
        return Err(PyValueError::new_err("the tensor is not in the memory of the CPU; move it there first"));
    }
    let dtype = tensor.dtype().ok_or_else(|| dtype::unsupported(&tensor.type_name()))?;
    // SAFETY: the tensor is as its library made it.
    let (shape, plain) = unsafe { (tensor.shape(), tensor.is_in_plain_order()) };
    let shape = shape.iter().map(|&extent| usize::try_from(extent)).collect::<Result<Vec<_>, _>>()?;
    Ok((tensor.address(), shape, dtype as u8, writable, plain))
}

impl DlTensor {
    /// Where the first element lies.
    pub(crate) fn address(&self) -> usize {
        self.data as usize + self.byte_offset as usize
    }

    /// Whether the CPU reads and writes its memory.
    pub(crate) fn is_in_host_memory(&self) -> bool {
        HOST_MEMORY.contains(&self.device_type)
    }

    /// The type of the elements, if it is known here.
    pub(crate) fn dtype(&self) -> Option<DType> {
        match (self.type_code, self.bits, self.lanes) {
            (0, 8, 1) => Some(DType::I8),
            (0, 16, 1) => Some(DType::I16),
            (0, 32, 1) => Some(DType::I32),
            (0, 64, 1) => Some(DType::I64),
            (1, 8, 1) => Some(DType::U8),
            (1, 16, 1) => Some(DType::U16),
            (2, 16, 1) => Some(DType::F16),
            (2, 32, 1) => Some(DType::F32),
            (2, 64, 1) => Some(DType::F64),
            (4, 16, 1) => Some(DType::BF16),
            (6, 8, 1) => Some(DType::Bool),
            _ => None,
        }
    }

    fn type_name(&self) -> String {
        let kind = match self.type_code {
            0 => "int",
            1 => "uint",
            2 => "float",
            4 => "bfloat",
            5 => "complex",
            6 => "bool",
            _ => "opaque",
        };
        let lanes = if self.lanes == 1 { String::new() } else { format!("x{}", self.lanes) };
        format!("{kind}{}{lanes}", self.bits)
    }

    /// Extents.
    ///
    /// # Safety
    /// The tensor is as its library made it, and lives as long as `'a`.
    pub(crate) unsafe fn shape<'a>(&self) -> &'a [i64] {
        // SAFETY: by DLPack there are so many entries.
        unsafe { entries(self.shape, usize::try_from(self.dimensions).unwrap_or(0)) }
    }

    /// Whether rows lie one after the other. Dimensions of one element may have any stride.
    ///
    /// # Safety
    /// The tensor is as its library made it.
    pub(crate) unsafe fn is_in_plain_order(&self) -> bool {
        // SAFETY: by DLPack there are so many entries; strides may be missing.
        let (shape, strides) =
            unsafe { (self.shape(), entries(self.strides, usize::try_from(self.dimensions).unwrap_or(0))) };
        if strides.is_empty() || shape.contains(&0) {
            return true;
        }
        let mut expected = 1;
        for (&extent, &stride) in shape.iter().zip(strides).rev() {
            if extent != 1 && stride != expected {
                return false;
            }
            expected *= extent;
        }
        true
    }
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
