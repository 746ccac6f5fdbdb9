//! Failures on demand, giving up, and calls that must not come.

use std::sync::Barrier;

use ronde_collective::types::{DType, ReduceOp};
use ronde_nccl::Communicator;
use ronde_test_nccl::{Injection, Trouble, inject};

use crate::world::{Rank, Wrong, assert_nothing_is_left, library, run, simulation, unique_id};

fn sums(rank: &Rank, communicator: &Communicator, times: usize) -> Result<(), Wrong> {
    let memory = rank.filled(&[0; 400]);
    let check = || rank.in_time();
    for _ in 0..times {
        let launch = rank.on(communicator, &check);
        launch.all_reduce(memory.address(), memory.address(), 100, DType::F32, ReduceOp::Sum)?;
        rank.wait(communicator)?;
    }
    Ok(())
}

/// Runs two ranks of which some call is in trouble; the other one gives up when it hears of it.
fn troubled(trouble: Trouble, call: u64) -> Vec<Result<(), Wrong>> {
    inject(&[Injection { trouble, call, rank: Some(1) }]);
    let (id, news) = (unique_id(), Barrier::new(2));
    run(&[0, 1], |rank| {
        let communicator = rank.join(&id)?;
        if rank.rank == 1 {
            let failed = sums(rank, &communicator, 3);
            news.wait();
            return failed;
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                news.wait();
                communicator.abort("rank 1 failed");
            });
            sums(rank, &communicator, 3)
        })
    })
}

#[test]
fn an_error_on_demand_fails_the_call_and_the_other_rank_waits_until_it_gives_up() {
    let _simulation = simulation();
    let results = troubled(Trouble::Error, 2);
    let texts: Vec<String> = results.into_iter().map(|result| result.expect_err("trouble").0).collect();
    assert!(texts[0].contains("rank 1 failed"), "{}", texts[0]);
    assert!(texts[1].contains("ncclAllReduce") && texts[1].contains("system error"), "{}", texts[1]);
}

#[test]
fn a_remote_error_on_demand_shows_after_the_call() {
    let _simulation = simulation();
    let results = troubled(Trouble::Async, 2);
    let texts: Vec<String> = results.into_iter().filter_map(|result| Some(result.err()?.0)).collect();
    assert!(texts.iter().any(|text| text.contains("remote process exited")), "{texts:?}");
}

#[test]
fn what_hangs_ends_when_it_is_given_up_and_nothing_stays() {
    let simulation = simulation();
    inject(&[Injection { trouble: Trouble::Hang, call: 1, rank: Some(0) }]);
    let (id, looked) = (unique_id(), Barrier::new(2));
    let results = run(&[0, 0], |rank| {
        let communicator = rank.join(&id)?;
        let memory = rank.filled(&[0; 400]);
        let check = || rank.in_time();
        for _ in 0..2 {
            let launch = rank.on(&communicator, &check);
            launch.all_reduce(memory.address(), memory.address(), 100, DType::F32, ReduceOp::Sum)?;
        }
        let mark = rank.stream.record()?;
        let looks = (0..200).take_while(|_| !mark.reached().unwrap_or(true)).count();
        looked.wait();
        communicator.abort("enough");
        mark.wait()?;
        Ok(looks)
    });
    for result in results {
        assert_eq!(result.map_err(|wrong: Wrong| wrong.0), Ok(200), "it hung until it was given up");
    }
    assert_nothing_is_left(&simulation);
}

#[test]
fn making_a_communicator_fails_or_hangs_on_demand() {
    let _simulation = simulation();
    inject(&[Injection { trouble: Trouble::Error, call: 0, rank: None }]);
    let id = unique_id();
    let failed = run(&[0], |rank| rank.join(&id).err().map(|wrong| wrong.0));
    assert!(failed[0].as_ref().is_some_and(|text| text.contains("an error on demand")), "{failed:?}");
    inject(&[Injection { trouble: Trouble::Hang, call: 0, rank: None }]);
    let lost = run(&[0], |rank| {
        let looks = std::cell::Cell::new(0);
        let check = || {
            looks.set(looks.get() + 1);
            if looks.get() < 50 { Ok(()) } else { Err(Wrong("rank 1 was lost".into())) }
        };
        Communicator::new(library(), &id, 0, 1, rank.who(), &check).err().map(|wrong| wrong.0)
    });
    assert_eq!(lost[0].as_deref(), Some("rank 1 was lost"));
}

#[test]
fn who_waits_for_a_rank_that_never_comes_can_give_up() {
    let _simulation = simulation();
    for (rank_in_two, gpu) in [(0, 0), (1, 1)] {
        let id = unique_id();
        let given_up = run(&[gpu], |rank| {
            let looks = std::cell::Cell::new(0);
            let check = || {
                looks.set(looks.get() + 1);
                if looks.get() < 80 { Ok(()) } else { Err(Wrong("the other never came".into())) }
            };
            Communicator::new(library(), &id, rank_in_two, 2, rank.who(), &check).err().map(|wrong| wrong.0)
        });
        assert_eq!(given_up[0].as_deref(), Some("the other never came"));
    }
}

#[test]
fn ranks_that_disagree_about_their_number_are_told() {
    let _simulation = simulation();
    let id = unique_id();
    let results = run(&[0, 1], |rank| {
        let check = || rank.in_time();
        let size = 2 + rank.rank;
        Communicator::new(library(), &id, rank.rank, size, rank.who(), &check).err().map(|wrong| wrong.0)
    });
    let text = results[0].as_ref().expect("a failure");
    assert!(text.contains("rank 0 makes a communicator of 2 ranks, rank 1 one of 3"), "{text}");
    assert!(results[1].is_some());
}

#[test]
fn a_driver_that_fails_is_reported_as_nccl_does() {
    let simulation = simulation();
    simulation.fail_next("cuMemCreate", 2);
    let id = unique_id();
    let failed = run(&[0], |rank| rank.join(&id).err().map(|wrong| wrong.0));
    let text = failed[0].as_ref().expect("a failure");
    assert!(text.contains("unhandled cuda error"), "{text}");
}

#[test]
fn freed_communicators_and_blocking_ones_are_refused() {
    use std::ffi::{c_int, c_void};
    let _simulation = simulation();
    // SAFETY: the functions of the library, as it defines them; a freed handle is only a number to it.
    unsafe {
        let mut state = 0;
        assert_eq!(ronde_test_nccl::ncclCommGetAsyncError(77 as *mut c_void, &raw mut state), 5);
        assert_eq!(ronde_test_nccl::ncclCommAbort(77 as *mut c_void), 5);
        assert_eq!(ronde_test_nccl::ncclGroupEnd(), 5, "no group was started");
        let mut comm = std::ptr::null_mut();
        let mut id = std::mem::MaybeUninit::uninit();
        assert_eq!(ronde_test_nccl::ncclGetUniqueId(id.as_mut_ptr()), 0);
        let blocking = ronde_test_nccl::ncclCommInitRankConfig(
            &raw mut comm,
            1,
            id.assume_init(),
            0,
            std::ptr::null_mut(),
        );
        assert_eq!((blocking, comm.is_null()), (4 as c_int, true));
    }
}
