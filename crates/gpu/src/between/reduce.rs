//! Reducing by NCCL.
//!
//! Floats are averaged by NCCL itself unless there are factors, which apply while tensors are copied. What NCCL does not know (16-bit
//! integers, booleans, exact averages and factors of integers) is gathered and folded by our own kernel, a chunk at a
//! time; so every type gives the bits it gives elsewhere.

use ronde_collective::types::{DType, ReduceOp};
use ronde_collective::{Group, Reduction};
use ronde_cuda::Kernel;
use ronde_engine::Error;

use super::lane::Lane;
use crate::failure::of_cuda;
use crate::layout::MOST_PEERS;
use crate::packing::{self, piece};
use crate::path::{Fold, Sources, neutral};
use crate::spans::{Span, lay_out, within};

/// Tensors of so many bytes are reduced where they lie: copying them costs more than a call of NCCL for them alone.
const LARGE: usize = 8 << 20;
/// Bytes of each rank that are gathered and folded at once.
const GATHERED: usize = 4 << 20;

/// What NCCL is asked for, and what it does not know of.
struct Plan {
    op: ReduceOp,
    /// The factor for every input.
    before: f64,
    /// What is left to do to the result, if anything.
    after: Option<Fold>,
}

impl Plan {
    /// `None`: NCCL does not know this reduction.
    fn new(how: &Reduction, ranks: usize) -> Option<Plan> {
        if how.prescale == 1.0 && how.postscale == 1.0 {
            let plan = Plan { op: how.op, before: 1.0, after: None };
            return ronde_nccl::knows(how.dtype, how.op).then_some(plan);
        }
        if !how.dtype.is_float() || !ronde_nccl::knows(how.dtype, ReduceOp::Sum) {
            return None;
        }
        let op = if how.op == ReduceOp::Average { ReduceOp::Sum } else { how.op };
        let after = Fold::new(&Reduction { prescale: 1.0, ..*how }, ranks).ok()?;
        Some(Plan { op, before: how.prescale, after: (!after.is_copy()).then_some(after) })
    }
}

/// Tensors apart by whether they are reduced where they lie; the others, moved together, and how long they are.
fn apart(spans: &[Span], plan: &Plan) -> (Vec<usize>, Vec<Span>, usize) {
    let alone = plan.before == 1.0;
    let (mut large, mut small, mut end) = (Vec::new(), Vec::new(), 0);
    for (index, span) in spans.iter().enumerate().filter(|(_, span)| span.bytes > 0) {
        if alone && (span.bytes >= LARGE || spans.len() == 1) {
            large.push(index);
        } else {
            small.push(Span { at: end, ..*span });
            end = (end + span.bytes).next_multiple_of(crate::spans::ALIGN);
        }
    }
    (large, small, end)
}

impl Lane {
    pub(super) fn allreduce(
        &mut self,
        group: &Group,
        sources: Sources<'_>,
        targets: &[Span],
        len: usize,
        how: &Reduction,
    ) -> Result<(), Error> {
        let fold = Fold::new(how, group.size())?;
        let Some(plan) = Plan::new(how, group.size()) else {
            return self.gather_and_fold(group, sources, targets, len, how, &fold);
        };
        let unit = how.dtype.size();
        let (large, small, fused) = apart(targets, &plan);
        // A large tensor may have no place as it travels: elements may be wider in memory, which other ranks know nothing of, and a
        // rank without data has no memory for it at all. Each then gets its own behind what is fused: results come to lie there as
        // well, and must not be what the next tensor begins with.
        let is_guest = |index: usize| matches!(sources, Sources::Nothing) || targets[index].cast.is_some();
        let bytes = |&index: &usize| Span::plain(0, if is_guest(index) { targets[index].bytes } else { 0 });
        let (spares, alone) = lay_out(large.iter().map(bytes));
        let buffer = self.room(fused + alone)?;
        let spare = |own: &Span| buffer + (fused + own.at) as u64;
        match sources {
            Sources::Tensors(sources) => {
                let together = pack_of(sources, targets, &large, &small).into_iter();
                let together = together.map(|span| (span, buffer + span.at as u64));
                let guests = large.iter().zip(&spares).filter(|(index, _)| is_guest(**index));
                let guests = guests.map(|(&index, own)| (sources[index], spare(own)));
                // SAFETY: spans are the submitters' tensors, and the buffer is as long as all that goes there.
                unsafe {
                    packing::pack_scaled(&mut self.launcher, together.chain(guests), how.dtype, plan.before)
                }?;
            }
            Sources::Nothing => self.fill_neutral(how, buffer, fused + alone)?,
        }
        self.call(group, |calls| {
            for (&index, own) in large.iter().zip(&spares) {
                let (source, target) = match sources {
                    Sources::Tensors(sources) if !is_guest(index) => {
                        (sources[index].address, targets[index].address)
                    }
                    _ => (spare(own), spare(own)),
                };
                calls.all_reduce(source, target, targets[index].bytes / unit, how.dtype, plan.op)?;
            }
            if fused > 0 {
                calls.all_reduce(buffer, buffer, fused / unit, how.dtype, plan.op)?;
            }
            Ok(())
        })?;
        if matches!(sources, Sources::Nothing) {
            return Ok(());
        }
        let small = small.iter().map(|span| (*span, buffer + span.at as u64));
        let large = large.iter().zip(&spares).map(|(&index, own)| {
            (targets[index], if is_guest(index) { spare(own) } else { targets[index].address })
        });
        self.finish(small.chain(large), plan.after.as_ref())
    }

