//! The Kubernetes manager: asks for GPUs, trains, gives them back.
//!
//! Inside is what decides, and it is pure: `cluster` counts what is free, `job` says what a job is and makes its objects,
//! `course` takes what is observed and returns what to do, with the reason. At the rim is what speaks to the API server:
//! `view.rs` watches, `act.rs` does what was decided, `manager.rs` goes from one to the other. `run.rs` is a job from the
//! command line, with `progress.rs` and `follow.rs` for what people see, and `remains.rs` for what is left of such jobs;
//! `survey.rs` looks once. `clock.rs` knows what time it is there, `fingerprint.rs` makes a number of text.
//! `controller` looks after `RondeJob`s, in the order of `queue.rs`; `manifests.rs` and `install.rs` bring it into a cluster.

mod act;
mod clock;
pub mod cluster;
mod connect;
mod controller;
mod course;
mod error;
#[cfg(test)]
mod fake;
mod fingerprint;
mod follow;
mod install;
pub mod job;
mod manager;
mod manifests;
mod progress;
mod queue;
mod remains;
mod run;
mod survey;
mod view;

pub use connect::{Connection, Which, connect};
pub use controller::{Controller, control};
pub use error::{Error, remarks};
pub use install::{install, uninstall};
pub use manifests::{MANAGER, manifests, yaml};
pub use run::{Order, run};
pub use survey::survey;
