//! `ronde cluster`: machines of a cloud, or ones you have, become a cluster that trains, and are given back.
//!
//! A program of its own beside `ronde`, which hands over to it. What makes a cluster is Terraform and Ansible, in a folder
//! that works without this program, too (`deploy/openstack`; `embedded.rs` carries it). Here is what people meet: the
//! folder (`folder.rs`, `variables.rs`, `wheel.rs`), what goes on (`terraform/`, `ansible.rs`, `playbook.rs`, shown by
//! `screen.rs`) and why it fails (`cause/`), the machines afterwards (`inventory.rs`, `remote.rs`), and one file a verb
//! (`verbs/`). `process.rs` runs the other programs, so that they can be stopped and leave nothing.

mod ansible;
mod args;
mod cause;
mod embedded;
mod error;
mod folder;
mod inventory;
mod playbook;
mod process;
mod remote;
mod screen;
mod terraform;
mod variables;
mod verbs;
mod wheel;
mod words;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use crate::args::{ClusterArgs, ClusterVerb};
use crate::error::Error;
use crate::verbs::{down, init, jupyter, run, ssh, status, up};

/// Does what was typed and returns what to exit with.
pub fn command_line(words: impl Iterator<Item = OsString>) -> ExitCode {
    let done = |result: Result<(), Error>| result.map(|()| ExitCode::SUCCESS);
    let result = match ClusterArgs::parse_from(with_long_np(words)).verb {
        ClusterVerb::Init(args) => done(init::init(*args)),
        ClusterVerb::Plan(args) => done(up::plan(&args)),
        ClusterVerb::Up(args) => done(up::up(&args)),
        ClusterVerb::Status(args) => status::status(&args),
        ClusterVerb::Ssh(args) => done(ssh::ssh(&args)),
        ClusterVerb::Jupyter(args) => done(jupyter::jupyter(&args)),
        ClusterVerb::Run(args) => run::run(&args),
        ClusterVerb::Scale(args) => done(up::scale(&args)),
        ClusterVerb::Down(args) => done(down::down(&args)),
    };
    result.unwrap_or_else(|error| {
        let _ = std::io::stderr().write_all(error.render().as_bytes());
        ExitCode::from(error.status())
    })
}

/// `-np` is what everybody types, and what clap would read as `-n p`. What is behind `--` is somebody else's.
fn with_long_np(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut is_ours = true;
    let long = |word: OsString| {
        is_ours &= word != "--";
        if is_ours && word == "-np" { "--np".into() } else { word }
    };
    words.map(long).collect()
}
