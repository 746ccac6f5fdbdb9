//! The `ronde` command line, and `horovodrun` when called by that name.
//!
//! `args.rs` says what can be typed, `invocation.rs` turns what was typed into something clap can
//! read, and each verb has its own file. What the verbs do lives in the libraries; here are only
//! the words (`notes.rs`, `problem.rs`) and the exit status (`status.rs`). The run verb has files for
//! what goes into its request: `allocation.rs`, `tuning.rs`, `config_file.rs`, `controller.rs`,
//! `elastic.rs`.

mod agent;
mod allocation;
mod args;
mod beside;
mod check_build;
mod config_file;
mod controller;
mod doctor;
mod elastic;
mod invocation;
mod notes;
mod over_ssh;
mod problem;
mod rendezvous;
mod run;
mod setup_ssh;
mod status;
mod timeline;
mod trace;
mod tuning;

use std::process::ExitCode;

use args::Verb;

fn main() -> ExitCode {
    let invocation = match invocation::read(std::env::args_os()) {
        Ok(invocation) => invocation,
        // Clap knows where to print (help and version are no errors) and how to exit.
        Err(error) => error.exit(),
    };
    let status = match invocation.verb {
        Verb::Run(args) if args.check_build => check_build::check_build(args.verbose),
        Verb::Run(args) => run::run(*args, invocation.name),
        Verb::Doctor(args) => doctor::doctor(args),
        Verb::SetupSsh(args) => setup_ssh::setup_ssh(args),
        Verb::Agent(args) => agent::agent(args),
        Verb::Rendezvous(args) => rendezvous::rendezvous(&args),
        Verb::Timeline(args) => timeline::timeline(&args),
        Verb::Kube(args) => beside::hand_over("ronde-kube", args),
        Verb::Cluster(args) => beside::hand_over("ronde-cluster", args),
        Verb::OverSsh(args) => over_ssh::over_ssh(args),
    };
    status.into()
}
