//! Tensors that travel in a narrower type than they have in memory: by every way, a result has the bits of casting by hand, reducing
//! and casting back, and the casts cost no launch of their own. The GPUs are simulated.

#[path = "../../engine/tests/integration/ranks/mod.rs"]
mod ranks;
mod simulated;

use std::sync::Barrier;

use half::{bf16, f16};
use ranks::{on_ranks_with, refused, settings};
use ronde_collective::types::{DType, ReduceOp};
use ronde_cuda::Scratch;
use ronde_engine::{Device, Engine, Kind, Settings, Submission, Tensor};
use ronde_settings::GpuPath;
use ronde_simulated_cuda::Simulation;
use simulated::Rank;

const NARROW: [DType; 2] = [DType::F16, DType::BF16];
const WIDE: [DType; 2] = [DType::F32, DType::F64];
const OPS: [ReduceOp; 5] =
    [ReduceOp::Sum, ReduceOp::Average, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];

/// A reduction of several tensors as one group.
#[derive(Clone)]
struct Case {
    name: String,
    wire: DType,
    op: ReduceOp,
    factors: (f64, f64),
    /// What this rank brings, and the type that each tensor has in memory.
    tensors: Vec<(DType, Vec<f64>)>,
}

/// Numbers of which few fit a narrow type: most need rounding, some are ties, or become one on the way, some are too large or too
/// small.
fn numbers(count: usize, rank: usize) -> Vec<f64> {
    let tie = 1.0 + f64::powi(2.0, -9) + f64::powi(2.0, -11);
    let twice = 1.0 + f64::powi(2.0, -11) + f64::powi(2.0, -40);
    let awkward = [tie, -tie, twice, 65519.9, 1e-7, -0.0, f64::INFINITY, 2049.0];
    (0..count)
        .map(|index| match index % 11 {
            10 => awkward[(index / 11) % awkward.len()],
            _ => ((index * 7919 + 13 * rank + 1) % 1009) as f64 / 977.0 - 0.3,
        })
        .collect()
}

/// Numbers as a type holds them; 16 bits by way of `float32`, as PyTorch casts.
fn bits(numbers: impl Iterator<Item = f64>, dtype: DType) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in numbers {
        match dtype {
            DType::F16 => bytes.extend(f16::from_f32(number as f32).to_le_bytes()),
            DType::BF16 => bytes.extend(bf16::from_f32(number as f32).to_le_bytes()),
            DType::F32 => bytes.extend((number as f32).to_le_bytes()),
            _ => bytes.extend(number.to_le_bytes()),
        }
    }
    bytes
}

/// The numbers that some bytes of a type are.
fn read(bytes: &[u8], dtype: DType) -> impl Iterator<Item = f64> + '_ {
    bytes.chunks_exact(dtype.size()).map(move |bytes| match dtype {
        DType::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f64(),
        DType::BF16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f64(),
        DType::F32 => f64::from(f32::from_le_bytes(bytes.try_into().expect("four"))),
        _ => f64::from_le_bytes(bytes.try_into().expect("eight")),
    })
}

/// What some bytes of a type are as another.
fn cast(bytes: &[u8], from: DType, to: DType) -> Vec<u8> {
    bits(read(bytes, from), to)
}

impl Case {
    /// Runs it on this rank's GPU, in place or not, and returns the bytes of the results. `by_hand`: tensors are cast before and after.
    fn run(&self, rank: &Rank<'_>, by_hand: bool, in_place: bool) -> Vec<Vec<u8>> {
        let mut kept: Vec<(Scratch, Scratch)> = Vec::new();
        let mut tensors = Vec::new();
        for (stored, numbers) in &self.tensors {
            let content = bits(numbers.iter().copied(), *stored);
            let content = if by_hand { cast(&content, *stored, self.wire) } else { content };
            let (source, target) = (rank.memory(&content), rank.memory(&vec![0xEE; content.len()]));
            let to = if in_place { source.address() } else { target.address() };
            let tensor = rank.tensor(source.address(), to, &[numbers.len() as u64], self.wire, 0);
            let stored = Some(*stored).filter(|stored| !by_hand && *stored != self.wire);
            tensors.push(Tensor { stored, ..tensor });
            kept.push((source, target));
        }
        let what = Submission {
            grouped: true,
            op: self.op,
            prescale: self.factors.0,
            postscale: self.factors.1,
            ..Submission::new(Kind::Allreduce, self.name.clone(), tensors)
        };
        rank.complete(0, what).unwrap_or_else(|error| panic!("{}: {error}", self.name));
        let results = kept.iter().zip(&self.tensors).map(|((source, target), (stored, _))| {
            let result = if in_place { source } else { target };
            let bytes = rank.read(result.address(), result.len());
            if by_hand { cast(&bytes, self.wire, *stored) } else { bytes }
        });
        results.collect()
    }

