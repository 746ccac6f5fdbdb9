//! Ranks that do not agree: every rank is told, with both sides, and the job goes on.

use ronde_collective::types::{DType, ReduceOp};
use ronde_engine::negotiation::{Decision, Device, GroupTag, Kind, Request, Settings};

use super::network::{Network, allreduce, timeless};

fn request(kind: Kind, shape: &[u64]) -> Request {
    Request::new(kind, format!("{kind}.x"), DType::F32, shape)
}

fn with(mut request: Request, change: impl FnOnce(&mut Request)) -> Request {
    request.name = "allreduce.x".into();
    change(&mut request);
    request
}

/// What ranks 0 to 2 ask for, what rank 3 asks for, and what the text must contain.
fn rows() -> Vec<(Request, Request, &'static [&'static str])> {
    use Kind::{Allgather, Allreduce, Alltoall, Broadcast, Reducescatter};
    let plain = || with(request(Allreduce, &[10, 128]), |_| {});
    let of = |kind, shape: &[u64]| with(request(kind, shape), |_| {});
    let tag = |name: &str| Some(GroupTag { name: name.into(), of: 1 });
    vec![
        (
            plain(),
            with(plain(), |r| r.dtype = DType::F64),
            &[
                "allreduce \"x\": Mismatched data types: one rank had type float32, but another rank had type float64.",
                "\n  ranks 0-2: (10, 128) float32\n  rank  3:   (10, 128) float64",
            ],
        ),
        (
            plain(),
            of(Allgather, &[10, 128]),
            &[
                "Mismatched operations: one rank asked for allreduce, but another rank asked for allgather.",
                "\n  rank  3:   allgather of (*, 128) float32",
            ],
        ),
        (
            plain(),
            of(Allreduce, &[12, 128]),
            &[
                "Mismatched allreduce tensor shapes: one rank sent a tensor of shape (10, 128), but another rank sent \
                 a tensor of shape (12, 128).",
                "\n  ranks 0-2: (10, 128) float32\n  rank  3:   (12, 128) float32",
            ],
        ),
        (of(Broadcast, &[1]), of(Broadcast, &[2]), &["Mismatched broadcast tensor shapes", "(1)", "(2)"]),
        (of(Reducescatter, &[1]), of(Reducescatter, &[2]), &["Mismatched reducescatter tensor shapes"]),
        (
            plain(),
            with(plain(), |r| r.prescale = 0.5),
            &[
                "Mismatched prescale and/or postscale factors: one rank sent factors (1, 1), but another",
                "(0.5, 1)",
            ],
        ),
        (plain(), with(plain(), |r| r.postscale = f64::NAN), &["factors (1, NaN)"]),
        (
            plain(),
            with(plain(), |r| r.op = ReduceOp::Min),
            &["Mismatched reduction operation: one rank asked for sum, but another rank asked for min."],
        ),
        (
            of(Reducescatter, &[4]),
            with(of(Reducescatter, &[4]), |r| r.op = ReduceOp::Average),
            &["Mismatched reduction operation"],
        ),
        (of(Allgather, &[]), of(Allgather, &[]), &["allgather of a rank-zero tensor"]),
        (of(Alltoall, &[]), of(Alltoall, &[]), &["alltoall of a rank-zero tensor"]),
        (of(Reducescatter, &[]), of(Reducescatter, &[]), &["reducescatter of a rank-zero tensor"]),
        (
            of(Allgather, &[5, 2]),
            of(Allgather, &[5, 2, 1]),
            &["one rank sent a tensor of rank 2, but another rank sent a tensor of rank 3."],
        ),
        (
            of(Alltoall, &[5, 2, 7]),
            of(Alltoall, &[5, 2, 8]),
            &[
                "a tensor with dimension 2 equal to 7, but another rank sent a tensor with dimension 2 equal to 8.",
            ],
        ),
        (
            of(Broadcast, &[1]),
            with(of(Broadcast, &[1]), |r| r.root = 2),
            &[
                "one rank specified root rank 0, but another rank specified root rank 2.",
                "rank  3:   root rank 2",
            ],
        ),
        (
            plain(),
            with(plain(), |r| r.device = Device::Gpu),
            &["Mismatched device selection: one rank specified CPU, but another rank specified GPU."],
        ),
        (
            plain(),
            with(plain(), |r| r.group = tag("g")),
            &["Mismatched groups", "in no group", "in group \"g\" of 1"],
        ),
        (
            with(plain(), |r| r.group = tag("f")),
            with(plain(), |r| r.group = tag("g")),
            &["Mismatched groups", "in group \"f\" of 1", "in group \"g\" of 1"],
        ),
        (
            plain(),
            with(plain(), |r| r.fault = Some("splits sum to 7 of 6 rows".into())),
            &["rank 3: splits sum to 7 of 6 rows"],
        ),
    ]
}

