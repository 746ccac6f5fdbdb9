//! The table as a plug-in calls it: requests, replies and closures instead of pointers.

use std::ffi::c_void;

use ronde_collective::types::{DType, ReduceOp};

use crate::table::{Cause, Kind, Place, RawCall, RawReply, RawRows, RawTensor, Table, VERSION, slice};

/// A tensor in memory.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// This rank's input.
    pub source: *const u8,
    /// Where the result goes; null for allgather and alltoall, whose results the engine allocates.
    pub target: *mut u8,
    /// Extents of the input.
    pub shape: &'a [u64],
    /// Type of the elements.
    pub dtype: DType,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Which collective.
    pub kind: Kind,
    /// The name under which the ranks find each other's requests.
    pub name: &'a str,
    /// The process set.
    pub set: u32,
    /// One tensor, or several of a group; none for barriers and joins.
    pub tensors: &'a [Tensor<'a>],
    /// Whether the tensors form a group.
    pub grouped: bool,
    /// The reduction.
    pub op: ReduceOp,
    /// Factor for every input.
    pub prescale: f64,
    /// Factor for the result.
    pub postscale: f64,
    /// What is wanted earlier has the lower number.
    pub priority: i32,
    /// Root of a broadcast, as a rank of the job.
    pub root: i64,
    /// Rows for each member in an all-to-all; equal ones if absent.
    pub splits: Option<&'a [i64]>,
}

impl<'a> Request<'a> {
    /// A request to the set of all ranks, without factors, root or splits.
    pub fn new(kind: Kind, name: &'a str, tensors: &'a [Tensor<'a>]) -> Request<'a> {
        Request {
            kind,
            name,
            set: 0,
            tensors,
            grouped: false,
            op: ReduceOp::Sum,
            prescale: 1.0,
            postscale: 1.0,
            priority: 0,
            root: 0,
            splits: None,
        }
    }
}

/// What a call gives besides the targets it has written.
#[derive(Debug, Default)]
pub struct Reply {
    /// Results of allgather and alltoall, one a tensor.
    pub rows: Vec<Rows>,
    /// Rows received from each member in an all-to-all.
    pub received: Vec<i64>,
    /// The rank that joined last, after a join.
    pub last_joined: i64,
}

/// Why a call failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What kind of thing went wrong.
    pub cause: Cause,
    /// What to tell people.
    pub text: String,
}

/// A result in memory that the engine allocated; dropping it frees that.
#[derive(Debug)]
pub struct Rows {
    raw: RawRows,
    engine: Engine,
}

// SAFETY: the memory belongs to this value alone, and releasing it is allowed on any thread.
unsafe impl Send for Rows {}

impl Rows {
    /// Where the bytes begin, aligned to 64 bytes at least; dangling if there are none.
    pub fn data(&self) -> *mut u8 {
        self.raw.data
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.raw.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.raw.len == 0
    }

    /// Extents of the result.
    pub fn shape(&self) -> &[u64] {
        // SAFETY: the engine keeps the shape as long as the memory.
        unsafe { slice(self.raw.shape, self.raw.dimensions) }
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        // SAFETY: given to this value alone, and released once.
        unsafe { (self.engine.table.release)(self.raw.owner) };
    }
}

/// The engine of this process.
#[derive(Clone, Copy, Debug)]
pub struct Engine {
    table: &'static Table,
}

impl Engine {
    /// Takes a table, unless it was made by another version.
    ///
    /// # Safety
    /// `table` is null, or points to a [`Table`] (at least to its version) that stays valid until the process ends.
    pub unsafe fn new(table: *const Table) -> Option<Engine> {
        // SAFETY: as promised; nothing but the version is read before it is known to be this one.
        let same = !table.is_null() && unsafe { (*table).version } == VERSION;
        // SAFETY: a table of this version, as promised.
        same.then(|| Engine { table: unsafe { &*table } })
    }

