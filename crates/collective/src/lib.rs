//! Moves bytes between ranks: links, one algorithm a file, reduction kernels.
//!
//! This crate knows nothing of tensor names, negotiation, launchers or Python. A caller gives it the cards of
//! all ranks and a secret ([`fabric`]), forms [`Group`]s of ranks, and calls collectives on byte buffers. From the
//! bottom up:
//!
//! | Module | What it is |
//! |---|---|
//! | [`types`], [`kernel`] | element types, and the vectorised folding and copying of memory |
//! | `memory` | sealed memory that processes of one host map |
//! | `host` | shared memory between the ranks of one host: signals, segments, streaming in chunks |
//! | `net` | TCP wires between hosts, and the one non-blocking loop that drives them |
//! | [`fabric`] | who reaches whom and how; noticing death; secrets are proven here |
//! | `algorithm` | how each collective moves its bytes over `host` and `net`, and the table that chooses |
//! | `control` | [`Tree`]: small messages up to one leader and down again, for agreeing on what to do next |
//! | [`Part`] | one tensor of a batch, by address |
//! | `annex` | what those who move bytes by other means need of a group: subsets, descriptors, word of a loss |
//! | [`Group`] | the collectives, checked and guarded: after a failure every call says what failed first |

mod algorithm;
mod annex;
mod control;
mod error;
pub mod fabric;
mod group;
mod host;
pub mod kernel;
mod memory;
mod net;
mod parts;
pub mod types;

pub use annex::{Alarm, Pages};
pub use control::{Bell, Sleeper, Tree};
pub use error::{Error, Result};
pub use fabric::{Card, Fabric, Interrupt, LinkKind, Listening, Route, Routes};
pub use group::{Group, Reduction, rows_of};
pub use parts::{GatherPart, Part, ScatterPart};