    /// Brings results to their tensors, from where they lie, and does to them what is left to do.
    fn finish(&mut self, runs: impl Iterator<Item = (Span, u64)>, after: Option<&Fold>) -> Result<(), Error> {
        // SAFETY: the tensors are the submitters', and so are the results, or they lie in the buffer.
        unsafe {
            match after {
                Some(fold) => packing::fold(&mut self.launcher, runs, &[0], fold),
                None => {
                    packing::unpack(&mut self.launcher, runs.filter(|(span, from)| *from != span.address))
                }
            }
        }
    }

    fn fill_neutral(&mut self, how: &Reduction, buffer: u64, bytes: usize) -> Result<(), Error> {
        let pieces = [piece(0, buffer, bytes, 1)];
        // SAFETY: the buffer is that long.
        unsafe { self.launcher.launch(&Kernel::Fill, &pieces, &[neutral(how)]) }.map_err(of_cuda)
    }

    /// Gathers everybody's chunk, and folds them into the targets.
    fn gather_and_fold(
        &mut self,
        group: &Group,
        sources: Sources<'_>,
        targets: &[Span],
        len: usize,
        how: &Reduction,
        fold: &Fold,
    ) -> Result<(), Error> {
        let (me, size) = (group.rank(), group.size());
        if size > MOST_PEERS {
            return Err(Error::Invalid(format!(
                "{} of {} over more than {MOST_PEERS} GPUs is not there; cast the tensor to int32 or a float first",
                how.op, how.dtype
            )));
        }
        let room = len.min(GATHERED).next_multiple_of(crate::spans::ALIGN);
        let buffer = self.room(room * size)?;
        let parts: Vec<u64> = (0..size).map(|member| buffer + (member * room) as u64).collect();
        for start in (0..len).step_by(room.max(1)) {
            let bytes = room.min(len - start);
            match sources {
                Sources::Tensors(spans) => {
                    let chunk = within(spans, start..start + bytes);
                    let chunk = chunk.map(|span| (span, parts[me] + span.at as u64));
                    // SAFETY: spans are the submitters' tensors, and the buffer holds the chunk.
                    unsafe { packing::pack(&mut self.launcher, chunk) }?;
                }
                Sources::Nothing => self.fill_neutral(how, parts[me], bytes)?,
            }
            self.call(group, |calls| calls.all_gather(parts[me], buffer, room, DType::U8))?;
            let wanted = if matches!(sources, Sources::Nothing) { &[][..] } else { targets };
            let runs = within(wanted, start..start + bytes).map(|span| (span, span.at as u64));
            // SAFETY: all parts hold the chunk, and the targets are the submitters' to give.
            unsafe { packing::fold(&mut self.launcher, runs, &parts, fold) }?;
        }
        Ok(())
    }

    pub(super) fn reducescatter(
        &mut self,
        group: &Group,
        sources: &[Span],
        shares: &[Vec<Span>],
        len: usize,
        how: &Reduction,
    ) -> Result<(), Error> {
        let fold = Fold::new(how, group.size())?;
        let own = &shares[group.rank()];
        let Some(plan) = Plan::new(how, group.size()) else {
            return self.gather_and_fold(group, Sources::Tensors(sources), own, len, how, &fold);
        };
        let unit = how.dtype.size();
        // Factors apply in a copy; without one, tensors are read where they lie.
        let copied = plan.before != 1.0;
        let buffer = if copied { self.room(len)? } else { 0 };
        if copied {
            let runs = sources.iter().map(|span| (*span, buffer + span.at as u64));
            // SAFETY: spans are the submitters' tensors, and the buffer is as long as all of them.
            unsafe { packing::pack_scaled(&mut self.launcher, runs, how.dtype, plan.before) }?;
        }
        self.call(group, |calls| {
            for (index, span) in sources.iter().enumerate() {
                let start = if copied { buffer + span.at as u64 } else { span.address };
                for (member, share) in shares.iter().enumerate().filter(|(_, share)| share[index].bytes > 0) {
                    let from = start + (share[index].at - span.at) as u64;
                    calls.reduce(
                        from,
                        own[index].address,
                        share[index].bytes / unit,
                        how.dtype,
                        plan.op,
                        member,
                    )?;
                }
            }
            Ok(())
        })?;
        self.finish(own.iter().map(|span| (*span, span.address)), plan.after.as_ref())
    }
}

/// The small tensors where they come from, by their places in the buffer.
fn pack_of(sources: &[Span], targets: &[Span], large: &[usize], small: &[Span]) -> Vec<Span> {
    let indices = (0..targets.len()).filter(|index| targets[*index].bytes > 0 && !large.contains(index));
    indices.zip(small).map(|(index, span)| Span { address: sources[index].address, ..*span }).collect()
}
