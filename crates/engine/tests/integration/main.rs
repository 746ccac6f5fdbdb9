//! The engine with real links and ranks as threads, and the negotiation on a simulated network.
//!
//! `death.rs` and `timeline_killed.rs` are programs of their own, since their ranks are processes that get killed.

mod device;
mod negotiation;
mod operations;
mod ranks;
mod routes;
mod sets;
mod told;
mod turns;
