//! Collectives through the host: the long tensor is copied to memory that the GPU writes by itself, reduced there by the data
//! plane of the host, and copied back.
//!
//! An allreduce is a pipeline: while a chunk is reduced, the next ones come and the last ones go. The host has to wait for the tensors
//! here, which is why this way is taken only where there is no other.

use std::sync::Arc;

use ronde_collective::kernel::Identity;
use ronde_collective::types::ReduceOp;
use ronde_collective::{Group, Part, Reduction, ScatterPart};
use ronde_cuda::{Device, Launcher, Mark, Pinned, Stream};
use ronde_engine::{Error, Kind};

use crate::failure::of_cuda;
use crate::packing;
use crate::path::{Handing, Path, Sources, rule_of};
use crate::spans::{Span, within};

/// Bytes that are reduced while others travel.
const CHUNK: usize = 4 << 20;

/// See the module's text.
pub(crate) struct Staged {
    out: Launcher,
    back: Launcher,
    /// What comes from the device, and what is brought to it.
    given: Option<Pinned>,
    got: Option<Pinned>,
    /// Until here earlier batches use that memory.
    last: Option<Arc<Mark>>,
}

impl Staged {
    pub(crate) fn new(stream: &Arc<Stream>) -> Result<Staged, Error> {
        let back = Arc::new(Stream::new(stream.device()).map_err(of_cuda)?);
        let (out, back) = (Launcher::new(stream), Launcher::new(&back));
        Ok(Staged { out, back, given: None, got: None, last: None })
    }

    /// Memory for so many bytes in the place of another, which no stream uses any more.
    fn room(
        device: &Arc<Device>,
        place: &mut Option<Pinned>,
        bytes: usize,
        last: Option<&Arc<Mark>>,
    ) -> Result<*mut u8, Error> {
        if let Some(last) = last {
            last.wait().map_err(of_cuda)?;
        }
        if place.as_ref().is_none_or(|memory| memory.len() < bytes) {
            *place = None;
            *place = Some(Pinned::new(device, bytes.next_power_of_two()).map_err(of_cuda)?);
        }
        Ok(place.as_ref().map_or(std::ptr::null_mut(), Pinned::as_ptr))
    }

    fn rooms(&mut self, given: usize, got: usize) -> Result<(*mut u8, *mut u8), Error> {
        let device = self.out.stream().device().clone();
        let last = self.last.take();
        let given = Staged::room(&device, &mut self.given, given, last.as_ref())?;
        let got = Staged::room(&device, &mut self.got, got, last.as_ref())?;
        Ok((given, got))
    }

    /// Passes on what the host says. Where that is a failure, which may be one that the set goes on after, no stream uses the
    /// tensors any more.
    fn quiet(&mut self, outcome: ronde_collective::Result<()>) -> Result<(), Error> {
        if outcome.is_err() {
            self.drain();
        }
        Ok(outcome?)
    }

    fn take_out(
        &mut self,
        spans: &[Span],
        start: usize,
        len: usize,
        memory: *mut u8,
    ) -> Result<Arc<Mark>, Error> {
        let to = memory as u64 + start as u64;
        let runs = within(spans, start..start + len).map(|span| (span, to + span.at as u64));
        // SAFETY: tensors of the submitter, and memory of this value that is as long as the long tensor.
        unsafe { packing::pack(&mut self.out, runs) }?;
        self.out.stream().record().map_err(of_cuda)
    }

    fn bring_back(&mut self, spans: &[Span], start: usize, len: usize, memory: *mut u8) -> Result<(), Error> {
        let from = memory as u64 + start as u64;
        self.bring(within(spans, start..start + len).map(|span| (span, from + span.at as u64)))
    }

    /// Gives copies of runs, from where they are in memory of the host, to the stream.
    fn bring(&mut self, runs: impl Iterator<Item = (Span, u64)>) -> Result<(), Error> {
        // SAFETY: tensors of the submitter, and memory of this value that is as long as what lies there.
        unsafe { packing::unpack(&mut self.back, runs) }
    }
}

impl Path for Staged {
    fn entry(&self) -> &Arc<Stream> {
        self.out.stream()
    }

