//! Ranks that are waited for.

use std::time::Duration;

use ronde_collective::types::DType;
use ronde_engine::negotiation::{Decision, Kind, PATIENCE, Request, Settings, StallReport};

use super::network::{Network, allreduce};

const WARNING: Duration = Duration::from_secs(60);

fn settings() -> Settings {
    Settings { stall_warning: Some(WARNING), ..Settings::default() }
}

/// A network in which nodes that wait for nothing sleep until their clocks wake them.
fn sleepy(layout: &[usize], seed: u64) -> Network {
    let mut network = Network::new(layout, &settings(), seed);
    network.sleepy = true;
    network
}

fn reports(network: &mut Network) -> Vec<StallReport> {
    let report = |decision| match decision {
        Decision::Stalled(report) => Some(report),
        _ => None,
    };
    network.take(0).into_iter().filter_map(report).collect()
}

fn missing(report: &StallReport) -> Vec<(&str, Vec<usize>)> {
    report.waits.iter().map(|wait| (&*wait.name, wait.missing.clone())).collect()
}

/// Whoever the missing ones are, leader, relay or member, cached or not, the others learn of them.
#[test]
fn missing_ranks_are_named_whoever_they_are() {
    for layout in [&[6][..], &[2, 2, 2], &[1, 5], &[3, 3], &[1; 6]] {
        for gone in [vec![0], vec![1], vec![5], vec![0, 1], vec![2, 3], vec![0, 3, 5], vec![0, 1, 2, 3, 4]] {
            for cached in [false, true] {
                let mut network = sleepy(layout, 3);
                if cached {
                    network.submit_everywhere(&allreduce("x"));
                    network.pass(Duration::from_secs(1));
                }
                for position in (0..6).filter(|position| !gone.contains(position)) {
                    network.submit(position, vec![allreduce("x")]).expect("nothing is in flight");
                }
                network.settle();
                assert_eq!(reports(&mut network), [], "nothing is said at once");
                network.pass(3 * WARNING);
                let said = reports(&mut network);
                assert!(!said.is_empty() && said.len() <= 3, "{layout:?} without {gone:?}: {said:?}");
                for report in said {
                    assert_eq!(missing(&report), [("x", gone.clone())], "{layout:?}");
                    assert!(report.waits[0].waited >= WARNING);
                    assert!(report.missing.iter().all(|missing| missing.answer.is_none()));
                }
                for &position in &gone {
                    assert!(network.decisions[position].contains(&Decision::Inquire) || position == 0);
                    network.submit(position, vec![allreduce("x")]).expect("nothing is in flight");
                }
                network.settle();
                network.assert_quiet();
                network.pass(3 * WARNING);
                assert_eq!(reports(&mut network), [], "what has run does not wait");
            }
        }
    }
}

#[test]
fn a_report_waits_for_answers_but_not_for_long() {
    let mut network = sleepy(&[2, 2], 1);
    for position in [0, 1] {
        network.submit(position, vec![allreduce("allreduce.grad")]).expect("nothing is in flight");
    }
    network.pass(WARNING);
    network.pass(PATIENCE / 2);
    assert_eq!(network.take(2), [Decision::Inquire]);
    assert_eq!(network.take(3), [Decision::Inquire]);
    assert_eq!(network.take(1), [], "who waits is not asked");
    assert_eq!(reports(&mut network), []);
    let now = network.now;
    network.nodes[3].answer(now, "train.py:7 in load".into());
    network.collect(3);
    network.settle();
    assert_eq!(reports(&mut network), [], "rank 2 may still answer");
    network.nodes[2].answer(now, "asleep".into());
    network.collect(2);
    network.settle();
    let reports = reports(&mut network);
    assert_eq!(
        reports[0].to_string(),
        "allreduce \"grad\" has waited 61 s for ranks 2 and 3 (host1)\n\
         \x20 rank 2: asleep\n\
         \x20 rank 3: train.py:7 in load\n\
         Missing ranks:\n\
         2: [allreduce.grad]\n\
         3: [allreduce.grad]"
    );
    network.pass(PATIENCE);
    assert_eq!(network.take(0), [], "one report a period");
}

