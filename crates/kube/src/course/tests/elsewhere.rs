//! Pods that get no place, and what the next plan does without.

use super::*;

/// What the scheduler says of a pod that it cannot place.
fn unschedulable() -> Value {
    json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient nvidia.com/gpu"}])
}

#[test]
fn who_gets_no_place_in_time_releases_everything_and_leaves_the_node_out() {
    let mut case = Case::with(Set::Placed);
    case.pods[0]["spec"]["nodeName"] = json!("node-3");
    case.pods[1]["status"]["conditions"] = unschedulable();
    expect(&case, &[], Phase::Placing, "Placing");
    case.now = at(12);
    let decision = expect(&case, &BOTH_DELETED, Phase::Pending, "NotPlaced");
    assert_eq!(decision.status.avoid[0].node, "node-1");
    assert_eq!((decision.status.attempt, decision.status.failures), (1, 0));
    // The next time it waits longer.
    let first = decision.wake.expect("a pause");
    case.status.yields = 6;
    let decision = case.decide();
    assert!(decision.wake > Some(first * 8), "{:?} after {first:?}", decision.wake);
    assert_eq!((decision.status.yields, decision.status.not_before.is_some()), (7, true));
}

#[test]
fn who_is_turned_away_by_a_kubelet_has_not_failed_and_goes_elsewhere() {
    let refused =
        |reason: &str| json!({"phase": "Failed", "reason": reason, "message": "Pod was rejected: no"});
    for reason in [
        "OutOfnvidia.com/gpu",
        "OutOfcpu",
        "OutOfmemory",
        "UnexpectedAdmissionError",
        "NodeAffinity",
        "TopologyAffinityError",
    ] {
        // The chief or a worker, also if the other has started: without all there is no training.
        for (pod, node) in [(0, "node-3"), (1, "node-1")] {
            for set in [Set::Bound, Set::Running] {
                let mut case = Case::with(set);
                case.status.phase = Phase::Scheduled;
                case.pods[pod]["status"] = refused(reason);
                let decision = expect(&case, &[BOTH_DELETED[1 - pod]], Phase::Pending, "NotPlaced");
                assert_eq!(decision.status.avoid[0].node, node);
                assert_eq!((decision.status.failures, decision.status.attempt), (0, 1));
                assert!(decision.status.message.contains(reason), "{}", decision.status.message);
                // The other takes a while to go. Until then somebody who knows nothing decides the same.
                case.pods[1 - pod]["metadata"]["deletionTimestamp"] = json!(at(5));
                case.status = JobStatus::default();
                expect(&case, &[], Phase::Pending, "NotPlaced");
                case.pods.remove(1 - pod);
                case.status = decision.status;
                assert_eq!(words(&case.decide()), [BOTH_DELETED[pod]]);
            }
        }
    }
    // It is not counted as a failure later, should nobody have deleted it.
    let mut case = Case::with(Set::Running);
    case.job.spec.retries = 1;
    let mut earlier = case.pods[0].clone();
    earlier["status"] = refused("OutOfcpu");
    for pod in &mut case.pods {
        pod["metadata"]["labels"]["ronde.dev/attempt"] = json!("1");
    }
    earlier["metadata"]["name"] = json!("mnist-chief-earlier");
    case.pods[0]["status"] = ended(7, "Error", 20);
    case.pods.push(earlier);
    case.status = JobStatus::default();
    assert_eq!(case.decide().status.failures, 1);
    assert!(words(&case.decide()).contains(&"delete mnist-chief-earlier".to_owned()));
    // After the training has started it is as if the pod had been taken away.
    let mut case = Case::with(Set::Running);
    case.pods[1]["status"] = refused("UnexpectedAdmissionError");
    case.now = at(60);
    assert_eq!(case.decide().status.phase, Phase::Running, "the chief knows best");
    case.pods[0]["status"] = ended(1, "Error", 30);
    let decision = case.decide();
    assert_eq!((decision.status.phase, decision.status.failures), (Phase::Failed, 1));
    assert!(decision.status.message.contains("was taken off node-1"), "{}", decision.status.message);
}

