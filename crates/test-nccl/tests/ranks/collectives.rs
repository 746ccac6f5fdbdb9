//! Every collective gives what NCCL promises, on one GPU and on several, in place and not, in one round and in many.

use ronde_collective::types::{DType, ReduceOp};
use ronde_nccl::Op;

use crate::world::{Rank, Wrong, assert_nothing_is_left, bytes, channel, run, simulation, unique_id};

const TYPES: [DType; 6] = [DType::I8, DType::I32, DType::I64, DType::F32, DType::F64, DType::BF16];
const OPS: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];

/// What a rank brings as element `at`.
fn value(rank: usize, at: usize) -> i32 {
    (rank + at % 3) as i32 + 1
}

fn reduced(op: ReduceOp, size: usize, at: usize) -> i32 {
    let values = (0..size).map(|rank| value(rank, at));
    match op {
        ReduceOp::Min => values.min().expect("ranks"),
        ReduceOp::Max => values.max().expect("ranks"),
        ReduceOp::Product => values.product(),
        _ => values.sum(),
    }
}

fn contribution(rank: &Rank, dtype: DType, count: usize) -> Vec<u8> {
    bytes(dtype, (0..count).map(|at| value(rank.rank, at)))
}

#[test]
fn reductions_of_every_type_and_kind() {
    let simulation = simulation();
    for gpus in [&[0][..], &[0, 0], &[0, 1, 2, 3]] {
        let (id, size) = (unique_id(), gpus.len());
        run(gpus, |rank| {
            let communicator = rank.join(&id)?;
            let check = || rank.in_time();
            let launch = rank.on(&communicator, &check);
            for dtype in TYPES {
                for op in OPS {
                    let count = 1000;
                    let mine = rank.filled(&contribution(rank, dtype, count * size));
                    let (all, scattered, rooted) = (
                        rank.room(mine.len()),
                        rank.room(count * dtype.size()),
                        rank.filled(&vec![0; count * dtype.size()]),
                    );
                    launch.all_reduce(mine.address(), all.address(), count * size, dtype, op)?;
                    launch.reduce_scatter(mine.address(), scattered.address(), count, dtype, op)?;
                    launch.reduce(mine.address(), rooted.address(), count, dtype, op, size - 1)?;
                    let expected = bytes(dtype, (0..count * size).map(|at| reduced(op, size, at)));
                    let width = count * dtype.size();
                    assert_eq!(rank.read(&all, &communicator)?, expected, "{dtype} {op}");
                    let part = &expected[rank.rank * width..][..width];
                    assert_eq!(rank.read(&scattered, &communicator)?, part, "{dtype} {op}");
                    let at_root = rank.read(&rooted, &communicator)?;
                    if rank.rank == size - 1 {
                        assert_eq!(at_root, &expected[..width], "{dtype} {op}");
                    } else {
                        assert!(at_root.iter().all(|&byte| byte == 0), "only the root gets it");
                    }
                }
            }
            Ok(())
        })
        .into_iter()
        .collect::<Result<(), Wrong>>()
        .expect("no failure");
    }
    assert_eq!(simulation.fault(0), None);
}

#[test]
fn averages_and_factors() {
    let _simulation = simulation();
    let id = unique_id();
    let results = run(&[0, 0, 1, 1], |rank| {
        let communicator = rank.join(&id)?;
        let check = || rank.in_time();
        let launch = rank.on(&communicator, &check);
        let mine = rank.filled(&contribution(rank, DType::F32, 3));
        let (average, scaled) = (rank.room(12), rank.room(12));
        launch.all_reduce(mine.address(), average.address(), 3, DType::F32, ReduceOp::Average)?;
        launch.all_reduce(mine.address(), scaled.address(), 3, DType::F32, Op::ScaledSum(0.5))?;
        Ok((rank.read(&average, &communicator)?, rank.read(&scaled, &communicator)?))
    });
    let floats = |values: [f32; 3]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    for result in results {
        let (average, scaled): (Vec<u8>, Vec<u8>) =
            result.map_err(|wrong: Wrong| wrong.0).expect("no failure");
        assert_eq!(average, floats([2.5, 3.5, 4.5]));
        assert_eq!(scaled, floats([5.0, 7.0, 9.0]));
    }
}

