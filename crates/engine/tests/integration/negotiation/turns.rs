//! Turns of process sets for their work on devices: in the log of all ranks, in one order with its own batches.

use std::time::Duration;

use ronde_collective::types::DType;
use ronde_engine::negotiation::{Device, Kind, Request};

use super::network::{Network, allreduce, timeless};

/// A network of all ranks that knows some process sets, numbered from 1.
fn with_sets(hosts: &[usize], sets: &[&[u32]], seed: u64) -> Network {
    let mut network = Network::new(hosts, &timeless(), seed);
    for ranks in sets {
        let set = Request {
            ranks: ranks.to_vec(),
            ..Request::new(Kind::AddSet, format!("{ranks:?}"), DType::U8, [])
        };
        network.submit_everywhere(&set);
        network.settle();
    }
    for position in 0..network.size() {
        assert_eq!(network.take(position).len(), sets.len());
    }
    network
}

fn ask(network: &mut Network, position: usize, set: u32, number: u64) {
    network.nodes[position].ask_turn(Duration::ZERO, set, number).expect("a turn that is next");
}

/// What a node says of the next frame for it.
fn complaint(network: &mut Network, from: usize) -> String {
    let (to, frame) = network.nodes[from].outgoing().expect("a frame");
    network.nodes[to].receive(Duration::ZERO, from, &frame).expect_err("garbled").to_string()
}

#[test]
fn whoever_asks_when_all_ranks_see_turns_and_batches_in_one_order() {
    const TURNS: u64 = 6;
    for (layout, hosts) in [&[4][..], &[2, 2], &[1, 3], &[1, 1, 1, 1]].into_iter().enumerate() {
        for seed in 0..40 {
            let sets: [&[u32]; 3] = [&[0, 1, 2], &[1, 2, 3], &[2, 3]];
            let mut network = with_sets(hosts, &sets, seed * 10 + layout as u64);
            let mut asked = [0; 3];
            let mut submitted = [0; 4];
            while asked != [TURNS; 3] || submitted != [TURNS; 4] {
                let (set, position) = (network.dice.below(3), network.dice.below(4));
                match network.dice.below(4) {
                    0 if asked[set] < TURNS => {
                        ask(&mut network, sets[set][0] as usize, set as u32 + 1, asked[set]);
                        asked[set] += 1;
                    }
                    1 if submitted[position] < TURNS => {
                        let name = format!("t{}", submitted[position]);
                        network.submit(position, vec![allreduce(&name)]).expect("every name once");
                        submitted[position] += 1;
                    }
                    2 => {
                        if let Some(position) = network.deliver() {
                            network.collect(position);
                        }
                    }
                    _ => network.advance(position),
                }
            }
            network.settle();
            network.assert_quiet();
            let story = network.story(0);
            assert!((1..4).all(|position| network.story(position) == story), "{hosts:?}, seed {seed}");
            for set in 1..=3 {
                let of_set = story.iter().filter(|word| word.ends_with(&format!("of set {set}")));
                let expected: Vec<String> =
                    (0..TURNS).map(|turn| format!("turn {turn} of set {set}")).collect();
                assert!(of_set.eq(&expected), "{story:?}");
            }
            for batch in 0..TURNS {
                assert!(story.iter().any(|word| word.contains(&format!("t{batch}["))), "{story:?}");
            }
        }
    }
}

#[test]
fn a_turn_reaches_ranks_that_have_nothing_to_do_and_sleep() {
    for hosts in [&[4][..], &[2, 2], &[1, 3]] {
        let mut network = with_sets(hosts, &[&[2, 3], &[3]], 7);
        network.sleepy = true;
        ask(&mut network, 3, 2, 0);
        network.settle();
        ask(&mut network, 2, 1, 0);
        network.settle();
        for position in 0..4 {
            let story = network.story(position);
            assert_eq!(story, ["turn 0 of set 2", "turn 0 of set 1"], "{hosts:?}, {position}");
        }
    }
}

#[test]
fn turns_that_make_no_sense_are_refused() {
    let mut network = with_sets(&[2, 2], &[&[0, 2], &[2, 3]], 0);
    for (set, number, why) in [
        (3, 0, "a process set that does not exist"),
        (1, 0, "a process set that others lead"),
        (2, 1, "not the next one"),
    ] {
        network.nodes[2].ask_turn(Duration::ZERO, set, number).expect("only the leader knows");
        let text = complaint(&mut network, 2);
        assert!(text.contains("rank 2 (host1)") && text.contains(why), "{text}");
    }
    let refused = network.nodes[0].ask_turn(Duration::ZERO, 2, 0).expect_err("rank 2 leads it").to_string();
    assert!(refused.contains("rank 0 (host0)") && refused.contains("others lead"), "{refused}");
    // What is right goes on working, once.
    ask(&mut network, 2, 2, 0);
    network.settle();
    assert_eq!(network.story(3), ["turn 0 of set 2"]);
    network.nodes[2].ask_turn(Duration::ZERO, 2, 0).expect("only the leader knows");
    assert!(complaint(&mut network, 2).contains("not the next one"));
}

#[test]
fn batches_on_devices_are_counted_alike_on_all_ranks_and_others_are_not() {
    let mut network = Network::new(&[2, 1], &timeless(), 3);
    for round in 0..3 {
        for (name, device) in [("there", Device::Gpu), ("here", Device::Host)] {
            network.submit_everywhere(&Request { device, ..allreduce(name) });
        }
        network.submit_everywhere(&Request::new(Kind::Barrier, "barrier", DType::U8, []));
        network.settle();
        for node in &network.nodes {
            assert_eq!(node.device_batches(), round + 1);
        }
    }
}