    fn allreduce(
        &mut self,
        group: &mut Group,
        sources: Sources<'_>,
        targets: &[Span],
        len: usize,
        how: &Reduction,
    ) -> Result<(), Error> {
        let (memory, _) = self.rooms(len, 0)?;
        // Adasum looks at whole tensors.
        let chunk = if how.op == ReduceOp::Adasum { len.max(1) } else { CHUNK };
        let mut marks = Vec::new();
        if let Sources::Tensors(spans) = sources {
            for start in (0..len).step_by(chunk) {
                marks.push(self.take_out(spans, start, chunk.min(len - start), memory)?);
            }
        } else {
            // SAFETY: the memory is that long.
            unsafe { Identity::new(how.dtype, rule_of(how.op)).fill(memory, len) };
        }
        for (index, start) in (0..len).step_by(chunk).enumerate() {
            let bytes = chunk.min(len - start);
            if let Some(mark) = marks.get(index) {
                mark.wait().map_err(of_cuda)?;
            }
            let parts: Vec<Part> = if how.op == ReduceOp::Adasum {
                let part = |span: &Span| part_at(memory, span.at, span.bytes);
                targets.iter().map(part).collect()
            } else {
                vec![part_at(memory, start, bytes)]
            };
            // SAFETY: the memory is this value's, and the GPU is done writing it.
            self.quiet(unsafe { group.allreduce_parts(&parts, how) })?;
            if matches!(sources, Sources::Tensors(_)) {
                self.bring_back(targets, start, bytes, memory)?;
            }
        }
        Ok(())
    }

    fn reducescatter(
        &mut self,
        group: &mut Group,
        sources: &[Span],
        shares: &[Vec<Span>],
        len: usize,
        how: &Reduction,
    ) -> Result<(), Error> {
        let own = &shares[group.rank()];
        let (given, got) = self.rooms(len, len)?;
        self.take_out(sources, 0, len, given)?.wait().map_err(of_cuda)?;
        let parts: Vec<ScatterPart> = sources
            .iter()
            .enumerate()
            .map(|(tensor, span)| ScatterPart {
                source: given.wrapping_add(span.at),
                target: got.wrapping_add(own[tensor].at),
                lengths: shares.iter().map(|share| share[tensor].bytes / how.dtype.size()).collect(),
            })
            .collect();
        // SAFETY: as above; both memories hold the long tensor.
        unsafe { group.reducescatter_parts(&parts, how) }?;
        self.bring_back(own, 0, len, got)
    }

    fn hand(&mut self, group: &mut Group, what: &Handing) -> Result<(), Error> {
        let me = group.rank();
        let lens = &what.lens;
        let total: usize = match what.kind {
            Kind::Allgather => lens.iter().sum(),
            Kind::Broadcast => lens[what.root],
            _ => what.wanted.iter().flatten().map(|span| span.bytes).sum(),
        };
        let (given, got) = self.rooms(lens[me], total)?;
        self.take_out(&what.sources, 0, lens[me], given)?.wait().map_err(of_cuda)?;
        // SAFETY: the memories are this value's, that long, and the GPU is done with them.
        let (input, output) = unsafe {
            (std::slice::from_raw_parts(given, lens[me]), std::slice::from_raw_parts_mut(got, total))
        };
        let mut end = 0;
        match what.kind {
            Kind::Allgather => {
                group.allgather(Some(input), lens, output)?;
                for (wanted, len) in what.wanted.iter().zip(lens) {
                    self.bring(wanted.iter().map(|span| (*span, got as u64 + (end + span.at) as u64)))?;
                    end += len;
                }
            }
            Kind::Broadcast => {
                if me == what.root {
                    output.copy_from_slice(input);
                }
                group.broadcast(output, what.root)?;
                self.bring_back(&what.wanted[what.root], 0, total, got)?;
            }
            _ => {
                let bytes = |spans: &[Vec<Span>]| -> Vec<usize> {
                    spans.iter().map(|spans| spans.iter().map(|span| span.bytes).sum()).collect()
                };
                let (sent, received) = (bytes(&what.given), bytes(&what.wanted));
                group.alltoall(&input[..sent.iter().sum()], &sent, output, &received)?;
                for span in what.wanted.iter().flatten() {
                    self.bring(std::iter::once((*span, got as u64 + end as u64)))?;
                    end += span.bytes;
                }
            }
        }
        Ok(())
    }

    fn end(&mut self) -> Result<Arc<Mark>, Error> {
        self.out.end().map_err(of_cuda)?;
        let mark = self.back.end().map_err(of_cuda)?;
        self.out.stream().wait(&mark).map_err(of_cuda)?;
        self.last = Some(mark.clone());
        Ok(mark)
    }

    fn drain(&mut self) {
        // A failure of the GPU has ended its work as well.
        let _ = self.out.stream().synchronize();
        let _ = self.back.stream().synchronize();
    }
}

fn part_at(memory: *mut u8, at: usize, len: usize) -> Part {
    let start = memory.wrapping_add(at);
    Part { source: start, target: start, len }
}
