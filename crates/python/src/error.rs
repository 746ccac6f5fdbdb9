//! Every failure of the engine as a Python exception, and the few that Python's side of the house
//! has itself.

use pyo3::exceptions::{PyInterruptedError, PyValueError};
use pyo3::prelude::*;
use ronde_engine::Error;

pyo3::import_exception!(ronde.exceptions, HorovodInternalError);
pyo3::import_exception!(ronde.exceptions, InitializationError);

pub(crate) const NO_JOB: &str = "Horovod has not been initialized; use hvd.init().";

/// What a failed call of the engine raises.
pub(crate) fn raise(failure: &Error) -> PyErr {
    let message = failure.to_string();
    match failure {
        Error::Interrupted => PyInterruptedError::new_err(message),
        Error::Invalid(_) => PyValueError::new_err(message),
        Error::Mismatch(_) | Error::Collective(_) | Error::Rendezvous(_) | Error::ShutDown(_) => {
            HorovodInternalError::new_err(message)
        }
    }
}

/// What is raised where a device cannot go on.
pub(crate) fn on_device(text: &str) -> PyErr {
    HorovodInternalError::new_err(text.to_owned())
}

/// What joining raises: whatever failed is also a `ValueError` there, which scripts expect of a failed `init()`.
pub(crate) fn in_init(py: Python<'_>, raised: PyErr) -> PyErr {
    if raised.is_instance_of::<HorovodInternalError>(py) {
        InitializationError::new_err(raised.value(py).to_string())
    } else {
        raised
    }
}

/// A question about this process' place without a job.
pub(crate) fn place_unknown() -> PyErr {
    PyValueError::new_err(NO_JOB)
}

/// A collective without a job.
pub(crate) fn no_job() -> PyErr {
    HorovodInternalError::new_err(NO_JOB)
}

/// Anything asked in a child that was forked after `init`.
pub(crate) fn forked(parent: u32) -> PyErr {
    HorovodInternalError::new_err(forked_text(parent))
}

/// What is said there.
pub(crate) fn forked_text(parent: u32) -> String {
    format!(
        "this process was forked from process {parent} after ronde.init(), and only that one is a \
         rank of the job; fork before ronde.init(), or start children with the \"spawn\" method"
    )
}
