//! What the planner is asked: the job's wishes, and those of its template that the scheduler would insist on.
//!
//! What pods need besides GPUs is read off the pods that would be made, so that it is counted as it will be: whatever
//! brings our program, and what the template's containers ask for.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Toleration};
use k8s_openapi::jiff::Timestamp;
use ronde_placement::{Effect, Request, Requirement, Subject, Term, Test};
use serde::de::DeserializeOwned;

use super::pod::{TERMS, pod, tolerations};
use super::{Avoided, Gang, Job, RondeJobSpec, Root, RootKind, Surroundings};
use crate::cluster::requests;

/// The request of a job now.
pub fn request_now(spec: &RondeJobSpec) -> Request {
    request(spec, &[], Timestamp::now())
}

/// The request of a job that leaves these nodes out.
pub(crate) fn request(spec: &RondeJobSpec, avoid: &[Avoided], now: Timestamp) -> Request {
    let mut node_selector: BTreeMap<String, String> = of_template(spec, "/spec/nodeSelector");
    node_selector.extend(spec.node_selector.clone());
    let theirs: Vec<Toleration> = of_template(spec, "/spec/tolerations");
    let avoided = avoid.iter().filter(|one| one.until.0 > now);
    let (cpu, memory) = (Need::of(spec, "cpu"), Need::of(spec, "memory"));
    let bytes = |thousandths: u64| thousandths.div_ceil(1000);
    Request {
        min: spec.gpus.min(),
        max: spec.gpus.max(),
        resource: spec.resource.clone(),
        product: spec.product.clone(),
        per_node: spec.max_gpus_per_node,
        cpu_milli_per_gpu: cpu.per_gpu,
        memory_per_gpu: bytes(memory.per_gpu),
        cpu_milli_per_pod: cpu.per_pod,
        memory_per_pod: bytes(memory.per_pod),
        cpu_milli_at_least: cpu.at_least,
        memory_at_least: bytes(memory.at_least),
        tolerations: tolerations(spec).iter().chain(&theirs).filter_map(toleration).collect(),
        node_selector,
        affinity: affinity(spec),
        policy: spec.policy,
        topology: spec
            .topology
            .as_ref()
            .map(|one| ronde_placement::Topology { level: one.label.clone(), required: one.required }),
        excluded: avoided.map(|one| (one.node.clone(), one.why.clone())).collect(),
    }
}

/// What pods need of a resource, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
struct Need {
    per_gpu: u64,
    per_pod: u64,
    at_least: u64,
}

impl Need {
    /// Reads it off a pod with one GPU and one with two. Nothing if the template makes no pods, which making them will
    /// say.
    fn of(spec: &RondeJobSpec, resource: &str) -> Need {
        let amounts = |gpus: u32| {
            let gang = Gang::new("job", 0, &[("node".to_owned(), gpus)].into());
            let made = pod(&stand_in(spec), &gang, gang.members.first()?, &Surroundings::default()).ok()?;
            let (before, together) = requests::parts(made.spec.as_ref()?);
            let amount = |of: &requests::Amounts| of.get(resource).copied().unwrap_or(0);
            Some((amount(&before), amount(&together)))
        };
        let Some(((at_least, one), (_, two))) = amounts(1).zip(amounts(2)) else { return Need::default() };
        let per_gpu = two.saturating_sub(one);
        Need { per_gpu, per_pod: one.saturating_sub(per_gpu), at_least }
    }
}

/// A job of which only the spec is known.
fn stand_in(spec: &RondeJobSpec) -> Job {
    Job {
        name: "job".to_owned(),
        namespace: String::new(),
        root: Root { kind: RootKind::RondeJob, name: String::new(), uid: String::new() },
        created: Timestamp::UNIX_EPOCH,
        deleting: false,
        generation: None,
        spec: spec.clone(),
    }
}

/// A part of the template; nothing if it is not there or not what it should be, which making the pod will say.
fn of_template<T: DeserializeOwned + Default>(spec: &RondeJobSpec, path: &str) -> T {
    let part = spec.template.as_ref().and_then(|template| template.pointer(path));
    part.and_then(|part| serde_json::from_value(part.clone()).ok()).unwrap_or_default()
}

/// The template's node affinity in the planner's words. Terms that say nothing are left out, as they are of the pod.
fn affinity(spec: &RondeJobSpec) -> Vec<Term> {
    let terms: Vec<NodeSelectorTerm> = of_template(spec, TERMS);
    let said = terms.into_iter().filter(|term| *term != NodeSelectorTerm::default());
    said.map(|term| {
        let labels =
            term.match_expressions.iter().flatten().map(|one| (Subject::Label(one.key.clone()), one));
        let fields = term.match_fields.iter().flatten().filter(|one| one.key == "metadata.name");
        let all = labels.chain(fields.map(|one| (Subject::Name, one)));
        Term(all.filter_map(|(of, one)| Some(Requirement { of, is: test(one)? })).collect())
    })
    .collect()
}

/// None for an operator that does not exist, which making the pod will say.
fn test(one: &NodeSelectorRequirement) -> Option<Test> {
    let values = || one.values.clone().unwrap_or_default();
    // What is compared with no number holds of no node.
    let number = |test: fn(i64) -> Test| {
        let read = values().first().and_then(|value| value.parse().ok());
        read.map_or(Test::In(Vec::new()), test)
    };
    match one.operator.as_str() {
        "In" => Some(Test::In(values())),
        "NotIn" => Some(Test::NotIn(values())),
        "Exists" => Some(Test::Exists),
        "DoesNotExist" => Some(Test::DoesNotExist),
        "Gt" => Some(number(Test::Above)),
        "Lt" => Some(number(Test::Below)),
        _ => None,
    }
}

