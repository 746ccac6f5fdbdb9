//! Operations of one name, one after the other.
//!
//! The engine of the job knows an operation by its name, which only one at a time may have. Scripts, however, use a name in
//! every step, and MXNet may have several steps in its queue. So those of one name wait here for each other, in the order in
//! which the script called them, which is the same on all ranks; the order in which MXNet finds their arrays ready is not.
//!
//! No operation can wait here for one that waits for it in MXNet: what was pushed first depends on nothing that came later.

use std::collections::{HashMap, VecDeque};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// Process set and name.
type Key = (u32, String);
type Start = Box<dyn FnOnce() + Send>;
type Lines = HashMap<Key, Line>;

/// How far an operation is.
enum Place {
    /// In MXNet's queue, or running.
    Pushed,
    /// MXNet has called it, but it has to wait for those before it.
    Ready(Start),
    /// It has ended, or was skipped.
    Over,
}

/// The operations of one name; the first may run.
#[derive(Default)]
struct Line {
    /// The number of the first.
    first: u64,
    places: VecDeque<Place>,
}

static LINES: LazyLock<Mutex<Lines>> = LazyLock::new(Mutex::default);

fn lines() -> MutexGuard<'static, Lines> {
    // Nothing is called while this is held that could leave a line half changed.
    LINES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A place in line; dropping it lets the next one run.
pub(crate) struct Turn {
    key: Key,
    number: u64,
}

impl Turn {
    /// Takes the last place in the line of a name.
    pub(crate) fn take(set: u32, name: &str) -> Turn {
        let key = (set, name.to_owned());
        let mut lines = lines();
        let line = lines.entry(key.clone()).or_default();
        line.places.push_back(Place::Pushed);
        Turn { number: line.first + line.places.len() as u64 - 1, key }
    }

    /// Calls a function when it is this one's turn: now, or when those before have ended.
    pub(crate) fn wait(&self, start: impl FnOnce() + Send + 'static) {
        let mut lines = lines();
        if let Some(line) = lines.get_mut(&self.key)
            && line.first < self.number
        {
            line.places[(self.number - line.first) as usize] = Place::Ready(Box::new(start));
            return;
        }
        drop(lines);
        start();
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut lines = lines();
        let next = lines.get_mut(&self.key).and_then(|line| line.leave(self.number));
        if lines.get(&self.key).is_some_and(|line| line.places.is_empty()) {
            lines.remove(&self.key);
        }
        drop(lines);
        if let Some(start) = next {
            start();
        }
    }
}

impl Line {
    /// Notes that an operation is over, and returns what to call if the first one has been waiting for that.
    fn leave(&mut self, number: u64) -> Option<Start> {
        self.places[(number - self.first) as usize] = Place::Over;
        while let Some(Place::Over) = self.places.front() {
            self.places.pop_front();
            self.first += 1;
        }
        let first = self.places.front_mut()?;
        match std::mem::replace(first, Place::Pushed) {
            Place::Ready(start) => Some(start),
            Place::Pushed | Place::Over => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::Turn;

    /// Turns of a name, and what has run so far.
    fn turns<const N: usize>(name: &str) -> ([Option<Turn>; N], Arc<Mutex<Vec<usize>>>) {
        (std::array::from_fn(|_| Some(Turn::take(0, name))), Arc::default())
    }

    fn ready(turn: &Option<Turn>, number: usize, ran: &Arc<Mutex<Vec<usize>>>) {
        let ran = ran.clone();
        turn.as_ref().expect("not over").wait(move || ran.lock().expect("no panic").push(number));
    }

    #[test]
    fn those_that_come_early_wait_for_those_before() {
        let (mut turns, ran) = turns::<3>("early");
        ready(&turns[2], 2, &ran);
        ready(&turns[1], 1, &ran);
        assert_eq!(*ran.lock().expect("no panic"), []);
        ready(&turns[0], 0, &ran);
        assert_eq!(*ran.lock().expect("no panic"), [0]);
        turns[0] = None;
        assert_eq!(*ran.lock().expect("no panic"), [0, 1]);
        turns[1] = None;
        assert_eq!(*ran.lock().expect("no panic"), [0, 1, 2]);
    }

    #[test]
    fn those_that_are_skipped_hold_up_nobody() {
        let (mut turns, ran) = turns::<3>("skipped");
        turns[1] = None;
        ready(&turns[2], 2, &ran);
        assert_eq!(*ran.lock().expect("no panic"), []);
        turns[0] = None;
        assert_eq!(*ran.lock().expect("no panic"), [2]);
    }

    #[test]
    fn other_names_and_sets_are_other_lines() {
        let (turns, ran) = turns::<1>("one");
        let other = Some(Turn::take(1, "one"));
        ready(&other, 1, &ran);
        ready(&Some(Turn::take(0, "another")), 2, &ran);
        assert_eq!(*ran.lock().expect("no panic"), [1, 2]);
        drop(turns);
    }

    #[test]
    fn a_line_that_has_ended_begins_anew() {
        let (turns, ran) = turns::<2>("again");
        drop(turns);
        ready(&Some(Turn::take(0, "again")), 5, &ran);
        assert_eq!(*ran.lock().expect("no panic"), [5]);
    }
}
