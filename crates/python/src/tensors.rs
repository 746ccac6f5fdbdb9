//! Starts operations on PyTorch's tensors without the interpreter in between, where a tensor can be taken as it is.
//!
//! Asking a tensor for its type, place and address is most of what starting a small operation costs, unless PyTorch has the
//! interface of [`exchange`](crate::exchange). `python/ronde/torch` does all that a tensor may need (copies, moves between
//! GPUs, refusals) and asks here first whether it needs nothing of the sort.
//! PyTorch is never linked to: the front hands over its classes and constants once, as objects to compare with.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};
use ronde_collective::types::DType;
use ronde_engine::{Device, Handle, Kind, Submission, Tensor};

use crate::describe::CUDA;
use crate::exchange::Exchange;
use crate::operations::Called;
use crate::{dtype, gpu, operations, pending};

/// What tells a plain tensor: dense, contiguous, in the memory of the CPU or of the GPU in use, of a known type and of no class that
/// could have its own ideas about that.
#[pyclass(frozen)]
pub(crate) struct PlainTensors {
    classes: Vec<Py<PyAny>>,
    exchange: Option<Exchange>,
    strided: Py<PyAny>,
    dtypes: Vec<(Py<PyAny>, DType)>,
    is_contiguous: Py<PyAny>,
    get_device: Py<PyAny>,
    data_ptr: Py<PyAny>,
}

/// A plain tensor.
struct Plain {
    address: usize,
    shape: Vec<u64>,
    dtype: DType,
    /// The number of its GPU.
    gpu: Option<i32>,
}

#[pymethods]
impl PlainTensors {
    /// The first of the classes is the one that the others inherit their methods from.
    #[new]
    fn new(
        py: Python<'_>,
        classes: Vec<Py<PyAny>>,
        strided: Py<PyAny>,
        dtypes: Vec<(Py<PyAny>, u8)>,
    ) -> PyResult<PlainTensors> {
        let base = classes.first().map_or_else(|| py.None(), |class| class.clone_ref(py));
        let dtypes = dtypes.into_iter().map(|(object, code)| Ok((object, dtype::of_code(code)?)));
        Ok(PlainTensors {
            exchange: Exchange::of(base.bind(py)),
            strided,
            dtypes: dtypes.collect::<PyResult<_>>()?,
            is_contiguous: base.getattr(py, "is_contiguous")?,
            get_device: base.getattr(py, "get_device")?,
            data_ptr: base.getattr(py, "data_ptr")?,
            classes,
        })
    }

    /// Reduces a tensor over the set, in place, and keeps it until somebody has waited; its operation is called
    /// `allreduce.<name>`. On a GPU it may travel in a narrower type, `wire`. None: the tensor is not plain, and nothing was done.
    #[expect(clippy::too_many_arguments, reason = "as in `operations`")]
    #[pyo3(signature = (tensor, name, op, prescale, postscale, process_set, priority, awaited, wire=None))]
    fn allreduce(
        &self,
        tensor: Bound<'_, PyAny>,
        name: &Bound<'_, PyString>,
        op: i64,
        prescale: f64,
        postscale: f64,
        process_set: u32,
        priority: i32,
        awaited: bool,
        wire: Option<u8>,
    ) -> PyResult<Option<Handle>> {
        // A tensor that cannot be asked is not plain; the front will find out why.
        let Ok(Some(found)) = self.read(&tensor) else { return Ok(None) };
        // Valid as it comes, so nothing is lost; the stable interface of Python 3.9 lends no text without a copy.
        let name = ["allreduce.", &String::from_utf8_lossy(name.encode_utf8()?.as_bytes())].concat();
        let (device, stream, ready) = match found.gpu {
            None => (Device::Host, None, None),
            Some(number) => {
                let Some(gpu) = gpu::current().filter(|gpu| gpu.ordinal() == number) else { return Ok(None) };
                let stream = gpu::stream_on(tensor.py(), number)?;
                let called = Called { process_set, kind: Kind::Allreduce, name: &name, tensors: 1 };
                let ready = gpu.record(stream).map_err(|failure| called.failed(&failure))?;
                (Device::Gpu, Some(stream), Some(ready))
            }
        };
        let found = Tensor {
            source: found.address as *const u8,
            target: found.address as *mut u8,
            capacity: 0,
            shape: found.shape,
            dtype: found.dtype,
            stored: None,
            ready,
        };
        let found = operations::narrowed(found, wire)?;
        let op = operations::reduction(op)?;
        let what = Submission::new(Kind::Allreduce, name, vec![found]);
        let what = Submission { op, prescale, postscale, priority, device, awaited, ..what };
        let handle = operations::submit(process_set, what)?;
        pending::keep_tensor(handle, tensor.unbind(), stream);
        Ok(Some(handle))
    }
}

impl PlainTensors {
    /// Where a tensor lies, if it is plain.
    fn read(&self, tensor: &Bound<'_, PyAny>) -> PyResult<Option<Plain>> {
        let class = tensor.get_type();
        if !self.classes.iter().any(|known| class.is(known)) {
            return Ok(None);
        }
        match &self.exchange {
            Some(exchange) => Ok(exchange.view(tensor).and_then(|view| {
                let dtype = view.dtype()?;
                let gpu = (view.device_type == CUDA).then_some(view.device_id);
                if gpu.is_none() && !view.is_in_host_memory() {
                    return None;
                }
                // SAFETY: PyTorch has just filled it in, and nothing changes the tensor meanwhile.
                let (shape, is_plain) = unsafe { (view.shape(), view.is_in_plain_order()) };
                let shape = shape.iter().map(|&extent| extent as u64).collect();
                is_plain.then(|| Plain { address: view.address(), shape, dtype, gpu })
            })),
            None => self.ask(tensor),
        }
    }

    /// The same, by asking the tensor attribute by attribute.
    fn ask(&self, tensor: &Bound<'_, PyAny>) -> PyResult<Option<Plain>> {
        let py = tensor.py();
        let given = tensor.getattr(pyo3::intern!(py, "dtype"))?;
        let Some(dtype) = self.dtypes.iter().find(|(known, _)| given.is(known)).map(|(_, dtype)| *dtype)
        else {
            return Ok(None);
        };
        let is_plain = tensor.getattr(pyo3::intern!(py, "layout"))?.is(&self.strided)
            && call(&self.is_contiguous, tensor)?.is_truthy()?;
        if !is_plain {
            return Ok(None);
        }
        let gpu = if tensor.getattr(pyo3::intern!(py, "is_cpu"))?.is_truthy()? {
            None
        } else if tensor.getattr(pyo3::intern!(py, "is_cuda"))?.is_truthy()? {
            Some(call(&self.get_device, tensor)?.extract()?)
        } else {
            return Ok(None);
        };
        let extents = tensor.getattr(pyo3::intern!(py, "shape"))?.cast_into::<PyTuple>()?;
        let shape = extents.iter_borrowed().map(pyo3::Borrowed::extract).collect::<PyResult<Vec<u64>>>()?;
        let address: usize = call(&self.data_ptr, tensor)?.extract()?;
        Ok(Some(Plain { address, shape, dtype, gpu }))
    }
}

/// Calls a method, found once for all, without making an object of its being bound to the tensor.
fn call<'py>(method: &Py<PyAny>, tensor: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: both are live objects, the interpreter is held, and null ends the arguments.
    unsafe {
        let result = ffi::PyObject_CallFunctionObjArgs(
            method.as_ptr(),
            tensor.as_ptr(),
            std::ptr::null_mut::<ffi::PyObject>(),
        );
        Bound::from_owned_ptr_or_err(tensor.py(), result)
    }
}