/// In the planner's words; none for an effect that does not exist.
fn toleration(one: &Toleration) -> Option<ronde_placement::Toleration> {
    let effect = match one.effect.as_deref() {
        None | Some("") => None,
        Some("NoSchedule") => Some(Effect::NoSchedule),
        Some("PreferNoSchedule") => Some(Effect::PreferNoSchedule),
        Some("NoExecute") => Some(Effect::NoExecute),
        Some(_) => return None,
    };
    let exists = one.operator.as_deref() == Some("Exists");
    Some(ronde_placement::Toleration {
        key: one.key.clone().filter(|key| !key.is_empty()),
        value: if exists { None } else { Some(one.value.clone().unwrap_or_default()) },
        effect,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::job::examples;

    #[test]
    fn the_planner_is_asked_for_what_the_scheduler_will_insist_on() {
        let mut spec = examples::spec(6);
        spec.memory_per_gpu = "16Gi".parse().ok();
        spec.cpu_per_gpu = "500m".parse().ok();
        spec.node_selector.insert("pool".to_owned(), "b".to_owned());
        spec.template = Some(json!({"spec": {
            "nodeSelector": {"pool": "a", "disk": "ssd"},
            "tolerations": [{"key": "team", "value": "x", "effect": "NoSchedule"}],
        }}));
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
        let avoided = |node: &str, until: &str| Avoided {
            node: node.to_owned(),
            until: k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(until.parse().expect("a time")),
            why: "lost".to_owned(),
        };
        let avoid = [avoided("old", "2025-12-31T00:00:00Z"), avoided("bad", "2026-01-01T00:01:00Z")];
        let request = request(&spec, &avoid, now);
        assert_eq!((request.min, request.max), (6, 6));
        assert_eq!((request.cpu_milli_per_gpu, request.memory_per_gpu), (500, 16 << 30));
        assert_eq!((request.cpu_milli_per_pod, request.memory_per_pod), (0, 0));
        assert_eq!((request.cpu_milli_at_least, request.memory_at_least), (100, 128 << 20));
        assert_eq!(
            request.node_selector,
            BTreeMap::from([("pool".into(), "b".into()), ("disk".into(), "ssd".into())])
        );
        assert_eq!(request.excluded.keys().collect::<Vec<_>>(), ["bad"]);
        let keys: Vec<_> =
            request.tolerations.iter().map(|one| (one.key.as_deref(), one.value.as_deref())).collect();
        assert_eq!(keys, [(Some("nvidia.com/gpu"), None), (Some("team"), Some("x"))]);
    }

    #[test]
    fn a_templates_node_affinity_is_planned_with() {
        let with = |terms: serde_json::Value| {
            let mut spec = examples::spec(6);
            let required =
                json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
            spec.template = Some(json!({"spec": {"affinity": {"nodeAffinity": required}}}));
            request(&spec, &[], Timestamp::UNIX_EPOCH).affinity
        };
        let label = |key: &str, is| Requirement { of: Subject::Label(key.to_owned()), is };
        let terms = json!([
            {},
            {"matchExpressions": [
                {"key": "zone", "operator": "In", "values": ["a", "b"]},
                {"key": "cores", "operator": "Gt", "values": ["8"]},
                {"key": "age", "operator": "Lt", "values": ["old"]},
                {"key": "slow", "operator": "DoesNotExist"},
            ]},
            {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["node-9"]}]},
        ]);
        let zones = Test::In(vec!["a".to_owned(), "b".to_owned()]);
        let none = Test::In(Vec::new());
        let expected = [
            Term(vec![
                label("zone", zones),
                label("cores", Test::Above(8)),
                label("age", none),
                label("slow", Test::DoesNotExist),
            ]),
            Term(vec![Requirement { of: Subject::Name, is: Test::NotIn(vec!["node-9".to_owned()]) }]),
        ];
        assert_eq!(with(terms), expected);
        // What cannot be read, and what says nothing, is for the API server to refuse or for every node to fit.
        assert_eq!(with(json!("a")), []);
        assert_eq!(with(json!([{}])), []);
    }

    #[test]
    fn what_a_template_asks_for_is_counted() {
        let mut spec = examples::spec(6);
        spec.memory_per_gpu = "1Gi".parse().ok();
        let asks =
            |cpu: &str, memory: &str| json!({"resources": {"requests": {"cpu": cpu, "memory": memory}}});
        let mut train = asks("3", "7Gi");
        train["name"] = json!("train");
        let mut logger = asks("500m", "256Mi");
        logger["name"] = json!("logger");
        let mut first = asks("4", "1Mi");
        first["name"] = json!("first");
        spec.template = Some(json!({"spec": {"containers": [train, logger], "initContainers": [first]}}));
        let request = request(&spec, &[], Timestamp::UNIX_EPOCH);
        // The job's own memory counts, and not the template's; of CPUs it says nothing.
        assert_eq!((request.cpu_milli_per_gpu, request.memory_per_gpu), (0, 1 << 30));
        assert_eq!((request.cpu_milli_per_pod, request.memory_per_pod), (3500, 256 << 20));
        assert_eq!((request.cpu_milli_at_least, request.memory_at_least), (4000, 128 << 20));
    }
}
