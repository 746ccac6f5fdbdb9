//! The engine with real links: operations in any order on any rank, grouped, fused, joined, wrong.

use std::collections::VecDeque;

use crate::ranks::{Dice, Floats, complete, on_ranks, on_ranks_with, refused, settings, submit, sum};
use ronde_collective::types::{DType, ReduceOp};
use ronde_engine::{Engine, Error, Kind, Memory, Settings, Submission};

const LAYOUTS: [&[usize]; 5] = [&[1], &[2], &[4], &[2, 1], &[1, 1, 1]];

/// Sums of many tensors, submitted by every rank in an order of its own, all in flight at once.
#[test]
fn tensors_meet_by_name_whatever_order_ranks_submit_them_in() {
    for layout in LAYOUTS {
        on_ranks(layout, |engine| {
            let (rank, size) = (engine.place().rank, engine.place().size);
            let mut dice = Dice(rank as u64 + 7);
            for round in 0..20 {
                let mut tensors: Vec<(usize, Floats)> = (0..50)
                    .map(|index| (index, Floats(vec![(index + rank) as f32; 1 + index * 37])))
                    .collect();
                dice.shuffle(&mut tensors);
                let handles: Vec<_> = tensors
                    .iter_mut()
                    .map(|(index, tensor)| {
                        submit(engine, 0, sum(format!("t{index}"), tensor.tensor())).expect("submitted")
                    })
                    .collect();
                for handle in handles {
                    engine.wait(handle).expect("reduced");
                }
                for (index, tensor) in tensors {
                    let expected = (size * index + size * (size - 1) / 2) as f32;
                    assert!(
                        tensor.0.iter().all(|&value| value == expected),
                        "{layout:?} round {round} tensor {index}"
                    );
                }
            }
        });
    }
}

#[test]
fn groups_mix_types_and_come_back_whole() {
    on_ranks(&[3], |engine| {
        let mut floats = Floats(vec![1.5; 1000]);
        let mut whole = [7i64, engine.place().rank as i64];
        let numbers = ronde_engine::Tensor {
            source: whole.as_ptr().cast(),
            target: whole.as_mut_ptr().cast(),
            shape: vec![2],
            dtype: DType::I64,
            stored: None,
            ready: None,
            capacity: 0,
        };
        let tensors = vec![floats.tensor(), numbers];
        let group = Submission { grouped: true, ..Submission::new(Kind::Allreduce, "group", tensors) };
        complete(engine, 0, group).expect("reduced");
        assert_eq!((floats.0[999], whole), (4.5, [21, 3]));
    });
}

fn rows(
    engine: &Engine,
    kind: Kind,
    name: &str,
    data: &mut Floats,
    shape: &[usize],
) -> (Vec<f32>, Vec<u64>, Vec<usize>) {
    let finished = complete(engine, 0, Submission::new(kind, name, vec![data.shaped(shape)])).expect("done");
    let rows = finished.rows.into_iter().next().flatten().expect("a result");
    let Memory::Host(buffer) = rows.memory else { panic!("{:?} is not in host memory", rows.memory) };
    // SAFETY: the buffer holds floats, as many as its length says.
    let floats = unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<f32>(), buffer.len() / 4) };
    (floats.to_vec(), rows.shape, finished.received)
}

#[test]
fn rows_may_differ_between_ranks_in_number() {
    for layout in LAYOUTS {
        on_ranks(layout, |engine| {
            let (rank, size) = (engine.place().rank, engine.place().size);
            // Twice, because the second time the ranks know the operation and only its rows have changed.
            for more in [0, 2] {
                let own = rank + more;
                let mut data = Floats(vec![rank as f32; own * 3]);
                let (gathered, shape, _) = rows(engine, Kind::Allgather, "gather", &mut data, &[own, 3]);
                let expected: Vec<f32> =
                    (0..size).flat_map(|rank| vec![rank as f32; (rank + more) * 3]).collect();
                assert_eq!(
                    (gathered, shape),
                    (expected, vec![(size * (size - 1) / 2 + more * size) as u64, 3])
                );
            }
        });
    }
}

#[test]
fn all_to_all_sends_as_the_splits_say() {
    on_ranks(&[2, 1], |engine| {
        let (rank, size) = (engine.place().rank, engine.place().size);
        // Rank r sends r + d rows to rank d.
        let splits: Vec<usize> = (0..size).map(|to| rank + to).collect();
        let mut data = Floats((0..size).flat_map(|to| vec![(10 * rank + to) as f32; rank + to]).collect());
        let what = Submission {
            splits: Some(splits.clone()),
            ..Submission::new(Kind::Alltoall, "exchange", vec![data.shaped(&[splits.iter().sum()])])
        };
        let finished = complete(engine, 0, what).expect("exchanged");
        assert_eq!(finished.received, (0..size).map(|from| from + rank).collect::<Vec<_>>());
        let mut few = Floats(vec![0.0; size]);
        let what = Submission {
            // Their sum is 0 to whoever adds without care.
            splits: Some((0..size).map(|to| [usize::MAX, 1, 0][to]).collect()),
            ..Submission::new(Kind::Alltoall, "too much", vec![few.tensor()])
        };
        assert!(refused(engine, 0, what).contains("more than"));
        let (even, _, received) =
            rows(engine, Kind::Alltoall, "even", &mut Floats(vec![rank as f32; 2 * size]), &[2 * size]);
        assert_eq!((even, received), ((0..size).flat_map(|from| [from as f32; 2]).collect(), vec![2; size]));
    });
}

