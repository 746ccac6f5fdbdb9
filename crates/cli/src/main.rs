//! The `ronde` command line, and `horovodrun` when called by that name.
//!
//! `args.rs` says what can be typed, `invocation.rs` turns what was typed into something clap can
//! read, and each verb has its own file. What the verbs do lives in the libraries; here are only
//! the words and the exit status (`status.rs`).

mod args;
mod check_build;
mod invocation;
mod rendezvous;
mod run;
mod status;
mod timeline;
mod trace;

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
        Verb::Run(args) => run::run(args, invocation.name),
        Verb::Rendezvous(args) => rendezvous::rendezvous(&args),
        Verb::Timeline(args) => timeline::timeline(&args),
    };
    status.into()
}
