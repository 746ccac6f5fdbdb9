//! One call of a compiled program: what XLA gives, as a request to the engine, and the results where XLA wants them.
//!
//! A program is compiled for fixed shapes, so the size of every result was decided when it was traced, from the number of
//! ranks at that time. All that is checked again here, before memory is written: ranks may have other rows than was
//! thought, and the job may be another one by now.

use std::ptr::{self, NonNull};

use ronde_bridge::{Cause, DType, Engine, Failure, Kind, ReduceOp, Reply, Request, Tensor};

use crate::elements::{Treatment, View};
use crate::frame::{Buffer, Frame, Refusal};
use crate::xla::ErrorCode;

/// What a call says besides its arrays.
struct Terms<'a> {
    kind: Kind,
    name: &'a str,
    set: u32,
    op: ReduceOp,
    grouped: bool,
    root: i64,
    prescale: f64,
    postscale: f64,
    /// The rows of each member, as they were when the program was traced; empty where they do not matter.
    rows: &'a [i64],
}

impl<'a> Terms<'a> {
    fn of(frame: Frame<'a>) -> Result<Terms<'a>, Refusal> {
        let kind = usize::try_from(frame.integer("kind")?).ok().and_then(|code| Kind::ALL.get(code));
        let op = u8::try_from(frame.integer("op")?).ok().and_then(ReduceOp::from_code);
        let set = u32::try_from(frame.integer("process_set")?).ok();
        let (Some(&kind), Some(op), Some(set)) = (kind, op, set) else {
            return Err(invalid(
                "an operation, a reduction or a process set has a number that means nothing",
            ));
        };
        Ok(Terms {
            kind,
            name: frame.text("name")?,
            set,
            op,
            grouped: frame.integer("grouped")? != 0,
            root: frame.integer("root")?,
            prescale: frame.real("prescale")?,
            postscale: frame.real("postscale")?,
            rows: frame.integers("rows")?,
        })
    }

    fn request<'b>(&self, tensors: &'b [Tensor<'b>]) -> Request<'b>
    where
        'a: 'b,
    {
        Request {
            set: self.set,
            grouped: self.grouped,
            op: self.op,
            prescale: self.prescale,
            postscale: self.postscale,
            root: self.root,
            ..Request::new(self.kind, self.name, tensors)
        }
    }
}

/// Does a call, waiting for the other ranks.
///
/// Programs run their collectives one after the other in program order, so a rank that waits here keeps no other rank
/// from coming: all of them get to the same call.
pub(crate) fn run(engine: Engine, frame: Frame<'_>) -> Result<(), Refusal> {
    let terms = Terms::of(frame)?;
    let treatment =
        Treatment { kind: terms.kind, op: terms.op, scaled: (terms.prescale, terms.postscale) != (1.0, 1.0) };
    let (operands, results) = (frame.operands()?, frame.results()?);
    if operands.len() != results.len() {
        return Err(invalid(format!("{} arrays cannot become {}", operands.len(), results.len())));
    }
    let pairs = operands
        .iter()
        .zip(&results)
        .map(|(operand, result)| Pair::of(operand, result, treatment))
        .collect::<Result<Vec<Pair>, Refusal>>()?;
    match (terms.kind, pairs.as_slice()) {
        (Kind::Allreduce | Kind::Broadcast | Kind::Barrier, pairs) => alike(engine, &terms, pairs),
        (Kind::Allgather, [pair]) => allgather(engine, &terms, pair),
        (Kind::Alltoall, [pair]) => alltoall(engine, &terms, pair),
        (Kind::Reducescatter, [pair]) => reducescatter(engine, &terms, pair),
        (kind, pairs) => Err(invalid(format!("a program cannot call {kind:?} with {} arrays", pairs.len()))),
    }
}

/// An operand, and the result that comes of it.
struct Pair {
    source: *const u8,
    target: *mut u8,
    operand: View,
    result: View,
}

impl Pair {
    fn of(operand: &Buffer, result: &Buffer, treatment: Treatment) -> Result<Pair, Refusal> {
        Ok(Pair {
            source: somewhere(operand.data),
            target: somewhere(result.data),
            operand: View::of(operand, treatment)?,
            result: View::of(result, treatment)?,
        })
    }

    fn tensor(&self, target: *mut u8) -> Tensor<'_> {
        Tensor { source: self.source, target, shape: &self.operand.shape, dtype: self.operand.dtype }
    }
}

/// Operations whose results are as large as their operands.
fn alike(engine: Engine, terms: &Terms<'_>, pairs: &[Pair]) -> Result<(), Refusal> {
    if pairs.iter().any(|pair| pair.operand.bytes() != pair.result.bytes()) {
        return Err(invalid(format!("the result of {:?} has another size than its operand", terms.name)));
    }
    let tensors: Vec<Tensor<'_>> = pairs.iter().map(|pair| pair.tensor(pair.target)).collect();
    // SAFETY: XLA's buffers have the sizes it says, and stay until this call ends.
    unsafe { call(engine, &terms.request(&tensors)) }.map(drop)
}

/// Rows of all members one after the other. How many each has is gathered with them: that the sum fits does not say that
/// every rank has what this one was compiled for.
fn allgather(engine: Engine, terms: &Terms<'_>, pair: &Pair) -> Result<(), Refusal> {
    check_members(engine, terms)?;
    let own = [pair.operand.shape.first().copied().unwrap_or(1) as i64];
    let count =
        Tensor { source: own.as_ptr().cast(), target: ptr::null_mut(), shape: &[1], dtype: DType::I64 };
    let tensors = [count, pair.tensor(ptr::null_mut())];
    // SAFETY: XLA's buffers have the sizes it says and stay until this call ends, as the count does.
    let reply = unsafe { call(engine, &Request { grouped: true, ..terms.request(&tensors) }) }?;
    let [counts, gathered] = reply.rows.as_slice() else {
        return Err(Refusal::new(ErrorCode::Internal, format!("{:?} has no result", terms.name)));
    };
    // SAFETY: the engine's memory is aligned for every type, and as long as it says.
    let counts =
        unsafe { std::slice::from_raw_parts(counts.data().cast::<i64>(), counts.len() / size_of::<i64>()) };
    expect_rows(terms, counts)?;
    fill(pair, gathered.data(), gathered.len())
}

/// Equal shares of the rows for every member.
fn alltoall(engine: Engine, terms: &Terms<'_>, pair: &Pair) -> Result<(), Refusal> {
    check_members(engine, terms)?;
    let tensors = [pair.tensor(ptr::null_mut())];
    let request = Request { splits: Some(terms.rows), ..terms.request(&tensors) };
    // SAFETY: XLA's buffers have the sizes it says, and stay until this call ends.
    let reply: Reply = unsafe { call(engine, &request) }?;
    expect_rows(terms, &reply.received)?;
    match reply.rows.as_slice() {
        [received] => fill(pair, received.data(), received.len()),
        _ => Err(Refusal::new(ErrorCode::Internal, format!("{:?} has no result", terms.name))),
    }
}

/// A share of the reduced rows. The first members may get one more than the others, and which this rank is among them was
/// decided when the program was traced.
fn reducescatter(engine: Engine, terms: &Terms<'_>, pair: &Pair) -> Result<(), Refusal> {
    check_members(engine, terms)?;
    // Without a job or such a set, the engine itself has the better words.
    if let Ok(place) = u64::try_from(engine.set_rank(terms.set)) {
        let (rows, members) =
            (pair.operand.shape.first().copied().unwrap_or(0), terms.rows.len().max(1) as u64);
        let share = rows / members + u64::from(place < rows % members);
        if pair.result.bytes() != share as usize * pair.operand.row_bytes() {
            return Err(invalid(format!(
                "{:?} was compiled for another place in the process set",
                terms.name
            )));
        }
    }
    let tensors = [pair.tensor(pair.target)];
    // SAFETY: XLA's buffers have the sizes it says and stay until this call ends; the target has room for this rank's share.
    unsafe { call(engine, &terms.request(&tensors)) }.map(drop)
}

/// Refuses to run if the process set has another number of members than when the program was traced.
fn check_members(engine: Engine, terms: &Terms<'_>) -> Result<(), Refusal> {
    // Without a job or such a set, the engine itself has the better words.
    match engine.set_size(terms.set) {
        size if size >= 0 && size as usize != terms.rows.len() => Err(invalid(format!(
            "{:?} was compiled for {} ranks, but the process set has {size}; call jax.clear_caches() after a change",
            terms.name,
            terms.rows.len()
        ))),
        _ => Ok(()),
    }
}

fn expect_rows(terms: &Terms<'_>, found: &[i64]) -> Result<(), Refusal> {
    if found == terms.rows {
        return Ok(());
    }
    Err(invalid(format!(
        "the ranks have {found:?} rows for {:?}, but this program was compiled for {:?}; outside of jax.jit they may differ",
        terms.name, terms.rows
    )))
}

/// Copies a result to where XLA wants it.
fn fill(pair: &Pair, data: *const u8, len: usize) -> Result<(), Refusal> {
    if len != pair.result.bytes() {
        return Err(invalid(format!(
            "{len} bytes came, but the program was compiled for {}",
            pair.result.bytes()
        )));
    }
    // SAFETY: both have this length, and the result is XLA's alone.
    unsafe { ptr::copy_nonoverlapping(data, pair.target, len) };
    Ok(())
}

/// # Safety
/// As [`Engine::run`].
unsafe fn call(engine: Engine, request: &Request<'_>) -> Result<Reply, Refusal> {
    // SAFETY: promised by the caller.
    unsafe { engine.run(request) }.map_err(told)
}

/// A failure of the engine as XLA's status; Horovod uses the same codes.
fn told(failure: Failure) -> Refusal {
    let code = match failure.cause {
        Cause::Invalid => ErrorCode::InvalidArgument,
        Cause::NotInitialized | Cause::Mismatch => ErrorCode::FailedPrecondition,
        Cause::ShutDown => ErrorCode::Aborted,
    };
    Refusal::new(code, failure.text)
}

fn invalid(text: impl Into<String>) -> Refusal {
    Refusal::new(ErrorCode::InvalidArgument, text)
}

/// The memory of a buffer; XLA gives none for empty ones.
fn somewhere(data: *mut u8) -> *mut u8 {
    if data.is_null() { NonNull::dangling().as_ptr() } else { data }
}
