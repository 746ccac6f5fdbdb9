//! The file: one JSON array of trace events, one a line.
//!
//! Every flush is one write that begins where the closing bracket stands and ends with a new one, so the file is a whole
//! array before and after it. A tensor is a "process" of the trace: Chrome then gives it a row of its own. Process 0 is the
//! rank itself; its name opens the file and carries when, by which clock and on which rank it was written.
//!
//! Events may be missing where the queue was full, so the trace keeps count of what is open of each tensor and never writes
//! an end without a beginning.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use serde::Serialize;

use super::{Event, What};

/// What closes the array.
const CLOSING: &[u8] = b"\n]\n";

/// More than this is not kept in memory before it is written.
const FULL: usize = 1 << 20;

/// The process of the trace that stands for the rank itself.
const RANK_ITSELF: u32 = 0;

/// Who writes, and when and by which clock it began.
pub(super) struct Opening {
    pub(super) rank: usize,
    /// Microseconds since 1970 by the clock of this host.
    pub(super) start: u64,
    pub(super) clock_offset_us: i64,
}

/// A timeline's file.
pub(super) struct Trace {
    file: File,
    /// Where the closing bracket begins.
    end: u64,
    pending: Vec<u8>,
    tensors: HashMap<Arc<str>, Tensor>,
}

/// What the trace knows of a tensor: the process it is, and how many of its events are open.
#[derive(Clone, Copy)]
struct Tensor {
    pid: u32,
    open: u32,
}

/// One event as Chrome's trace format has it.
#[derive(Serialize)]
struct Record<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    ph: char,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<u64>,
    /// How far an instant reaches: `g`, all processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<char>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Args<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Args<'a> {
    Opening { name: String, start_time_since_epoch_in_micros: u64, clock_offset_in_micros: i64, rank: usize },
    Name { name: &'a str },
    Order { sort_index: u32 },
    Tensor { dtype: &'static str, shape: String },
    Dropped { events: u64 },
}

impl<'a> Record<'a> {
    fn new(ph: char, pid: u32) -> Record<'a> {
        Record { name: None, ph, pid, ts: None, dur: None, s: None, args: None }
    }

    fn metadata(name: &'a str, pid: u32, args: Args<'a>) -> Record<'a> {
        Record { name: Some(name), args: Some(args), ..Record::new('M', pid) }
    }
}

impl Trace {
    /// Writes the opening of an empty file.
    pub(super) fn begin(file: File, opening: &Opening) -> io::Result<Trace> {
        let mut trace = Trace { file, end: 0, pending: b"[\n".to_vec(), tensors: HashMap::new() };
        let args = Args::Opening {
            name: format!("rank {}", opening.rank),
            start_time_since_epoch_in_micros: opening.start,
            clock_offset_in_micros: opening.clock_offset_us,
            rank: opening.rank,
        };
        serde_json::to_writer(&mut trace.pending, &Record::metadata("process_name", RANK_ITSELF, args))?;
        trace.order(RANK_ITSELF)?;
        trace.flush()?;
        Ok(trace)
    }

