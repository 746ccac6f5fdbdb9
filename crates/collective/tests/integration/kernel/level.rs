//! The environment variable that lowers the level, seen by a process of its own.

use std::process::Command;

use ronde_collective::kernel::{Level, cpu_level};

#[test]
fn the_level_in_use_is_told_by_name() {
    println!("in use: {}.", cpu_level());
    assert_eq!(cpu_level(), Level::current().name());
}

/// What the test above prints in a process with this value of `RONDE_CPU_LEVEL`.
fn level_with(value: &str) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kernel::level::the_level_in_use_is_told_by_name", "--nocapture"])
        .env("RONDE_CPU_LEVEL", value)
        .output()
        .unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_environment_chooses_among_the_levels_the_cpu_has() {
    for level in Level::available() {
        let told = format!("in use: {}.", level.name());
        assert!(level_with(level.name()).contains(&told));
    }
}

#[test]
fn a_level_nobody_knows_is_ignored() {
    let told = format!("in use: {}.", Level::available()[0].name());
    assert!(level_with("abacus").contains(&told));
}
