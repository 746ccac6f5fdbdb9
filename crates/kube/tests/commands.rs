//! `ronde kube` where no cluster is needed: plans for a cluster in a file, refusals, manifests. tests/kubernetes has real
//! clusters.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use serde_json::{Value, json};

/// How a command line ended.
#[derive(Debug)]
struct Outcome {
    status: ExitStatus,
    stdout: String,
    stderr: String,
}

impl Outcome {
    fn code(&self) -> Option<i32> {
        self.status.code()
    }
}

/// The binary with these arguments.
fn ronde_kube(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ronde-kube"));
    command.args(arguments);
    command
}

/// Runs a command to its end.
fn outcome(command: &mut Command) -> Outcome {
    let output = command.env("LC_ALL", "C.UTF-8").output().expect("the binary starts");
    let text = |bytes| String::from_utf8(bytes).expect("whole characters");
    Outcome { status: output.status, stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// A folder that is removed after the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("ronde-kube-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("folder");
        Folder(path)
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, content).expect("write");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Nodes with 5 of 8, 3 of 4 and 2 of 8 GPUs free.
fn snapshot(folder: &Folder) -> String {
    let node = |name: &str, free: u32, all: u32| {
        json!({
            "name": name, "ready": true, "free_cpu_milli": 64_000, "free_memory": 64_u64 << 30, "free_pods": 100,
            "gpus": {"nvidia.com/gpu": {"allocatable": all, "free": free}},
        })
    };
    let nodes = [node("node-1", 5, 8), node("node-2", 3, 4), node("node-3", 2, 8)];
    let path = folder.file("cluster.json", &json!({"version": 1, "nodes": nodes}).to_string());
    path.to_string_lossy().into_owned()
}

fn plan(name: &str, arguments: &[&str]) -> Outcome {
    let folder = Folder::new(name);
    let snapshot = snapshot(&folder);
    let words = [&["plan", "--snapshot", &snapshot], arguments].concat();
    outcome(&mut ronde_kube(&words))
}

#[test]
fn a_plan_is_drawn_into_the_cluster() {
    let outcome = plan("kube-plan", &["--gpus", "6"]);
    assert_eq!((outcome.code(), outcome.stderr.as_str()), (Some(0), ""), "{outcome:?}");
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(lines[1], "  node-1   5 / 8       ■■■■■        5");
    assert_eq!(lines[3], "  node-3   2 / 8       ■□           1   chief");
    assert!(lines[4].starts_with("6 GPUs on 2 nodes (policy pack)."), "{}", outcome.stdout);
}

#[test]
fn a_plan_for_programs_begins_with_its_shares() {
    let outcome = plan("kube-plan-json", &["--gpus", "6", "--policy", "in-order", "--json"]);
    assert_eq!(outcome.code(), Some(0), "{outcome:?}");
    assert!(outcome.stdout.starts_with("{\n  \"shares\": ["), "{}", outcome.stdout);
    let plan: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    let shares: Vec<(&str, u64)> = plan["shares"]
        .as_array()
        .expect("shares")
        .iter()
        .filter_map(|share| Some((share["node"].as_str()?, share["gpus"].as_u64()?)))
        .collect();
    assert_eq!(shares, [("node-1", 5), ("node-2", 1)]);
}

#[test]
fn what_cannot_be_had_is_refused_with_the_cluster_before_it() {
    let outcome = plan("kube-plan-too-many", &["--gpus", "11"]);
    assert_eq!(outcome.code(), Some(1), "{outcome:?}");
    assert!(outcome.stdout.contains("node-2"), "{}", outcome.stdout);
    assert!(outcome.stderr.starts_with("error: 11 GPUs"), "{}", outcome.stderr);
}

#[test]
fn numbers_of_gpus_that_make_no_sense_name_the_fix() {
    for (number, words) in
        [("0", "write 1 or more"), ("-3", "write 1 or more"), ("six", "write 6"), ("8..4", "4..8")]
    {
        for verb in [&["plan"][..], &["run", "--image", "i"]] {
            let words_typed = [verb, &["--gpus", number]].concat();
            let outcome =
                outcome(ronde_kube(&words_typed).args(["--", "true"].iter().filter(|_| verb[0] == "run")));
            assert_eq!(outcome.code(), Some(2), "{number}: {outcome:?}");
            assert!(outcome.stderr.contains(words), "{number}: {}", outcome.stderr);
        }
    }
}

#[test]
fn without_a_cluster_the_file_that_was_looked_for_is_named() {
    let words = ["run", "--gpus", "2", "--image", "i", "--", "true"];
    let outcome = outcome(ronde_kube(&words).env("KUBECONFIG", "/nonexistent/config"));
    assert_eq!(outcome.code(), Some(1), "{outcome:?}");
    assert!(outcome.stderr.starts_with("error: no cluster is known here"), "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("hint: ") && outcome.stderr.contains("/nonexistent/config"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn a_folder_that_is_too_large_is_refused_and_the_volume_named() {
    let folder = Folder::new("kube-large");
    folder.file("data", &"x".repeat(1 << 20));
    let path = folder.0.to_string_lossy().into_owned();
    let words = ["run", "--gpus", "2", "--image", "i", "--workdir", &path, "--", "true"];
    let outcome = outcome(&mut ronde_kube(&words));
    assert_eq!(outcome.code(), Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("1 MiB") && outcome.stderr.contains("--volume"), "{}", outcome.stderr);
}

#[test]
fn manifests_can_be_printed() {
    let outcome = outcome(&mut ronde_kube(&["install", "--print", "--manager-image", "mine:1"]));
    assert_eq!((outcome.code(), outcome.stderr.as_str()), (Some(0), ""), "{outcome:?}");
    for kind in ["Namespace", "CustomResourceDefinition", "ClusterRole", "Role", "Deployment"] {
        assert!(outcome.stdout.contains(&format!("\nkind: {kind}\n")), "{kind}");
    }
    assert!(outcome.stdout.contains("image: \"mine:1\""), "{}", outcome.stdout);
}
