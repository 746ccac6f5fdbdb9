//! What Terraform says: `event.rs` reads its lines, `progress.rs` keeps what they add up to, `command.rs` runs it,
//! `leftovers.rs` finds what an unfinished run has lost. The first two are pure.

pub(crate) mod command;
pub(crate) mod event;
pub(crate) mod leftovers;
pub(crate) mod progress;
