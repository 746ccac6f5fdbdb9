//! The slots of all ranks on a GPU: this rank's own memory, and that of the others, mapped.

use std::sync::Arc;

use ronde_collective::Group;
use ronde_cuda::{Imported, Shared, Stream};
use ronde_engine::Error;

use crate::failure::{Verdict, agree, of_cuda};

/// Slots that rounds alternate between: one is filled while the other is still read.
const SLOTS: usize = 2;
/// Bytes of a slot, at the least and at the most. Larger tensors go in several rounds, each of which costs changes between processes.
pub(super) const LEAST: usize = 1 << 20;
const MOST: usize = 256 << 20;
/// The part of the GPU's memory that a slot may take.
const PART: usize = 512;

/// The largest slot on a GPU with so much memory.
fn largest(memory: usize) -> usize {
    (1 << (memory / PART).max(1).ilog2()).clamp(LEAST, MOST)
}

/// See the module's text.
#[derive(Default)]
pub(super) struct Buffers {
    /// Bytes of one slot; 0 before there are any.
    slot: usize,
    /// Slots were not to be had larger than this; 0 if nobody was refused.
    limit: usize,
    /// Where each member's buffer begins.
    bases: Vec<u64>,
    // The mappings behind the bases.
    _imported: Vec<Imported>,
    _own: Option<Shared>,
}

impl Buffers {
    /// Where everybody's slots of a round begin.
    pub(super) fn slots(&self, round: u32) -> Vec<u64> {
        let offset = (round as usize % SLOTS * self.slot) as u64;
        self.bases.iter().map(|base| base + offset).collect()
    }

    /// Makes slots for rounds of up to so many bytes; returns how many fit one. Collective, with the same number.
    pub(super) fn grow(
        &mut self,
        group: &mut Group,
        stream: &Arc<Stream>,
        bytes: usize,
    ) -> Result<usize, Error> {
        let most = if self.limit == 0 { largest(stream.device().memory()) } else { self.limit };
        let mut wanted = bytes.clamp(LEAST, most).next_power_of_two();
        if wanted <= self.slot {
            return Ok(self.slot);
        }
        // Nobody's stream uses the old ones any more once all have waited for their own.
        let idle = stream.synchronize();
        agree(group, idle.as_ref().err())?.fine()?;
        *self = Buffers { limit: self.limit, ..Buffers::default() };
        loop {
            let made = Shared::new(stream.device(), SLOTS * wanted);
            match (agree(group, made.as_ref().err())?, made) {
                (Verdict::Fine, made) => return self.trade(group, stream, made.map_err(of_cuda)?, wanted),
                // Where memory is short on one rank, all make do with less.
                (Verdict::Short(_), _) if wanted > LEAST => {
                    wanted /= 2;
                    self.limit = wanted;
                }
                (verdict, _) => verdict.fine()?,
            }
        }
    }

    fn trade(
        &mut self,
        group: &mut Group,
        stream: &Arc<Stream>,
        own: Shared,
        slot: usize,
    ) -> Result<usize, Error> {
        let descriptors = group.trade(own.descriptor())?;
        let (mut bases, mut imported, mut failure) = (Vec::new(), Vec::new(), None);
        for (member, descriptor) in descriptors.iter().enumerate() {
            if member == group.rank() {
                bases.push(own.address());
                continue;
            }
            match Imported::new(stream.device(), descriptor, own.len()) {
                Ok(mapping) => {
                    bases.push(mapping.address());
                    imported.push(mapping);
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        agree(group, failure.as_ref())?.fine()?;
        *self = Buffers { slot, limit: self.limit, bases, _imported: imported, _own: Some(own) };
        Ok(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::largest;

    #[test]
    fn slots_fit_the_gpu() {
        assert_eq!(largest(143_771 << 20), 256 << 20);
        assert_eq!(largest(16 << 30), 32 << 20);
        assert_eq!(largest(0), 1 << 20);
    }
}
