//! The queue in front of a connection, and the thread that empties it.
//!
//! Control messages are never held up by output: they have a queue of their own, which goes first. The queue for output
//! is short, and whoever fills it waits; nobody else does.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use serde::Serialize;

use super::Outgoing;
use crate::Error;

/// How many messages of output may wait.
const SHORT: usize = 16;

/// Takes messages of type `T`; copies share the queue.
pub(crate) struct Outbox<T>(Arc<Shared<T>>);

impl<T> Clone for Outbox<T> {
    fn clone(&self) -> Outbox<T> {
        Outbox(Arc::clone(&self.0))
    }
}

struct Shared<T> {
    queues: Mutex<Queues<T>>,
    changed: Condvar,
}

struct Queues<T> {
    control: VecDeque<T>,
    output: VecDeque<T>,
    closed: bool,
    /// Nothing more will be written, because it cannot be or because all is.
    ended: bool,
}

impl<T: Serialize + Send + 'static> Outbox<T> {
    /// Starts the thread that writes. While nothing else is sent for `beat`, what `keep_alive` makes is.
    pub(crate) fn start(
        mut outgoing: Outgoing,
        beat: Duration,
        keep_alive: impl Fn() -> T + Send + 'static,
    ) -> Result<Outbox<T>, Error> {
        let queues =
            Queues { control: VecDeque::new(), output: VecDeque::new(), closed: false, ended: false };
        let shared = Arc::new(Shared { queues: Mutex::new(queues), changed: Condvar::new() });
        let outbox = Outbox(Arc::clone(&shared));
        thread::Builder::new()
            .name("ronde-outbox".to_owned())
            .spawn(move || {
                while let Some(message) = shared.next(beat, &keep_alive) {
                    if outgoing.send(&message).is_err() {
                        break;
                    }
                }
                shared.lock().ended = true;
                shared.changed.notify_all();
            })
            .map_err(Error::system("start a thread"))?;
        Ok(outbox)
    }

    /// Sends a control message, before all output that waits. Never waits.
    pub(crate) fn send(&self, message: T) {
        let mut queues = self.0.lock();
        if !queues.ended {
            queues.control.push_back(message);
            self.0.changed.notify_all();
        }
    }

    /// Sends output, after all that was sent before. Waits for room; `false` if nobody will ever read it.
    pub(crate) fn send_output(&self, message: T) -> bool {
        let mut queues = self.0.lock();
        while queues.output.len() >= SHORT && !queues.ended {
            queues = self.0.changed.wait(queues).unwrap_or_else(PoisonError::into_inner);
        }
        if queues.ended {
            return false;
        }
        queues.output.push_back(message);
        self.0.changed.notify_all();
        true
    }

    /// Sends output without waiting: for those who bound what is on its way themselves.
    pub(crate) fn send_bulk(&self, message: T) {
        let mut queues = self.0.lock();
        if !queues.ended {
            queues.output.push_back(message);
            self.0.changed.notify_all();
        }
    }

    /// Takes nothing more and waits until everything is written, or cannot be, or `limit` has passed.
    pub(crate) fn finish(&self, limit: Duration) {
        let mut queues = self.0.lock();
        queues.closed = true;
        self.0.changed.notify_all();
        let unwritten = |queues: &mut Queues<T>| !queues.ended;
        drop(self.0.changed.wait_timeout_while(queues, limit, unwritten));
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, Queues<T>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next message to write; `None` once closed and empty.
    fn next(&self, beat: Duration, keep_alive: &impl Fn() -> T) -> Option<T> {
        let mut queues = self.lock();
        loop {
            if let Some(message) = queues.control.pop_front() {
                return Some(message);
            }
            if let Some(message) = queues.output.pop_front() {
                self.changed.notify_all();
                return Some(message);
            }
            if queues.closed {
                return None;
            }
            let (waited, timeout) =
                self.changed.wait_timeout(queues, beat).unwrap_or_else(PoisonError::into_inner);
            queues = waited;
            if timeout.timed_out() && queues.control.is_empty() && queues.output.is_empty() && !queues.closed
            {
                return Some(keep_alive());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::pipe::pipe;

    use super::super::Incoming;
    use super::*;

    #[test]
    fn control_overtakes_output_and_beats_fill_silence() {
        let (reading, writing) = pipe().expect("a pipe");
        let mut incoming = Incoming::Pipe(File::from(reading));
        let outbox: Outbox<String> =
            Outbox::start(Outgoing::Pipe(File::from(writing)), Duration::from_millis(20), || "beat".into())
                .expect("a thread");
        assert_eq!(incoming.receive::<String>().expect("a beat"), "beat");
        // A message larger than the pipe holds the thread up, so that the order of the rest shows.
        let large = "x".repeat(1 << 20);
        assert!(outbox.send_output(large.clone()));
        assert!(outbox.send_output("output".to_owned()));
        outbox.send("control".to_owned());
        let mut received = Vec::new();
        while received.last().map(String::as_str) != Some("output") {
            let message: String = incoming.receive().expect("a message");
            if message != "beat" {
                received.push(message);
            }
        }
        let place = |wanted: &str| received.iter().position(|message| message == wanted);
        assert!(
            place("control") < place("output"),
            "{:?}",
            received.iter().map(String::len).collect::<Vec<_>>()
        );
        outbox.finish(Duration::from_secs(10));
        assert!(matches!(incoming.receive::<String>(), Err(super::super::WireError::Closed)));
        assert!(!outbox.send_output("late".to_owned()));
    }
}
