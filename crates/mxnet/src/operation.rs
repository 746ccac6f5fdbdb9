//! One collective in MXNet's dependency engine.
//!
//! MXNet calls [`start`] when everything that was pushed before, and writes or reads the same arrays, has ended; so the
//! memory is looked up there and not earlier. The engine of the job takes it from there, and when it is done MXNet is told,
//! which lets the operations go on that wait for the arrays. No thread of MXNet waits meanwhile.
//!
//! The arrays are held by copies that share their memory, because the script may drop its own at any time. MXNet frees an
//! operation that has ended, or that it has skipped because another, whose result this one reads, has failed.

use std::ffi::{CString, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use ronde_bridge::{Cause, DType, Engine, Failure, Kind, ReduceOp, Request, Tensor};

use crate::array::{Array, distinct};
use crate::completion::{Completion, text_of};
use crate::library::{Context, Handle, Library};
use crate::pending;
use crate::turns::Turn;

/// MXNet's number for operations that take the threads, and the queue by priority, meant for communication.
static PRIORITIZED: c_int = 3;

/// MXNet's number for the memory of the CPU.
const CPU: i32 = 1;

/// What is asked for, besides the arrays.
pub(crate) struct Wanted {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) set: u32,
    pub(crate) grouped: bool,
    pub(crate) op: ReduceOp,
    pub(crate) prescale: f64,
    pub(crate) postscale: f64,
    pub(crate) root: i64,
    /// MXNet's: what is wanted earlier has the higher number.
    pub(crate) priority: i32,
}

/// What all operations need.
pub(crate) struct Surroundings {
    pub(crate) library: Library,
    pub(crate) engine: Engine,
    /// Whether MXNet runs every operation to its end when it is pushed. It then forgets their errors.
    pub(crate) naive: bool,
}

/// An array's input and output, which may be the same.
struct Part {
    input: Array,
    output: Array,
    shape: Vec<u64>,
    dtype: DType,
}

/// A collective that MXNet has, until it is freed by it.
pub(crate) struct Operation {
    wanted: Wanted,
    parts: Vec<Part>,
    surroundings: &'static Surroundings,
    started: AtomicBool,
    failure: Arc<OnceLock<CString>>,
    turn: Turn,
    _counted: pending::Counted,
}

impl Operation {
    /// Takes the arrays; `None` if MXNet does not give what has to be known about them.
    ///
    /// # Safety
    /// The handles are those of arrays of MXNet.
    pub(crate) unsafe fn new(
        surroundings: &'static Surroundings,
        wanted: Wanted,
        inputs: &[Handle],
        outputs: &[Handle],
    ) -> Option<Operation> {
        let part = |(&input, &output): (&Handle, &Handle)| {
            // SAFETY: as promised.
            let input = unsafe { Array::share(&surroundings.library, input) }?;
            // SAFETY: as promised.
            let output = unsafe { Array::share(&surroundings.library, output) }?;
            let (shape, dtype) = (input.shape()?, input.dtype()?);
            Some(Part { input, output, shape, dtype })
        };
        let parts = inputs.iter().zip(outputs).map(part).collect::<Option<Vec<Part>>>()?;
        let turn = Turn::take(wanted.set, &wanted.name);
        let counted = pending::Counted::new();
        let (started, failure) = (AtomicBool::new(false), Arc::default());
        Some(Operation { wanted, parts, surroundings, started, failure, turn, _counted: counted })
    }

