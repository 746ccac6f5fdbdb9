//! Decides what runs when: requests from all ranks in, an agreed order of fused batches out, carried out by
//! `ronde-collective`.
//!
//! | Module | What it is |
//! |---|---|
//! | `job` | how a process becomes part of a job: rendezvous, then links |
//! | [`Network`] | what the launcher says about reaching other ranks, and where this one listens |
//! | [`negotiation`] | the pure state machine: which requests meet, in which order they run, what is fused |
//! | `seat` | this rank's seat in one process set: a thread, a control tree, a group, and one negotiation |
//! | `turns` | one order for what process sets start on devices |
//! | `operation`, `inbox`, `tickets` | what was submitted, where it waits to be taken up, and how the negotiation names it |
//! | `flag`, `teller` | how callers learn of its end: they wait, or are told |
//! | `execute` | an agreed batch becomes calls of the data plane |
//! | [`device`] | the seam to devices: readiness and completion as events |
//! | `common` | what all sets of a rank share: links, the table of sets, settings |
//! | `watch`, [`timeline`], `inquiry` | what people see: traces, and answers to "what are you doing?" |
//! | [`Engine`] | all of it, as the Python crate calls it; `blocking` has its collectives on slices |

mod blocking;
mod buffer;
mod common;
pub mod device;
mod engine;
mod error;
mod execute;
mod flag;
mod hasher;
mod inbox;
mod inquiry;
mod job;
pub mod negotiation;
mod network;
mod operation;
mod seat;
mod teller;
mod tickets;
pub mod timeline;
mod turns;
mod watch;

pub use buffer::Buffer;
pub use engine::{Engine, Handle};
pub use error::Error;
pub use hasher::{QuickHasher, QuickState};
pub use inquiry::Inquiries;
pub use negotiation::{Device, Kind};
pub use network::{MEMORY_DOMAIN, Network};
pub use operation::{Finished, Memory, Rows, Submission, Tensor};
pub use ronde_collective::{Interrupt, LinkKind};
pub use ronde_rendezvous::Place;
pub use ronde_settings::Settings;
