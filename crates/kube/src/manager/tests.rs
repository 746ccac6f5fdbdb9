//! Turns against an API server in memory that does not do as it is told.

use http::Method;
use serde_json::{Value, json};

use super::*;
use crate::clock::Clock;
use crate::cluster::Ledger;
use crate::fake::Fake;
use crate::job::{Phase, RootKind, examples};

const PODS: &str = "/api/v1/namespaces/default/pods";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

struct Scene {
    fake: Fake,
    hands: Hands,
    view: View,
    job: Job,
    status: JobStatus,
}

impl Scene {
    /// A job of 6 GPUs on nodes with 5 and 2.
    fn new() -> Scene {
        let fake = Fake::default();
        let hands = Hands::new(fake.client(), Clock::default(), examples::surroundings());
        let view = View::still(Ledger::of(&[examples::node("node-1", 5), examples::node("node-3", 2)], []));
        Scene { fake, hands, view, job: examples::job("mnist", 6), status: JobStatus::default() }
    }

    async fn turn(&mut self) -> Turn {
        let said = async |_: &JobStatus| Ok(());
        let turned = turn(&self.job, self.status.clone(), Ok(()), &self.hands, &self.view, said).await;
        self.status = turned.status.clone();
        turned
    }

    /// As if the time until the next try had passed, and the watch had told what is gone.
    fn later(&mut self) {
        let here = self.fake.names("pods");
        self.view.ledger().will_list();
        self.view.ledger().keep_pods(|(_, name)| here.contains(name));
        self.status.not_before = None;
        self.hands = Hands::new(self.fake.client(), Clock::default(), examples::surroundings());
    }
}

fn somebodys(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": []}})
}

#[tokio::test]
async fn a_claim_is_made_listed_and_let_go_in_one_turn() {
    let mut scene = Scene::new();
    let turned = scene.turn().await;
    assert!(turned.trouble.is_none(), "{:?}", turned.trouble);
    assert_eq!((turned.status.phase, scene.fake.asked("PATCH")), (Phase::Placing, 2));
    assert_eq!(scene.fake.names("pods"), ["mnist-chief", "mnist-worker-0"]);
    assert_eq!(scene.fake.names("services"), ["mnist", "mnist-chief-uidmni"]);
}

#[tokio::test]
async fn a_pod_of_somebody_elses_that_has_the_name_is_told_left_alone_and_gone_around() {
    let mut scene = Scene::new();
    scene.fake.put(&format!("{PODS}/mnist-chief"), somebodys("mnist-chief"));
    let turned = scene.turn().await;
    assert_eq!((turned.status.phase, turned.status.reason.as_str()), (Phase::Pending, "NameTaken"));
    assert!(turned.status.message.contains("kubectl delete pod mnist-chief"), "{}", turned.status.message);
    assert!(turned.wake.is_some_and(|wake| wake > Duration::from_millis(100)), "{:?}", turned.wake);
    // The worker that could be made is given back, the stranger is not touched.
    assert_eq!(scene.fake.names("pods"), ["mnist-chief"]);
    scene.later();
    scene.turn().await;
    assert_eq!(scene.status.phase, Phase::Placing);
    assert_eq!(scene.fake.names("pods"), ["mnist-chief", "mnist-chief-r1", "mnist-worker-0-r1"]);
}

#[tokio::test]
async fn a_pod_that_has_the_jobs_uid_and_not_its_name_is_not_the_jobs() {
    let mut scene = Scene::new();
    let mut pod = somebodys("mnist-chief");
    pod["metadata"]["labels"] = json!({"ronde.dev/job": "other", "ronde.dev/job-uid": scene.job.root.uid});
    scene.fake.put(&format!("{PODS}/mnist-chief"), pod);
    let turned = scene.turn().await;
    assert_eq!((turned.status.phase, turned.status.reason.as_str()), (Phase::Pending, "NameTaken"));
    assert!(turned.status.message.contains("that of another job other"), "{}", turned.status.message);
}

#[tokio::test]
async fn a_service_or_a_map_of_somebody_elses_keeps_the_job_waiting_without_gpus() {
    for (place, kind, name) in [(SERVICES, "service", "mnist"), (MAPS, "configmap", "mnist-plan")] {
        let mut scene = Scene::new();
        scene.fake.put(&format!("{place}/{name}"), somebodys(name));
        scene.turn().await;
        assert_eq!((scene.status.phase, scene.status.reason.as_str()), (Phase::Pending, "NameTaken"));
        let fix = format!("kubectl delete {kind} {name}");
        assert!(scene.status.message.contains(&fix), "{}", scene.status.message);
        assert!(scene.fake.names("pods").is_empty());
    }
}

