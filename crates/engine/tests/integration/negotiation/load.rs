//! What negotiation costs: messages at the leader, and caches that are too small.

use std::collections::VecDeque;
use std::time::Duration;

use ronde_engine::negotiation::{Decision, Negotiator, Settings};

use super::network::{Network, Traffic, allreduce, timeless};

/// One step of training in rounds: all ranks submit, then what was sent is delivered, level by level.
fn step(network: &mut Network, names: usize) {
    for position in 0..network.size() {
        for name in 0..names {
            network
                .submit(position, vec![allreduce(&format!("layer.{name}.weight"))])
                .expect("nothing is in flight");
        }
    }
    // Members, then relays, then the leader have their turn, as they would when all frames arrive at once.
    for _level in 0..3 {
        for position in (0..network.size()).rev() {
            network.collect(position);
        }
        while network.deliver().is_some() {}
    }
    network.settle();
}

/// 1,024 ranks on 128 hosts, 160 cached tensors: the leader hears one frame from each other host.
#[test]
fn the_leader_hears_one_frame_from_each_host() {
    let (hosts, names) = (128, 160);
    let mut network = Network::new(&vec![8; hosts], &timeless(), 0);
    step(&mut network, names);
    let first = network.far[0];
    step(&mut network, names);
    network.near[0] = Traffic::default();
    network.far[0] = Traffic::default();
    step(&mut network, names);
    let (near, far) = (network.near[0], network.far[0]);
    println!("leader of 1,024 ranks on 128 hosts, {names} tensors: first step {first:?} from other hosts;");
    println!("cached step {far:?} from other hosts, {near:?} from its own");
    assert_eq!(far.frames, hosts - 1);
    assert!(far.bytes <= far.frames * 8, "a host says in 8 bytes that it has all {names}: {far:?}");
    assert_eq!(near.frames, 7, "and its own host's members speak to it directly");
    let batches =
        network.decisions[1023].iter().filter(|decision| matches!(decision, Decision::Run(_))).count();
    assert_eq!(batches, 3, "each step is one batch");
    network.assert_quiet();
}

/// Names come back just after they were forgotten, while hits on them are under way.
#[test]
fn a_cache_smaller_than_the_names_in_use_changes_nothing_but_is_noted_once() {
    for seed in 0..60 {
        let layout: &[usize] = [&[3][..], &[2, 2], &[1, 1, 1]][seed as usize % 3];
        let mut network = Network::new(layout, &Settings { cache_capacity: 4, ..timeless() }, seed);
        let size = network.size();
        // Two names are in use all the time, the others push each other out.
        let names: Vec<String> = (0..90)
            .map(|at| if at % 3 == 0 { format!("often{}", at % 2) } else { format!("t{}", at % 7) })
            .collect();
        let mut programs = vec![VecDeque::from(names); size];
        while programs.iter().any(|program| !program.is_empty()) {
            let position = network.dice.below(size);
            match network.dice.below(3) {
                0 => {
                    if let Some(name) = programs[position].front() {
                        let request = allreduce(name);
                        if network.submit(position, vec![request]).is_ok() {
                            programs[position].pop_front();
                        }
                    }
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
        for position in 0..size {
            assert_eq!(network.story(position), network.story(0), "seed {seed}");
            assert_eq!(network.ends(position).len(), 90);
        }
        let notes =
            network.decisions.iter().flatten().filter(|decision| matches!(decision, Decision::Note(_)));
        let notes: Vec<_> = notes.collect();
        assert!(
            matches!(notes[..], [Decision::Note(text)] if text.contains("HOROVOD_CACHE_CAPACITY")),
            "seed {seed}: {notes:?}"
        );
    }
}

#[test]
fn children_need_not_wake_a_node_that_waits_for_nothing() {
    let mut network = Network::new(&[2, 2], &timeless(), 0);
    let wanting =
        |network: &Network| network.nodes.iter().map(Negotiator::wants_children).collect::<Vec<_>>();
    assert_eq!(wanting(&network), [false; 4]);
    for position in [1, 2, 3] {
        network.submit(position, vec![allreduce("x")]).expect("nothing is in flight");
    }
    network.settle();
    assert_eq!(wanting(&network), [false, false, true, false]);
    assert!(!network.nodes[0].is_due(Duration::ZERO));
    network.submit(0, vec![allreduce("x")]).expect("nothing is in flight");
    assert!(network.nodes[0].is_due(Duration::ZERO), "the last request makes it ready");
    network.settle();
    assert_eq!(wanting(&network), [false; 4]);
}