    /// Puts a call in flight and never waits for other ranks. `done` is called once, from whatever thread, possibly before this
    /// returns, and also if the call is refused.
    ///
    /// # Safety
    /// Every source of the request is readable, and every target writable, for what its shape and type say; both stay so and
    /// are left alone until `done` is called.
    pub unsafe fn submit<F>(self, request: &Request<'_>, done: F)
    where
        F: FnOnce(Result<Reply, Failure>) + Send + 'static,
    {
        let context = Box::into_raw(Box::new((self, done)));
        with_call(request, |call| {
            // SAFETY: `finish` takes the box back, once, as the table promises; the memory is the caller's promise.
            unsafe { (self.table.submit)(call, finish::<F>, context.cast()) };
        });
    }

    /// Does a call and waits for it, on the calling thread.
    ///
    /// # Safety
    /// Every source of the request is readable, and every target writable, for what its shape and type say.
    pub unsafe fn run(self, request: &Request<'_>) -> Result<Reply, Failure> {
        let mut reply = None;
        let done = |outcome: Result<Reply, Failure>| reply = Some(outcome);
        let context = Box::into_raw(Box::new((self, done)));
        with_call(request, |call| {
            // SAFETY: `done` is called before this returns, so it may borrow; the memory is the caller's promise.
            unsafe { (self.table.run)(call, finish_of(context), context.cast()) };
        });
        reply.unwrap_or_else(|| {
            Err(Failure { cause: Cause::ShutDown, text: format!("\"{}\" was not answered", request.name) })
        })
    }

    /// Tells the other ranks that a call, which they wait for, will not come from this one. Read of the request are its kind, set
    /// and name; it is of so many tensors, which need not be there.
    pub fn fault(self, request: &Request<'_>, tensors: usize, text: &str) {
        with_call(&Request { tensors: &[], ..*request }, |call| {
            // SAFETY: the call and the text live until this returns; of the tensors only the number is read.
            unsafe {
                (self.table.fault)(&RawCall { tensors_len: tensors, ..*call }, text.as_ptr(), text.len())
            };
        });
    }

    /// This process' place; `None` if it is in no job.
    pub fn place(self) -> Option<Place> {
        let mut place = Place::default();
        // SAFETY: the place is writable.
        unsafe { (self.table.place)(&raw mut place) }.then_some(place)
    }

    /// How many ranks a process set has. Negative: -1 no job, -3 no such set.
    pub fn set_size(self, set: u32) -> i32 {
        (self.table.set_size)(set)
    }

    /// 1: this rank is a member; 0: it is not. Negative: -1 no job, -3 no such set.
    pub fn set_included(self, set: u32) -> i32 {
        (self.table.set_included)(set)
    }

    /// This rank's number in a process set. Negative: -1 no job, -3 no such set, -4 not a member.
    pub fn set_rank(self, set: u32) -> i32 {
        (self.table.set_rank)(set)
    }
}

fn with_call(request: &Request<'_>, call: impl FnOnce(*const RawCall)) {
    let tensors: Vec<RawTensor> = request
        .tensors
        .iter()
        .map(|tensor| RawTensor {
            source: tensor.source,
            target: tensor.target,
            shape: tensor.shape.as_ptr(),
            dimensions: tensor.shape.len(),
            dtype: tensor.dtype as u8,
        })
        .collect();
    call(&RawCall {
        kind: request.kind as u8,
        op: request.op as u8,
        grouped: request.grouped,
        set: request.set,
        priority: request.priority,
        prescale: request.prescale,
        postscale: request.postscale,
        root: request.root,
        name: request.name.as_ptr(),
        name_len: request.name.len(),
        tensors: tensors.as_ptr(),
        tensors_len: tensors.len(),
        splits: request.splits.map_or(std::ptr::null(), <[i64]>::as_ptr),
        splits_len: request.splits.map_or(0, <[i64]>::len),
    });
}

/// The [`finish`] for the closure in a box, whose type has no name.
fn finish_of<F: FnOnce(Result<Reply, Failure>)>(_: *const (Engine, F)) -> crate::table::Done {
    finish::<F>
}

/// Hands a reply to the closure that waits for it.
unsafe extern "C" fn finish<F: FnOnce(Result<Reply, Failure>)>(context: *mut c_void, reply: *const RawReply) {
    // SAFETY: the box that `submit` or `run` made, which is given back once.
    let (engine, done) = *unsafe { Box::from_raw(context.cast::<(Engine, F)>()) };
    // SAFETY: the reply is valid while this runs, and the rows are given to this side.
    done(unsafe { taken(engine, &*reply) });
}

/// # Safety
/// The reply is as the table says.
unsafe fn taken(engine: Engine, reply: &RawReply) -> Result<Reply, Failure> {
    // SAFETY: see above; this holds for all slices of the reply.
    let rows = unsafe { slice(reply.rows, reply.rows_len) };
    let rows = rows.iter().map(|&raw| Rows { raw, engine }).collect();
    if reply.cause != 0 {
        // SAFETY: see above.
        let text = String::from_utf8_lossy(unsafe { slice(reply.text, reply.text_len) }).into_owned();
        let known = [Cause::NotInitialized, Cause::Invalid, Cause::Mismatch];
        let cause = known.into_iter().find(|cause| *cause as u8 == reply.cause).unwrap_or(Cause::ShutDown);
        return Err(Failure { cause, text });
    }
    // SAFETY: see above.
    let received = unsafe { slice(reply.received, reply.received_len) }.to_vec();
    Ok(Reply { rows, received, last_joined: reply.last_joined })
}
