//! Process sets: several in flight at once, overlapping, coming and going; and engines that come and go.

use crate::ranks::{Floats, Rendezvous, complete, on_ranks, on_ranks_with, settings, submit, sum};
use ronde_engine::{Error, Kind, Settings, Submission};

#[test]
fn static_sets_get_numbers_in_order_and_only_members_may_use_them() {
    on_ranks_with(&[3], &settings(), &[vec![0, 2], vec![1, 2]], |engine| {
        assert_eq!(engine.sets(), [(0, vec![0, 1, 2]), (1, vec![0, 2]), (2, vec![1, 2])]);
        let mut data = Floats(vec![1.0; 10]);
        let rank = engine.place().rank;
        for (id, members) in [(1, [0, 2]), (2, [1, 2])] {
            match submit(engine, id, sum("x", data.tensor())) {
                Ok(handle) => drop(engine.wait(handle).expect("reduced")),
                Err(Error::Invalid(text)) => {
                    assert!(!members.contains(&rank) && text.contains("not in process set"), "{text}")
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!(data.0[0], [2.0, 3.0, 3.0][rank]);
    });
}

#[test]
fn sets_that_differ_between_ranks_fail_on_all_of_them() {
    let job = Rendezvous::new(&[2]);
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let job = &job;
            scope.spawn(move || {
                let sets = if rank == 0 { vec![vec![0]] } else { vec![vec![0], vec![1]] };
                let error = job.join(rank, settings(), &sets).err().expect("an error").to_string();
                assert!(error.contains("mismatching"), "{error}");
            });
        }
    });
}

#[test]
fn sets_come_and_go_and_numbers_are_used_again() {
    on_ranks(&[2, 1], |engine| {
        let member = |ranks: &[usize]| ranks.contains(&engine.place().rank);
        for round in 0..20 {
            let (low, high) =
                (engine.add_set(&[1, 0]).expect("added"), engine.add_set(&[1, 2]).expect("added"));
            assert!(low != high && low <= 2 && high <= 2, "{low} {high} in round {round}");
            assert!(engine.add_set(&[0, 1]).is_err(), "a duplicate");
            for (id, ranks) in [(high, [1, 2]), (low, [0, 1])] {
                if member(&ranks) {
                    let mut data = Floats(vec![1.0; 1000]);
                    complete(engine, id, sum("y", data.tensor())).expect("reduced");
                    assert_eq!(data.0[999], 2.0);
                }
            }
            assert!(engine.remove_set(low).expect("removed"));
            assert!(engine.remove_set(high).expect("removed"));
            let gone = submit(engine, low, sum("z", Floats(vec![0.0]).tensor()));
            assert!(matches!(gone, Err(Error::Invalid(_))));
        }
        assert!(!engine.remove_set(0).expect("answered"), "the set of all ranks stays");
        assert_eq!(engine.sets().len(), 1);
    });
}

#[test]
fn without_the_setting_sets_cannot_be_added_later() {
    on_ranks_with(&[2], &Settings { dynamic_process_sets: false, ..settings() }, &[], |engine| {
        let text = engine.add_set(&[0]).expect_err("refused").to_string();
        assert!(text.contains("HOROVOD_DYNAMIC_PROCESS_SETS"), "{text}");
        assert!(engine.add_set(&[0, 7]).is_err());
    });
}

/// Every pair of three ranks is a set; each rank uses its two sets in an order of its own, without waiting in between.
#[test]
fn pairs_in_opposite_orders_never_wait_for_each_other() {
    let rounds: usize =
        std::env::var("RONDE_PAIR_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(10_000);
    on_ranks_with(&[3], &settings(), &[vec![0, 1], vec![1, 2], vec![0, 2]], |engine| {
        let order = [[1, 3], [2, 1], [3, 2]][engine.place().rank];
        let mut data = [Floats(vec![1.0; 64]), Floats(vec![1.0; 64])];
        for round in 0..rounds {
            let order = if round % 2 == 0 { order } else { [order[1], order[0]] };
            let handles: Vec<_> = data
                .iter_mut()
                .zip(order)
                .map(|(data, set)| {
                    data.0.fill(1.0);
                    submit(engine, set, sum("pair", data.tensor())).expect("submitted")
                })
                .collect();
            // The last first: nothing may depend on the order of waiting either.
            for handle in handles.into_iter().rev() {
                engine.wait(handle).expect("reduced");
            }
            assert!(data.iter().all(|data| data.0[63] == 2.0), "round {round}");
        }
    });
}

#[test]
fn an_engine_that_ends_fails_what_is_in_flight_and_another_may_begin() {
    let job = Rendezvous::new(&[2]);
    for round in 0..5 {
        std::thread::scope(|scope| {
            for rank in 0..2 {
                let job = &job;
                scope.spawn(move || {
                    let engine = job.join(rank, settings(), &[]).expect("engine");
                    engine.barrier("all here").expect("met");
                    let mut data = Floats(vec![1.0; 10]);
                    if rank == 0 {
                        let handle = submit(&engine, 0, sum("alone", data.tensor())).expect("submitted");
                        let error = engine.wait(handle).expect_err("nobody else comes").to_string();
                        assert!(error.contains("rank 1") && error.contains("left"), "round {round}: {error}");
                        assert!(
                            complete(&engine, 0, Submission::new(Kind::Barrier, "later", Vec::new()))
                                .is_err()
                        );
                    }
                });
            }
        });
    }
}

#[test]
fn whoever_waits_for_what_an_ended_engine_had_in_flight_hears_of_the_end() {
    on_ranks(&[2], |engine| {
        if engine.place().rank == 0 {
            let mut data = [Floats(vec![1.0; 10]), Floats(vec![1.0; 10])];
            let [before, after] = [0, 1].map(|index| {
                submit(engine, 0, sum(format!("alone {index}"), data[index].tensor())).expect("submitted")
            });
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| engine.wait(before));
                engine.shut_down();
                for outcome in [waiter.join().expect("no panic"), engine.wait(after)] {
                    assert!(matches!(outcome, Err(Error::ShutDown(_))), "{outcome:?}");
                }
            });
            assert!(submit(engine, 0, sum("late", data[0].tensor())).is_err(), "nothing is taken any more");
        }
    });
}

#[test]
fn threads_and_descriptors_are_given_back() {
    let count = |folder: &str| std::fs::read_dir(folder).expect("/proc").count();
    let cycle = |job: &Rendezvous| {
        std::thread::scope(|scope| {
            for rank in 0..2 {
                scope.spawn(move || {
                    assert!(job.join(rank, settings(), &[vec![0, 1]]).is_err(), "a duplicate of all ranks");
                });
            }
        });
        std::thread::scope(|scope| {
            for rank in 0..2 {
                scope.spawn(move || {
                    job.join(rank, settings(), &[vec![0]]).expect("engine").barrier("x").expect("met")
                });
            }
        });
    };
    let job = Rendezvous::new(&[2]);
    cycle(&job);
    let before = (count("/proc/self/task"), count("/proc/self/fd"));
    for _ in 0..20 {
        cycle(&job);
    }
    // Other tests of this program run at the same time and have threads of their own; a leak would be hundreds.
    assert!(count("/proc/self/task") < before.0 + 40, "threads");
    assert!(count("/proc/self/fd") < before.1 + 60, "descriptors");
}