#[tokio::test]
async fn a_namespace_that_is_gone_ends_the_job() {
    let mut scene = Scene::new();
    scene.fake.refuse((Method::POST, PODS, 404, "NotFound", "namespaces \"default\" not found"));
    scene.turn().await;
    assert_eq!((scene.status.phase, scene.status.reason.as_str()), (Phase::Failed, "NoNamespace"));
}

#[tokio::test]
async fn pods_that_were_made_before_a_quota_was_used_up_are_given_back() {
    let mut scene = Scene::new();
    let words = "pods \"mnist-chief\" is forbidden: exceeded quota: gpus";
    // Only the chief's name is in the way, so the worker is made.
    scene.fake.put(&format!("{PODS}/mnist-chief"), somebodys("mnist-chief"));
    scene.fake.refuse((Method::GET, "mnist-chief", 403, "Forbidden", words));
    scene.turn().await;
    assert_eq!(scene.status.reason, "QuotaExceeded");
    assert_eq!(scene.fake.asked(&format!("DELETE {PODS}/mnist-worker-0")), 1);
    assert_eq!(scene.fake.names("pods"), ["mnist-chief"]);
}

#[tokio::test]
async fn not_to_be_allowed_to_delete_costs_no_success_and_few_requests() {
    let mut scene = Scene::new();
    scene.turn().await;
    scene.status = JobStatus { phase: Phase::Succeeded, ..JobStatus::default() };
    scene.status.finished = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::now()));
    scene.fake.refuse((Method::DELETE, PODS, 403, "Forbidden", "User \"x\" cannot delete resource \"pods\""));
    let turned = scene.turn().await;
    assert_eq!(turned.status.phase, Phase::Succeeded);
    assert!(matches!(turned.trouble, Some(Error::Forbidden { .. })), "{:?}", turned.trouble);
    let asked = scene.fake.asked("DELETE");
    for _ in 0..20 {
        scene.turn().await;
    }
    assert_eq!(scene.fake.asked("DELETE"), asked, "it is let rest");
    scene.fake.relent();
    scene.later();
    scene.turn().await;
    assert_eq!((scene.status.phase, scene.fake.names("pods").len()), (Phase::Succeeded, 0));
}

#[tokio::test]
async fn what_is_left_of_somebody_who_uses_its_uid_holds_no_job_up() {
    let mut scene = Scene::new();
    scene.hands.rest_for(&scene.job.root.uid, Duration::from_secs(30));
    scene.turn().await;
    assert_eq!(scene.status.phase, Phase::Placing);
}

#[tokio::test]
async fn a_token_that_has_expired_is_waited_for() {
    let mut scene = Scene::new();
    scene.fake.refuse((Method::POST, PODS, 401, "Unauthorized", "Unauthorized"));
    let turned = scene.turn().await;
    assert_eq!((turned.status.phase, turned.status.reason.as_str()), (Phase::Pending, "Unauthorized"));
    assert!(turned.wake.is_some());
}

#[tokio::test]
async fn no_pods_are_made_for_a_config_map_that_is_gone_is_going_or_is_anothers() {
    let going = json!({"name": "mnist", "uid": "uid-mnist", "deletionTimestamp": "2026-01-01T00:00:00Z"});
    for about in [None, Some(going), Some(json!({"name": "mnist", "uid": "uid-another"}))] {
        let mut scene = Scene::new();
        scene.job.root.kind = RootKind::ConfigMap;
        if let Some(about) = about {
            scene.fake.put(&format!("{MAPS}/mnist"), json!({"metadata": about}));
        }
        let turned = scene.turn().await;
        assert!(matches!(turned.trouble, Some(Error::Deleted { .. })), "{:?}", turned.trouble);
        assert_eq!(scene.fake.asked(""), 1, "it was looked for, and nothing else done");
    }
    let mut scene = Scene::new();
    scene.job.root.kind = RootKind::ConfigMap;
    scene.fake.put(&format!("{MAPS}/mnist"), json!({"metadata": {"name": "mnist", "uid": "uid-mnist"}}));
    scene.turn().await;
    assert_eq!(scene.status.phase, Phase::Placing);
    assert_eq!(scene.fake.asked(&format!("GET {MAPS}/mnist")), 1);
}
