//! Whatever the order in which ranks ask and frames arrive, all see one sequence of batches.

use std::collections::{HashMap, HashSet, VecDeque};

use ronde_collective::types::{DType, ReduceOp};
use ronde_engine::negotiation::{Decision, Device, GroupTag, Kind, Request, Settings};

use super::network::{Dice, Network, allreduce, timeless};

/// What one rank hands in at once.
type Submission = Vec<Request>;

/// The submissions of one step, the same for all ranks: single tensors of several types and kinds, and groups.
fn step_of(names: usize, step: usize, dice: &mut Dice) -> Vec<Submission> {
    let mut submissions: Vec<Submission> = (0..names)
        .map(|at| {
            let kind =
                [Kind::Allreduce, Kind::Allreduce, Kind::Allgather, Kind::Broadcast, Kind::Reducescatter]
                    [at % 5];
            let mut request =
                Request::new(kind, format!("t{at}"), [DType::F32, DType::F64][at % 2], [8, at as u64]);
            request.device = [Device::Host, Device::Gpu][(at / 3) % 2];
            // A name that means something else from time to time: what is cached of it is of no use.
            if at % 7 == 3 && step % 2 == 1 {
                request.shape = vec![9, at as u64];
            }
            vec![request]
        })
        .collect();
    for group in 0..names / 6 {
        let of = 2 + group as u32 % 3;
        let tag = GroupTag { name: format!("g{group}").into(), of };
        let member = |at: u32| {
            let mut request = allreduce(&format!("g{group}_{at}of{of}"));
            request.group = Some(tag.clone());
            request.op = if group % 2 == 0 { ReduceOp::Sum } else { ReduceOp::Max };
            request
        };
        submissions.push((1..=of).map(member).collect());
    }
    submissions.push(vec![Request::new(Kind::Barrier, "barrier", DType::U8, [])]);
    dice.shuffle(&mut submissions);
    submissions
}

/// Lets every rank work off its list of submissions, handing in the next one whenever its names are free, at random
/// moments and, within a small window, in random order.
fn run_programs(network: &mut Network, mut programs: Vec<VecDeque<Submission>>) {
    let size = network.size();
    let mut left: usize = programs.iter().map(VecDeque::len).sum();
    while left > 0 {
        match network.dice.below(4) {
            0 | 1 => {
                let position = network.dice.below(size);
                let window = programs[position].len().min(5);
                if window > 0 {
                    let at = network.dice.below(window);
                    let submission = programs[position][at].clone();
                    if network.submit(position, submission).is_ok() {
                        programs[position].remove(at);
                        left -= 1;
                    }
                }
            }
            2 => {
                if let Some(position) = network.deliver() {
                    network.collect(position);
                }
            }
            _ => {
                let position = network.dice.below(size);
                network.advance(position);
            }
        }
    }
    network.settle();
}

fn assert_one_story(network: &Network) {
    let story = network.story(0);
    for position in 1..network.size() {
        assert_eq!(network.story(position), story, "rank {position} sees what rank 0 sees");
    }
}

fn bytes(request: &Request) -> usize {
    let bytes = request.shape.iter().product::<u64>() as usize * request.dtype.size();
    if request.device == Device::Gpu { bytes.next_multiple_of(16) } else { bytes }
}

#[test]
fn all_ranks_see_one_sequence_and_every_request_ends_once() {
    let layouts: [&[usize]; 7] = [&[1], &[2], &[1, 1], &[4], &[3, 1, 2], &[1, 1, 1, 1, 1], &[8, 8, 8]];
    for (round, layout) in layouts.iter().cycle().take(70).enumerate() {
        let threshold = [0, 200, 1 << 20][round % 3];
        let settings = Settings {
            fusion_threshold: threshold,
            cache_capacity: [0, 3, 8, 1024][round % 4],
            disable_group_fusion: round % 5 == 0,
            ..timeless()
        };
        let mut network = Network::new(layout, &settings, round as u64);
        let mut asked: HashMap<String, Vec<Request>> = HashMap::new();
        let mut programs: Vec<VecDeque<Submission>> = vec![VecDeque::new(); network.size()];
        let mut submitted = 0;
        for step in 0..6 {
            let mut dice = Dice::new((round * 100 + step) as u64);
            let all = step_of(14, step, &mut dice);
            submitted += all.iter().map(Vec::len).sum::<usize>();
            for request in all.iter().flatten() {
                asked.entry(request.name.to_string()).or_default().push(request.clone());
            }
            for program in &mut programs {
                program.extend(all.iter().cloned());
            }
        }
        run_programs(&mut network, programs);
        network.assert_quiet();
        assert_one_story(&network);
        for position in 0..network.size() {
            let ends = network.ends(position);
            assert_eq!(ends.len(), submitted, "round {round}: every request came to an end");
            assert!(ends.values().all(|&times| times == 1), "round {round}: and only once");
        }
        check_batches(&network, &settings, &asked, round);
    }
}

