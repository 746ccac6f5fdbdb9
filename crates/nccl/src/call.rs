//! One collective as a value, and groups of them.
//!
//! Calls are checked when they are made and carried out later, so that a group which cannot be run as a whole is not
//! begun: NCCL would be left with half of it.

use std::ffi::{c_int, c_void};

use ronde_collective::types::DType;

use crate::elements::{Op, Reduction, element, reduction};
use crate::error::Error;
use crate::functions::{Code, Functions, Handle, SCALAR_ON_HOST, SUCCESS};

/// A collective, in NCCL's terms. Addresses are of device memory.
pub(crate) enum Call {
    /// Everybody gets the reduction of everybody's elements.
    AllReduce { src: u64, dst: u64, count: usize, dtype: c_int, op: Reduction },
    /// Rank r gets the r-th part of the reduction.
    ReduceScatter { src: u64, dst: u64, count: usize, dtype: c_int, op: Reduction },
    /// The root gets the reduction.
    Reduce { src: u64, dst: u64, count: usize, dtype: c_int, op: Reduction, root: c_int },
    /// Everybody gets the root's elements.
    Broadcast { src: u64, dst: u64, count: usize, dtype: c_int, root: c_int },
    /// Everybody gets everybody's elements, in the order of ranks.
    AllGather { src: u64, dst: u64, count: usize, dtype: c_int },
    /// Elements for one other rank, which receives them.
    Send { src: u64, count: usize, dtype: c_int, peer: c_int },
    /// Elements from one other rank, which sends them.
    Recv { dst: u64, count: usize, dtype: c_int, peer: c_int },
}

impl Call {
    /// NCCL's name of it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Call::AllReduce { .. } => "ncclAllReduce",
            Call::ReduceScatter { .. } => "ncclReduceScatter",
            Call::Reduce { .. } => "ncclReduce",
            Call::Broadcast { .. } => "ncclBroadcast",
            Call::AllGather { .. } => "ncclAllGather",
            Call::Send { .. } => "ncclSend",
            Call::Recv { .. } => "ncclRecv",
        }
    }

    /// Hands it to NCCL.
    ///
    /// # Safety
    /// The communicator is alive, the stream belongs to its device, and the memory is the device's and stays until the
    /// stream has passed this call.
    pub(crate) unsafe fn issue(&self, nccl: &Functions, comm: Handle, stream: *mut c_void) -> Code {
        let from = |address: u64| address as *const c_void;
        let to = |address: u64| address as *mut c_void;
        // SAFETY: as the caller promises; numbers of types were checked when the call was made.
        unsafe {
            match *self {
                Call::AllReduce { src, dst, count, dtype, op } => reducing(nccl, comm, dtype, op, |op| {
                    (nccl.all_reduce)(from(src), to(dst), count, dtype, op, comm, stream)
                }),
                Call::ReduceScatter { src, dst, count, dtype, op } => reducing(nccl, comm, dtype, op, |op| {
                    (nccl.reduce_scatter)(from(src), to(dst), count, dtype, op, comm, stream)
                }),
                Call::Reduce { src, dst, count, dtype, op, root } => reducing(nccl, comm, dtype, op, |op| {
                    (nccl.reduce)(from(src), to(dst), count, dtype, op, root, comm, stream)
                }),
                Call::Broadcast { src, dst, count, dtype, root } => {
                    (nccl.broadcast)(from(src), to(dst), count, dtype, root, comm, stream)
                }
                Call::AllGather { src, dst, count, dtype } => {
                    (nccl.all_gather)(from(src), to(dst), count, dtype, comm, stream)
                }
                Call::Send { src, count, dtype, peer } => {
                    (nccl.send)(from(src), count, dtype, peer, comm, stream)
                }
                Call::Recv { dst, count, dtype, peer } => {
                    (nccl.recv)(to(dst), count, dtype, peer, comm, stream)
                }
            }
        }
    }
}

