//! The thread that takes events from the queue to the file.
//!
//! It wakes by the clock, not by the queue: a queue with a sleeper would make whoever pushes pay for waking it.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use ronde_settings::{Level, log};

use super::Event;
use super::trace::Trace;

/// What the recording threads and the writer tell each other besides events.
#[derive(Default)]
pub(super) struct Signals {
    /// Events that found the queue full.
    pub(super) dropped: AtomicU64,
    stopping: Mutex<bool>,
    bell: Condvar,
}

impl Signals {
    fn stop(&self) {
        *self.stopping.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.bell.notify_all();
    }

    /// Sleeps for a while, or until asked to stop; says whether to stop.
    fn rest(&self, period: Duration) -> bool {
        let stopping = self.stopping.lock().unwrap_or_else(PoisonError::into_inner);
        let rested = self.bell.wait_timeout_while(stopping, period, |stopping| !*stopping);
        *rested.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// The running thread.
pub(super) struct Writer {
    thread: JoinHandle<io::Result<()>>,
    signals: Arc<Signals>,
}

impl Writer {
    pub(super) fn start(
        path: &str,
        mut trace: Trace,
        queue: Receiver<Event>,
        signals: Arc<Signals>,
        period: Duration,
    ) -> io::Result<Writer> {
        let path = path.to_owned();
        let shared = signals.clone();
        let work = move || {
            let written = write(&mut trace, &queue, &shared, period);
            if let Err(error) = &written {
                log(
                    Level::Error,
                    format_args!("the timeline {path} ends here, it cannot be written: {error}"),
                );
            }
            written
        };
        let thread = Builder::new().name("ronde-timeline".to_owned()).spawn(work)?;
        Ok(Writer { thread, signals })
    }

    /// Lets the thread write what there is, and waits for it.
    pub(super) fn finish(self) -> io::Result<()> {
        self.signals.stop();
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("the timeline's thread panicked")))
    }
}

fn write(trace: &mut Trace, queue: &Receiver<Event>, signals: &Signals, period: Duration) -> io::Result<()> {
    loop {
        let stopping = signals.rest(period);
        while let Ok(event) = queue.try_recv() {
            trace.add(event)?;
        }
        if stopping {
            trace.dropped(signals.dropped.load(Relaxed))?;
        }
        trace.flush()?;
        if stopping {
            return Ok(());
        }
    }
}
