//! A set of transfers over wires, advanced together by one non-blocking loop.
//!
//! A flow has outgoing streams (bytes to send, in order) and incoming ones (where arriving bytes land: stored
//! as they are, or folded with this rank's own). An outgoing stream may *follow* an incoming one: it may send
//! only so many bytes as have landed there, plus a head start. That one rule is what a ring, a tree and a
//! chain have in common, so each of them is a few lines that build a flow; pipelining at the granularity of
//! whatever the kernel delivers, overlap of reduction with receive, and any number of rings at once come
//! for free. Bytes are sent from and stored to their final place; only bytes to be folded pass through a
//! scratch buffer that stays in cache.

use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::Wire;
use crate::error::Result;
use crate::fabric::Shared;
use crate::kernel::{FoldPlan, Stage, fold};

/// Bytes taken from the kernel at once: large enough to make calls rare, small enough to stay in cache.
const GULP: usize = 256 << 10;
/// How long to sleep at most before looking for an interrupt.
const LONGEST: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// A run of bytes in private memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) at: *mut u8,
    pub(crate) len: usize,
}

/// What happens to arriving bytes.
#[derive(Clone, Copy)]
pub(crate) enum Landing {
    /// Kept as they are.
    Store(Span),
    /// Folded with own bytes of the same length into `to` (which may be the own bytes themselves).
    Fold { to: Span, own: *const u8, stage: Stage },
}

impl Landing {
    fn span(&self) -> Span {
        match *self {
            Landing::Store(span) => span,
            Landing::Fold { to, .. } => to,
        }
    }
}

struct Outgoing {
    wire: Arc<Wire>,
    spans: Vec<Span>,
    index: usize,
    offset: usize,
    sent: usize,
    batch: usize,
    /// Incoming stream to follow, and the head start in bytes.
    follows: Option<(usize, usize)>,
}

struct Incoming {
    wire: Arc<Wire>,
    landings: Vec<Landing>,
    index: usize,
    offset: usize,
    /// Bytes of an element that has only partly arrived, at the front of the scratch buffer.
    partial: usize,
    landed: usize,
    batch: usize,
    scratch: Vec<u8>,
}

/// See the module's text. The caller vouches that all spans stay valid and are not touched by others until
/// the flow is done or dropped.
pub(crate) struct Flow<'a> {
    shared: &'a Shared,
    plan: Option<&'a FoldPlan>,
    element: usize,
    outgoing: Vec<Outgoing>,
    incoming: Vec<Incoming>,
    /// Streams are added to this batch.
    batch: usize,
    /// All streams before these (incoming, outgoing) are done: a long tensor has many.
    open: (usize, usize),
}

impl<'a> Flow<'a> {
    /// An empty flow. `plan` with the size of an element is needed if anything is to be folded.
    pub(crate) fn new(shared: &'a Shared, plan: Option<(&'a FoldPlan, usize)>) -> Flow<'a> {
        let element = plan.map_or(1, |(_, element)| element);
        Flow {
            shared,
            plan: plan.map(|(plan, _)| plan),
            element,
            outgoing: Vec::new(),
            incoming: Vec::new(),
            batch: 0,
            open: (0, 0),
        }
    }

    /// Adds an incoming stream and returns its number.
    pub(crate) fn receive(&mut self, wire: Arc<Wire>, landings: Vec<Landing>) -> usize {
        let folds = landings.iter().any(|landing| matches!(landing, Landing::Fold { .. }));
        let longest = landings.iter().map(|landing| landing.span().len).max().unwrap_or(0);
        let scratch = if folds { vec![0; longest.min(GULP)] } else { Vec::new() };
        let mut incoming = Incoming {
            wire,
            landings,
            index: 0,
            offset: 0,
            partial: 0,
            landed: 0,
            batch: self.batch,
            scratch,
        };
        incoming.skip_empty();
        self.incoming.push(incoming);
        self.incoming.len() - 1
    }

    /// Adds an outgoing stream that may send at once.
    pub(crate) fn send(&mut self, wire: Arc<Wire>, spans: Vec<Span>) {
        self.add_outgoing(wire, spans, None);
    }

    /// Adds an outgoing stream that may be at most `head_start` bytes ahead of what landed in `incoming`.
    pub(crate) fn send_following(
        &mut self,
        wire: Arc<Wire>,
        spans: Vec<Span>,
        incoming: usize,
        head_start: usize,
    ) {
        self.add_outgoing(wire, spans, Some((incoming, head_start)));
    }

    fn add_outgoing(&mut self, wire: Arc<Wire>, spans: Vec<Span>, follows: Option<(usize, usize)>) {
        let mut outgoing = Outgoing { wire, spans, index: 0, offset: 0, sent: 0, batch: self.batch, follows };
        outgoing.skip_empty();
        self.outgoing.push(outgoing);
    }

    /// Streams added from now on belong to the next batch. Returns the number of the last one.
    pub(crate) fn close_batch(&mut self) -> usize {
        self.batch += 1;
        self.batch - 1
    }

    /// Runs to the end.
    pub(crate) fn run(&mut self) -> Result<()> {
        self.run_batch(usize::MAX)
    }

    /// Runs until all streams up to this batch are done; later ones move along as they can.
    pub(crate) fn run_batch(&mut self, batch: usize) -> Result<()> {
        self.run_while(|flow| {
            flow.outgoing[flow.open.1..].iter().any(|stream| stream.batch <= batch && !stream.is_done())
                || flow.incoming[flow.open.0..]
                    .iter()
                    .any(|stream| stream.batch <= batch && !stream.is_done())
        })?;
        self.open.0 += self.incoming[self.open.0..].iter().take_while(|stream| stream.is_done()).count();
        self.open.1 += self.outgoing[self.open.1..].iter().take_while(|stream| stream.is_done()).count();
        Ok(())
    }

    /// Runs until at least `bytes` have landed in incoming stream number `incoming`.
    pub(crate) fn run_until(&mut self, incoming: usize, bytes: usize) -> Result<()> {
        self.run_while(|flow| flow.incoming[incoming].landed < bytes)
    }

    fn run_while(&mut self, unfinished: impl Fn(&Flow<'_>) -> bool) -> Result<()> {
        loop {
            let moved = self.advance()?;
            if !unfinished(self) {
                return Ok(());
            }
            if !moved {
                self.sleep()?;
            }
        }
    }

    /// Moves what can be moved without waiting; whether anything did.
    pub(crate) fn advance(&mut self) -> Result<bool> {
        let mut moved = false;
        for stream in &mut self.incoming[self.open.0..] {
            moved |= stream.advance(self.shared, self.plan, self.element)?;
        }
        for stream in &mut self.outgoing[self.open.1..] {
            let allowed = stream.allowance(&self.incoming);
            moved |= stream.advance(self.shared, allowed)?;
        }
        Ok(moved)
    }

    fn sleep(&self) -> Result<()> {
        let mut fds = vec![PollFd::from_borrowed_fd(self.shared.alarm(), PollFlags::IN)];
        for stream in self.incoming[self.open.0..].iter().filter(|stream| !stream.is_done()) {
            fds.push(PollFd::new(&stream.wire.stream, PollFlags::IN));
        }
        for stream in
            self.outgoing[self.open.1..].iter().filter(|stream| stream.allowance(&self.incoming) > 0)
        {
            fds.push(PollFd::new(&stream.wire.stream, PollFlags::OUT));
        }
        match poll(&mut fds, Some(&LONGEST)) {
            Ok(ready) if ready > 0 && fds[0].revents().is_empty() => Ok(()),
            _ => self.shared.check(),
        }
    }
}

