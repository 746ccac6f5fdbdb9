//! From waiting to a claim that is safe.
//!
//! A plan becomes a set of gated pods, each of which says what the whole set claims. When all exist, our pods are listed
//! anew, and a set goes on only if there is room for it beside *all* others in that list. Of two sets that want the same
//! GPUs, the one that lists last finds the other, so never do both go on: clocks, versions and who is faster do not matter.
//!
//! So that one of the two does go on, the younger gives way: it is deleted as a whole, and comes again after a pause. The
//! older waits until it sees the younger gone; or sees that it was let go, having listed before the older was there.
//!
//! The pods that were made say what they need besides GPUs, as somebody may have added to it. Where a node does not have that
//! much, the scheduler is not let at them: the next plan does without the node.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::SignedDuration;
use ronde_placement::{Cause, Node, Plan, Reason};

use super::status::{Said, told};
use super::{Action, Current, Decision, Observed, elsewhere, ending, pause};
use crate::cluster::{Claims, OwnPod, Ticket};
use crate::job::{Gang, Phase, request};
use crate::progress::gpus;

/// How long a claim may stay unused: well below the time after which others stop counting it.
const CLAIM_LIFE: SignedDuration = SignedDuration::from_secs(45);
/// How long to wait for a younger claim to go before looking again, if nothing is seen before.
const RIVAL_PATIENCE: SignedDuration = SignedDuration::from_millis(500);
/// How long the first to yield waits; twice as long each time after that.
const FIRST_YIELD: f64 = 0.2;
const LONGEST_YIELD: f64 = 5.0;

/// Nothing is there: waits for its time, its turn and its GPUs, and claims them.
pub(super) fn plan(seen: &Observed<'_>, current: &Current<'_>) -> Decision {
    let waits = |said: Said, wake| Decision {
        actions: Vec::new(),
        status: told(seen, Phase::Pending, current.attempt, said),
        wake,
    };
    if let Some(Time(start)) = seen.status.not_before.as_ref().filter(|time| time.0 > seen.now) {
        let said = Said::new(&seen.status.reason, seen.status.message.clone());
        return waits(said, Some(start.duration_since(seen.now)));
    }
    if let Err(why) = seen.turn {
        return waits(Said::new("Queued", why), None);
    }
    let request = request(&seen.job.spec, &seen.status.avoid, seen.now);
    // A node that was left out may be tried again when its time is over.
    let until = seen.status.avoid.iter().map(|one| one.until.0).filter(|until| *until > seen.now).min();
    let wake = until.map(|until| until.duration_since(seen.now));
    let snapshot = match seen.ledger.snapshot(seen.now, Claims::All) {
        Ok(snapshot) => snapshot,
        Err(error) => {
            return waits(Said::new("Unreadable", format!("the cluster cannot be read: {error}")), wake);
        }
    };
    let plan = match ronde_placement::plan(&snapshot, &request) {
        Ok(plan) => plan,
        Err(refusal) => {
            let reason = match refusal.cause {
                Cause::Invalid { .. } => "Invalid",
                Cause::Never { .. } => "NeverEnough",
                Cause::NotEnough { .. } => "NotEnoughGpus",
            };
            let message = refusal.waiting().unwrap_or_else(|| refusal.to_string());
            return waits(Said::new(reason, message), wake);
        }
    };
    if let Some((better, left)) = better(seen, &request, &plan) {
        return waits(better, Some(left));
    }
    let claim = plan.shares.iter().map(|share| (share.node.clone(), share.gpus)).collect();
    let gang = Gang::new(&seen.job.name, current.attempt, &claim);
    claiming(seen, current, &gang)
}

/// A plan on fewer nodes that is worth waiting for, and for how long.
fn better(
    seen: &Observed<'_>,
    request: &ronde_placement::Request,
    plan: &Plan,
) -> Option<(Said, SignedDuration)> {
    let patience = SignedDuration::from_secs(i64::from(seen.job.spec.wait_for_better_seconds));
    let waited = seen
        .status
        .waiting_since
        .as_ref()
        .map_or(SignedDuration::ZERO, |since| seen.now.duration_since(since.0));
    if waited >= patience {
        return None;
    }
    let empty = seen.ledger.snapshot(seen.now, Claims::Nobody).ok()?;
    let ideal = ronde_placement::plan(&empty, request).ok()?;
    let (now, then) = (plan.shares.len(), ideal.shares.len());
    let said = format!("{now} nodes are possible now, and {then} would do: waits for fewer");
    (then < now).then(|| (Said::new("WaitsForBetter", said), patience - waited))
}

/// Creates what is missing of a set.
fn claiming(seen: &Observed<'_>, current: &Current<'_>, gang: &Gang) -> Decision {
    let exists = |name: &str| current.pods.iter().any(|pod| pod.name == name);
    let mut actions = Vec::new();
    // Workers first, the chief last.
    for (member, about) in gang.members.iter().enumerate().rev() {
        if !exists(&about.pod) {
            actions.push(Action::CreatePod { gang: gang.clone(), member });
        }
    }
    actions.push(Action::List);
    let said =
        Said::new("Claimed", format!("{} claimed on {}", gpus(&gang.gpus().to_string()), gang.nodes()));
    let mut status = told(seen, Phase::Claimed, gang.attempt, said);
    status.gpus = gang.gpus().to_string();
    status.nodes = gang.nodes();
    Decision { actions, status, wake: Some(CLAIM_LIFE) }
}

