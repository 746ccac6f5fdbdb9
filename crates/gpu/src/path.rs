//! What every way that tensors can take has to do, on long tensors (see [`spans`](crate::spans)).

use std::sync::Arc;

use ronde_collective::kernel::{Fold as Rule, FoldPlan, Identity};
use ronde_collective::types::{DType, ReduceOp};
use ronde_collective::{Group, Reduction};
use ronde_cuda::{Kernel, Mark, Stream};
use ronde_engine::{Error, Kind};

use crate::spans::Span;

/// What a rank brings to a reduction.
#[derive(Clone, Copy)]
pub(crate) enum Sources<'a> {
    /// Its tensors.
    Tensors(&'a [Span]),
    /// Nothing, since it has joined.
    Nothing,
}

/// Bytes that are handed around: broadcast, allgather and alltoall are all of this kind. Members are known by position.
pub(crate) struct Handing {
    /// Which of the three.
    pub(crate) kind: Kind,
    /// Who gives, in a broadcast.
    pub(crate) root: usize,
    /// This rank's long tensor.
    pub(crate) sources: Vec<Span>,
    /// The length of everybody's.
    pub(crate) lens: Vec<usize>,
    /// What this rank wants of each member's long tensor, and where it goes.
    pub(crate) wanted: Vec<Vec<Span>>,
    /// What each member wants of this rank's, and where it lies: run by run what that member has as wanted of this one.
    pub(crate) given: Vec<Vec<Span>>,
}

/// A way. All methods give work to a stream of the engine's own and return without waiting for it, wherever that is possible.
pub(crate) trait Path: Send {
    /// The stream that has to wait for the tensors first. What it is given after [`end`](Path::end) comes behind the batch.
    fn entry(&self) -> &Arc<Stream>;

    /// Reduces long tensors of `len` bytes into everybody's targets, whose places in the long tensor are those of the sources, and
    /// which alone may be wider in memory than what travels, as their sources then are. A
    /// rank without data has targets as well, which are nowhere, for their places.
    fn allreduce(
        &mut self,
        group: &mut Group,
        sources: Sources<'_>,
        targets: &[Span],
        len: usize,
        how: &Reduction,
    ) -> Result<(), Error>;

    /// Reduces long tensors of `len` bytes; member m gets what `shares[m]` covers of it, whose addresses are this rank's.
    fn reducescatter(
        &mut self,
        group: &mut Group,
        sources: &[Span],
        shares: &[Vec<Span>],
        len: usize,
        how: &Reduction,
    ) -> Result<(), Error>;

    /// Whether a reduction that changes nothing in place is nothing to do: there is nobody else.
    fn is_alone(&self) -> bool {
        false
    }

    /// Hands bytes around.
    fn hand(&mut self, group: &mut Group, what: &Handing) -> Result<(), Error>;

    /// Ends a batch: the point after everything that was given to a stream for it.
    fn end(&mut self) -> Result<Arc<Mark>, Error>;

    /// Returns once no stream uses the tensors of a failed batch any more.
    fn drain(&mut self);
}

/// What a reduction does to elements, as a kernel does it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fold {
    how: Reduction,
    rule: Rule,
    divide: u64,
}

impl Fold {
    /// The fold of a reduction over so many ranks; an error, the same on all, if there is none.
    pub(crate) fn new(how: &Reduction, ranks: usize) -> Result<Fold, Error> {
        let rule = rule_of(how.op);
        if how.op == ReduceOp::Adasum && !how.dtype.is_float() {
            return Err(ronde_collective::Error::Unsupported { op: how.op, dtype: how.dtype }.into());
        }
        let divide = if how.op == ReduceOp::Average { ranks as u64 } else { 1 };
        let divisor = (how.op == ReduceOp::Average).then_some(divide);
        FoldPlan::new(how.dtype, rule, how.prescale, how.postscale, divisor)
            .map_err(|_| ronde_collective::Error::Unsupported { op: how.op, dtype: how.dtype })?;
        Ok(Fold { how: *how, rule, divide })
    }

    /// Bytes of an element.
    pub(crate) fn unit(&self) -> usize {
        self.how.dtype.size()
    }

    /// Whether a single source comes out as it went in.
    pub(crate) fn is_copy(&self) -> bool {
        self.how.prescale == 1.0 && self.how.postscale == 1.0 && self.divide == 1
    }

    /// The kernel for sources at these places, and its parameters after the pieces. The result is stored as what travels, or in a
    /// wider type.
    pub(crate) fn kernel(&self, bases: &[u64], stored: Option<DType>) -> (Kernel, Vec<u64>) {
        let scaled = !self.is_copy();
        let mut words = bases.to_vec();
        if scaled {
            words.extend([self.how.prescale.to_bits(), self.how.postscale.to_bits(), self.divide]);
        }
        let (dtype, to) = (self.how.dtype, stored.unwrap_or(self.how.dtype));
        (Kernel::Fold { dtype, to, fold: self.rule, sources: bases.len(), scaled }, words)
    }
}

/// What changes nothing in a reduction, in eight bytes, which hold whole elements of every type.
pub(crate) fn neutral(how: &Reduction) -> u64 {
    let mut pattern = [0; 8];
    // SAFETY: the pattern is that long.
    unsafe { Identity::new(how.dtype, rule_of(how.op)).fill(pattern.as_mut_ptr(), pattern.len()) };
    u64::from_ne_bytes(pattern)
}

/// How two elements become one.
pub(crate) fn rule_of(op: ReduceOp) -> Rule {
    match op {
        ReduceOp::Sum | ReduceOp::Average | ReduceOp::Adasum => Rule::Sum,
        ReduceOp::Min => Rule::Min,
        ReduceOp::Max => Rule::Max,
        ReduceOp::Product => Rule::Product,
    }
}
