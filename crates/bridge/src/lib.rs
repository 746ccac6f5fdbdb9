//! What a plug-in library of a framework and the engine say to each other.
//!
//! A process has one engine, in the extension module, whatever frameworks it imports. A plug-in is a library of its own, which
//! a framework loads; it holds no state of a job. Both are built together but linked apart, so only C crosses between them:
//! [`table::Table`], a struct of function pointers, which Python gives the plug-in when it has loaded it.
//!
//! | Module | What it is |
//! |---|---|
//! | [`table`] | the C side: functions, and the structs they take |
//! | [`Engine`] | what a plug-in calls: the table as Rust, with requests, replies and closures |
//!
//! The extension module fills the table in (`crates/python/src/bridge.rs`).

mod plugin;
pub mod table;

pub use plugin::{Engine, Failure, Reply, Request, Rows, Tensor};
pub use ronde_collective::types::{DType, ReduceOp};
pub use table::{Cause, Kind, Place, Table};
