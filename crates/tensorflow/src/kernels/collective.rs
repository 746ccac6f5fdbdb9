//! Collectives: from TensorFlow's tensors to a request of the engine, and from the reply to outputs.

use std::ffi::{CStr, c_int};

use ronde_bridge::{Engine, Failure, Kind, ReduceOp, Reply, Request};

use super::parts::Part;
use super::variables;
use crate::api::RawDone;
use crate::context::{Construction, Context};
use crate::definitions::{Access, Definition};
use crate::done::Done;
use crate::names::Naming;
use crate::node::Node;
use crate::status::{Code, Refusal};
use crate::tensor::Tensor;
use crate::{callbacks_can_be_kept, dtype, engine};

/// What the engine says of a set that this rank is not in.
const NOT_A_MEMBER: i32 = -4;

/// The kernel of a collective: everything about it but the tensors.
pub(super) struct Collective {
    op: &'static str,
    kind: Kind,
    grouped: bool,
    access: Access,
    naming: Naming,
    set: u32,
    /// `None`: what was asked for is no reduction.
    reduction: Option<ReduceOp>,
    prescale: f64,
    postscale: f64,
    root: i64,
    /// Whether to wait on the thread that runs the kernel: outside of graphs that thread waits anyway, and one that does so
    /// in the engine needs no other thread to do the work.
    waits: bool,
}

impl Collective {
    pub(super) fn new(
        definition: &'static Definition,
        kind: Kind,
        grouped: bool,
        access: Access,
        node: &Node,
        construction: &Construction,
    ) -> Result<Collective, Refusal> {
        let int = |name: &CStr, or| if definition.has(name) { construction.int(name) } else { Ok(or) };
        let float = |name: &CStr| if definition.has(name) { construction.float(name) } else { Ok(1.0) };
        let set = int(c"process_set_id", 0)?;
        let set = u32::try_from(set)
            .map_err(|_| Refusal::new(Code::InvalidArgument, format!("there is no process set {set}")))?;
        let reduction = u8::try_from(int(c"reduce_op", i64::from(ReduceOp::Sum as u8))?).ok();
        let reduction = reduction.and_then(ReduceOp::from_code);
        if reduction.is_none() && kind == Kind::Allreduce {
            return Err(Refusal::new(Code::InvalidArgument, "reduce_op is the number of no reduction"));
        }
        if access != Access::Tensors {
            let (names, _) = construction.size(c"variable_names")?;
            if i64::from(names) != int(c"num_variables", 0)? {
                return Err(Refusal::new(
                    Code::InvalidArgument,
                    "variable_names has not one name a variable",
                ));
            }
        }
        let eager = kind != Kind::Join && node.is_eager(definition.argument());
        Ok(Collective {
            op: definition.text(),
            kind,
            grouped,
            access,
            naming: naming_of(definition, kind, grouped, node, construction)?,
            set,
            reduction,
            prescale: float(c"prescale_factor")?,
            postscale: float(c"postscale_factor")?,
            root: int(c"root_rank", 0)?,
            waits: eager || !callbacks_can_be_kept(),
        })
    }