    /// Appends an event; it is in the file after the next flush.
    pub(super) fn add(&mut self, event: Event) -> io::Result<()> {
        let Event { at, what } = event;
        match what {
            What::NegotiateStart { name, kind } => {
                let tensor = self.tensor(&name)?;
                self.close(&name, tensor, 0, at, None)?;
                self.begin_event(&name, &format!("NEGOTIATE_{kind}"), at)?;
            }
            What::RankReady { name, rank } => {
                let rank = rank.to_string();
                let pid = self.tensor(&name)?.pid;
                let instant =
                    Record { name: Some(&rank), ts: Some(at), dur: Some(0), ..Record::new('X', pid) };
                self.push(&instant)?;
            }
            What::NegotiateEnd { name } => {
                let tensor = self.tensor(&name)?;
                self.close(&name, tensor, 0, at, None)?;
            }
            What::Start { name, kind } => {
                let tensor = self.tensor(&name)?;
                self.close(&name, tensor, 0, at, None)?;
                self.begin_event(&name, kind, at)?;
            }
            What::ActivityStart { name, activity } => self.begin_event(&name, activity, at)?,
            What::ActivityEnd { name } => {
                let tensor = self.tensor(&name)?;
                // The operation around the activities has an end of its own.
                self.close(&name, tensor, tensor.open.saturating_sub(1).max(1), at, None)?;
            }
            What::End { name, dtype, shape } => {
                let tensor = self.tensor(&name)?;
                let args = Args::Tensor { dtype, shape: format!("{shape:?}") };
                self.close(&name, tensor, 0, at, Some(args))?;
            }
            What::Cycle => {
                let mark =
                    Record { name: Some("CYCLE_START"), ts: Some(at), ..Record::new('i', RANK_ITSELF) };
                self.push(&Record { s: Some('g'), ..mark })?;
            }
        }
        if self.pending.len() >= FULL { self.flush() } else { Ok(()) }
    }

    /// Says how many events are missing, if any are.
    pub(super) fn dropped(&mut self, events: u64) -> io::Result<()> {
        if events == 0 {
            return Ok(());
        }
        let args = Args::Dropped { events };
        self.push(&Record::metadata("dropped_events", RANK_ITSELF, args))
    }

    /// Writes what was added. Should that fail, the file is left as it was before, complete.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let length = self.pending.len() as u64;
        self.pending.extend_from_slice(CLOSING);
        if let Err(error) = self.file.write_all_at(&self.pending, self.end) {
            // The first error is the one to report; a file that cannot be restored is cut off, which merging repairs.
            let _ = self.file.set_len(self.end).and_then(|()| self.file.write_all_at(CLOSING, self.end));
            return Err(error);
        }
        self.end += length;
        self.pending.clear();
        Ok(())
    }

    /// The process that stands for a tensor; a new one is introduced to the reader.
    fn tensor(&mut self, name: &Arc<str>) -> io::Result<Tensor> {
        if let Some(tensor) = self.tensors.get(name) {
            return Ok(*tensor);
        }
        let pid = u32::try_from(self.tensors.len() + 1).unwrap_or(u32::MAX);
        let tensor = Tensor { pid, open: 0 };
        self.tensors.insert(name.clone(), tensor);
        self.push(&Record::metadata("process_name", pid, Args::Name { name }))?;
        self.order(pid)?;
        Ok(tensor)
    }

    fn order(&mut self, pid: u32) -> io::Result<()> {
        self.push(&Record::metadata("process_sort_index", pid, Args::Order { sort_index: pid }))
    }

    fn begin_event(&mut self, name: &Arc<str>, event: &str, at: u64) -> io::Result<()> {
        let Tensor { pid, open } = self.tensor(name)?;
        self.tensors.insert(name.clone(), Tensor { pid, open: open + 1 });
        self.push(&Record { name: Some(event), ts: Some(at), ..Record::new('B', pid) })
    }

    /// Ends events of a tensor until no more than `left` are open; the last end carries `args`.
    fn close(
        &mut self,
        name: &Arc<str>,
        tensor: Tensor,
        left: u32,
        at: u64,
        mut args: Option<Args<'_>>,
    ) -> io::Result<()> {
        for still_open in (left..tensor.open).rev() {
            let args = if still_open == left { args.take() } else { None };
            self.push(&Record { ts: Some(at), args, ..Record::new('E', tensor.pid) })?;
        }
        let open = tensor.open.min(left);
        self.tensors.insert(name.clone(), Tensor { open, ..tensor });
        Ok(())
    }

    fn push(&mut self, record: &Record<'_>) -> io::Result<()> {
        self.pending.extend_from_slice(b",\n");
        Ok(serde_json::to_writer(&mut self.pending, record)?)
    }
}