/// Makes a reduction's number where it has a factor, and gives it back after the call: NCCL has taken what it needs
/// by then.
///
/// # Safety
/// The communicator is alive, and a factor has the type of the elements.
unsafe fn reducing(
    nccl: &Functions,
    comm: Handle,
    dtype: c_int,
    op: Reduction,
    call: impl FnOnce(c_int) -> Code,
) -> Code {
    // On these machines a `float32` in the lower half of eight bytes lies at their beginning.
    let mut scalar: u64 = match op {
        Reduction::Number(number) => return call(number),
        Reduction::ScaledSingles(factor) => u64::from(factor.to_bits()).to_le(),
        Reduction::ScaledDoubles(factor) => factor.to_bits().to_le(),
    };
    let mut number = 0;
    // SAFETY: the scalar has the type of the elements, as promised, and is read during the call.
    let made = unsafe {
        (nccl.create_pre_mul_sum)(&raw mut number, (&raw mut scalar).cast(), dtype, SCALAR_ON_HOST, comm)
    };
    if made != SUCCESS {
        return made;
    }
    let code = call(number);
    // SAFETY: made above for this communicator. That it cannot be freed is no reason to fail what has been started.
    unsafe { (nccl.destroy_op)(number, comm) };
    code
}

/// Collectives that are started as one. Sends and receives that wait for each other must be in one group.
#[derive(Default)]
pub struct Group {
    pub(crate) calls: Vec<Call>,
}

impl Group {
    /// Everybody gets the reduction of everybody's `count` elements.
    pub fn all_reduce(
        &mut self,
        src: u64,
        dst: u64,
        count: usize,
        dtype: DType,
        op: impl Into<Op>,
    ) -> Result<(), Error> {
        let op = reduction(dtype, op.into())?;
        self.add(Call::AllReduce { src, dst, count, dtype: element(dtype)?, op })
    }

    /// Of `count` times as many elements as there are ranks, rank r gets the r-th part of the reduction.
    pub fn reduce_scatter(
        &mut self,
        src: u64,
        dst: u64,
        count: usize,
        dtype: DType,
        op: impl Into<Op>,
    ) -> Result<(), Error> {
        let op = reduction(dtype, op.into())?;
        self.add(Call::ReduceScatter { src, dst, count, dtype: element(dtype)?, op })
    }

    /// The root gets the reduction of everybody's `count` elements; `dst` matters only there.
    pub fn reduce(
        &mut self,
        src: u64,
        dst: u64,
        count: usize,
        dtype: DType,
        op: impl Into<Op>,
        root: usize,
    ) -> Result<(), Error> {
        let op = reduction(dtype, op.into())?;
        self.add(Call::Reduce { src, dst, count, dtype: element(dtype)?, op, root: rank(root) })
    }

    /// Everybody gets the root's `count` elements; `src` matters only there.
    pub fn broadcast(
        &mut self,
        src: u64,
        dst: u64,
        count: usize,
        dtype: DType,
        root: usize,
    ) -> Result<(), Error> {
        self.add(Call::Broadcast { src, dst, count, dtype: element(dtype)?, root: rank(root) })
    }

    /// Everybody gets everybody's `count` elements, in the order of ranks.
    pub fn all_gather(&mut self, src: u64, dst: u64, count: usize, dtype: DType) -> Result<(), Error> {
        self.add(Call::AllGather { src, dst, count, dtype: element(dtype)? })
    }

    /// Gives `count` elements to a rank that receives them.
    pub fn send(&mut self, src: u64, count: usize, dtype: DType, peer: usize) -> Result<(), Error> {
        self.add(Call::Send { src, count, dtype: element(dtype)?, peer: rank(peer) })
    }

    /// Takes `count` elements from a rank that sends them.
    pub fn recv(&mut self, dst: u64, count: usize, dtype: DType, peer: usize) -> Result<(), Error> {
        self.add(Call::Recv { dst, count, dtype: element(dtype)?, peer: rank(peer) })
    }

    fn add(&mut self, call: Call) -> Result<(), Error> {
        self.calls.push(call);
        Ok(())
    }
}

/// A rank as NCCL takes it. One that does not fit is none of any communicator's, which NCCL says itself.
fn rank(rank: usize) -> c_int {
    c_int::try_from(rank).unwrap_or(c_int::MAX)
}
