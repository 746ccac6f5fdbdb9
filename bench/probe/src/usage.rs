//! What the kernel counts for us: bytes on the host's network interfaces, and memory.

use std::fs;

use crate::session::Session;
use serde::Serialize;

use crate::timing::{Allreduce, Timed};
use crate::{Error, Via};

const INTERFACES: &str = "/proc/net/dev";
const STATUS: &str = "/proc/self/status";
const MAPPINGS: &str = "/proc/self/smaps_rollup";
const FORGET: &str = "/proc/self/clear_refs";
/// Written to [`FORGET`], sets the peak of the resident memory back to its present size.
const RESET_PEAK: &str = "5";
/// Enough for everything that is set up on first use to be set up, and be used again.
const CALLS: u32 = 3;

/// Bytes through this host's network interfaces, loopback aside.
#[derive(Clone, Copy)]
pub(crate) struct Traffic {
    pub(crate) received: u64,
    pub(crate) sent: u64,
}

impl Traffic {
    pub(crate) fn now() -> Result<Self, Error> {
        Ok(Self::parse(&read(INTERFACES)?))
    }

    fn parse(table: &str) -> Self {
        let mut total = Self { received: 0, sent: 0 };
        for line in table.lines().skip(2) {
            let Some((name, counters)) = line.split_once(':') else {
                continue;
            };
            if name.trim() == "lo" {
                continue;
            }
            let counter = |index| {
                counters.split_whitespace().nth(index).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0)
            };
            total.received += counter(0);
            total.sent += counter(8);
        }
        total
    }

    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            received: self.received.saturating_sub(before.received),
            sent: self.sent.saturating_sub(before.sent),
        }
    }
}

/// One rank's memory at its peak during an allreduce, in bytes. Shared pages are counted twice over:
/// in full, as the process sees them, and as this rank's share among all that map them.
#[derive(Serialize)]
pub(crate) struct Memory {
    work: &'static str,
    rank: usize,
    bytes: usize,
    peak: u64,
    shared: u64,
    shared_share: u64,
}

/// Sums a tensor of that size over all ranks and reports the peak of this rank's memory.
pub(crate) fn measure(session: &Session, bytes: usize) -> Result<Memory, Error> {
    let mut allreduce = Allreduce::new(session, Via::World, bytes);
    allreduce.fill();
    session.engine().barrier("meet")?;
    fs::write(FORGET, RESET_PEAK).map_err(|source| Error::Usage { path: FORGET, source })?;
    allreduce.run(CALLS, &mut Vec::with_capacity(CALLS as usize))?;
    allreduce.check(CALLS)?;
    let status = read(STATUS)?;
    let memory = Memory {
        work: "memory",
        rank: session.place().rank,
        bytes: allreduce.bytes(),
        peak: kilobytes(STATUS, &status, "VmHWM")?,
        shared: kilobytes(STATUS, &status, "RssShmem")?,
        shared_share: kilobytes(MAPPINGS, &read(MAPPINGS)?, "Pss_Shmem")?,
    };
    // Shares are shares only while everybody still maps what is shared.
    session.engine().barrier("meet")?;
    Ok(memory)
}

/// A field that the kernel states in kB, in bytes.
fn kilobytes(path: &'static str, table: &str, field: &'static str) -> Result<u64, Error> {
    table
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .map(|kilobytes| kilobytes * 1024)
        .ok_or(Error::NoSuchCounter { path, field })
}

fn read(path: &'static str) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|source| Error::Usage { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_adds_up_all_interfaces_but_loopback() {
        let traffic = Traffic::parse(
            "Inter-|   Receive                     |  Transmit\n\
              face |bytes packets errs drop fifo frame compressed multicast|bytes packets\n\
               lo:  900 9 0 0 0 0 0 0 900 9 0 0 0 0 0 0\n\
             eth0:  100 1 0 0 0 0 0 0  20 1 0 0 0 0 0 0\n\
             eth1:    7 1 0 0 0 0 0 0   3 1 0 0 0 0 0 0\n",
        );
        assert_eq!((traffic.received, traffic.sent), (107, 23));
    }

    #[test]
    fn a_counter_is_found_by_its_whole_name() {
        let table = "VmPeak:\t  16 kB\nVmHWM:\t    3 kB\nRssShmem:\t 0 kB\n";
        assert_eq!(kilobytes(STATUS, table, "VmHWM").ok(), Some(3072));
        let missing = kilobytes(STATUS, table, "Vm").expect_err("there is no such line");
        assert!(missing.to_string().contains("no line Vm"));
    }
}
