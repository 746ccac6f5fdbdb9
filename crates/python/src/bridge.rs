//! The table of C functions through which plug-in libraries reach the engine; see `crates/bridge`.
//!
//! Called from threads of frameworks, which know nothing of the interpreter: nothing here touches Python.

use std::ffi::c_void;
use std::sync::Arc;

use pyo3::prelude::*;
use ronde_bridge::table::{Done, RawCall, RawReply, RawRows, RawTensor, VERSION, slice};
use ronde_bridge::{Cause, Kind as Asked, Place, Table};
use ronde_collective::types::{DType, ReduceOp};
use ronde_engine::{Engine, Error, Finished, Kind, Memory, Rows, Submission, Tensor};

use crate::session;

static TABLE: Table =
    Table { version: VERSION, submit, run, fault, place, set_size, set_included, release, set_rank };

/// The address of the engine's functions, for a plug-in library.
#[pyfunction]
pub(crate) fn bridge_table() -> usize {
    (&raw const TABLE).addr()
}

/// A failure, as the other side is told.
struct Failure {
    cause: Cause,
    text: String,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let cause = match &error {
            Error::Invalid(_) => Cause::Invalid,
            Error::Mismatch(_) => Cause::Mismatch,
            Error::Interrupted | Error::Collective(_) | Error::Rendezvous(_) | Error::ShutDown(_) => {
                Cause::ShutDown
            }
        };
        Failure { cause, text: error.to_string() }
    }
}

/// Whom to tell. The other side promises that it may be told on any thread.
struct Listener {
    done: Done,
    context: *mut c_void,
}

// SAFETY: see above.
unsafe impl Send for Listener {}

impl Listener {
    fn told(self, outcome: Result<Finished, Failure>) {
        let nothing = RawReply {
            cause: 0,
            text: std::ptr::null(),
            text_len: 0,
            rows: std::ptr::null(),
            rows_len: 0,
            received: std::ptr::null(),
            received_len: 0,
            last_joined: -1,
        };
        match outcome {
            Ok(finished) => {
                let rows: Vec<RawRows> = finished.rows.into_iter().flatten().map(given_away).collect();
                let received: Vec<i64> = finished.received.iter().map(|&rows| rows as i64).collect();
                self.call(&RawReply {
                    rows: rows.as_ptr(),
                    rows_len: rows.len(),
                    received: received.as_ptr(),
                    received_len: received.len(),
                    last_joined: finished.last_joined.map_or(-1, |rank| rank as i64),
                    ..nothing
                });
            }
            Err(Failure { cause, text }) => {
                self.call(&RawReply {
                    cause: cause as u8,
                    text: text.as_ptr(),
                    text_len: text.len(),
                    ..nothing
                });
            }
        }
    }

    fn call(self, reply: &RawReply) {
        // SAFETY: told once, since this takes the listener; what the reply points to lives until it returns.
        unsafe { (self.done)(self.context, reply) };
    }
}

/// What [`release`] frees.
struct Owner {
    memory: Memory,
    shape: Vec<u64>,
}

fn given_away(rows: Rows) -> RawRows {
    let owner = Box::new(Owner { memory: rows.memory, shape: rows.shape });
    let (data, len) = match &owner.memory {
        Memory::Host(buffer) => (buffer.as_ptr(), buffer.len()),
        // Plug-ins bring tensors in host memory only, whose results are there as well.
        Memory::Target | Memory::Device(_) => (std::ptr::null_mut(), 0),
    };
    RawRows {
        data,
        len,
        shape: owner.shape.as_ptr(),
        dimensions: owner.shape.len(),
        owner: Box::into_raw(owner).cast(),
    }
}

unsafe extern "C" fn release(owner: *mut c_void) {
    // SAFETY: given away by `given_away`, and given back once.
    drop(unsafe { Box::from_raw(owner.cast::<Owner>()) });
}

unsafe extern "C" fn submit(call: *const RawCall, done: Done, context: *mut c_void) {
    let listener = Listener { done, context };
    // SAFETY: the call and what it points to are valid while this runs.
    let prepared = unsafe { Prepared::new(&*call) };
    let Prepared { engine, set, submission } = match prepared {
        Ok(prepared) => prepared,
        Err(failure) => return listener.told(Err(failure)),
    };
    let refusal = Refusal::new(&submission);
    // Either the engine takes the operation and tells how it ends, or it refuses it and tells nobody.
    let refused = Listener { done, context };
    let then = move |outcome: Result<Finished, Error>| listener.told(outcome.map_err(Failure::from));
    // SAFETY: the plug-in keeps the tensors until it is told.
    if let Err(error) = unsafe { engine.submit_then(set, submission, then) } {
        refusal.spread(&engine, set, &error);
        refused.told(Err(error.into()));
    }
}

unsafe extern "C" fn run(call: *const RawCall, done: Done, context: *mut c_void) {
    // SAFETY: the call and what it points to are valid while this runs, which is until the operation has ended.
    let outcome = unsafe { Prepared::new(&*call) }.and_then(|Prepared { engine, set, submission }| {
        let refusal = Refusal::new(&submission);
        // SAFETY: as above.
        let handle = unsafe { engine.submit(set, Submission { awaited: true, ..submission }) }
            .inspect_err(|error| refusal.spread(&engine, set, error))?;
        Ok(engine.wait(handle)?.unwrap_or_default())
    });
    Listener { done, context }.told(outcome);
}