#[test]
fn pods_that_were_made_to_need_more_than_a_node_has_are_not_let_at_it() {
    // As a limit range of the namespace does.
    let with = |cpu: &str, memory: &str| {
        let mut case = Case::with(Set::Gated);
        case.listed = true;
        let requests = &mut case.pods[1]["spec"]["containers"][0]["resources"]["requests"];
        (requests["cpu"], requests["memory"]) = (json!(cpu), json!(memory));
        case
    };
    assert_eq!(with("64", "64Gi").decide().status.phase, Phase::Placing);
    for (cpu, memory, said) in [
        ("65", "64Gi", "node-1 has 64 CPUs free; a pod needs 65"),
        ("64", "65Gi", "node-1 has 64 GiB of memory free; a pod needs 65 GiB"),
    ] {
        let mut case = with(cpu, memory);
        let decision = expect(&case, &BOTH_DELETED, Phase::Pending, "NotPlaced");
        assert_eq!(decision.status.message, format!("not all pods have a place: {said}"));
        // Others are tried, and if there are none, that is why.
        case.status = JobStatus { not_before: None, ..decision.status };
        case.pods.clear();
        let message = case.decide().status.message;
        assert!(message.contains(&said.replace("node-1", "node-1 is left out: it")), "{message}");
        case.nodes[1] = examples::node("node-2", 5);
        assert_eq!(case.decide().status.nodes, "node-2: 5, node-3: 1");
    }
    // What a younger claim needs it will give up; what somebody runs counts.
    let mut case = with("60", "1Gi");
    let mut other = examples::job("other", 2);
    other.root.uid = "uid-other".to_owned();
    let claim = [("node-1".to_owned(), 0)];
    let mut younger = made(&other, &Gang::new("other", 0, &claim.into()), Set::Gated).remove(0);
    younger["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("8");
    younger["metadata"]["creationTimestamp"] = json!(at(1));
    case.pods.push(younger);
    expect(&case, &[], Phase::Claimed, "Claimed");
    case.pods[2]["spec"]["schedulingGates"] = json!([]);
    expect(&case, &BOTH_DELETED, Phase::Pending, "NotPlaced");
}

#[test]
fn all_nodes_that_take_no_pod_are_left_out_at_once() {
    let mut case = Case::with(Set::Placed);
    case.pods.iter_mut().for_each(|pod| pod["status"]["conditions"] = unschedulable());
    case.now = at(12);
    let decision = expect(&case, &BOTH_DELETED, Phase::Pending, "NotPlaced");
    let nodes: Vec<_> = decision.status.avoid.iter().map(|one| (one.node.as_str(), one.until.0)).collect();
    assert_eq!(nodes, [("node-1", at(72)), ("node-3", at(72))]);
    assert!(decision.status.message.ends_with("; nor did 1 more"), "{}", decision.status.message);
}

#[test]
fn the_right_node_is_found_behind_any_number_of_wrong_ones() {
    // As if the job's volume were in the zone of the last one, which nobody may know here.
    for (wrong, gpus) in [(6, 1), (40, 1), (150, 1), (60, 2), (60, 4)] {
        let mut case = Case::nothing();
        case.job.spec = examples::spec(gpus);
        let name = |index: u32| format!("node-{index:03}");
        case.nodes = (0..wrong + gpus).map(|index| examples::node(&name(index), 1)).collect();
        let mut tries = 0;
        let mut longest = SignedDuration::ZERO;
        while case.status.phase != Phase::Scheduled {
            let planned = case.decide();
            let gang = planned.actions.iter().find_map(|action| match action {
                Action::CreatePod { gang, .. } => Some(gang.clone()),
                _ => None,
            });
            case.status = planned.status;
            let Some(gang) = gang else {
                let wake = planned.wake.expect("a time to look again");
                longest = longest.max(wake);
                case.now += wake.max(SignedDuration::from_millis(100));
                continue;
            };
            tries += 1;
            assert!(tries < 3 * wrong + 20, "{wrong} wrong nodes for {gpus} pods");
            case.pods = made(&case.job, &gang, Set::Placed);
            for (pod, member) in case.pods.iter_mut().zip(&gang.members) {
                pod["metadata"]["annotations"]["ronde.dev/placed"] = json!(case.now);
                match member.node < name(wrong) {
                    true => pod["status"]["conditions"] = unschedulable(),
                    false => pod["spec"]["nodeName"] = json!(member.node),
                }
            }
            case.now += SignedDuration::from_secs(10);
            case.status = case.decide().status;
            case.pods.clear();
        }
        // There always was another to try, so it waited for nothing but the next try.
        assert!(longest <= SignedDuration::from_secs(90), "{longest:?}");
    }
}