#[test]
fn reduced_rows_are_shared_out_with_the_first_ranks_taking_more() {
    on_ranks(&[3], |engine| {
        let rank = engine.place().rank;
        let mut data = Floats((0..10).map(|value| value as f32).collect());
        let mut share = Floats(vec![0.0; if rank < 2 { 4 } else { 2 }]);
        let mut tensor = data.shaped(&[5, 2]);
        tensor.target = share.0.as_mut_ptr().cast();
        complete(
            engine,
            0,
            Submission { op: ReduceOp::Sum, ..Submission::new(Kind::Reducescatter, "rs", vec![tensor]) },
        )
        .expect("reduced");
        let first = [0.0, 12.0, 24.0][rank];
        assert_eq!(share.0[..2], [first, first + 3.0]);
    });
}

#[test]
fn ranks_without_more_data_join_and_the_others_go_on() {
    for layout in [&[2][..], &[2, 1], &[1, 1, 1]] {
        let last = on_ranks(layout, |engine| {
            let (rank, size) = (engine.place().rank, engine.place().size);
            // Twice: the second time the reductions are known to all.
            for epoch in 0..2 {
                for batch in 0..=rank {
                    let mut data = Floats(vec![1.0; 100]);
                    complete(engine, 0, sum(format!("g{batch}"), data.tensor())).expect("reduced");
                    assert_eq!(
                        data.0[99],
                        (size - batch) as f32,
                        "epoch {epoch}: ranks below {batch} have joined"
                    );
                }
                let join =
                    complete(engine, 0, Submission::new(Kind::Join, "join", Vec::new())).expect("joined");
                assert_eq!(join.last_joined, Some(size - 1));
            }
            complete(engine, 0, Submission::new(Kind::Join, "join", Vec::new())).expect("joined").last_joined
        });
        assert!(last.iter().all(|one| *one == last[0] && one.is_some()));
    }
}

#[test]
fn what_ranks_disagree_on_is_an_error_everywhere_and_the_job_goes_on() {
    for layout in [&[2][..], &[1, 1], &[2, 1]] {
        on_ranks(layout, |engine| {
            let rank = engine.place().rank;
            for round in 0..3 {
                let mut data = Floats(vec![1.0; 6 + rank.min(1)]);
                let text = refused(engine, 0, sum("shape", data.tensor()));
                assert!(
                    text.contains("(6)") && text.contains("(7)") && text.contains("\"shape\""),
                    "{round}: {text}"
                );
                let mut data = Floats(vec![rank as f32; 4]);
                let root = rank.min(1);
                let what =
                    Submission { root, ..Submission::new(Kind::Broadcast, "root", vec![data.tensor()]) };
                assert!(refused(engine, 0, what).contains("root"));
                let kind = if rank == 0 { Kind::Allreduce } else { Kind::Allgather };
                let text = refused(engine, 0, Submission::new(kind, "kind", vec![data.tensor()]));
                assert!(text.contains("allreduce") && text.contains("allgather"), "{text}");
                complete(engine, 0, sum("fine", data.tensor())).expect("the job goes on");
            }
        });
    }
}

#[test]
fn a_rank_that_finds_its_own_arguments_wrong_tells_the_others() {
    on_ranks(&[3], |engine| {
        if engine.place().rank == 1 {
            engine
                .submit_fault(0, Kind::Alltoall, "alltoall.x", 1, "splits add up to 7 of 6 rows")
                .expect("told");
            engine.submit_fault(0, Kind::Allreduce, "group", 3, "of no known type").expect("told");
        } else {
            let text = refused(
                engine,
                0,
                Submission::new(Kind::Alltoall, "alltoall.x", vec![Floats(vec![0.0; 6]).tensor()]),
            );
            assert!(text.contains("rank 1") && text.contains("7 of 6"), "{text}");
            let mut data = [1, 2, 3].map(|len| Floats(vec![0.0; len]));
            let tensors = data.iter_mut().map(Floats::tensor).collect();
            let group = Submission { grouped: true, ..Submission::new(Kind::Allreduce, "group", tensors) };
            let text = refused(engine, 0, group);
            assert!(text.contains("rank 1") && text.contains("no known type"), "{text}");
        }
        engine.barrier("after").expect("the job goes on");
    });
}

