//! Every collective on GPUs that are simulated gives the bits that the host's data plane gives: ranks on one GPU, alone, on
//! GPUs of their own, several on each of several GPUs, and through the host.

#[path = "../../engine/tests/integration/ranks/mod.rs"]
mod ranks;
mod simulated;

use std::sync::{Mutex, PoisonError};

use ranks::{on_ranks_with, settings};
use ronde_collective::types::{DType, ReduceOp};
use ronde_engine::{Engine, Kind, Settings};
use ronde_settings::GpuPath;
use simulated::{Case, Rank, elements};

/// Runs a case both ways, in a set in which this rank has a position.
fn compare(rank: &Rank<'_>, case: &Case) {
    let place = (rank.engine.place().rank, rank.engine.place().size);
    let expected = case.on_host(rank.engine, 0, place);
    for guessed in [true, false] {
        let case = Case { name: format!("{}.{guessed}", case.name), ..case.clone() };
        let found = case.on_gpu(rank, 0, place, guessed);
        assert_eq!(found, expected, "{} on rank {} of {}", case.name, place.0, place.1);
    }
}

fn everything(rank: &Rank<'_>) {
    let place = rank.engine.place();
    for dtype in DType::ALL {
        let tensor = |rows: usize| (vec![rows as u64, 3], elements(dtype, rows * 3, place.rank));
        for op in [ReduceOp::Sum, ReduceOp::Average, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product] {
            let tensors = vec![tensor(7), tensor(1), tensor(0), tensor(40)];
            let case = Case { op, ..Case::new(Kind::Allreduce, &format!("{op} {dtype}"), dtype, tensors) };
            compare(rank, &case);
        }
        if dtype != DType::Bool {
            let scaled = Case::new(Kind::Allreduce, &format!("scaled {dtype}"), dtype, vec![tensor(5)]);
            compare(rank, &Case { factors: (2.0, 0.5), op: ReduceOp::Average, ..scaled });
        }
        for op in [ReduceOp::Sum, ReduceOp::Average] {
            let scatter = Case::new(
                Kind::Reducescatter,
                &format!("scatter {op} {dtype}"),
                dtype,
                vec![tensor(7), tensor(2)],
            );
            compare(rank, &Case { op, ..scatter });
        }
        let gather = vec![tensor(4), tensor(2)];
        compare(rank, &Case::new(Kind::Allgather, &format!("gather {dtype}"), dtype, gather));
        let uneven = vec![tensor(place.rank), tensor(3 + place.rank)];
        compare(rank, &Case::new(Kind::Allgather, &format!("uneven gather {dtype}"), dtype, uneven));
        for root in 0..place.size {
            let name = format!("from {root} {dtype}");
            compare(rank, &Case { root, ..Case::new(Kind::Broadcast, &name, dtype, vec![tensor(6)]) });
        }
        let even =
            Case::new(Kind::Alltoall, &format!("exchange {dtype}"), dtype, vec![tensor(2 * place.size)]);
        compare(rank, &even);
        let splits: Vec<usize> = (0..place.size).map(|member| (member + place.rank) % 3).collect();
        let rows = splits.iter().sum();
        let name = format!("uneven exchange {dtype}");
        let uneven = Case::new(Kind::Alltoall, &name, dtype, vec![tensor(rows)]);
        compare(rank, &Case { splits: Some(splits), ..uneven });
    }
    compare(rank, &Case { op: ReduceOp::Adasum, ..large(place.rank, 1000, "adasum") });
}

fn large(rank: usize, count: usize, name: &str) -> Case {
    let content: Vec<u8> =
        (0..count).flat_map(|index| ((index % 977) as f32 * (rank as f32 + 0.5)).to_le_bytes()).collect();
    Case::new(Kind::Allreduce, name, DType::F32, vec![(vec![count as u64], content)])
}

fn several_rounds(rank: &Rank<'_>) {
    let more_than_two_slots = 5 << 20;
    compare(rank, &large(rank.engine.place().rank, more_than_two_slots / 4 + 3, "several rounds"));
}

fn with(path: GpuPath) -> Settings {
    Settings { gpu_path: path, ..settings() }
}

/// Runs a check on ranks of these hosts, all on one GPU.
fn run(layout: &[usize], path: GpuPath, check: impl Fn(&Rank<'_>) + Sync) {
    run_on(layout, &[0; 4], &with(path), check);
}

/// The same on these GPUs, one a rank.
fn run_on(layout: &[usize], gpus: &[i32], settings: &Settings, check: impl Fn(&Rank<'_>) + Sync) {
    // NCCL for tests looks at the order of launches of all communicators of a GPU, so only one job may run at a time.
    static ONE: Mutex<()> = Mutex::new(());
    let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    on_ranks_with(layout, settings, &[], |engine: &Engine| {
        let rank = Rank::on(engine, gpus[engine.place().rank], settings);
        check(&rank);
    });
}

#[test]
fn every_operation_and_type_by_itself_and_with_others_on_one_gpu() {
    for ranks in [1, 2, 3, 4] {
        run(&[ranks], GpuPath::Auto, everything);
    }
}

#[test]
fn every_operation_and_type_through_the_host() {
    run(&[2], GpuPath::Host, everything);
    run(&[1, 2], GpuPath::Host, everything);
}

#[test]
fn every_operation_and_type_between_gpus() {
    run_on(&[4], &[0, 1, 2, 3], &with(GpuPath::Auto), everything);
    run_on(&[1, 2], &[0, 0, 1], &with(GpuPath::Nccl), everything);
    let lanes = Settings { num_nccl_streams: 3, ..with(GpuPath::Auto) };
    run_on(&[2], &[0, 1], &lanes, everything);
}

#[test]
fn every_operation_and_type_with_several_ranks_on_each_of_several_gpus() {
    for gpus in [[0, 0, 1, 1], [0, 1, 0, 1], [2, 2, 2, 1]] {
        run_on(&[4], &gpus, &with(GpuPath::Auto), everything);
    }
}

#[test]
fn tensors_larger_than_a_slot_go_in_several_rounds() {
    for (ranks, path) in [(2, GpuPath::Auto), (3, GpuPath::Auto), (2, GpuPath::Host), (3, GpuPath::Host)] {
        run(&[ranks], path, several_rounds);
    }
    run_on(&[4], &[0, 0, 1, 1], &with(GpuPath::Auto), several_rounds);
    run_on(&[2], &[0, 1], &with(GpuPath::Auto), several_rounds);
}