    /// Puts the operation into MXNet's queue, and returns what MXNet says: 0, or else there is a message for Python.
    pub(crate) fn push(self) -> c_int {
        let surroundings = self.surroundings;
        let library = &surroundings.library;
        for part in &self.parts {
            part.input.straighten(&part.shape, part.dtype);
        }
        let outputs = distinct(self.parts.iter().map(|part| &part.output), &[]);
        let inputs = distinct(self.parts.iter().map(|part| &part.input), &outputs);
        let handles = |arrays: &[&Array]| arrays.iter().map(|array| array.handle()).collect::<Vec<Handle>>();
        let (inputs, outputs) = (handles(&inputs), handles(&outputs));
        let context = Context { device_type: CPU, device: 0 };
        let label = match self.wanted.kind {
            Kind::Broadcast => c"HorovodBroadcast",
            Kind::Reducescatter => c"HorovodReducescatter",
            _ => c"HorovodAllreduce",
        };
        let (priority, failure) = (self.wanted.priority, self.failure.clone());
        let parameter = Arc::into_raw(Arc::new(self)).cast_mut().cast();
        // SAFETY: MXNet keeps the parameter until it frees it, and the label, which is always there, for its profiler; it
        // copies all else.
        let status = unsafe {
            (library.push_async)(
                start,
                parameter,
                free,
                &raw const context,
                inputs.as_ptr(),
                inputs.len() as c_int,
                outputs.as_ptr(),
                outputs.len() as c_int,
                &raw const PRIORITIZED,
                priority,
                label.as_ptr(),
                false,
            )
        };
        if let Some(text) = failure.get().filter(|_| surroundings.naive && status == 0) {
            // SAFETY: MXNet copies the text.
            unsafe { (library.set_last_error)(text.as_ptr()) };
            return -1;
        }
        status
    }

    /// Tells the other ranks, which wait for this operation, that it will not come.
    fn tell_others(&self) {
        let wanted = &self.wanted;
        let request = Request { set: wanted.set, ..Request::new(wanted.kind, &wanted.name, &[]) };
        let text = format!(
            "\"{}\" has nothing to send, because an operation of MXNet before it failed",
            wanted.name
        );
        self.surroundings.engine.fault(&request, self.parts.len(), &text);
    }

    fn run(&self, completion: Completion) {
        let engine = self.surroundings.engine;
        let library = &self.surroundings.library;
        let failure = self.surroundings.naive.then(|| self.failure.clone());
        let Some(tensors) = self.parts.iter().map(Part::tensor).collect::<Option<Vec<Tensor<'_>>>>() else {
            self.tell_others();
            let text = format!("MXNet has no memory for an array of \"{}\"", self.wanted.name);
            let outcome = Err(&Failure { cause: Cause::Invalid, text });
            // SAFETY: told here, and the operation ends with it.
            return unsafe { completion.tell(library, outcome) };
        };
        let wanted = &self.wanted;
        let request = Request {
            set: wanted.set,
            grouped: wanted.grouped,
            op: wanted.op,
            prescale: wanted.prescale,
            postscale: wanted.postscale,
            priority: wanted.priority.saturating_neg(),
            root: wanted.root,
            ..Request::new(wanted.kind, &wanted.name, &tensors)
        };
        let done = move |outcome: Result<_, Failure>| {
            if let (Err(error), Some(kept)) = (&outcome, failure) {
                let _ = kept.set(text_of(error));
            }
            // SAFETY: told once, since the engine calls this once.
            unsafe { completion.tell(library, outcome.as_ref().map(|_| ())) };
        };
        // SAFETY: the arrays hold the memory, and MXNet keeps others away from it, until it is told.
        unsafe { engine.submit(&request, done) };
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if !*self.started.get_mut() {
            self.tell_others();
        }
    }
}

impl Part {
    fn tensor(&self) -> Option<Tensor<'_>> {
        let (source, target) = (self.input.data()?, self.output.data()?);
        // An array that was never given a shape has no memory, and looks like a scalar.
        if source.is_null() && !self.shape.contains(&0) {
            return None;
        }
        Some(Tensor { source, target, shape: &self.shape, dtype: self.dtype })
    }
}

/// Called by MXNet when the arrays are ready.
unsafe extern "C" fn start(_: *mut c_void, completion: *mut c_void, parameter: *mut c_void) {
    // SAFETY: MXNet gives a `CallbackOnComplete`.
    let completion = unsafe { *completion.cast::<Completion>() };
    let operation = parameter.cast_const().cast::<Operation>();
    // Held here as well, because MXNet may free its own before `run` has returned.
    // SAFETY: made by `push`, and not freed before MXNet is told that it has ended.
    let operation = unsafe {
        Arc::increment_strong_count(operation);
        Arc::from_raw(operation)
    };
    operation.started.store(true, Ordering::Relaxed);
    let started = operation.clone();
    operation.turn.wait(move || started.run(completion));
}

/// Called by MXNet when it needs the operation no more.
unsafe extern "C" fn free(parameter: *mut c_void) {
    // SAFETY: made by `push`, and freed once.
    drop(unsafe { Arc::from_raw(parameter.cast_const().cast::<Operation>()) });
}