#[test]
fn every_row_of_the_matrix_fails_everywhere_with_both_sides_and_the_job_goes_on() {
    for layout in [&[4][..], &[2, 2], &[1, 1, 1, 1]] {
        for (most, odd, texts) in rows() {
            // With nothing remembered, with the name remembered as most have it, and as the odd one has it.
            for remembered in [None, Some(&most), Some(&odd)] {
                let mut network = Network::new(layout, &timeless(), 11);
                if let Some(request) = remembered {
                    let request = Request { fault: None, ..request.clone() };
                    network.submit_everywhere(&request);
                    network.settle();
                    (0..4).for_each(|position| drop(network.take(position)));
                }
                for position in [2, 3, 0, 1] {
                    let request = if position == 3 { &odd } else { &most };
                    network.submit(position, vec![request.clone()]).expect("nothing is in flight");
                }
                network.settle();
                for position in 0..4 {
                    let decisions = network.take(position);
                    let [Decision::Fail { text, .. }] = &decisions[..] else {
                        panic!("{texts:?} was expected, not {decisions:?}")
                    };
                    for expected in texts {
                        assert!(text.contains(expected), "{expected:?} is not in {text:?}");
                    }
                }
                network.submit_everywhere(&allreduce("allreduce.x"));
                network.settle();
                for position in 0..4 {
                    let decisions = network.take(position);
                    assert!(matches!(decisions[..], [Decision::Run(_)]), "after {texts:?}: {decisions:?}");
                }
                network.assert_quiet();
            }
        }
    }
}

#[test]
fn rows_come_in_the_order_people_know() {
    let worse: [fn(&mut Request); 5] = [
        |r| r.dtype = DType::F64,
        |r| r.shape = vec![5],
        |r| r.prescale = 2.0,
        |r| r.op = ReduceOp::Max,
        |r| r.device = Device::Gpu,
    ];
    let words = ["data types", "tensor shapes", "factors", "reduction operation", "device"];
    for (first, word) in words.iter().enumerate() {
        let mut network = Network::new(&[2], &timeless(), 0);
        let mut odd = allreduce("x");
        worse[first..].iter().for_each(|change| change(&mut odd));
        network.submit(0, vec![allreduce("x")]).expect("nothing is in flight");
        network.submit(1, vec![odd]).expect("nothing is in flight");
        network.settle();
        let decisions = network.take(0);
        let [Decision::Fail { text, .. }] = &decisions[..] else { panic!("it failed, not {decisions:?}") };
        assert!(text.lines().next().is_some_and(|line| line.contains(word)), "{word}: {text}");
    }
}

#[test]
fn rows_that_each_rank_has_its_own_number_of_are_no_mismatch() {
    let mut network = Network::new(&[1, 2], &timeless(), 0);
    for step in 0..3 {
        for position in 0..3 {
            let rows = (position + step) as u64;
            network
                .submit(position, vec![request(Kind::Allgather, &[rows, 4])])
                .expect("nothing is in flight");
        }
        network.settle();
    }
    assert_eq!(network.story(2), vec!["Allgather F32 allgather.x[0, 4]"; 3]);
}

#[test]
fn failed_names_leave_room_in_the_cache() {
    let mut network = Network::new(&[2], &Settings { cache_capacity: 2, ..timeless() }, 0);
    for step in 0..10 {
        let name = format!("t{step}");
        network.submit_everywhere(&allreduce(&name));
        network.settle();
        network.submit(0, vec![allreduce(&name)]).expect("nothing is in flight");
        network
            .submit(1, vec![Request { dtype: DType::F64, ..allreduce(&name) }])
            .expect("nothing is in flight");
        network.settle();
    }
    let notes = network.take(0).into_iter().filter(|decision| matches!(decision, Decision::Note(_)));
    assert_eq!(notes.count(), 0, "nothing had to be pushed out");
}

#[test]
fn one_tensor_of_a_group_fails_the_whole_group_once() {
    for seed in 0..20 {
        let mut network = Network::new(&[2, 1], &timeless(), seed);
        let member = |at: usize, shape: u64| Request {
            shape: vec![shape],
            group: Some(GroupTag { name: "g".into(), of: 3 }),
            ..allreduce(&format!("g_{at}of3"))
        };
        for round in 0..2 {
            for position in 0..3 {
                let odd = u64::from(position == 2 && round == 0);
                let mut group = vec![member(1, 4), member(2, 4 + odd), member(3, 4)];
                network.dice.shuffle(&mut group);
                network.submit(position, group).expect("nothing is in flight");
            }
            network.settle();
        }
        for position in 0..3 {
            let failed: usize = network.decisions[position]
                .iter()
                .map(|decision| match decision {
                    Decision::Fail { tickets, text } => {
                        assert!(text.contains("g_2of3"), "{text}");
                        tickets.len()
                    }
                    _ => 0,
                })
                .sum();
            assert_eq!(failed, 3);
            let end = network.decisions[position].last();
            assert!(matches!(end, Some(Decision::Run(batch)) if batch.items.len() == 3), "{end:?}");
        }
        network.assert_quiet();
    }
}
