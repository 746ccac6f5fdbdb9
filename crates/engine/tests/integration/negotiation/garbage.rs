//! Frames that make no sense are refused with the sender's name, and never bring a node down.

use std::time::Duration;

use proptest::prelude::*;
use ronde_collective::types::DType;
use ronde_engine::negotiation::{Kind, Negotiator, Request};

use super::network::{Network, allreduce, timeless};

/// A leader, a relay and a member in the middle of something: cached names, and some in flight.
fn busy() -> Network {
    let mut network = Network::new(&[2, 2], &timeless(), 0);
    for name in ["a", "b", "c"] {
        network.submit_everywhere(&allreduce(name));
    }
    let set = Request { ranks: vec![2, 3], ..Request::new(Kind::AddSet, "set", DType::U8, []) };
    network.submit_everywhere(&set);
    network.settle();
    for position in 0..4 {
        network
            .submit(position, vec![allreduce(["a", "b", "c", "d"][position])])
            .expect("nothing is in flight");
    }
    network.settle();
    network
}

/// Every frame that a short, eventful run sends, with its way.
fn real_frames() -> Vec<(usize, usize, Vec<u8>)> {
    let mut network = busy();
    let mut frames = Vec::new();
    for position in 0..4 {
        for name in ["a", "b", "c", "e"] {
            // Names in flight are refused; the others are new or cached.
            let _ = network.submit(position, vec![allreduce(name)]);
        }
    }
    network.nodes[2].ask_turn(Duration::ZERO, 1, 0).expect("the first one");
    let mut pending: Vec<usize> = vec![1, 3, 2, 0];
    while let Some(position) = pending.pop() {
        network.nodes[position].advance(Duration::ZERO);
        while let Some((to, frame)) = network.nodes[position].outgoing() {
            network.nodes[to].receive(Duration::ZERO, position, &frame).expect("nodes understand each other");
            frames.push((position, to, frame));
            pending.push(to);
        }
    }
    frames
}

fn survive(node: &mut Negotiator, from: usize, frame: &[u8]) {
    if let Err(garbled) = node.receive(Duration::ZERO, from, frame) {
        let text = garbled.to_string();
        let named =
            if from < 4 { format!("rank {from} (host{})", from / 2) } else { format!("position {from}") };
        assert!(text.contains(&named), "{text}");
    }
    node.advance(Duration::from_secs(1));
    while node.outgoing().is_some() || node.next().is_some() {}
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn noise_is_survived(to in 0usize..4, from in 0usize..6, frame in prop::collection::vec(any::<u8>(), 0..60)) {
        survive(&mut busy().nodes[to], from, &frame);
    }

    #[test]
    fn damaged_frames_are_survived(
        which in any::<prop::sample::Index>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let frames = real_frames();
        let (from, to, mut frame) = frames[which.index(frames.len())].clone();
        for (at, byte) in damage {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        if is_cut {
            frame.truncate(cut.index(frame.len()));
        }
        survive(&mut busy().nodes[to], from, &frame);
    }
}

#[test]
fn real_frames_twice_are_noticed_or_harmless() {
    for (from, to, frame) in real_frames() {
        let node = &mut busy().nodes[to];
        survive(node, from, &frame);
        survive(node, from, &frame);
    }
}

#[test]
fn strangers_are_refused_by_name() {
    let mut network = busy();
    // Rank 3 speaks to its relay, rank 2, and to nobody else.
    let garbled = network.nodes[0].receive(Duration::ZERO, 3, &[]).expect_err("no neighbour");
    assert_eq!(
        garbled.to_string(),
        "a negotiation message from rank 3 (host1) makes no sense: it is no neighbour in the tree"
    );
}
