//! NCCL between GPUs when things go wrong, and when process sets overlap: four ranks on GPUs of their own, simulated, with the library
//! that takes NCCL's place. It checks by itself that launches and the making of communicators come in one order on all ranks.

#[path = "../../engine/tests/integration/ranks/mod.rs"]
mod ranks;
mod simulated;

use std::sync::Barrier;

use ranks::{on_ranks_with, settings, submit, sum};
use ronde_collective::types::DType;
use ronde_engine::{Device, Engine, Error, Handle, Submission};
use ronde_simulated_cuda::Simulation;
use ronde_test_nccl::{Injection, Trouble, inject};
use simulated::Rank;

const RANKS: usize = 4;

/// Runs `check` on the ranks, with orders for the library. One job at a time, since orders are for the whole process, and so are the
/// simulated GPUs.
fn between_gpus(orders: &[Injection], sets: &[Vec<usize>], check: impl Fn(&Rank<'_>) + Sync) {
    let _alone = Simulation::begin();
    inject(orders);
    let settings = settings();
    on_ranks_with(&[RANKS], &settings, sets, |engine: &Engine| {
        check(&Rank::on(engine, engine.place().rank as i32, &settings));
    });
    inject(&[]);
}

fn ones(rank: &Rank<'_>) -> ronde_cuda::Scratch {
    rank.memory(&[1.0f32; 64].map(f32::to_le_bytes).concat())
}

fn start(rank: &Rank<'_>, set: u32, name: &str, memory: &ronde_cuda::Scratch) -> Result<Handle, Error> {
    let tensor = rank.tensor(memory.address(), memory.address(), &[64], DType::F32, 0);
    submit(rank.engine, set, Submission { device: Device::Gpu, ..sum(name, tensor) })
}

fn finish(rank: &Rank<'_>, handle: Handle) -> Result<(), Error> {
    let finished = rank.engine.wait(handle)?.unwrap_or_default();
    for event in finished.events {
        event.order(rank.stream.handle()).map_err(Error::ShutDown)?;
    }
    Ok(())
}

fn run(rank: &Rank<'_>, name: &str, memory: &ronde_cuda::Scratch) -> Result<(), Error> {
    finish(rank, start(rank, 0, name, memory)?)
}

/// Repeats a sum until it fails, and returns what was said. Nothing waits for ever then, and nothing uses the memory.
fn until_it_fails(rank: &Rank<'_>, memory: &ronde_cuda::Scratch) -> String {
    loop {
        if let Err(error) = run(rank, "again", memory) {
            rank.stream.synchronize().expect("the GPU goes on");
            return error.to_string();
        }
    }
}

#[test]
fn sets_that_share_ranks_start_in_one_order_whatever_order_they_are_asked_in() {
    let sets = [vec![0, 1, 2], vec![1, 2, 3], vec![0, 3]];
    // A rank that leaves early is lost to those that are not done, however slow the machine.
    let done = Barrier::new(RANKS);
    between_gpus(&[], &sets, |rank| {
        let me = rank.engine.place().rank;
        let memory: Vec<_> = (0..=sets.len()).map(|_| ones(rank)).collect();
        for round in 0..6 {
            let mine = |set: &usize| *set == 0 || sets[set - 1].contains(&me);
            let mut asked: Vec<usize> = (0..=sets.len()).filter(mine).collect();
            let first = (me + round) % asked.len();
            asked.rotate_left(first);
            let started: Vec<Handle> = asked
                .iter()
                .map(|&set| start(rank, set as u32, &format!("{set}"), &memory[set]).expect("in flight"))
                .collect();
            for handle in started {
                finish(rank, handle).expect("a sum");
            }
        }
        done.wait();
        for (set, memory) in memory.iter().enumerate() {
            let members = if set == 0 { RANKS } else { sets[set - 1].len() };
            let expected =
                if set == 0 || sets[set - 1].contains(&me) { (members as f32).powi(6) } else { 1.0 };
            let found = rank.read(memory.address(), 4);
            assert_eq!(found, expected.to_le_bytes(), "set {set} on rank {me}");
        }
    });
}

#[test]
fn a_call_that_fails_on_one_rank_fails_on_all_and_says_where() {
    for call in [0, 2] {
        let order = Injection { trouble: Trouble::Error, call, rank: Some(2) };
        between_gpus(&[order], &[], |rank| {
            let text = until_it_fails(rank, &ones(rank));
            // Where a communicator is made, NCCL itself may fail on the others, before they hear of rank 2.
            let named = if call == 0 { "rank" } else { "rank 2" };
            assert!(text.contains(named) && text.contains("system error"), "call {call}: {text}");
        });
    }
}

#[test]
fn a_failure_on_the_device_is_noticed_and_ends_what_is_under_way() {
    let order = Injection { trouble: Trouble::Async, call: 2, rank: Some(1) };
    between_gpus(&[order], &[], |rank| {
        let text = until_it_fails(rank, &ones(rank));
        assert!(text.contains("rank 1"), "{text}");
    });
}

#[test]
fn work_that_hangs_ends_when_a_rank_is_lost() {
    let order = Injection { trouble: Trouble::Hang, call: 2, rank: None };
    let barrier = Barrier::new(RANKS);
    between_gpus(&[order], &[], |rank| {
        let memory = ones(rank);
        run(rank, "fine", &memory).expect("a sum");
        run(rank, "hangs", &memory).expect("given to the GPU");
        barrier.wait();
        if rank.engine.place().rank == 3 {
            rank.engine.fail("it raised an error of its own");
            barrier.wait();
            // What hangs here ends with the engine, which comes after this.
            std::mem::forget(memory);
        } else {
            let text = until_it_fails(rank, &memory);
            assert!(text.contains("rank 3"), "{text}");
            barrier.wait();
        }
    });
}
