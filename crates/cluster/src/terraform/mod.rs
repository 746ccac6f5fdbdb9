//! What Terraform says and what it means: `event.rs` reads its lines, `progress.rs` keeps what they add up to,
//! `cause.rs` finds the reason and the fix behind its errors, `command.rs` runs it, `leftovers.rs` finds what an unfinished run has lost.
//! The first three are pure.

pub(crate) mod cause;
pub(crate) mod command;
pub(crate) mod event;
pub(crate) mod leftovers;
pub(crate) mod progress;
