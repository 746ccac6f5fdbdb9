//! Times one kind of work until the budget is spent, in batches that all ranks begin together.
//!
//! A batch: fill, barrier, the calls with a clock around each, then every element checked. How many
//! calls a batch has and when to stop is agreed between the ranks, because a collective that one
//! rank does not call hangs the others. Each rank reports its own calls; the slowest rank's median
//! is what counts, and whoever reads the reports takes it.

use std::hint::black_box;
use std::time::Instant;

use ronde_collective::Reduction;
use ronde_collective::types::{DType, ReduceOp};
use serde::Serialize;

use crate::buffer::Buffer;
use crate::session::Session;
use crate::usage::Traffic;
use crate::{Error, Via, workload};

const MOST_CALLS: usize = 100_000;
const FEWEST_CALLS: usize = 5;
/// The first call of a batch finds limiters and queues rested; most calls should not be first ones.
const SHORTEST_BATCH: u32 = 3;
/// So many batches should fit into the budget.
const BATCHES: f64 = 4.0;

const SUM: Reduction = Reduction { dtype: DType::F32, op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 };

/// What one rank saw of one size. Times are of single calls, in microseconds.
#[derive(Serialize)]
pub(crate) struct Report {
    work: &'static str,
    rank: usize,
    bytes: usize,
    calls: usize,
    min_us: f64,
    median_us: f64,
    p90_us: f64,
    mean_us: f64,
    received_per_call: f64,
    sent_per_call: f64,
}

/// Something that can be timed call by call and checked afterwards.
pub(crate) trait Timed {
    /// What the report calls it.
    fn name(&self) -> &'static str;
    /// Size of the tensor.
    fn bytes(&self) -> usize;
    /// Makes the data as it is before a batch.
    fn fill(&mut self);
    /// Does the work so many times and notes how many seconds each took.
    fn run(&mut self, calls: u32, seconds: &mut Vec<f64>) -> Result<(), Error>;
    /// Makes sure that the work was done right every time.
    fn check(&self, calls: u32) -> Result<(), Error>;
}

/// The allreduce under test.
pub(crate) struct Allreduce<'a> {
    session: &'a Session,
    via: Via,
    tensor: Buffer,
}

impl<'a> Allreduce<'a> {
    pub(crate) fn new(session: &'a Session, via: Via, bytes: usize) -> Self {
        Self { session, via, tensor: Buffer::new(bytes) }
    }
}

impl Timed for Allreduce<'_> {
    fn name(&self) -> &'static str {
        "allreduce"
    }

    fn bytes(&self) -> usize {
        self.tensor.as_bytes().len()
    }

    fn fill(&mut self) {
        workload::fill(self.tensor.as_floats_mut(), self.session.place().rank);
    }

    fn run(&mut self, calls: u32, seconds: &mut Vec<f64>) -> Result<(), Error> {
        let tensor = self.tensor.as_bytes_mut();
        match self.via {
            Via::World => {
                let mut world = self.session.world();
                for _ in 0..calls {
                    let start = Instant::now();
                    world.allreduce(None, tensor, &SUM)?;
                    seconds.push(start.elapsed().as_secs_f64());
                }
            }
            Via::Engine => {
                for _ in 0..calls {
                    let start = Instant::now();
                    self.session.engine().allreduce("tensor", tensor, DType::F32, ReduceOp::Sum)?;
                    seconds.push(start.elapsed().as_secs_f64());
                }
            }
        }
        Ok(())
    }

    fn check(&self, calls: u32) -> Result<(), Error> {
        workload::check(self.tensor.as_floats(), self.session.place().size, calls)
    }
}

/// A plain copy between two private buffers: the floor, since an allreduce reads its input and
/// writes its output at least once.
pub(crate) struct Copy {
    from: Buffer,
    to: Buffer,
    alone: bool,
    idle: bool,
}

impl Copy {
    /// With `alone`, ranks other than 0 take part in everything except the copy itself.
    pub(crate) fn new(bytes: usize, alone: bool, rank: usize) -> Self {
        Self { from: Buffer::new(bytes), to: Buffer::new(bytes), alone, idle: alone && rank != 0 }
    }
}

impl Timed for Copy {
    fn name(&self) -> &'static str {
        if self.alone { "copy-alone" } else { "copy" }
    }

    fn bytes(&self) -> usize {
        self.from.as_bytes().len()
    }

    fn fill(&mut self) {
        workload::fill(self.from.as_floats_mut(), 0);
        self.to.as_floats_mut().fill(-1.0);
    }

    fn run(&mut self, calls: u32, seconds: &mut Vec<f64>) -> Result<(), Error> {
        for _ in 0..calls {
            let start = Instant::now();
            if !self.idle {
                self.to.as_bytes_mut().copy_from_slice(black_box(self.from.as_bytes()));
                black_box(self.to.as_bytes());
            }
            seconds.push(start.elapsed().as_secs_f64());
        }
        Ok(())
    }

    fn check(&self, _calls: u32) -> Result<(), Error> {
        if self.idle {
            return Ok(());
        }
        // A copy of rank 0's pattern is what an allreduce over one rank leaves.
        workload::check(self.to.as_floats(), 1, 1)
    }
}

/// Times `work` for about `budget` seconds, together with all other ranks.
pub(crate) fn measure(session: &Session, work: &mut impl Timed, budget: f64) -> Result<Report, Error> {
    // The first touches whatever is touched once, the second says how long a call takes, the third warms up.
    batch(session, work, 1, &mut Vec::new())?;
    let one = batch(session, work, 1, &mut Vec::new())?;
    let fitting = (budget / BATCHES / one.max(1e-9)) as u32;
    let calls = fitting.max(SHORTEST_BATCH).min(workload::exact_calls(session.place().size));
    batch(session, work, calls, &mut Vec::new())?;

    let mut seconds = Vec::with_capacity(MOST_CALLS + calls as usize);
    let mut spent = 0.0;
    let before = Traffic::now()?;
    while seconds.len() < FEWEST_CALLS || (spent < budget && seconds.len() < MOST_CALLS) {
        spent += batch(session, work, calls, &mut seconds)?;
    }
    let traffic = Traffic::now()?.since(before);

    let count = seconds.len();
    let mean = seconds.iter().sum::<f64>() / count as f64;
    seconds.sort_unstable_by(f64::total_cmp);
    let microseconds = |index: usize| seconds[index] * 1e6;
    Ok(Report {
        work: work.name(),
        rank: session.place().rank,
        bytes: work.bytes(),
        calls: count,
        min_us: microseconds(0),
        median_us: microseconds(count / 2),
        p90_us: microseconds((count - 1) * 9 / 10),
        mean_us: mean * 1e6,
        received_per_call: traffic.received as f64 / count as f64,
        sent_per_call: traffic.sent as f64 / count as f64,
    })
}

/// Runs one batch and returns how long the slowest rank took for all its calls.
fn batch(session: &Session, work: &mut impl Timed, calls: u32, seconds: &mut Vec<f64>) -> Result<f64, Error> {
    work.fill();
    let first = seconds.len();
    session.engine().barrier("begin")?;
    work.run(calls, seconds)?;
    work.check(calls)?;
    let mut slowest = seconds[first..].iter().sum::<f64>().to_ne_bytes();
    session.engine().allreduce("slowest", &mut slowest, DType::F64, ReduceOp::Max)?;
    Ok(f64::from_ne_bytes(slowest))
}