#[test]
fn everybody_gets_the_roots_elements_and_everybodys() {
    let _simulation = simulation();
    let id = unique_id();
    let results = run(&[2, 0, 1], |rank| {
        let communicator = rank.join(&id)?;
        let check = || rank.in_time();
        let launch = rank.on(&communicator, &check);
        let mine = rank.filled(&contribution(rank, DType::I32, 5));
        let (sent, gathered) = (rank.room(20), rank.room(60));
        launch.broadcast(mine.address(), sent.address(), 5, DType::I32, 1)?;
        launch.all_gather(mine.address(), gathered.address(), 5, DType::I32)?;
        Ok((rank.read(&sent, &communicator)?, rank.read(&gathered, &communicator)?))
    });
    let of = |rank: usize| bytes(DType::I32, (0..5).map(|at| value(rank, at)));
    for result in results {
        let (sent, gathered): (Vec<u8>, Vec<u8>) =
            result.map_err(|wrong: Wrong| wrong.0).expect("no failure");
        assert_eq!(sent, of(1));
        assert_eq!(gathered, [of(0), of(1), of(2)].concat());
    }
}

#[test]
fn tensors_larger_than_a_slot_go_in_rounds_and_in_place() {
    let _simulation = simulation();
    let (id, count) = (unique_id(), 1_400_003);
    let results = run(&[0, 0, 1], |rank| {
        let communicator = rank.join(&id)?;
        let check = || rank.in_time();
        let launch = rank.on(&communicator, &check);
        let all = rank.filled(&contribution(rank, DType::F32, count));
        launch.all_reduce(all.address(), all.address(), count, DType::F32, ReduceOp::Sum)?;
        let gathered = rank.filled(&contribution(rank, DType::F32, 3 * count));
        let own = gathered.address() + (rank.rank * count * 4) as u64;
        launch.reduce_scatter(gathered.address(), own, count, DType::F32, ReduceOp::Sum)?;
        launch.all_gather(own, gathered.address(), count, DType::F32)?;
        Ok((rank.read(&all, &communicator)?, rank.read(&gathered, &communicator)?))
    });
    let expected = bytes(DType::F32, (0..3 * count).map(|at| reduced(ReduceOp::Sum, 3, at)));
    for result in results {
        let (all, gathered): (Vec<u8>, Vec<u8>) = result.map_err(|wrong: Wrong| wrong.0).expect("no failure");
        assert!(all == expected[..count * 4], "allreduce");
        assert!(gathered == expected, "reducescatter and allgather");
    }
}

#[test]
fn a_call_returns_before_others_have_called() {
    let simulation = simulation();
    let (id, (sender, receiver)) = (unique_id(), channel());
    let results = run(&[0, 1], |rank| {
        let communicator = rank.join(&id)?;
        let check = || rank.in_time();
        let memory = rank.filled(&contribution(rank, DType::I64, 10));
        if rank.rank == 1 {
            receiver.lock().expect("the receiver").recv().expect("rank 0 has called and gone on");
        }
        for _ in 0..3 {
            rank.on(&communicator, &check).all_reduce(
                memory.address(),
                memory.address(),
                10,
                DType::I64,
                ReduceOp::Max,
            )?;
        }
        if rank.rank == 0 {
            sender.send(()).expect("rank 1 listens");
        }
        rank.read(&memory, &communicator)
    });
    let expected = bytes(DType::I64, (0..10).map(|at| value(1, at)));
    for result in results {
        assert_eq!(result.expect("no failure"), expected);
    }
    assert_eq!(simulation.calls("cuEventSynchronize"), 0, "nothing waited on the host");
}

#[test]
fn nothing_is_left_of_communicators_that_ended() {
    let simulation = simulation();
    let id = unique_id();
    let results = run(&[0, 0], |rank| {
        let communicator = rank.join(&id)?;
        let check = || rank.in_time();
        let memory = rank.filled(&contribution(rank, DType::F32, 100));
        let launch = rank.on(&communicator, &check);
        launch.all_reduce(memory.address(), memory.address(), 100, DType::F32, ReduceOp::Sum)?;
        rank.wait(&communicator)
    });
    results.into_iter().collect::<Result<(), Wrong>>().expect("no failure");
    assert_nothing_is_left(&simulation);
}