impl Outgoing {
    fn is_done(&self) -> bool {
        self.index == self.spans.len()
    }

    fn allowance(&self, incoming: &[Incoming]) -> usize {
        if self.is_done() {
            return 0;
        }
        match self.follows {
            None => usize::MAX,
            Some((stream, head_start)) => (incoming[stream].landed + head_start).saturating_sub(self.sent),
        }
    }

    fn skip_empty(&mut self) {
        while self.index < self.spans.len() && self.offset == self.spans[self.index].len {
            self.index += 1;
            self.offset = 0;
        }
    }

    fn advance(&mut self, shared: &Shared, allowed: usize) -> Result<bool> {
        if allowed == 0 {
            return Ok(false);
        }
        let span = self.spans[self.index];
        let len = allowed.min(span.len - self.offset);
        // SAFETY: the flow's caller keeps spans valid, and bytes up to the allowance are not written any more.
        let bytes = unsafe { std::slice::from_raw_parts(span.at.add(self.offset), len) };
        match rustix::net::send(&self.wire.stream, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(sent) => {
                self.sent += sent;
                self.offset += sent;
                self.skip_empty();
                Ok(sent > 0)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(shared.verdict(self.wire.peer, &format!("sending to it failed: {error}"))),
        }
    }
}

impl Incoming {
    fn is_done(&self) -> bool {
        self.index == self.landings.len()
    }

    fn skip_empty(&mut self) {
        while self.index < self.landings.len() && self.offset == self.landings[self.index].span().len {
            self.index += 1;
            self.offset = 0;
        }
    }

    fn advance(&mut self, shared: &Shared, plan: Option<&FoldPlan>, element: usize) -> Result<bool> {
        if self.is_done() {
            return Ok(false);
        }
        let landing = self.landings[self.index];
        let span = landing.span();
        let left = span.len - self.offset;
        let room: &mut [u8] = match landing {
            // SAFETY: the flow's caller keeps spans valid and leaves them alone meanwhile.
            Landing::Store(_) => unsafe { std::slice::from_raw_parts_mut(span.at.add(self.offset), left) },
            Landing::Fold { .. } => {
                let end = left.min(self.scratch.len());
                &mut self.scratch[self.partial..end]
            }
        };
        let got = match rustix::net::recv(&self.wire.stream, room, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => {
                return Err(
                    shared.verdict(self.wire.peer, "it closed its connection in the middle of an operation")
                );
            }
            Ok((_, got)) => got,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(error) => {
                return Err(shared.verdict(self.wire.peer, &format!("receiving from it failed: {error}")));
            }
        };
        let landed = match landing {
            Landing::Store(_) => got,
            Landing::Fold { to, own, stage } => self.fold(got, to, own, stage, plan, element),
        };
        self.landed += landed;
        self.offset += landed;
        self.skip_empty();
        Ok(true)
    }

    /// Folds the whole elements among what arrived, keeps the rest for later, returns the bytes folded.
    fn fold(
        &mut self,
        got: usize,
        to: Span,
        own: *const u8,
        stage: Stage,
        plan: Option<&FoldPlan>,
        element: usize,
    ) -> usize {
        let plan = plan.expect("a flow that folds has a plan");
        let have = self.partial + got;
        let whole = have - have % element;
        // SAFETY: scratch holds `have` bytes, and `whole` bytes are left in both `to` and `own`, which the
        // flow's caller keeps valid; scratch overlaps neither.
        unsafe {
            let sources = [self.scratch.as_ptr(), own.add(self.offset)];
            fold(plan, stage, to.at.add(self.offset), None, &sources, whole / element);
        }
        self.scratch.copy_within(whole..have, 0);
        self.partial = have - whole;
        whole
    }
}