/// Batches hold to the threshold, to one type, and groups are not torn.
fn check_batches(
    network: &Network,
    settings: &Settings,
    asked: &HashMap<String, Vec<Request>>,
    round: usize,
) {
    let mut turns: HashMap<String, usize> = HashMap::new();
    let mut fused = 0;
    for decision in &network.decisions[0] {
        let Decision::Run(batch) = decision else { continue };
        fused += batch.items.len() - 1;
        let mut units: HashSet<Option<GroupTag>> = HashSet::new();
        let mut singles = 0;
        let mut total = 0;
        let mut in_groups: HashMap<GroupTag, u32> = HashMap::new();
        for item in &batch.items {
            let turn = turns.entry(item.name.to_string()).or_insert(0);
            let request = &asked[&*item.name][*turn];
            *turn += 1;
            assert_eq!((request.kind, request.dtype, request.op), (batch.kind, batch.dtype, batch.op));
            assert_eq!(request.device, batch.device);
            total += if request.kind == Kind::Allgather {
                bytes(request) * network.size()
            } else {
                bytes(request)
            };
            match &request.group {
                Some(tag) => *in_groups.entry(tag.clone()).or_insert(0) += 1,
                None => singles += 1,
            }
            units.insert(request.group.clone());
        }
        if settings.fusion_threshold > 0 {
            for (tag, count) in in_groups {
                assert_eq!(count, tag.of, "round {round}: group {} travels as one", tag.name);
            }
        }
        if units.len() + singles > 2 {
            assert!(total <= settings.fusion_threshold, "round {round}: {total} bytes in one batch");
        }
        if settings.disable_group_fusion {
            assert!(units.len() == 1 && singles <= 1, "round {round}: units stay apart");
        }
        if matches!(batch.kind, Kind::Broadcast | Kind::Alltoall) {
            assert_eq!(batch.items.len(), 1, "round {round}: {:?} does not fuse", batch.kind);
        }
    }
    assert_eq!(settings.fusion_threshold == 0, fused == 0, "round {round}: fusion happens if it may");
}

#[test]
fn a_thousand_ranks_on_unequal_hosts_agree() {
    let mut layout: Vec<usize> = (0..40).map(|host| 5 + host % 41).collect();
    let have: usize = layout.iter().sum();
    layout.push(1000 - have.min(999));
    let settings = Settings { cache_capacity: 16, ..timeless() };
    let mut network = Network::new(&layout, &settings, 7);
    let mut dice = Dice::new(7);
    let programs = (0..3).flat_map(|step| step_of(12, step, &mut dice)).collect::<VecDeque<_>>();
    let programs = vec![programs; network.size()];
    run_programs(&mut network, programs);
    network.assert_quiet();
    assert_one_story(&network);
}

#[test]
fn sets_whose_ranks_alternate_between_hosts_agree() {
    let hosts = vec![vec![0, 2, 4], vec![1, 3, 5]];
    let mut network = Network::laid_out(vec![1, 4, 6, 7, 9, 12], hosts, &timeless(), 3);
    let mut dice = Dice::new(3);
    let program: VecDeque<Submission> = (0..4).flat_map(|step| step_of(10, step, &mut dice)).collect();
    let programs = vec![program; network.size()];
    run_programs(&mut network, programs);
    network.assert_quiet();
    assert_one_story(&network);
}

#[test]
fn a_name_in_flight_is_refused_and_the_rest_of_its_submission_is_not_taken() {
    let mut network = Network::new(&[2], &timeless(), 0);
    network.submit(0, vec![allreduce("a")]).expect("nothing is in flight");
    let refused = network.submit(0, vec![allreduce("b"), allreduce("a")]).expect_err("a is in flight");
    assert!(refused.to_string().contains("\"a\""), "{refused}");
    network.submit(0, vec![allreduce("b"), allreduce("b")]).expect_err("b is there twice");
    let torn = Request { group: Some(GroupTag { name: "g".into(), of: 2 }), ..allreduce("c") };
    network.submit(0, vec![torn]).expect_err("half a group");
    let pending: Vec<String> =
        network.nodes[0].pending().iter().map(|pending| pending.name.to_string()).collect();
    assert_eq!(pending, ["a"]);
    network.submit(1, vec![allreduce("a")]).expect("nothing is in flight");
    network.settle();
    network.assert_quiet();
    network.submit_everywhere(&allreduce("a"));
    network.settle();
    network.assert_quiet();
}

#[test]
fn what_piled_up_is_one_batch_in_order_of_priority() {
    let mut network = Network::new(&[1, 1], &timeless(), 0);
    for (name, priority) in [("a", 2), ("b", 1), ("c", 2), ("d", 0)] {
        network.submit_everywhere(&Request { priority, ..allreduce(name) });
    }
    network
        .submit_everywhere(&Request { priority: 1, ..Request::new(Kind::Broadcast, "e", DType::F32, [1]) });
    network.settle();
    assert_eq!(network.story(1), ["Allreduce F32 d[4]+b[4]+a[4]+c[4]", "Broadcast F32 e[1]"]);
}