    /// What casting by hand gives. Ranks that do either find each other, so half of them may do it the other way.
    fn compare(&self, rank: &Rank<'_>) {
        let (name, me) = (&self.name, rank.engine.place().rank);
        let named = |turn: &str| Case { name: format!("{name}, {turn}"), ..self.clone() };
        let expected = named("by hand").run(rank, true, false);
        assert_eq!(named("cast").run(rank, false, false), expected, "{name} on rank {me}");
        assert_eq!(named("in place").run(rank, false, true), expected, "{name} in place on rank {me}");
        let mixed = named("mixed").run(rank, me % 2 == 0, false);
        assert_eq!(mixed, expected, "{name} on rank {me}, of which others cast by hand");
    }
}

fn everything(rank: &Rank<'_>) {
    let me = rank.engine.place().rank;
    for (wire, stored) in NARROW.into_iter().flat_map(|wire| WIDE.map(|stored| (wire, stored))) {
        let sizes = [7, 1, 0, 333];
        let tensors: Vec<_> = sizes.map(|count| (stored, numbers(count, me))).into();
        for op in OPS {
            let name = format!("{op} of {stored} as {wire}");
            let plain = Case { name: name.clone(), wire, op, factors: (1.0, 1.0), tensors: tensors.clone() };
            plain.compare(rank);
            let name = format!("{name}, scaled");
            Case { name, factors: (3.0, 0.3), ..plain }.compare(rank);
        }
    }
    small(rank);
    // Types in memory may differ, also those that travel as they are.
    let types = [DType::F32, DType::F16, DType::F64, DType::F32];
    let tensors = types.map(|stored| (stored, numbers(50, me))).into();
    let mixed = Case {
        name: "all types".into(),
        wire: DType::F16,
        op: ReduceOp::Average,
        factors: (1.0, 1.0),
        tensors,
    };
    mixed.compare(rank);
    if rank.engine.place().size.is_power_of_two() {
        let tensors = vec![(DType::F32, numbers(300, me)), (DType::F64, numbers(40, me))];
        let name = "adasum".into();
        Case { name, wire: DType::BF16, op: ReduceOp::Adasum, factors: (1.0, 1.0), tensors }.compare(rank);
    }
}

/// One tensor.
fn small(rank: &Rank<'_>) {
    let tensors = vec![(DType::F32, numbers(1000, rank.engine.place().rank))];
    let (name, wire) = ("alone".into(), DType::F16);
    Case { name, wire, op: ReduceOp::Sum, factors: (1.0, 1.0), tensors }.compare(rank);
}

/// Bytes, as they travel, that do not fit one round, where slots are [small](on_small_slots).
const SEVERAL_ROUNDS: usize = 3 << 20;
/// Bytes of tensors that NCCL reduces where they lie, if they lie as they travel.
const LARGE: usize = 8 << 20;

fn large(rank: &Rank<'_>, bytes: usize) {
    let me = rank.engine.place().rank;
    let count = bytes / 2 + 5;
    for factors in [(1.0, 1.0), (0.5, 3.0)] {
        let tensors = vec![
            (DType::F32, numbers(count, me)),
            (DType::F16, numbers(count, me)),
            (DType::F64, numbers(10, me)),
        ];
        let name = format!("large, {factors:?}");
        Case { name, wire: DType::F16, op: ReduceOp::Average, factors, tensors }.compare(rank);
    }
    let tensors = vec![(DType::F32, numbers(count, me))];
    let name = "large alone".into();
    Case { name, wire: DType::BF16, op: ReduceOp::Sum, factors: (1.0, 1.0), tensors }.compare(rank);
}

