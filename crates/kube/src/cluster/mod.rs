//! What is free: nodes and pods as the API server tells of them, counted as the scheduler counts.
//!
//! `ledger.rs` keeps what matters of every node and pod, and forgets the rest, so that a large cluster fits into little
//! memory; it makes the snapshots that the planner reads. `nodes.rs` and `pods.rs` read the two kinds of objects,
//! `requests.rs` says what a pod takes, `quantity.rs` reads the numbers. All of it is pure.

mod ledger;
mod nodes;
mod pods;
pub(crate) mod quantity;
pub(crate) mod requests;

pub(crate) use ledger::{Claims, GangKey, OwnPods, Promise, STALE};
pub use ledger::{Ledger, Remarks};
pub(crate) use pods::{Claim, Ended, JobKey, OwnPod, PodPhase, Ticket};
