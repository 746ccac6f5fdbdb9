//! Ranks that have no more data.

use ronde_collective::types::{DType, ReduceOp};
use ronde_engine::negotiation::{Decision, Kind, Refused, Request};

use super::network::{Network, allreduce, timeless};

fn join() -> Request {
    Request::new(Kind::Join, "join.noname", DType::U8, [])
}

fn failure(decisions: &[Decision]) -> &str {
    match decisions {
        [Decision::Fail { text, .. }] => text,
        other => panic!("a failure was expected, not {other:?}"),
    }
}

#[test]
fn joined_ranks_take_part_without_data_until_all_have_joined() {
    for layout in [&[3][..], &[1, 1, 1], &[2, 1], &[1, 2]] {
        for seed in 0..10 {
            let mut network = Network::new(layout, &timeless(), seed);
            // Once cached, once not.
            network.submit_everywhere(&allreduce("cached"));
            network.settle();
            network.submit(1, vec![join()]).expect("nothing is in flight");
            for position in [0, 2] {
                for name in ["cached", "new"] {
                    network.submit(position, vec![allreduce(name)]).expect("nothing is in flight");
                }
            }
            network.settle();
            let decisions = network.take(1);
            let tickets = |decision: &Decision| match decision {
                Decision::Run(batch) => {
                    batch.items.iter().map(|item| item.ticket.is_some()).collect::<Vec<_>>()
                }
                other => panic!("a batch was expected, not {other:?}"),
            };
            let took_part: Vec<bool> = decisions.iter().flat_map(tickets).collect();
            assert_eq!(took_part, [true, false, false], "{layout:?}");
            let refused = network.submit(1, vec![allreduce("late")]).expect_err("it has joined");
            assert!(matches!(refused, Refused::Joined { .. }), "{refused}");
            network.submit(2, vec![join()]).expect("nothing is in flight");
            network.settle();
            network.submit(0, vec![join()]).expect("nothing is in flight");
            network.settle();
            for position in 0..3 {
                let end = network.decisions[position].last();
                assert!(matches!(end, Some(Decision::Joined { last: 0, .. })), "{layout:?}: {end:?}");
            }
            network.assert_quiet();
            network.submit_everywhere(&allreduce("cached"));
            network.settle();
            network.assert_quiet();
        }
    }
}

#[test]
fn what_a_rank_asked_for_before_it_joined_is_its_own() {
    for layout in [&[2][..], &[1, 1]] {
        let mut network = Network::new(layout, &timeless(), 1);
        let gather = Request::new(Kind::Allgather, "rows", DType::F32, [2, 2]);
        network.submit(1, vec![gather.clone()]).expect("nothing is in flight");
        network.submit(1, vec![join()]).expect("joining needs nothing");
        network.settle();
        network.submit(0, vec![gather]).expect("nothing is in flight");
        network.settle();
        assert!(matches!(&network.take(1)[..], [Decision::Run(batch)] if batch.items[0].ticket.is_some()));
    }
}

#[test]
fn a_request_that_nobody_shares_runs_when_all_have_joined() {
    for seed in 0..20 {
        let mut network = Network::new(&[2, 2], &timeless(), seed);
        network.submit(3, vec![allreduce("alone")]).expect("nothing is in flight");
        for position in [3, 1, 0, 2] {
            network.submit(position, vec![join()]).expect("joining needs nothing");
        }
        network.settle();
        let story = network.story(3);
        assert!(story[0].contains("alone") && story[1].starts_with("joined"), "{story:?}");
        assert_eq!(network.story(0), story);
        network.assert_quiet();
    }
}

#[test]
fn operations_that_need_everybody_fail_while_somebody_has_joined() {
    let mut scaled = Request { op: ReduceOp::Max, ..allreduce("scaled") };
    scaled.prescale = 0.5;
    let max = Request { op: ReduceOp::Max, ..allreduce("max") };
    let adasum = Request { op: ReduceOp::Adasum, ..allreduce("adasum") };
    let of = |kind| Request::new(kind, "x", DType::F32, [4]);
    for (request, fails) in [
        (of(Kind::Allgather), true),
        (of(Kind::Broadcast), true),
        (of(Kind::Alltoall), true),
        (of(Kind::Reducescatter), true),
        (of(Kind::Barrier), true),
        (adasum, true),
        (scaled, true),
        (max, false),
        (of(Kind::Allreduce), false),
    ] {
        let mut network = Network::new(&[2, 2], &timeless(), 5);
        // What is remembered must not be run in spite of it.
        network.submit_everywhere(&request);
        network.settle();
        for position in 0..4 {
            network.take(position);
        }
        network.submit(2, vec![join()]).expect("nothing is in flight");
        network.settle();
        for position in [0, 1, 3] {
            network.submit(position, vec![request.clone()]).expect("nothing is in flight");
        }
        network.settle();
        for position in [0, 1, 3] {
            let decisions = network.take(position);
            if fails {
                let text = failure(&decisions);
                assert!(
                    text.contains("not supported with Join") && text.contains("joined: rank 2"),
                    "{text}"
                );
            } else {
                assert!(matches!(decisions[..], [Decision::Run(_)]), "{decisions:?}");
            }
        }
        assert_eq!(network.take(2).len(), usize::from(!fails), "who has joined has no part in failures");
        for position in [0, 1, 3] {
            network.submit(position, vec![join()]).expect("nothing is in flight");
        }
        network.settle();
        network.assert_quiet();
    }
}

/// Everybody does some steps, joins at its own moment, and starts over: twice.
#[test]
fn joins_at_random_points_leave_everybody_level() {
    for seed in 0..60 {
        let layout: &[usize] = [&[4][..], &[2, 2], &[1, 3], &[1, 1, 1, 1]][seed as usize % 4];
        let mut settings = timeless();
        settings.cache_capacity = [2, 1024][seed as usize % 2];
        let mut network = Network::new(layout, &settings, seed);
        for _epoch in 0..2 {
            let steps: Vec<usize> = (0..4).map(|_| network.dice.below(8)).collect();
            let mut done = [0; 4];
            let mut joined = [false; 4];
            while joined.contains(&false) {
                let position = network.dice.below(4);
                match network.dice.below(3) {
                    0 if !joined[position] && done[position] < steps[position] => {
                        // Several names in flight; a rank that is behind is refused and comes back later.
                        let name = format!("t{}", done[position] % 5);
                        done[position] +=
                            usize::from(network.submit(position, vec![allreduce(&name)]).is_ok());
                    }
                    0 if !joined[position] => {
                        network.submit(position, vec![join()]).expect("joining needs nothing");
                        joined[position] = true;
                    }
                    1 => {
                        if let Some(to) = network.deliver() {
                            network.collect(to);
                        }
                    }
                    _ => network.advance(position),
                }
            }
            network.settle();
            network.assert_quiet();
        }
        let story = network.story(0);
        for position in 1..4 {
            assert_eq!(network.story(position), story, "seed {seed}");
        }
    }
}
