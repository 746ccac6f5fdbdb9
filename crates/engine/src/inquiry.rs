//! "What are you doing?", asked of a rank for which the others have waited long.
//!
//! Only the interpreter knows where a script is, and the engine's threads never touch it. So a thread of the interpreter may
//! stand by in [`Inquiries::next`]; it looks at the script's stack and answers. Where there is none the engine answers with
//! what it knows itself.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[derive(Default)]
struct State {
    /// Sets whose leaders have asked.
    waiting: VecDeque<u32>,
    /// Somebody stands by to answer.
    attended: bool,
    closed: bool,
    /// What this rank submitted last, and when.
    last: Option<(Arc<str>, Instant)>,
}

/// See the module's text.
#[derive(Default)]
pub struct Inquiries {
    state: Mutex<State>,
    changed: Condvar,
}

impl Inquiries {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers what was submitted last.
    pub(crate) fn saw(&self, name: &Arc<str>, at: Instant) {
        self.state().last = Some((name.clone(), at));
    }

    /// A set's leader asks. `Some`: the answer, since nobody stands by to give a better one.
    pub(crate) fn ask(&self, set: u32) -> Option<String> {
        let mut state = self.state();
        if state.attended && !state.closed {
            state.waiting.push_back(set);
            self.changed.notify_all();
            return None;
        }
        drop(state);
        Some(self.last_words())
    }

    /// Waits for the next inquiry and returns the set it is for; `None` once the engine ends.
    pub fn next(&self, limit: Duration) -> Option<Option<u32>> {
        let mut state = self.state();
        state.attended = true;
        let deadline = Instant::now() + limit;
        loop {
            if let Some(set) = state.waiting.pop_front() {
                return Some(Some(set));
            }
            if state.closed {
                return None;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Some(None);
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What the engine itself knows about what this rank is doing.
    pub(crate) fn last_words(&self) -> String {
        match &self.state().last {
            Some((name, at)) => {
                format!("last submitted \"{name}\", {} s ago", at.elapsed().as_secs())
            }
            None => "has submitted nothing yet".to_owned(),
        }
    }

    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_an_interpreter_the_engine_answers_with_what_was_submitted_last() {
        let inquiries = Inquiries::default();
        assert_eq!(inquiries.ask(0).as_deref(), Some("has submitted nothing yet"));
        inquiries.saw(&"allreduce.x".into(), Instant::now());
        assert_eq!(inquiries.ask(0).as_deref(), Some("last submitted \"allreduce.x\", 0 s ago"));
    }

    #[test]
    fn whoever_stands_by_gets_the_question_and_hears_of_the_end() {
        let inquiries = Inquiries::default();
        assert_eq!(inquiries.next(Duration::ZERO), Some(None));
        assert_eq!(inquiries.ask(3), None);
        assert_eq!(inquiries.next(Duration::ZERO), Some(Some(3)));
        inquiries.close();
        assert_eq!(inquiries.next(Duration::from_secs(60)), None);
    }
}
