//! The timeline: what happened to each tensor and when, as a trace for `chrome://tracing` and Perfetto.
//!
//! Recording must not slow the job. An event is a clock reading and a push into a bounded queue that nobody sleeps on, so
//! recording never enters the kernel and never waits: when the queue is full, the event is dropped and counted. A thread of
//! its own (`writer.rs`) empties the queue twenty times a second and appends to the file (`trace.rs`), which is a complete JSON
//! array after every write, whatever happens to the process.
//!
//! The events of one tensor are nested: `NEGOTIATE_ALLREDUCE` while ranks agree, with a mark for each rank that is ready;
//! then `ALLREDUCE`, and inside it what is done (activities). Rank 0 alone writes, unless the name of the file holds
//! `{rank}`: then every rank writes its own file, and `ronde timeline merge` makes one of them.

mod trace;
mod writer;

use std::fs::File;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use trace::{Opening, Trace};
use writer::{Signals, Writer};

/// How many events wait for the writer at most: enough for a million a second.
const CAPACITY: usize = 64 * 1024;

/// How often the writer looks for events.
const PERIOD: Duration = Duration::from_millis(50);

/// What stands for the rank in the name of the file.
const RANK: &str = "{rank}";

/// Something that happened, and when: microseconds since the timeline was opened.
struct Event {
    at: u64,
    what: What,
}

enum What {
    NegotiateStart { name: Arc<str>, kind: &'static str },
    RankReady { name: Arc<str>, rank: usize },
    NegotiateEnd { name: Arc<str> },
    Start { name: Arc<str>, kind: &'static str },
    ActivityStart { name: Arc<str>, activity: &'static str },
    ActivityEnd { name: Arc<str> },
    End { name: Arc<str>, dtype: &'static str, shape: Box<[usize]> },
    Cycle,
}

/// An open timeline. All methods may be called from any thread; names are taken as `Arc<str>` where the caller has one, which
/// costs no copy.
pub struct Timeline {
    events: SyncSender<Event>,
    opened: Instant,
    mark_cycles: bool,
    signals: Arc<Signals>,
    writer: Mutex<Option<Writer>>,
    /// A forked child has the timeline, but not its thread.
    process: u32,
}

impl Timeline {
    /// Creates the file and starts recording; `None` if this rank has none to write: rank 0 writes `path`, and where `path`
    /// holds `{rank}`, every rank writes its own. `clock_offset_us` is what must be added to this host's clock to have that
    /// of rank 0; it is kept in the file for merging.
    pub fn open(
        path: &str,
        rank: usize,
        mark_cycles: bool,
        clock_offset_us: i64,
    ) -> io::Result<Option<Timeline>> {
        if rank != 0 && !path.contains(RANK) {
            return Ok(None);
        }
        let path = path.replace(RANK, &rank.to_string());
        Timeline::record(&path, rank, mark_cycles, clock_offset_us, CAPACITY, PERIOD).map(Some)
    }

    fn record(
        path: &str,
        rank: usize,
        mark_cycles: bool,
        clock_offset_us: i64,
        capacity: usize,
        period: Duration,
    ) -> io::Result<Timeline> {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let opened = Instant::now();
        let start = u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX);
        let trace = Trace::begin(File::create(path)?, &Opening { rank, start, clock_offset_us })?;
        let (events, queue) = sync_channel(capacity);
        let signals = Arc::new(Signals::default());
        let writer = Writer::start(path, trace, queue, signals.clone(), period)?;
        Ok(Timeline {
            events,
            opened,
            mark_cycles,
            signals,
            writer: Mutex::new(Some(writer)),
            process: std::process::id(),
        })
    }

    /// This rank offers a tensor: `kind` (`ALLREDUCE`) is to be agreed on.
    pub fn negotiate_start(&self, name: impl Into<Arc<str>>, kind: &'static str) {
        self.push(What::NegotiateStart { name: name.into(), kind });
    }

    /// A rank has offered the tensor.
    pub fn negotiate_rank_ready(&self, name: impl Into<Arc<str>>, rank: usize) {
        self.push(What::RankReady { name: name.into(), rank });
    }

    /// All ranks have offered the tensor.
    pub fn negotiate_end(&self, name: impl Into<Arc<str>>) {
        self.push(What::NegotiateEnd { name: name.into() });
    }

    /// Work on the tensor begins.
    pub fn start(&self, name: impl Into<Arc<str>>, kind: &'static str) {
        self.push(What::Start { name: name.into(), kind });
    }

    /// A part of the work begins, such as `MEMCPY_IN_FUSION_BUFFER`. Activities of a tensor may be nested.
    pub fn activity_start(&self, name: impl Into<Arc<str>>, activity: &'static str) {
        self.push(What::ActivityStart { name: name.into(), activity });
    }

    /// The part that began last ends.
    pub fn activity_end(&self, name: impl Into<Arc<str>>) {
        self.push(What::ActivityEnd { name: name.into() });
    }

    /// Work on the tensor ends, and with it everything of it that is still open.
    pub fn end(&self, name: impl Into<Arc<str>>, dtype: &'static str, shape: &[usize]) {
        self.push(What::End { name: name.into(), dtype, shape: shape.into() });
    }

    /// The engine looks for work. Recorded only if asked for when the timeline was opened.
    pub fn mark_cycle(&self) {
        if self.mark_cycles {
            self.push(What::Cycle);
        }
    }

    /// How many events found the queue full and are missing from the file.
    pub fn dropped(&self) -> u64 {
        self.signals.dropped.load(Relaxed)
    }

    /// Writes what is recorded and closes the file. Later events go nowhere. An error is the first that writing met; the
    /// log has it already. Called again, it does nothing.
    pub fn stop(&self) -> io::Result<()> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        match writer {
            Some(writer) if self.process == std::process::id() => writer.finish(),
            _ => Ok(()),
        }
    }

    fn push(&self, what: What) {
        let at = u64::try_from(self.opened.elapsed().as_micros()).unwrap_or(u64::MAX);
        if let Err(TrySendError::Full(_)) = self.events.try_send(Event { at, what }) {
            self.signals.dropped.fetch_add(1, Relaxed);
        }
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        // Whoever wants to know how it went calls `stop`; the log has it in any case.
        let _ = self.stop();
    }
}

#[cfg(test)]
mod tests;