    /// Runs the collective, and calls `callback` when it has ended: before this returns, or later.
    ///
    /// # Safety
    /// Both were given by TensorFlow to a compute function that has not returned.
    pub(super) unsafe fn compute(&self, context: Context, callback: *mut RawDone) {
        let run_done = context.api.functions.run_done;
        // Taken first: a rank that fails below has counted as the others do.
        let name = self.naming.name(self.set);
        let prepared = engine().and_then(|engine| Ok((engine, self.prepare(engine, context)?)));
        let (engine, mut held) = match prepared {
            Ok(prepared) => prepared,
            Err(refusal) => {
                self.tell_others(&name, context, &refusal);
                context.fail(&refusal.of(self.op));
                // SAFETY: TensorFlow's own callback, which is alive.
                return unsafe { run_done(callback) };
            }
        };
        let (shapes, splits) = held.lend();
        let tensors: Vec<_> =
            held.parts.iter().zip(&shapes).map(|(part, shape)| part.of_shape(shape)).collect();
        let request = Request {
            set: self.set,
            grouped: self.grouped,
            op: self.reduction.unwrap_or(ReduceOp::Sum),
            prescale: self.prescale,
            postscale: self.postscale,
            root: self.root,
            splits: splits.as_deref(),
            ..Request::new(self.kind, &name, &tensors)
        };
        let (op, kind) = (self.op, self.kind);
        if self.waits {
            // SAFETY: `held` keeps the memory, and lives longer than this call.
            let outcome = unsafe { engine.run(&request) };
            finish(context, op, kind, held, outcome);
            // SAFETY: as above.
            return unsafe { run_done(callback) };
        }
        // SAFETY: the compute function has not returned; that the copy works was found out before.
        let done = unsafe { Done::keep(run_done, callback) };
        let then = move |outcome| {
            finish(context, op, kind, held, outcome);
            done.call();
        };
        // SAFETY: `held` keeps the memory until the closure has run.
        unsafe { engine.submit(&request, then) };
    }

    /// Has the other ranks fail as well, which would wait for this one otherwise.
    fn tell_others(&self, name: &str, context: Context, refusal: &Refusal) {
        if let Ok(engine) = engine() {
            let tensors = if self.grouped { context.inputs() } else { 1 };
            let request = Request { set: self.set, ..Request::new(self.kind, name, &[]) };
            engine.fault(&request, usize::try_from(tensors).unwrap_or(1), refusal.text());
        }
    }

    fn prepare(&self, engine: Engine, context: Context) -> Result<Held, Refusal> {
        if self.kind == Kind::Reducescatter
            && !matches!(self.reduction, Some(ReduceOp::Sum | ReduceOp::Average))
        {
            return Err(Refusal::new(Code::Aborted, "reducescatter knows Sum and Average only"));
        }
        if self.access != Access::Tensors {
            let variables = variables::tensors_of(context, self.access)?;
            return Ok(Held::new(variables.into_iter().map(Part::in_place).collect::<Result<_, _>>()?));
        }
        match self.kind {
            Kind::Join | Kind::Barrier => Ok(Held::new(Vec::new())),
            Kind::Alltoall => {
                let parts = vec![Part::read_only(context.input(0)?)?];
                let splits = context.input(1)?;
                let mut held = Held::new(parts);
                held.refusal = (splits.shape().len() != 1)
                    .then(|| Refusal::new(Code::InvalidArgument, "splits is not a list of numbers"));
                held.splits = match (&held.refusal, splits.numbers()) {
                    // The engine refuses these too, and tells the other ranks, which would wait otherwise.
                    (Some(_), _) => Some(vec![-1]),
                    (None, []) => None,
                    (None, numbers) => Some(numbers.iter().copied().map(i64::from).collect()),
                };
                Ok(held)
            }
            kind => {
                let share = if kind == Kind::Reducescatter { Some(self.share(engine)?) } else { None };
                let part = |index| match kind {
                    Kind::Allgather => Part::read_only(context.input(index)?),
                    Kind::Reducescatter => Part::with_share(context, index, share),
                    _ => Part::with_output(context, index),
                };
                Ok(Held::new((0..context.inputs()).map(part).collect::<Result<_, _>>()?))
            }
        }
    }

    /// This rank's number in the set, and how many ranks that has.
    fn share(&self, engine: Engine) -> Result<(u64, u64), Refusal> {
        let Some(place) = engine.place() else {
            let text = "Horovod has not been initialized; use hvd.init().";
            return Err(Refusal::new(Code::FailedPrecondition, text));
        };
        let rank = if self.set == 0 { place.rank } else { engine.set_rank(self.set) };
        match (u64::try_from(rank), u64::try_from(engine.set_size(self.set))) {
            (Ok(rank), Ok(size)) if size > 0 => Ok((rank, size)),
            _ => {
                let set = self.set;
                let text = match rank {
                    NOT_A_MEMBER => format!("rank {} is not in process set {set}", place.rank),
                    _ => format!("there is no process set {set}"),
                };
                Err(Refusal::new(Code::InvalidArgument, text))
            }
        }
    }
}

