//! Watches operations for the timeline, at no cost while there is none.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use ronde_collective::Group;

use crate::error::Error;
use crate::execute::Entry;
use crate::negotiation::{Batch, Kind};
use crate::operation::Operation;
use crate::timeline::Timeline;

/// Meetings by which clocks are compared.
const MEETINGS: usize = 7;

/// See the module's text.
#[derive(Default)]
pub(crate) struct Watch {
    timeline: RwLock<Option<Arc<Timeline>>>,
    on: AtomicBool,
    /// What must be added to this host's clock to have that of rank 0, in microseconds.
    clock_offset: AtomicI64,
}

impl Watch {
    fn timeline(&self) -> Option<Arc<Timeline>> {
        if !self.on.load(Ordering::Relaxed) {
            return None;
        }
        self.timeline.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Begins a trace, in place of the one that runs.
    pub(crate) fn start(&self, path: &str, rank: usize, mark_cycles: bool) -> std::io::Result<()> {
        self.stop();
        let offset = self.clock_offset.load(Ordering::Relaxed);
        let opened = Timeline::open(path, rank, mark_cycles, offset)?;
        self.on.store(opened.is_some(), Ordering::Relaxed);
        *self.timeline.write().unwrap_or_else(PoisonError::into_inner) = opened.map(Arc::new);
        Ok(())
    }

    /// Ends the trace, if there is one, with everything recorded so far in the file.
    pub(crate) fn stop(&self) {
        self.on.store(false, Ordering::Relaxed);
        let running = self.timeline.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(timeline) = running {
            // What cannot be written, the writer has said.
            let _ = timeline.stop();
        }
    }

    /// Compares this host's clock with that of rank 0: all look at their clocks as they leave a meeting.
    pub(crate) fn compare_clocks(&self, group: &mut Group) -> Result<(), Error> {
        let mut offsets = Vec::with_capacity(MEETINGS);
        for _ in 0..MEETINGS {
            group.barrier()?;
            let own = microseconds();
            let all = group.gather_small(&own.to_le_bytes())?;
            let zero = all.first().and_then(|bytes| bytes.as_slice().try_into().ok()).map(i64::from_le_bytes);
            offsets.push(zero.unwrap_or(own) - own);
        }
        offsets.sort_unstable();
        self.clock_offset.store(offsets[MEETINGS / 2], Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn submitted(&self, operation: &Operation) {
        if let Some(timeline) = self.timeline() {
            for name in operation.names() {
                timeline.negotiate_start(name.clone(), loud(operation.what.kind));
            }
        }
    }

    /// Whether there is a trace.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// A rank has asked for a tensor.
    pub(crate) fn heard(&self, name: Arc<str>, rank: usize) {
        if let Some(timeline) = self.timeline() {
            timeline.negotiate_rank_ready(name, rank);
        }
    }

    pub(crate) fn running(&self, batch: &Batch) {
        if let Some(timeline) = self.timeline() {
            timeline.mark_cycle();
            for item in &batch.items {
                timeline.negotiate_end(item.name.clone());
                timeline.start(item.name.clone(), loud(batch.kind));
                timeline.activity_start(item.name.clone(), activity(batch.kind));
            }
        }
    }

    pub(crate) fn ran(&self, batch: &Batch, entries: &[Entry]) {
        if let Some(timeline) = self.timeline() {
            for (item, entry) in batch.items.iter().zip(entries) {
                let given = entry.as_ref().and_then(|(operation, index)| operation.what.tensors.get(*index));
                let shape = given.map_or(&*item.shape, |tensor| &tensor.shape);
                let shape: Vec<usize> = shape.iter().map(|&extent| extent as usize).collect();
                timeline.activity_end(item.name.clone());
                timeline.end(item.name.clone(), batch.dtype.name(), &shape);
            }
        }
    }

    /// Negotiation ended without a batch: a barrier, an error.
    pub(crate) fn decided(&self, operation: &Operation, index: usize) {
        if let Some(timeline) = self.timeline()
            && let Some(name) = operation.names().get(index)
        {
            timeline.negotiate_end(name.clone());
        }
    }
}

fn microseconds() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64)
}

fn loud(kind: Kind) -> &'static str {
    match kind {
        Kind::Allreduce => "ALLREDUCE",
        Kind::Allgather => "ALLGATHER",
        Kind::Broadcast => "BROADCAST",
        Kind::Alltoall => "ALLTOALL",
        Kind::Reducescatter => "REDUCESCATTER",
        Kind::Barrier => "BARRIER",
        Kind::Join => "JOIN",
        Kind::AddSet => "ADD_PROCESS_SET",
        Kind::RemoveSet => "REMOVE_PROCESS_SET",
    }
}

fn activity(kind: Kind) -> &'static str {
    match kind {
        Kind::Allreduce => "RONDE_ALLREDUCE",
        Kind::Allgather => "RONDE_ALLGATHER",
        Kind::Broadcast => "RONDE_BCAST",
        Kind::Alltoall => "RONDE_ALLTOALL",
        Kind::Reducescatter => "RONDE_REDUCESCATTER",
        _ => "RONDE_MEETING",
    }
}
