//! Which nodes a job's GPUs come from: a pure planner that gives its reasons.
//!
//! A [`Snapshot`] of the cluster and a [`Request`] go in; [`plan()`] gives a [`Plan`] or a [`Refusal`], and both say of every
//! node what became of it. No clock, no network, no randomness: equal input gives equal output, in whatever order the nodes
//! are listed. [`draw_plan`] and [`draw_refusal`] make of it what people see.
//!
//! # What is the best plan
//! A node can give as many of its free GPUs as the request's limit for a node, its CPU and its memory allow; none if it is
//! cordoned, not ready, tainted, not selected, ruled out by affinity, left out or takes no more pods. A plan hands out all GPUs or none: as many as
//! can be had between the request's `min` and `max`, inside one domain of the topology level that is required, if one is.
//! Among these plans each policy compares a list of aims, where each aim only breaks ties of those before it:
//!
//! | | `pack` | `balance` | `spread` | `in-order` |
//! |---|---|---|---|---|
//! | 1 | fewest domains of every level | fewest domains of every level | most nodes | – |
//! | 2 | fewest nodes | fewest nodes | largest share smallest | – |
//! | 3 | | largest share smallest | smallest share largest | – |
//! | 4 | | smallest share largest | fewest domains of every level | – |
//! | 5 | fewest free GPUs on them | fewest free GPUs on them | fewest free GPUs on them | – |
//! | 6 | first by topology and name | first by topology and name | first by topology and name | – |
//!
//! * Domains: those of the outermost level first, then those inside it and so on. Levels inside one that is preferred do not
//!   count; a node without the level's label is a domain of its own.
//! * *Fewest free GPUs on them* is the tightest fit for the last share: all others are full, so what stays free is left on
//!   its node. Large holes survive for large jobs. 6 over 5, 3 and 2 is 5 on the first and 1 on the third.
//! * *First*: nodes stand in order of their domains' names, then of their own; the plan with the earlier node wins.
//! * Which of the nodes gives how much: `pack` fills them, those that can give the most first. `balance` and `spread` take
//!   equally of all, and what does not divide of those that can give the most. Equal nodes come by name.
//! * `in-order` fills the nodes that can give the most one after the other, equal ones by name, whatever the topology; if one
//!   domain is required, in the first domain where that takes the fewest nodes.
//!
//! Shares are listed by size, and the last and smallest one is the chief's.
//!
//! # How it is found
//! `survey.rs` looks at each node, `field.rs` orders those that can give something, `policy.rs` turns a policy into questions
//! for `cheapest.rs`, which cuts down the field by `bounds.rs` and asks `cover.rs`, an exact search. `explain.rs` gives reasons.

mod affinity;
mod bounds;
mod cheapest;
mod cover;
mod draw;
mod explain;
mod field;
mod plan;
mod planner;
mod policy;
mod reason;
mod request;
mod snapshot;
mod survey;

pub use affinity::{Requirement, Subject, Term, Test};
pub use draw::{Paper, draw_plan, draw_refusal};
pub use plan::{Alternative, Cause, Plan, Refusal, Share, Verdict};
pub use planner::plan;
pub use reason::{Holding, Reason};
pub use request::{DEFAULT_RESOURCE, MOST_GPUS, NoSuchPolicy, Policy, Request, Toleration, Topology};
pub use snapshot::{
    Effect, Gpus, Holder, MOST_GPUS_OF_A_NODE, MOST_LEVELS, MOST_NODES, Node, Snapshot, SnapshotError, Taint,
    VERSION,
};
