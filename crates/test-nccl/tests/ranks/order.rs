//! Ranks that launch different things, or in different orders, are told, all of them, with both sides.

use ronde_collective::types::{DType, ReduceOp};
use ronde_nccl::Communicator;

use crate::world::{Rank, Wrong, channel, run, simulation, unique_id};

fn sum(rank: &Rank, communicator: &Communicator, count: usize) -> Result<(), Wrong> {
    let memory = rank.filled(&vec![1; count * 4]);
    let check = || rank.in_time();
    let launch = rank.on(communicator, &check);
    launch.all_reduce(memory.address(), memory.address(), count, DType::F32, ReduceOp::Sum)?;
    rank.wait(communicator)
}

/// Starts without waiting for the end.
fn start(rank: &Rank, communicator: &Communicator, memory: u64) -> Result<(), Wrong> {
    let check = || rank.in_time();
    rank.on(communicator, &check).all_reduce(memory, memory, 4, DType::F32, ReduceOp::Sum)
}

#[test]
fn different_counts_are_named_on_both_ranks() {
    let _simulation = simulation();
    for gpus in [[0, 0], [0, 1]] {
        let id = unique_id();
        let results = run(&gpus, |rank| {
            let communicator = rank.join(&id)?;
            sum(rank, &communicator, 5)?;
            sum(rank, &communicator, 6 + rank.rank)
        });
        for result in results {
            let text = result.expect_err("they differ").0;
            for part in ["invalid usage", "launch 2 of", "of 6 float32", "of 7 float32"] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
    }
}

#[test]
fn two_communicators_launched_in_different_orders_are_found() {
    let _simulation = simulation();
    let ids = [unique_id(), unique_id()];
    let results = run(&[0, 1], |rank| {
        let memory = rank.room(16);
        let (first, second) = (rank.join(&ids[0])?, rank.join(&ids[1])?);
        sum(rank, &first, 4)?;
        sum(rank, &second, 4)?;
        let order = if rank.rank == 0 { [&first, &second] } else { [&second, &first] };
        let launched = order.iter().try_for_each(|communicator| start(rank, communicator, memory.address()));
        let ended = launched.and_then(|()| rank.wait(&first)).and_then(|()| rank.wait(&second));
        // One of them may still wait for what never comes.
        first.abort("the test is over");
        second.abort("the test is over");
        ended
    });
    let texts: Vec<String> =
        results.into_iter().filter_map(|result: Result<(), Wrong>| Some(result.err()?.0)).collect();
    assert!(texts.iter().any(|text| text.contains("launches come in different orders")), "{texts:?}");
}

#[test]
fn overlapping_communicators_in_one_order_are_fine() {
    let _simulation = simulation();
    let ids = [unique_id(), unique_id(), unique_id()];
    let results = run(&[0, 1, 2], |rank| {
        // All, the first two, the last two; each rank is in two or three of them.
        let member = |members: &[usize], id| {
            let place = members.iter().position(|&member| member == rank.rank);
            let join = |place| {
                let check = || rank.in_time();
                Communicator::new(crate::world::library(), id, place, members.len(), rank.who(), &check)
            };
            place.map(join).transpose()
        };
        let sets = [member(&[0, 1, 2], &ids[0])?, member(&[0, 1], &ids[1])?, member(&[1, 2], &ids[2])?];
        let memory = rank.filled(&[0; 16]);
        for turn in 0..30 {
            if let Some(communicator) = &sets[turn * 7 % 3] {
                start(rank, communicator, memory.address())?;
            }
        }
        sets.iter().flatten().try_for_each(|communicator| rank.wait(communicator))
    });
    results.into_iter().collect::<Result<(), Wrong>>().expect("no failure");
}

#[test]
fn a_communicator_that_ranks_make_in_different_orders_is_found() {
    let _simulation = simulation();
    let ids = [unique_id(), unique_id()];
    let results = run(&[0, 1], |rank| {
        let memory = rank.room(16);
        let first = rank.join(&ids[0])?;
        if rank.rank == 1 {
            start(rank, &first, memory.address())?;
        }
        let made = rank.join(&ids[1]).map(drop);
        first.abort("the test is over");
        made
    });
    for result in results {
        let text = result.expect_err("they differ").0;
        assert!(text.contains("is made after"), "{text}");
    }
}

#[test]
fn a_rank_far_ahead_waits_until_its_log_has_room() {
    let _simulation = simulation();
    let (id, (sender, receiver)) = (unique_id(), channel());
    let results = run(&[0, 1], |rank| {
        let memory = rank.filled(&[0; 16]);
        let communicator = rank.join(&id)?;
        if rank.rank == 1 {
            receiver.lock().expect("the receiver").recv().expect("rank 0 has gone on");
        }
        // More than a log holds; rank 1 begins when it is nearly full.
        for turn in 0..400 {
            start(rank, &communicator, memory.address())?;
            if rank.rank == 0 && turn == 120 {
                sender.send(()).expect("rank 1 listens");
            }
        }
        rank.wait(&communicator)
    });
    results.into_iter().collect::<Result<(), Wrong>>().expect("no failure");
}
