//! The collectives and their parts, with ranks as threads.

mod collectives;
mod common;
mod control;
mod kernel;
mod model;
mod parts;
mod routes;
