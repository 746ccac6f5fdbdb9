//! Every environment variable Ronde knows, and what they say.
//!
//! The [`registry`] is the one place where variables are described: name, kind, default, meaning, and whether Ronde
//! honours it. The page `docs/variables.md` is generated from it ([`page`]), and a test compares the two. [`Settings`] is
//! what the engine needs of them, read once; whatever is to be said about a variable (a value that cannot be read, a
//! feature that Ronde does not have) comes back as [`Note`]s and is shown once, by rank 0. [`log()`] writes lines the way
//! the variables ask.
//!
//! Nothing here opens a file or a socket: variables come in through a function, so that tests need no environment.

mod gpu_path;
mod log;
mod moment;
mod note;
pub mod page;
mod reading;
pub mod registry;
mod settings;
pub mod value;
mod variable;

pub use gpu_path::GpuPath;
pub use log::{Level, configure, enabled, log};
pub use moment::timestamp;
pub use note::Note;
pub use reading::Reading;
pub use settings::{Settings, TimelineTarget};
pub use variable::{Group, Kind, Status, Variable};