#[test]
fn a_name_is_in_flight_once_and_free_again_after_its_end() {
    on_ranks(&[2], |engine| {
        let (mut one, mut other) = (Floats(vec![1.0; 8]), Floats(vec![2.0; 8]));
        if engine.place().rank == 0 {
            let first = submit(engine, 0, sum("same", one.tensor())).expect("submitted");
            let error = submit(engine, 0, sum("same", other.tensor())).expect_err("in flight");
            assert!(matches!(&error, Error::Invalid(text) if text.contains("\"same\"")), "{error}");
            engine.barrier("now the other rank").expect("met");
            engine.wait(first).expect("reduced");
        } else {
            engine.barrier("now the other rank").expect("met");
            complete(engine, 0, sum("same", one.tensor())).expect("reduced");
        }
        complete(engine, 0, sum("same", other.tensor())).expect("free again");
        assert_eq!((one.0[7], other.0[7]), (2.0, 4.0));
    });
}

/// A fusion threshold of zero, a cache of nothing, a cache far too small: other ways to the same results.
#[test]
fn settings_change_the_way_and_not_the_result() {
    let usual = settings();
    let ways = [
        Settings { fusion_threshold: 0, ..usual.clone() },
        Settings { cache_capacity: 0, ..usual.clone() },
        Settings { cache_capacity: 3, ..usual.clone() },
        Settings { disable_group_fusion: true, ..usual.clone() },
    ];
    for way in ways {
        on_ranks_with(&[2, 1], &way, &[], |engine| {
            for _ in 0..5 {
                let mut tensors: Vec<Floats> = (0..20).map(|index| Floats(vec![index as f32; 300])).collect();
                let handles: Vec<_> = tensors
                    .iter_mut()
                    .enumerate()
                    .map(|(index, tensor)| {
                        submit(engine, 0, sum(format!("t{index}"), tensor.tensor())).expect("submitted")
                    })
                    .collect();
                for handle in handles {
                    engine.wait(handle).expect("reduced");
                }
                assert!(
                    tensors.iter().enumerate().all(|(index, tensor)| tensor.0[299] == 3.0 * index as f32),
                    "{way:?}"
                );
            }
        });
    }
}

/// What the leader decides at once may be more than a ring holds: nobody may begin to run it before all have heard of it.
#[test]
fn decisions_larger_than_a_ring_reach_everybody() {
    for layout in [&[2][..], &[2, 2]] {
        on_ranks(layout, |engine| {
            let size = engine.place().size as f32;
            let mut tensors: Vec<Floats> = (0..3_000).map(|_| Floats(vec![1.0; 2])).collect();
            let group = Submission {
                grouped: true,
                ..Submission::new(
                    Kind::Allreduce,
                    "a.group.whose.name.is.about.as.long.as.those.of.real.models",
                    tensors.iter_mut().map(Floats::tensor).collect(),
                )
            };
            complete(engine, 0, group).expect("reduced");
            assert!(tensors.iter().all(|tensor| tensor.0 == [size; 2]));
        });
    }
}

/// A mix of everything with many operations in flight, in a random order on every rank.
#[test]
fn a_long_mixed_run_ends_with_every_operation_done_right() {
    let rounds: usize =
        std::env::var("RONDE_SOAK").ok().and_then(|text| text.parse().ok()).unwrap_or(100_000);
    on_ranks(&[2, 1], |engine| {
        let (rank, size) = (engine.place().rank, engine.place().size);
        let mut common = Dice(42);
        let mut own = Dice(rank as u64);
        let mut waiting = VecDeque::new();
        for window in 0..rounds / 30 {
            let mut jobs: Vec<(usize, Kind, usize)> = (0..30)
                .map(|index| {
                    let kind =
                        [Kind::Allreduce, Kind::Allreduce, Kind::Allgather, Kind::Broadcast][common.roll(4)];
                    (index, kind, 1 + common.roll(5_000))
                })
                .collect();
            own.shuffle(&mut jobs);
            for (index, kind, len) in jobs {
                let mut data = Floats(vec![rank as f32 + 1.0; len]);
                let name = format!("{kind}.{}.{index}", window % 2);
                let root = index % size;
                let what = Submission { root, ..Submission::new(kind, name, vec![data.tensor()]) };
                waiting.push_back((submit(engine, 0, what).expect("submitted"), kind, root, data));
            }
            while waiting.len() > 30 {
                finish(engine, size, waiting.pop_front().expect("not empty"));
            }
        }
        for one in waiting {
            finish(engine, size, one);
        }
    });
}

fn finish(engine: &Engine, size: usize, (handle, kind, root, data): (u64, Kind, usize, Floats)) {
    let finished = engine.wait(handle).expect("done").expect("known");
    match kind {
        Kind::Allreduce => assert_eq!(data.0[data.0.len() - 1], (size * (size + 1) / 2) as f32),
        Kind::Broadcast => assert_eq!(data.0[0], root as f32 + 1.0),
        _ => assert_eq!(finished.rows[0].as_ref().expect("rows").shape, [(size * data.0.len()) as u64]),
    }
}
