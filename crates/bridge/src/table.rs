//! The C side: what crosses between two libraries that were linked apart.

use std::ffi::c_void;

/// Changes with every change of this file; a plug-in takes no table of another version.
pub const VERSION: u32 = 1;

/// Which collective.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reduce, and everybody gets all of it.
    Allreduce = 0,
    /// Join along the first dimension.
    Allgather = 1,
    /// Everybody gets the root's.
    Broadcast = 2,
    /// Every rank sends rows to every rank.
    Alltoall = 3,
    /// Reduce, and everybody gets its rows.
    Reducescatter = 4,
    /// Everybody is there.
    Barrier = 5,
    /// This rank has no more data.
    Join = 6,
}

impl Kind {
    /// Every collective, in the order of their numbers.
    pub const ALL: [Kind; 7] = [
        Kind::Allreduce,
        Kind::Allgather,
        Kind::Broadcast,
        Kind::Alltoall,
        Kind::Reducescatter,
        Kind::Barrier,
        Kind::Join,
    ];
}

/// What kind of thing went wrong, as frameworks tell errors apart.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// This process is in no job.
    NotInitialized = 1,
    /// This rank's arguments are wrong.
    Invalid = 2,
    /// The ranks do not agree; the job goes on.
    Mismatch = 3,
    /// The job is over: a rank was lost, or it was shut down.
    ShutDown = 4,
}

/// A tensor in memory. Whoever gives it keeps the memory valid and leaves it alone until the call is done.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawTensor {
    /// This rank's input.
    pub source: *const u8,
    /// Where the result goes; null for allgather and alltoall, whose results the engine allocates.
    pub target: *mut u8,
    /// Extents of the input.
    pub shape: *const u64,
    /// How many extents.
    pub dimensions: usize,
    /// Code of a `DType`.
    pub dtype: u8,
}

/// What is asked for. Everything it points to is needed only while the function that takes it runs, except the tensors' memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawCall {
    /// Number of a [`Kind`].
    pub kind: u8,
    /// Code of a `ReduceOp`.
    pub op: u8,
    /// Whether the tensors form a group.
    pub grouped: bool,
    /// The process set.
    pub set: u32,
    /// What is wanted earlier has the lower number.
    pub priority: i32,
    /// Factor for every input.
    pub prescale: f64,
    /// Factor for the result.
    pub postscale: f64,
    /// Root of a broadcast, as a rank of the job.
    pub root: i64,
    /// UTF-8.
    pub name: *const u8,
    /// Bytes of the name.
    pub name_len: usize,
    /// The tensors.
    pub tensors: *const RawTensor,
    /// How many tensors.
    pub tensors_len: usize,
    /// Rows for each member in an all-to-all, or null for equal ones.
    pub splits: *const i64,
    /// How many splits.
    pub splits_len: usize,
}

/// Memory that the engine allocated, aligned to 64 bytes at least. Whoever is given it returns it by [`Table::release`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawRows {
    /// The bytes.
    pub data: *mut u8,
    /// How many bytes.
    pub len: usize,
    /// Extents of the result; valid as long as `owner` is.
    pub shape: *const u64,
    /// How many extents.
    pub dimensions: usize,
    /// What to release.
    pub owner: *mut c_void,
}

/// How a call ended. All but the rows' memory is valid only while [`Done`] runs.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawReply {
    /// Number of a [`Cause`]; 0 if all went well.
    pub cause: u8,
    /// What went wrong, in UTF-8.
    pub text: *const u8,
    /// Bytes of the text.
    pub text_len: usize,
    /// Results of allgather and alltoall, one a tensor. The receiver owns each of them.
    pub rows: *const RawRows,
    /// How many results.
    pub rows_len: usize,
    /// Rows received from each member in an all-to-all.
    pub received: *const i64,
    /// How many of those.
    pub received_len: usize,
    /// The rank that joined last, after a join.
    pub last_joined: i64,
}

/// Told once how a call ended.
pub type Done = unsafe extern "C" fn(context: *mut c_void, reply: *const RawReply);

/// Where this process stands in the job.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are Horovod's")]
pub struct Place {
    pub rank: i32,
    pub size: i32,
    pub local_rank: i32,
    pub local_size: i32,
    pub cross_rank: i32,
    pub cross_size: i32,
}

/// The engine, as a plug-in sees it. Valid until the process ends, with or without a job.
#[repr(C)]
#[derive(Debug)]
pub struct Table {
    /// [`VERSION`] of the library that made the table.
    pub version: u32,
    /// Puts a call in flight and never waits for other ranks. `done` is called once, from whatever thread, possibly before this
    /// function returns, and also if the call is refused. No lock of the engine is held meanwhile, so it may submit another.
    pub submit: unsafe extern "C" fn(call: *const RawCall, done: Done, context: *mut c_void),
    /// Does a call and waits for it. `done` is called once, on the calling thread, before this function returns.
    pub run: unsafe extern "C" fn(call: *const RawCall, done: Done, context: *mut c_void),
    /// Tells the other ranks that a call, which they wait for, will not come from this one, and why (UTF-8). Read of the call are
    /// its kind, set, name and number of tensors.
    pub fault: unsafe extern "C" fn(call: *const RawCall, text: *const u8, text_len: usize),
    /// This process' place; false if it is in no job.
    pub place: unsafe extern "C" fn(place: *mut Place) -> bool,
    /// How many ranks a process set has. Negative: -1 no job, -3 no such set.
    pub set_size: extern "C" fn(set: u32) -> i32,
    /// 1: this rank is a member; 0: it is not. Negative: -1 no job, -3 no such set.
    pub set_included: extern "C" fn(set: u32) -> i32,
    /// Frees what the engine allocated for a result, by its `owner`.
    pub release: unsafe extern "C" fn(owner: *mut c_void),
    /// This rank's number in a process set. Negative: -1 no job, -3 no such set, -4 not a member.
    pub set_rank: extern "C" fn(set: u32) -> i32,
}

/// The elements that a pointer and a length mean.
///
/// # Safety
/// `start` is null, or points to `len` elements that live as long as the result.
pub unsafe fn slice<'a, T>(start: *const T, len: usize) -> &'a [T] {
    // SAFETY: as promised.
    if start.is_null() || len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(start, len) } }
}