unsafe extern "C" fn fault(call: *const RawCall, text: *const u8, text_len: usize) {
    let Ok(engine) = session::engine() else { return };
    // SAFETY: the call, its name and the text are valid while this runs.
    let (call, name, text) =
        unsafe { (&*call, slice((*call).name, (*call).name_len), slice(text, text_len)) };
    if let Ok(kind) = kind_of(call.kind) {
        let (name, text) = (String::from_utf8_lossy(name), String::from_utf8_lossy(text));
        // Refused where the set itself is the trouble: then there is nobody to tell.
        let _ = engine.submit_fault(call.set, kind, &name, call.tensors_len, &text);
    }
}

/// A call as the engine takes it.
struct Prepared {
    engine: Arc<Engine>,
    set: u32,
    submission: Submission,
}

impl Prepared {
    /// # Safety
    /// The call and what it points to are valid.
    unsafe fn new(call: &RawCall) -> Result<Prepared, Failure> {
        let engine = session::engine()
            .map_err(|absent| Failure { cause: Cause::NotInitialized, text: absent.to_string() })?;
        // SAFETY: as promised; this holds for all slices of the call.
        let name = String::from_utf8_lossy(unsafe { slice(call.name, call.name_len) });
        // SAFETY: see above.
        let tensors = unsafe { slice(call.tensors, call.tensors_len) };
        // SAFETY: see above.
        let splits = (!call.splits.is_null()).then(|| unsafe { slice(call.splits, call.splits_len) });
        let kind = kind_of(call.kind)?;
        // SAFETY: see above.
        let tensors = tensors.iter().map(|tensor| unsafe { tensor_of(tensor) }).collect::<Result<_, _>>()?;
        let submission = Submission {
            grouped: call.grouped,
            op: ReduceOp::from_code(call.op)
                .ok_or_else(|| invalid(format!("op {} is no reduction", call.op)))?,
            prescale: call.prescale,
            postscale: call.postscale,
            priority: call.priority,
            // What is no rank of the job is refused, and so is what cannot be one; the same for splits.
            root: usize::try_from(call.root).unwrap_or(usize::MAX),
            splits: splits.map(|splits| {
                splits.iter().map(|&rows| usize::try_from(rows).unwrap_or(usize::MAX)).collect()
            }),
            ..Submission::new(kind, &*name, tensors)
        };
        Ok(Prepared { engine, set: call.set, submission })
    }
}

fn invalid(text: String) -> Failure {
    Failure { cause: Cause::Invalid, text }
}

fn kind_of(number: u8) -> Result<Kind, Failure> {
    let asked = Asked::ALL.get(usize::from(number));
    Ok(match asked.ok_or_else(|| invalid(format!("{number} is no collective")))? {
        Asked::Allreduce => Kind::Allreduce,
        Asked::Allgather => Kind::Allgather,
        Asked::Broadcast => Kind::Broadcast,
        Asked::Alltoall => Kind::Alltoall,
        Asked::Reducescatter => Kind::Reducescatter,
        Asked::Barrier => Kind::Barrier,
        Asked::Join => Kind::Join,
    })
}

/// # Safety
/// The shape is valid.
unsafe fn tensor_of(tensor: &RawTensor) -> Result<Tensor, Failure> {
    let dtype = DType::from_code(tensor.dtype);
    Ok(Tensor {
        source: tensor.source,
        target: tensor.target,
        // SAFETY: as promised.
        shape: unsafe { slice(tensor.shape, tensor.dimensions) }.to_vec(),
        dtype: dtype.ok_or_else(|| invalid(format!("{} is no element type code", tensor.dtype)))?,
        capacity: 0,
        stored: None,
        ready: None,
    })
}

/// What the other ranks have to hear if the engine refuses an operation here, which they are about to wait for.
struct Refusal {
    kind: Kind,
    name: Arc<str>,
    tensors: usize,
}

impl Refusal {
    fn new(submission: &Submission) -> Refusal {
        Refusal { kind: submission.kind, name: submission.name.clone(), tensors: submission.tensors.len() }
    }

    fn spread(&self, engine: &Engine, set: u32, error: &Error) {
        if let Error::Invalid(text) = error {
            // Refused where the set itself is the trouble: then there is nobody to tell.
            let _ = engine.submit_fault(set, self.kind, &self.name, self.tensors, text);
        }
    }
}

unsafe extern "C" fn place(place: *mut Place) -> bool {
    let Ok(engine) = session::engine() else { return false };
    let known = engine.place();
    // SAFETY: the plug-in gives a place to write to.
    unsafe {
        *place = Place {
            rank: known.rank as i32,
            size: known.size as i32,
            local_rank: known.local_rank as i32,
            local_size: known.local_size as i32,
            cross_rank: known.cross_rank as i32,
            cross_size: known.cross_size as i32,
        };
    }
    true
}

const NO_JOB: i32 = -1;
const NO_SUCH_SET: i32 = -3;
const NOT_A_MEMBER: i32 = -4;

fn with_set(set: u32, answer: impl FnOnce(&Engine, &[usize]) -> i32) -> i32 {
    let Ok(engine) = session::engine() else { return NO_JOB };
    let sets = engine.sets();
    let known = sets.iter().find(|(id, _)| *id == set);
    known.map_or(NO_SUCH_SET, |(_, ranks)| answer(&engine, ranks))
}

extern "C" fn set_size(set: u32) -> i32 {
    with_set(set, |_, ranks| ranks.len() as i32)
}

extern "C" fn set_included(set: u32) -> i32 {
    with_set(set, |engine, ranks| i32::from(ranks.contains(&engine.place().rank)))
}

extern "C" fn set_rank(set: u32) -> i32 {
    with_set(set, |engine, ranks| {
        let own = engine.place().rank;
        ranks.iter().position(|&rank| rank == own).map_or(NOT_A_MEMBER, |index| index as i32)
    })
}
