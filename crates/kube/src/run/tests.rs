//! What the command says and does about its job, against an API server in memory.

use serde_json::{Value, json};
use tokio::signal::unix::SignalKind;

use super::*;
use crate::clock::Clock;
use crate::cluster::Ledger;
use crate::fake::Fake;
use crate::job::{Gang, RootKind, examples, pod};

/// What was asked for.
fn order() -> Order {
    Order {
        which: Which::default(),
        name: "mnist".to_owned(),
        spec: examples::spec(6),
        shipment: None,
        around: examples::surroundings(),
        own_pod: None,
        wait: false,
        quiet: true,
    }
}

fn hands(fake: &Fake) -> Hands {
    Hands::new(fake.client(), Clock::default(), examples::surroundings())
}

/// A command that has just made its job, on nodes with 5 and 2 GPUs.
fn session(fake: &Fake) -> Session {
    let mut job = examples::job("mnist", 6);
    job.root.kind = RootKind::ConfigMap;
    let view = View::still(Ledger::of(&[examples::node("node-1", 5), examples::node("node-3", 2)], []));
    Session::new(order(), job, hands(fake), view, true)
}

/// How a container is that has started, and perhaps ended.
fn train(phase: &str, ended: Option<i32>) -> Value {
    let times = json!({"startedAt": "2026-01-01T00:01:00Z"});
    let state = match ended {
        None => json!({"running": times}),
        Some(code) => json!({"terminated": {"exitCode": code, "startedAt": times["startedAt"]}}),
    };
    let train = json!({"name": "train", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": state});
    json!({"phase": phase, "containerStatuses": [train]})
}

/// A pod of a job's set, as the cluster tells of it.
fn told(job: &Job, attempt: u32, member: usize, status: Value) -> Pod {
    let claim = [("node-1".to_owned(), 5), ("node-3".to_owned(), 1)].into();
    let gang = Gang::new(&job.name, attempt, &claim);
    let made = pod(job, &gang, &gang.members[member], &examples::surroundings()).expect("a pod");
    let mut made = json!(made);
    made["metadata"]["uid"] = json!(format!("pod-{attempt}-{member}"));
    made["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    made["spec"]["schedulingGates"] = json!([]);
    made["spec"]["nodeName"] = json!(gang.members[member].node);
    made["status"] = status;
    serde_json::from_value(made).expect("a pod")
}

#[tokio::test]
async fn the_chief_of_an_attempt_that_failed_is_shown_to_its_end_and_the_next_one_after_it() {
    let fake = Fake::default();
    let mut session = session(&fake);
    let tell = |session: &Session, attempt, status| {
        session.view.ledger().note_pod(&told(&session.job, attempt, 0, status));
    };
    tell(&session, 0, train("Running", None));
    session.show();
    // What sees that it failed has the next one in mind already.
    tell(&session, 0, train("Failed", Some(1)));
    session.status.attempt = 1;
    session.show();
    let first = session.following.as_ref().expect("a chief");
    assert_eq!(first.pod, "mnist-chief");
    let done = async {
        while !first.is_done() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(FAREWELL, done).await.expect("it is known to have ended");
    tell(&session, 1, train("Running", None));
    session.show();
    let next = session.following.take().expect("another chief");
    assert_eq!((next.pod.as_str(), next.attempt), ("mnist-chief-r1", 1));
    next.finish(FAREWELL).await;
    let asked = fake.asked("/log");
    assert!((2..=4).contains(&asked), "{asked}");
}

/// Signals that nobody sends to a test by accident.
fn signals() -> Signals {
    Signals::to([SignalKind::user_defined1()]).expect("a signal")
}

/// Sends this process the signal, by the shell's own `kill`: not every system has that program.
fn interrupt_this_process() {
    let sent = std::process::Command::new("sh").args(["-c", "kill -USR1 $PPID"]).status();
    assert!(sent.is_ok_and(|sent| sent.success()));
}

#[tokio::test]
async fn nobody_has_to_wait_for_the_last_words_of_a_pod_whose_node_says_nothing() {
    let fake = Fake::default();
    fake.hold("/mnist-worker-0/log");
    let mut session = session(&fake);
    for (member, code) in [(0, 1), (1, 137)] {
        let pod = told(&session.job, 0, member, train("Failed", Some(code)));
        session.view.ledger().note_pod(&pod);
    }
    session.status.phase = Phase::Failed;
    session.status.failed_pod = Some("mnist-worker-0".to_owned());
    session.status.exit_code = Some(137);
    let mut signals = signals();
    let interrupt = async {
        while fake.asked("/mnist-worker-0/log") == 0 {
            tokio::task::yield_now().await;
        }
        interrupt_this_process();
    };
    let (ended, ()) = tokio::join!(session.end(&mut signals), interrupt);
    assert!(matches!(ended, Ok(137)), "{ended:?}");
}

#[tokio::test]
async fn a_job_that_is_deleted_while_it_waits_or_begins_anew_ends_with_an_error_and_leaves_nothing() {
    // Of the 7 GPUs the first may have its own again; the other waits for more than there are, and has for a while.
    for (gpus, since) in [(6, Duration::ZERO), (8, LOOK)] {
        let fake = Fake::default();
        let mut session = session(&fake);
        session.job.spec.gpus = gpus.to_string().parse().expect("a number");
        session.order.wait = true;
        session.seen = Instant::now().checked_sub(since).expect("a time");
        let chief = told(&session.job, 0, 0, train("Failed", Some(1)));
        fake.put("/api/v1/namespaces/default/pods/mnist-chief", json!(chief));
        session.view.ledger().note_pod(&chief);
        session.status.attempt = 1;
        let error = session.manage(&mut signals()).await.expect_err("it is gone");
        assert_eq!(error.to_string(), "job mnist was deleted");
        session.abandon().await;
        assert!(fake.names("pods").is_empty());
        assert_eq!(fake.asked("POST"), 0);
    }
}

#[tokio::test]
async fn what_a_signal_finds_under_way_is_taken_back() {
    let fake = Fake::default();
    fake.hold("/namespaces/default/pods");
    let mut session = session(&fake);
    // Nobody but us would delete what belongs to it.
    session.job.root.kind = RootKind::Pod;
    let mut signals = signals();
    let interrupt = async {
        while fake.asked("POST /api/v1/namespaces/default/pods") == 0 {
            tokio::task::yield_now().await;
        }
        interrupt_this_process();
        // Long enough for whoever does not wait to be on the way out.
        let before = fake.asked("");
        let goes_on = async {
            while fake.asked("") == before {
                tokio::time::sleep(Duration::from_millis(1)).await; // sleep: between two looks
            }
        };
        let _ = tokio::time::timeout(Duration::from_millis(300), goes_on).await;
        fake.relent();
    };
    let (ended, ()) = futures::join!(session.manage(&mut signals), interrupt);
    assert_eq!(ended.ok(), Some(128 + 10));
    assert_eq!(fake.names("pods"), [] as [String; 0]);
}

#[tokio::test]
async fn a_config_map_is_the_job_only_if_it_says_so() {
    let fake = Fake::default();
    let view = View::still(Ledger::default());
    let root = async |order: &Order| root(order, "default", &hands(&fake), &view).await;
    let (made, is_new) = root(&order()).await.expect("a job");
    assert!(is_new && made.root.kind == RootKind::ConfigMap);
    let (found, is_new) = root(&order()).await.expect("the same");
    assert!(!is_new && found.root == made.root);
    let other = Order { spec: examples::spec(5), ..order() };
    let error = root(&other).await.expect_err("another job");
    assert!(matches!(error, Error::NameTaken { .. }), "{error}");
    // Nobody is told to delete what may be anything as if it were a job.
    fake.put("/api/v1/namespaces/default/configmaps/mnist", json!({"metadata": {"name": "mnist"}}));
    let error = root(&order()).await.expect_err("somebody else's");
    let said = error.to_string();
    assert!(said.contains("configmap mnist in default is not this job's but somebody else's"), "{said}");
    assert!(!said.contains("there is a job"), "{said}");
}

#[tokio::test]
async fn a_job_in_a_pod_is_gone_on_with_only_if_the_same_is_asked_for() {
    let fake = Fake::default();
    let in_pod = Order { own_pod: Some(("manager".to_owned(), "uid".to_owned())), ..order() };
    let manager = |uid: &str| json!({"metadata": {"name": "manager", "uid": uid}});
    fake.put("/api/v1/namespaces/default/pods/manager", manager("uid"));
    let mut view = View::still(Ledger::default());
    let (job, is_new) = root(&in_pod, "default", &hands(&fake), &view).await.expect("a job");
    assert!(is_new && job.root.kind == RootKind::Pod);
    let chief = told(&job, 0, 0, train("Succeeded", Some(0)));
    view = View::still(Ledger::of([], [&chief]));
    let (_, is_new) = root(&in_pod, "default", &hands(&fake), &view).await.expect("the same job");
    assert!(!is_new);
    let other = Order { spec: examples::spec(5), ..in_pod.clone() };
    let error = root(&other, "default", &hands(&fake), &view).await.expect_err("another job");
    let hint = error.hint().expect("a hint");
    assert!(hint.contains("kubectl delete pod,configmap -l ronde.dev/job=mnist -n default"), "{hint}");
    // Under another name it is another job, also of the same pod.
    let another = Order { name: "second".to_owned(), ..other };
    let (_, is_new) = root(&another, "default", &hands(&fake), &view).await.expect("another job");
    assert!(is_new && fake.asked("POST") == 0);
    // A kubeconfig may lead to a cluster that has no such pod, or another one of its name.
    let elsewhere = Fake::default();
    elsewhere.put("/api/v1/namespaces/default/pods/manager", manager("another"));
    for cluster in [Fake::default(), elsewhere] {
        let (job, _) = root(&in_pod, "default", &hands(&cluster), &view).await.expect("a job");
        assert_eq!(job.root.kind, RootKind::ConfigMap);
    }
}

#[tokio::test]
async fn a_right_that_is_lost_costs_a_claim_and_no_training() {
    let lost = Error::Forbidden { doing: "watch nodes and pods".to_owned(), message: "cannot".to_owned() };
    let parted = async |phase: Phase, is_new: bool| {
        let fake = Fake::default();
        let mut session = session(&fake);
        let chief = told(&session.job, 0, 0, train("Running", None));
        fake.put("/api/v1/namespaces/default/pods/mnist-chief", json!(chief));
        session.view.ledger().note_pod(&chief);
        (session.status.phase, session.is_new) = (phase, is_new);
        session.part(&lost).await;
        fake.names("pods").is_empty()
    };
    for phase in [Phase::Pending, Phase::Claimed] {
        assert!(parted(phase, true).await, "{phase:?}");
        // Nothing has been looked at yet of a job that another command has made.
        assert!(!parted(phase, false).await, "{phase:?}");
    }
    for phase in [Phase::Placing, Phase::Scheduled, Phase::Running] {
        assert!(!parted(phase, true).await, "{phase:?}");
    }
}