fn run(layout: &[usize], gpus: &[i32], path: GpuPath, check: impl Fn(&Rank<'_>) + Sync) {
    // NCCL for tests looks at the order of launches of all communicators of a GPU, so only one job may run at a time.
    run_in(&Simulation::begin(), layout, gpus, path, check);
}

/// The same where memory is short, so that slots are half as large as they were to be, or less.
fn on_small_slots(layout: &[usize], gpus: &[i32], check: impl Fn(&Rank<'_>) + Sync) {
    const OUT_OF_MEMORY: u32 = 2;
    let simulation = Simulation::begin();
    let barrier = Barrier::new(layout.iter().sum());
    run_in(&simulation, layout, gpus, GpuPath::Auto, |rank| {
        // NCCL for tests needs such memory as well, once.
        small(rank);
        if barrier.wait().is_leader() {
            simulation.fail_next("cuMemCreate", OUT_OF_MEMORY);
        }
        barrier.wait();
        check(rank);
    });
}

fn run_in(
    _alone: &Simulation,
    layout: &[usize],
    gpus: &[i32],
    path: GpuPath,
    check: impl Fn(&Rank<'_>) + Sync,
) {
    let settings = Settings { gpu_path: path, ..settings() };
    on_ranks_with(layout, &settings, &[], |engine: &Engine| {
        check(&Rank::on(engine, gpus[engine.place().rank], &settings));
    });
}

#[test]
fn by_itself_and_with_others_on_one_gpu() {
    for ranks in [1, 2, 3, 4] {
        run(&[ranks], &[0; 4], GpuPath::Auto, everything);
    }
    run(&[1], &[0], GpuPath::Auto, |rank| large(rank, LARGE));
    on_small_slots(&[2], &[0; 2], |rank| large(rank, SEVERAL_ROUNDS));
}

#[test]
fn through_the_host() {
    run(&[1, 1], &[0; 2], GpuPath::Host, everything);
    run(&[2], &[0; 2], GpuPath::Host, |rank| large(rank, 2 * SEVERAL_ROUNDS));
}

#[test]
fn between_gpus() {
    run(&[1], &[0], GpuPath::Nccl, everything);
    run(&[4], &[0, 1, 2, 3], GpuPath::Auto, everything);
    run(&[2], &[0, 1], GpuPath::Auto, |rank| large(rank, LARGE));
}

#[test]
fn with_several_ranks_on_each_of_several_gpus() {
    run(&[4], &[0, 1, 0, 1], GpuPath::Auto, everything);
    on_small_slots(&[3], &[2, 2, 1], |rank| large(rank, SEVERAL_ROUNDS));
}

#[test]
fn a_rank_that_has_joined_takes_part_in_what_travels() {
    for (gpus, path) in [([0, 0], GpuPath::Auto), ([0, 1], GpuPath::Auto), ([0, 0], GpuPath::Host)] {
        run(&[2], &gpus, path, |rank| {
            if rank.engine.place().rank == 1 {
                let join = Submission::new(Kind::Join, "join", Vec::new());
                ranks::complete(rank.engine, 0, join).expect("joined");
                return;
            }
            let tensors = vec![(DType::F32, numbers(20, 0)), (DType::F32, numbers(LARGE / 2, 0))];
            let wire = DType::F16;
            let case = Case { name: "without".into(), wire, op: ReduceOp::Sum, factors: (1.0, 1.0), tensors };
            let found = case.run(rank, false, true);
            for (found, (stored, numbers)) in found.iter().zip(&case.tensors) {
                let content = bits(numbers.iter().copied(), *stored);
                // Adding zero changes one number: minus zero.
                let sum =
                    bits(read(&cast(&content, *stored, wire), wire).map(|number| number + 0.0), *stored);
                assert_eq!(*found, sum);
            }
            let join = Submission::new(Kind::Join, "join", Vec::new());
            ranks::complete(rank.engine, 0, join).expect("joined");
        });
    }
}

#[test]
fn one_launch_packs_and_casts_a_batch_and_one_folds_and_casts_it_back() {
    let simulation = Simulation::begin();
    let settings = settings();
    on_ranks_with(&[2], &settings, &[], |engine: &Engine| {
        let rank = Rank::on(engine, 0, &settings);
        let tensors = (0..50).map(|count| (DType::F32, numbers(10 * count, 0))).collect();
        let op = ReduceOp::Average;
        let case = Case { name: "fused".into(), wire: DType::F16, op, factors: (2.0, 0.5), tensors };
        case.run(&rank, false, true);
    });
    assert_eq!(simulation.calls("cuLaunchKernel"), 2 * 2, "two on each of two ranks");
}

#[test]
fn what_cannot_be_narrowed_is_refused() {
    run(&[1], &[0], GpuPath::Auto, |rank| {
        let memory = rank.memory(&[0; 64]);
        let tensor = |dtype, stored| {
            let tensor = rank.tensor(memory.address(), memory.address(), &[4], dtype, 0);
            vec![Tensor { stored: Some(stored), ..tensor }]
        };
        let submission = |kind, device, tensors| Submission {
            device,
            ..Submission::new(kind, format!("refused {kind}"), tensors)
        };
        for what in [
            submission(Kind::Allreduce, Device::Host, tensor(DType::F16, DType::F32)),
            submission(Kind::Reducescatter, Device::Gpu, tensor(DType::F16, DType::F32)),
            submission(Kind::Allreduce, Device::Gpu, tensor(DType::F32, DType::F16)),
            submission(Kind::Allreduce, Device::Gpu, tensor(DType::I16, DType::I64)),
        ] {
            let text = refused(rank.engine, 0, what);
            assert!(text.contains("narrower"), "{text}");
        }
    });
}
