//! Process sets get their numbers from the leader, the same on all ranks.

use ronde_collective::types::DType;
use ronde_engine::negotiation::{Decision, Kind, Request};

use super::network::{Network, timeless};

fn set(kind: Kind, ranks: &[u32]) -> Request {
    Request { ranks: ranks.to_vec(), ..Request::new(kind, "process_set", DType::U8, []) }
}

#[test]
fn sets_are_numbered_removed_and_numbered_again() {
    let mut network = Network::new(&[2, 2], &timeless(), 0);
    for (kind, ranks) in [
        (Kind::AddSet, &[0, 1][..]),
        (Kind::AddSet, &[3, 2]),
        (Kind::RemoveSet, &[1, 0]),
        (Kind::AddSet, &[0]),
        (Kind::AddSet, &[2, 3]),
    ] {
        network.submit_everywhere(&set(kind, ranks));
        network.settle();
    }
    let story = ["set 1 [0, 1]", "set 2 [2, 3]", "no set 1", "set 1 [0]", "fail [\"process_set\"]"];
    for position in 0..4 {
        assert_eq!(network.story(position), story);
    }
    let Some(Decision::Fail { text, .. }) = network.decisions[3].last() else {
        panic!("the last one failed")
    };
    assert!(text.contains("ranks 2 and 3 already exists: number 2"), "{text}");
}

#[test]
fn ranks_that_name_different_sets_are_told() {
    let mut network = Network::new(&[2], &timeless(), 0);
    network.submit(0, vec![set(Kind::AddSet, &[0])]).expect("nothing is in flight");
    network.submit(1, vec![set(Kind::AddSet, &[1])]).expect("nothing is in flight");
    network.settle();
    for position in 0..2 {
        let decisions = network.take(position);
        let [Decision::Fail { text, .. }] = &decisions[..] else { panic!("it failed, not {decisions:?}") };
        assert!(text.contains("mismatching values") && text.contains("rank 0: [0]\n  rank 1: [1]"), "{text}");
    }
}
