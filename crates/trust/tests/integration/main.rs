//! The job's secret, and connections that prove it.

mod connections;
mod secret;
