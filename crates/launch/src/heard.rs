//! When the other end of a connection was last heard of.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// The moment of the last message.
#[derive(Debug)]
pub(crate) struct Heard(Mutex<Instant>);

impl Heard {
    pub(crate) fn now() -> Heard {
        Heard(Mutex::new(Instant::now()))
    }

    /// A message came.
    pub(crate) fn again(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// How long nothing has come.
    pub(crate) fn silence(&self) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}
