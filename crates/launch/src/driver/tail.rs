//! The end of what a process said on its standard error, kept for when it matters.

use std::io::Read;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// How much is kept.
const KEPT: usize = 16 << 10;

/// Copies share the same text.
#[derive(Clone)]
pub(crate) struct Tail(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    text: Vec<u8>,
    ended: bool,
}

impl Tail {
    /// Reads a stream to its end, on a thread of its own.
    pub(super) fn of(mut stream: impl Read + Send + 'static) -> std::io::Result<Tail> {
        let tail = Tail(Arc::default());
        let shared = tail.clone();
        thread::Builder::new().name("ronde-complaints".to_owned()).spawn(move || {
            let mut buffer = [0; 4096];
            let (state, changed) = &*shared.0;
            loop {
                let length = stream.read(&mut buffer).unwrap_or(0);
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                state.text.extend_from_slice(&buffer[..length]);
                let excess = state.text.len().saturating_sub(KEPT);
                state.text.drain(..excess);
                if length == 0 {
                    state.ended = true;
                    changed.notify_all();
                    return;
                }
            }
        })?;
        Ok(tail)
    }

    /// What was said, once the stream has ended or `limit` has passed.
    pub(super) fn text(&self, limit: Duration) -> String {
        let (state, changed) = &*self.0;
        let state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = changed.wait_timeout_while(state, limit, |state| !state.ended);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&state.text).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_kept_and_awaited() {
        let long = format!("{}last", "x".repeat(2 * KEPT));
        let tail = Tail::of(std::io::Cursor::new(long.into_bytes())).expect("a thread");
        let text = tail.text(Duration::from_secs(10));
        assert!(text.ends_with("last") && text.len() == KEPT, "{}", text.len());
    }
}