fn naming_of(
    definition: &Definition,
    kind: Kind,
    grouped: bool,
    node: &Node,
    construction: &Construction,
) -> Result<Naming, Refusal> {
    let prefix = match (kind, grouped) {
        // All ranks join by one name, whatever framework calls.
        (Kind::Join, _) => return Ok(Naming::Fixed("join.noname".to_owned())),
        (Kind::Barrier, _) => return Ok(Naming::Fixed("barrier.noname".to_owned())),
        (Kind::Allreduce, false) => "allreduce",
        (Kind::Allreduce, true) => "grouped_allreduce",
        (Kind::Allgather, false) => "allgather",
        (Kind::Allgather, true) => "grouped_allgather",
        (Kind::Broadcast, false) => "broadcast",
        (Kind::Broadcast, true) => "grouped_broadcast",
        (Kind::Reducescatter, false) => "reducescatter",
        (Kind::Reducescatter, true) => "grouped_reducescatter",
        (Kind::Alltoall, _) => "alltoall",
    };
    let ignore_scope = definition.has(c"ignore_name_scope") && construction.bool(c"ignore_name_scope")?;
    Ok(Naming::new(prefix, &construction.string(c"tensor_name")?, ignore_scope, node))
}

/// One run of a collective: what has to stay until it has ended.
struct Held {
    parts: Vec<Part>,
    splits: Option<Vec<i64>>,
    /// What was wrong already, in better words than the engine has.
    refusal: Option<Refusal>,
}

impl Held {
    fn new(parts: Vec<Part>) -> Held {
        Held { parts, splits: None, refusal: None }
    }

    /// Gives away what a request is made of but nobody needs later.
    fn lend(&mut self) -> (Vec<Vec<u64>>, Option<Vec<i64>>) {
        let shapes = self.parts.iter_mut().map(|part| std::mem::take(&mut part.shape)).collect();
        (shapes, self.splits.take())
    }
}

/// Makes outputs of a reply, or a failure. What the collective needed is let go, since TensorFlow goes on right after this.
fn finish(context: Context, op: &str, kind: Kind, held: Held, outcome: Result<Reply, Failure>) {
    let outcome = match (outcome, &held.refusal) {
        (Err(_), Some(refusal)) => Err(refusal.clone()),
        (outcome, _) => outcome.map_err(Refusal::from),
    };
    let written = outcome.and_then(|reply| give_outputs(context, kind, &held, reply));
    if let Err(refusal) = written {
        context.fail(&refusal.of(op));
    }
}

fn give_outputs(context: Context, kind: Kind, held: &Held, reply: Reply) -> Result<(), Refusal> {
    for (index, (rows, part)) in reply.rows.into_iter().zip(&held.parts).enumerate() {
        let index = index as c_int;
        if rows.is_empty() {
            context.allocate(index, part.number, rows.shape(), 0)?;
        } else if let Some(tensor) = Tensor::of_rows(context.api, part.number, rows) {
            context.set_output(index, &tensor)?;
        }
    }
    let numbers: Vec<i32> = match kind {
        Kind::Alltoall => {
            reply.received.iter().map(|&rows| i32::try_from(rows).unwrap_or(i32::MAX)).collect()
        }
        Kind::Join => vec![i32::try_from(reply.last_joined).unwrap_or(-1)],
        _ => return Ok(()),
    };
    let (index, shape): (c_int, &[u64]) = match kind {
        Kind::Alltoall => (1, &[numbers.len() as u64]),
        _ => (0, &[]),
    };
    let mut output = context.allocate(index, dtype::INT32, shape, size_of_val(numbers.as_slice()))?;
    output.write_numbers(&numbers);
    Ok(())
}
