//! Sends and receives: groups of any shape, and what has to match.

use ronde_collective::types::{DType, ReduceOp};

use crate::world::{Wrong, run, simulation, unique_id};

/// How many bytes one rank sends another: nothing, a little, or more than a slot holds.
fn bytes_between(from: usize, to: usize) -> usize {
    [0, 13, 700_001, 300_000][(from + 2 * to) % 4]
}

fn content(from: usize, to: usize) -> Vec<u8> {
    (0..bytes_between(from, to)).map(|at| (at * 7 + from * 31 + to * 101) as u8).collect()
}

#[test]
fn everybody_sends_everybody_different_amounts() {
    let _simulation = simulation();
    let id = unique_id();
    let results = run(&[0, 0, 1, 1], |rank| {
        let communicator = rank.join(&id)?;
        let check = || rank.in_time();
        for _ in 0..2 {
            let sends: Vec<_> = (0..4).map(|to| rank.filled(&content(rank.rank, to))).collect();
            let recvs: Vec<_> = (0..4).map(|from| rank.room(bytes_between(from, rank.rank))).collect();
            rank.on(&communicator, &check).group(|group| {
                // Each rank in its own order: within a group it does not matter.
                for step in 0..4 {
                    let peer = (rank.rank + step) % 4;
                    group.recv(recvs[peer].address(), recvs[peer].len(), DType::U8, peer)?;
                    group.send(sends[peer].address(), sends[peer].len(), DType::U8, peer)?;
                }
                Ok(())
            })?;
            for (from, memory) in recvs.iter().enumerate() {
                assert!(rank.read(memory, &communicator)? == content(from, rank.rank), "from {from}");
            }
        }
        Ok(())
    });
    let failures: Vec<Wrong> = results.into_iter().filter_map(Result::err).collect();
    assert!(failures.is_empty(), "{failures:?}");
}

#[test]
fn some_exchange_while_others_do_not_and_collectives_go_on() {
    let _simulation = simulation();
    let id = unique_id();
    let results = run(&[0, 1, 2], |rank| {
        let communicator = rank.join(&id)?;
        let check = || rank.in_time();
        let launch = rank.on(&communicator, &check);
        let memory = rank.filled(&[rank.rank as u8; 8]);
        match rank.rank {
            0 => launch.send(memory.address(), 8, DType::U8, 2)?,
            2 => launch.recv(memory.address(), 8, DType::U8, 0)?,
            _ => {}
        }
        launch.all_reduce(memory.address(), memory.address(), 8, DType::U8, ReduceOp::Sum)?;
        rank.read(&memory, &communicator)
    });
    for result in results {
        assert_eq!(result.expect("no failure"), [1; 8], "0 + 1 + 0");
    }
}

#[test]
fn amounts_that_do_not_match_are_found() {
    let _simulation = simulation();
    let id = unique_id();
    let results = run(&[0, 1], |rank| {
        let communicator = rank.join(&id)?;
        let check = || rank.in_time();
        let memory = rank.filled(&[0; 8]);
        let launch = rank.on(&communicator, &check);
        if rank.rank == 0 {
            launch.send(memory.address(), 8, DType::U8, 1)?;
        } else {
            launch.recv(memory.address(), 4, DType::U8, 0)?;
        }
        rank.wait(&communicator)
    });
    // The sender may be through before the receiver comes, who then is the only one to know.
    let received = results.into_iter().nth(1).expect("two ranks");
    let text = received.map_err(|wrong: Wrong| wrong.0).expect_err("they do not match");
    assert!(text.contains("1 sent with 8 bytes") && text.contains("1 received with 4 bytes"), "{text}");
}
