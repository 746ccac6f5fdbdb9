//! Rings over hosts: every host sends to the next and receives from the one before.
//!
//! The buffer is cut into n segments. In step s host h sends segment h - s and receives segment h - s - 1 (modulo n). In
//! the first n - 1 steps what arrives is folded with the own segment, so that after them host h holds the finished
//! segment h + 1; in the other n - 1 steps finished segments travel on and are stored. What is sent in a step is what
//! arrived in the one before, so the whole ring is one byte stream that follows another ([`Flow`]), pipelined inside
//! steps.
//!
//! Steps: 2(n-1) for allreduce, n - 1 for either half. Bytes through each link for a buffer of S: 2·S·(n-1)/n for
//! allreduce, S·(n-1)/n for either half. Partial results travel in the element type, so float16 and bfloat16 are
//! rounded once a hop.

use std::sync::Arc;

use super::{LAST, MIDDLE};
use crate::net::{Flow, Landing, Span, Wire};

/// This host's place in a ring, and its two wires.
pub(super) struct Ring {
    pub(super) hosts: usize,
    pub(super) here: usize,
    pub(super) next: Arc<Wire>,
    pub(super) previous: Arc<Wire>,
}

/// A segment: where the own input lies and where results go, run by run.
pub(super) type Segment = Vec<(*const u8, Span)>;

impl Ring {
    fn sent(&self, step: usize) -> usize {
        (self.here + 2 * self.hosts - step) % self.hosts
    }

    fn received(&self, step: usize) -> usize {
        self.sent(step + 1)
    }

    /// Adds an allreduce of `segments` to a flow.
    pub(super) fn allreduce(&self, flow: &mut Flow<'_>, segments: &[Segment]) {
        self.steps(flow, segments, 0, 2 * (self.hosts - 1));
    }

    /// Adds the folding half: afterwards this host's results are in segment `here + 1`.
    pub(super) fn reduce_scatter(&self, flow: &mut Flow<'_>, segments: &[Segment]) {
        self.steps(flow, segments, 0, self.hosts - 1);
    }

    /// Adds the spreading half, in which this host starts with segment `here + 1`. Returns the number of the incoming
    /// stream; segment `here - s` arrives in its step s.
    pub(super) fn allgather(&self, flow: &mut Flow<'_>, segments: &[Segment]) -> usize {
        self.steps(flow, segments, self.hosts - 1, 2 * (self.hosts - 1))
    }

    fn steps(&self, flow: &mut Flow<'_>, segments: &[Segment], from: usize, to: usize) -> usize {
        let folding = self.hosts - 1;
        let landings = (from..to).flat_map(|step| {
            let stage = if step + 1 == folding { LAST } else { MIDDLE };
            segments[self.received(step)].iter().map(move |&(own, to)| {
                if step < folding { Landing::Fold { to, own, stage } } else { Landing::Store(to) }
            })
        });
        let incoming = flow.receive(self.previous.clone(), landings.collect());
        let spans = (from..to).flat_map(|step| {
            let raw = step == 0;
            segments[self.sent(step)]
                .iter()
                .map(move |&(own, to)| if raw { Span { at: own.cast_mut(), len: to.len } } else { to })
        });
        let head_start = segments[self.sent(from)].iter().map(|(_, span)| span.len).sum();
        flow.send_following(self.next.clone(), spans.collect(), incoming, head_start);
        incoming
    }
}
