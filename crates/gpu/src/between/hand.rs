//! Handing bytes around by NCCL: broadcast, allgather and alltoall. NCCL moves bytes whatever their type.

use ronde_collective::Group;
use ronde_collective::types::DType;
use ronde_engine::{Error, Kind};

use super::lane::Lane;
use crate::path::Handing;

impl Lane {
    pub(super) fn hand(&mut self, group: &Group, what: &Handing) -> Result<(), Error> {
        match what.kind {
            Kind::Alltoall => self.exchange(group, what),
            Kind::Allgather if is_even(what) => {
                let (source, first) = (&what.sources[0], &what.wanted[0][0]);
                self.call(group, |calls| {
                    calls.all_gather(source.address, first.address, source.bytes, DType::U8)
                })
            }
            _ => self.spread(group, what),
        }
    }

    /// Everybody gives each of its runs to everybody.
    fn spread(&mut self, group: &Group, what: &Handing) -> Result<(), Error> {
        let me = group.rank();
        self.call(group, |calls| {
            for (member, wanted) in what.wanted.iter().enumerate() {
                for (index, run) in wanted.iter().enumerate().filter(|(_, run)| run.bytes > 0) {
                    let source = if member == me { what.sources[index].address } else { run.address };
                    calls.broadcast(source, run.address, run.bytes, DType::U8, member)?;
                }
            }
            Ok(())
        })
    }

    fn exchange(&mut self, group: &Group, what: &Handing) -> Result<(), Error> {
        self.call(group, |calls| {
            for (member, (given, wanted)) in what.given.iter().zip(&what.wanted).enumerate() {
                for run in given.iter().filter(|run| run.bytes > 0) {
                    calls.send(run.address, run.bytes, DType::U8, member)?;
                }
                for run in wanted.iter().filter(|run| run.bytes > 0) {
                    calls.recv(run.address, run.bytes, DType::U8, member)?;
                }
            }
            Ok(())
        })
    }
}

/// Whether everybody brings one run, of the same length, and they lie one behind the other.
fn is_even(what: &Handing) -> bool {
    let [first, ..] = what.wanted.as_slice() else { return false };
    let [first] = first.as_slice() else { return false };
    first.bytes > 0
        && what.wanted.iter().enumerate().all(|(member, wanted)| {
            matches!(wanted.as_slice(), [run] if run.bytes == first.bytes
                && run.address == first.address + (member * first.bytes) as u64)
        })
}
