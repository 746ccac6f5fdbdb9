//! `--gpus-per-rank`, and what is said where ranks share GPUs, on a machine with a pretended `nvidia-smi`.

use std::process::Command;

use serde_json::Value;

use crate::job::{Folder, Outcome, outcome, ronde};

const FOUR: &str = "\
GPU 0: NVIDIA H200 (UUID: GPU-a0)
GPU 1: NVIDIA H200 (UUID: GPU-b1)
GPU 2: NVIDIA H200 (UUID: GPU-c2)
GPU 3: NVIDIA H200 (UUID: GPU-d3)
";
const DIVIDED: &str = "\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-a0)
  MIG 3g.20gb     Device  0: (UUID: MIG-1a)
  MIG 3g.20gb     Device  1: (UUID: MIG-2b)
";

/// A folder with an `nvidia-smi` that lists these GPUs.
pub(crate) fn machine(name: &str, list: &str) -> Folder {
    let folder = Folder::new(name);
    let query: String =
        list.lines().filter(|line| line.starts_with("GPU")).map(|_| "NVIDIA H200, 580.1\n").collect();
    let script = format!("#!/bin/sh\n[ \"$1\" = -L ] && printf '{list}' || printf '{query}'\n");
    program(&folder, "nvidia-smi", &script);
    folder
}

/// Makes a script a program of a folder.
pub(crate) fn program(folder: &Folder, name: &str, script: &str) {
    let text = folder.file("script", script);
    // Copied by another process: what this one has open for writing, a child of another test may hold open a moment longer.
    let copied = Command::new("install").args(["-m", "755"]).arg(text).arg(folder.0.join(name)).status();
    assert!(copied.expect("install").success());
}

/// Runs on that machine.
fn run(machine: &Folder, mask: Option<&str>, arguments: &[&str]) -> Outcome {
    let path = std::env::var("PATH").expect("a path");
    let mut command = ronde(arguments);
    command.env("PATH", format!("{}:{path}", machine.0.display())).env_remove("CUDA_VISIBLE_DEVICES");
    if let Some(mask) = mask {
        command.env("CUDA_VISIBLE_DEVICES", mask);
    }
    outcome(&mut command)
}

/// What every rank sees, in the order of ranks.
fn seen(machine: &Folder, mask: Option<&str>, flags: &[&str]) -> Vec<String> {
    let arguments = [&["run"], flags, &["sh", "-c", "echo \"$CUDA_VISIBLE_DEVICES\""]].concat();
    let outcome = run(machine, mask, &arguments);
    assert_eq!(outcome.code(), Some(0), "{outcome:?}");
    let mut lines: Vec<String> = outcome.stdout.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn every_rank_gets_gpus_of_its_own() {
    let machine = machine("gpus-own", FOUR);
    let two_each = ["-np", "2", "--gpus-per-rank", "2"];
    assert_eq!(seen(&machine, None, &two_each), ["[0] 0,1", "[1] 2,3"]);
    assert_eq!(seen(&machine, Some("3,GPU-a0,1,0"), &two_each), ["[0] 3,GPU-a0", "[1] 1,0"]);
    let by_env = ["-np", "2", "--gpus-per-rank", "1", "-x", "CUDA_VISIBLE_DEVICES=GPU-d3,GPU-b1"];
    assert_eq!(seen(&machine, Some("0"), &by_env), ["[0] GPU-d3", "[1] GPU-b1"]);
    let twice_here = ["-np", "3", "-H", "localhost:2,127.0.0.1:1", "--gpus-per-rank", "1"];
    assert_eq!(seen(&machine, None, &twice_here), ["[0] 0", "[1] 1", "[2] 2"]);
}

#[test]
fn the_configuration_file_can_ask_for_them_too() {
    let machine = machine("gpus-file", FOUR);
    let file = machine.file("config.yaml", "gpus_per_rank: 2\n");
    let file = file.to_str().expect("a path");
    assert_eq!(seen(&machine, None, &["-np", "2", "--config-file", file]), ["[0] 0,1", "[1] 2,3"]);
    let flag = ["-np", "2", "--config-file", file, "--gpus-per-rank", "1"];
    assert_eq!(seen(&machine, None, &flag), ["[0] 0", "[1] 1"]);
}

#[test]
fn a_divided_gpu_is_handed_out_by_its_instances() {
    let machine = machine("gpus-divided", DIVIDED);
    assert_eq!(seen(&machine, None, &["-np", "2", "--gpus-per-rank", "1"]), ["[0] MIG-1a", "[1] MIG-2b"]);
}

#[test]
fn without_the_flag_nothing_is_changed() {
    let machine = machine("gpus-plain", FOUR);
    assert_eq!(seen(&machine, None, &["-np", "2"]), ["[0] ", "[1] "]);
    assert_eq!(seen(&machine, Some("3,1"), &["-np", "2"]), ["[0] 3,1", "[1] 3,1"]);
}

#[test]
fn too_few_gpus_are_an_error_before_any_rank_runs() {
    let machine = machine("gpus-few", FOUR);
    let outcome = run(&machine, Some("2"), &["run", "-np", "2", "--gpus-per-rank", "1", "echo", "here"]);
    assert_eq!((outcome.code(), outcome.stdout.as_str()), (Some(1), ""), "{outcome:?}");
    let expected = "error: localhost has 4 GPUs, of which CUDA_VISIBLE_DEVICES=2 shows 1; --gpus-per-rank 1 needs 2 for \
                    2 ranks\nhint: start fewer ranks (-np 1), or leave --gpus-per-rank out: ranks may share a GPU\n";
    assert!(outcome.stderr.ends_with(expected), "{}", outcome.stderr);
}

#[test]
fn the_doctor_compares_slots_with_the_gpus_that_are_visible() {
    let machine = machine("gpus-doctor", FOUR);
    let outcome = run(&machine, Some("0,1"), &["doctor", "-H", "localhost:4", "--json"]);
    let report: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    let findings = &report["hosts"][0]["findings"];
    assert_eq!(findings["gpus"].as_array().map(Vec::len), Some(4), "{findings}");
    assert_eq!(findings["visible_gpus"], Value::from(2), "{findings}");
    assert_eq!(findings["visible_devices"], Value::from("0,1"), "{findings}");
}
