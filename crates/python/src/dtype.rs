//! Element types as Python sees them: a name, and a code that is the name's place in
//! `_core.DTYPES`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ronde_collective::types::DType;

/// The names of all types, each at the place of its code.
pub(crate) fn names() -> Vec<String> {
    DType::ALL.iter().map(ToString::to_string).collect()
}

/// The type that a code from Python means.
pub(crate) fn of_code(code: u8) -> PyResult<DType> {
    DType::from_code(code).ok_or_else(|| PyValueError::new_err(format!("{code} is no element type code")))
}

/// The type of a kind letter, as in NumPy's `dtype.kind`, and a size in bytes. bfloat16 has no kind
/// of its own and is not found this way.
pub(crate) fn of_kind(kind: u8, bytes: usize) -> Option<DType> {
    Some(match (kind, bytes) {
        (b'u', 1) => DType::U8,
        (b'i', 1) => DType::I8,
        (b'u', 2) => DType::U16,
        (b'i', 2) => DType::I16,
        (b'i', 4) => DType::I32,
        (b'i', 8) => DType::I64,
        (b'f', 2) => DType::F16,
        (b'f', 4) => DType::F32,
        (b'f', 8) => DType::F64,
        (b'b', 1) => DType::Bool,
        _ => return None,
    })
}

/// The code of a type by name.
#[pyfunction]
pub(crate) fn dtype_code(name: &str) -> PyResult<u8> {
    of_name(name).map(|dtype| dtype as u8)
}

/// The type of a name, or the exception that says which there are.
pub(crate) fn of_name(name: &str) -> PyResult<DType> {
    let found = DType::ALL.iter().find(|dtype| dtype.to_string() == name);
    found.copied().ok_or_else(|| unsupported(name))
}

/// The exception for a type that no collective takes.
pub(crate) fn unsupported(name: &str) -> PyErr {
    let supported = names().join(", ");
    PyValueError::new_err(format!("element type {name} is not supported; supported are {supported}"))
}