#[test]
fn ranks_that_died_are_named_and_nothing_is_decided_without_them() {
    for dead in [1, 2, 3] {
        let mut network = sleepy(&[2, 2], 9);
        network.submit_everywhere(&allreduce("x"));
        network.settle();
        (0..4).for_each(|position| drop(network.take(position)));
        network.stop(dead);
        for position in (0..4).filter(|&position| position != dead) {
            network.submit(position, vec![allreduce("x")]).expect("nothing is in flight");
        }
        network.pass(2 * WARNING);
        let reports = reports(&mut network);
        // A dead relay takes along what its host has to say.
        let silent = if dead == 2 { vec![2, 3] } else { vec![dead] };
        assert_eq!(missing(&reports[0]), [("x", silent)]);
        assert!(reports[0].to_string().contains(&format!("rank {dead}: no answer")));
        for position in 1..4 {
            let ran = network.take(position).into_iter().any(|decision| matches!(decision, Decision::Run(_)));
            assert!(!ran, "nothing runs without rank {dead}");
        }
    }
}

#[test]
fn joined_ranks_are_not_missing_and_joining_is_no_stall() {
    for joined in [1, 2] {
        let mut network = sleepy(&[2, 2], 2);
        let join = Request::new(Kind::Join, "join", DType::U8, []);
        network.submit(joined, vec![join]).expect("nothing is in flight");
        network.pass(3 * WARNING);
        assert_eq!(reports(&mut network), []);
        network.submit(0, vec![allreduce("x")]).expect("nothing is in flight");
        network.pass(2 * WARNING);
        let others: Vec<usize> = (1..4).filter(|&position| position != joined).collect();
        assert_eq!(missing(&reports(&mut network)[0]), [("x", others)]);
    }
}

#[test]
fn slow_but_steady_is_no_stall() {
    let mut network = sleepy(&[2, 1], 4);
    for step in 0..20 {
        for position in [1, 2, 0] {
            network.submit(position, vec![allreduce("x")]).expect("nothing is in flight");
            network.pass(WARNING / 3);
        }
        assert_eq!(reports(&mut network), [], "step {step}");
    }
    // A long time with nothing in flight does not count.
    network.pass(10 * WARNING);
    network.submit(2, vec![allreduce("x")]).expect("nothing is in flight");
    network.pass(WARNING / 2);
    assert_eq!(reports(&mut network), []);
}

#[test]
fn the_job_ends_everywhere_after_the_shutdown_time() {
    let ending = Settings { stall_shutdown: Some(Duration::from_secs(150)), ..settings() };
    let mut network = Network::new(&[2, 2], &ending, 6);
    for position in [0, 1, 3] {
        network.submit(position, vec![allreduce("x")]).expect("nothing is in flight");
    }
    network.pass(Duration::from_secs(140));
    assert!(
        !network.decisions.iter().flatten().any(|decision| matches!(decision, Decision::ShutDown { .. }))
    );
    network.pass(Duration::from_secs(20));
    for position in 0..4 {
        let end = network.take(position).pop();
        let Some(Decision::ShutDown { text }) = end else { panic!("the job ends, not {end:?}") };
        assert!(text.contains("more than 150 s") && text.contains("for rank 2 (host1)"), "{text}");
        assert_eq!(network.nodes[position].fail_all().len(), usize::from(position != 2));
        network.submit(position, vec![allreduce("y")]).expect_err("the job has ended");
        assert_eq!(network.nodes[position].next_tick(), None);
    }
}

#[test]
fn a_shutdown_time_below_the_warning_time_is_ignored() {
    let odd = Settings { stall_shutdown: Some(WARNING / 2), ..settings() };
    let mut network = Network::new(&[2], &odd, 6);
    network.submit(0, vec![allreduce("x")]).expect("nothing is in flight");
    network.pass(3 * WARNING);
    let decisions = network.take(0);
    assert!(
        matches!(&decisions[0], Decision::Note(text) if text.contains("30 s") && text.contains("ignored"))
    );
    assert!(decisions[1..].iter().all(|decision| matches!(decision, Decision::Stalled(_))), "{decisions:?}");
}

#[test]
fn without_a_warning_time_there_is_no_clock() {
    for stall_warning in [None, Some(Duration::ZERO)] {
        let mut network = Network::new(&[2, 2], &Settings { stall_warning, ..Settings::default() }, 0);
        network.submit(0, vec![allreduce("x")]).expect("nothing is in flight");
        network.settle();
        assert!(network.nodes.iter().all(|node| node.next_tick().is_none()));
    }
}

#[test]
fn many_names_are_shortened() {
    let mut network = Network::new(&[2], &settings(), 0);
    for name in 0..150 {
        network.submit(0, vec![allreduce(&format!("t{name:03}"))]).expect("nothing is in flight");
    }
    network.pass(WARNING + 2 * PATIENCE);
    let reports = reports(&mut network);
    assert_eq!(reports[0].waits.len(), 100);
    let text = reports[0].to_string();
    assert!(text.contains("and 94 more"), "{text}");
    assert!(text.ends_with("1: [t000, t001, t002, t003, t004, t005, ...]"), "{text}");
}