/// All pods that exist are gated: completes the set, makes sure of the claim, and lets the scheduler at it.
pub(super) fn secure(seen: &Observed<'_>, current: &Current<'_>, gang: &Gang) -> Decision {
    let Some(mine) = current.pods.iter().map(|pod| pod.ticket()).min() else { return plan(seen, current) };
    let yields = |why: String| {
        let wait = pause(seen, FIRST_YIELD, LONGEST_YIELD);
        let mut decision = ending::release(seen, current, Said::new("Yielded", why));
        decision.status.yields = seen.status.yields + 1;
        decision.status.not_before = seen.now.checked_add(wait).ok().map(Time);
        decision.wake = Some(wait);
        decision
    };
    if current.pods.iter().any(|pod| pod.terminating) {
        return yields("a pod of the claim was deleted".to_owned());
    }
    if seen.now.duration_since(mine.created) > CLAIM_LIFE {
        return yields("the claim was not made use of in time".to_owned());
    }
    if current.pods.len() < gang.members.len() {
        return claiming(seen, current, gang);
    }
    let rival = rival(seen, current, gang, &mine);
    if let Some(Rival::Younger) = rival {
        let mut decision = claiming(seen, current, gang);
        decision.actions.clear();
        decision.wake = Some(RIVAL_PATIENCE);
        return decision;
    }
    if !seen.listed {
        let mut decision = claiming(seen, current, gang);
        decision.actions = vec![Action::List];
        return decision;
    }
    match rival {
        Some(Rival::Older(Short::OfGpus(node))) => {
            return yields(format!("another job came first on {node}"));
        }
        Some(Rival::Older(Short::Besides(nodes))) => return elsewhere::too_little(seen, current, &nodes),
        Some(Rival::Younger) | None => {}
    }
    let chief = current.chief().map(|chief| chief.uid.clone()).unwrap_or_default();
    // Before any pod can run, so that its chief's name is there when it asks.
    let mut actions = vec![Action::Support { gang: gang.clone(), chief }];
    actions.extend(ungate(current));
    let said = Said::new("Placing", format!("{} ours on {}", gpus(&gang.gpus().to_string()), gang.nodes()));
    let status = told(seen, Phase::Placing, gang.attempt, said);
    Decision { actions, status, wake: Some(super::watching::PLACE_PATIENCE) }
}

/// Lets the scheduler at every pod that is still gated.
pub(super) fn ungate(current: &Current<'_>) -> impl Iterator<Item = Action> {
    let gated = current.pods.iter().filter(|pod| pod.gated && !pod.terminating);
    gated.map(|pod| Action::Ungate { pod: pod.name.clone(), uid: pod.uid.clone() })
}

/// Who is in the way of a claim.
enum Rival {
    /// Somebody who came first, or has it already.
    Older(Short),
    /// Only such as will give way.
    Younger,
}

fn rival(seen: &Observed<'_>, current: &Current<'_>, gang: &Gang, mine: &Ticket) -> Option<Rival> {
    let key = current.key(seen.job);
    short(seen, current, gang, Claims::Others(&key))?;
    Some(short(seen, current, gang, Claims::Before(mine, &key)).map_or(Rival::Younger, Rival::Older))
}

/// What there is too little of.
enum Short {
    /// GPUs, on this node.
    OfGpus(String),
    /// What pods need besides, by node and with the reason. They may need more than was planned with: a limit range of
    /// their namespace gives requests to containers that have none, and a runtime class has an overhead.
    Besides(BTreeMap<String, Reason>),
}

/// What these claims leave too little of.
fn short(seen: &Observed<'_>, current: &Current<'_>, gang: &Gang, claims: Claims<'_>) -> Option<Short> {
    let Ok(snapshot) = seen.ledger.snapshot(seen.now, claims) else {
        return gang.members.first().map(|member| Short::OfGpus(member.node.clone()));
    };
    let resource = &seen.job.spec.resource;
    let nodes: HashMap<&str, &Node> = snapshot.nodes.iter().map(|node| (node.name.as_str(), node)).collect();
    let free =
        |name: &str| nodes.get(name).and_then(|node| node.gpus.get(resource)).map_or(0, |gpus| gpus.free);
    let scarce = gang.claim().into_iter().find(|(name, gpus)| free(name) < *gpus);
    if let Some((node, _)) = scarce {
        return Some(Short::OfGpus(node));
    }
    let lacking = |pod: &&OwnPod| lacks(nodes.get(pod.pinned.as_str())?, pod);
    let besides = current.pods.iter().filter_map(|pod| Some((pod.pinned.clone(), lacking(pod)?)));
    let besides: BTreeMap<String, Reason> = besides.collect();
    (!besides.is_empty()).then_some(Short::Besides(besides))
}

/// What a node does not have for a pod.
fn lacks(node: &Node, pod: &OwnPod) -> Option<Reason> {
    let (free_milli, pod_milli) = (node.free_cpu_milli, pod.cpu_milli);
    let (free, needed) = (node.free_memory, pod.memory);
    if pod_milli > free_milli {
        return Some(Reason::Cpu { free_milli, each_milli: 0, pod_milli });
    }
    (needed > free).then_some(Reason::Memory { free, each: 0, pod: needed })
}
