//! Which algorithm at which size: measured, and kept as data.
//!
//! Figures come from `bench/run host` and `bench/run net`; change a row only with a measurement, and note it in
//! `bench/README.md`.

use std::time::Duration;

use crate::host::SMALL;

/// How long a rank looks for its peers before it sleeps. Waking a sleeper costs about as much, so a longer
/// wait would at most double the loss; ranks that outnumber the cores do not spin at all.
pub(crate) const SPIN: Duration = Duration::from_micros(50);
/// The same where nobody waits for the result: a core is worth more to those who compute.
pub(crate) const BACKGROUND_SPIN: Duration = Duration::from_micros(5);

/// How ranks of one host reduce: up to `one_phase` bytes everybody folds everything, above that each folds
/// its slice, in chunks of `chunk` bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostRow {
    up_to_ranks: usize,
    pub(crate) one_phase: usize,
    pub(crate) chunk: usize,
}

const HOST: [HostRow; 4] = [
    HostRow { up_to_ranks: 2, one_phase: 32 << 10, chunk: 512 << 10 },
    HostRow { up_to_ranks: 4, one_phase: 16 << 10, chunk: 256 << 10 },
    HostRow { up_to_ranks: 8, one_phase: 4 << 10, chunk: 256 << 10 },
    HostRow { up_to_ranks: usize::MAX, one_phase: 1 << 10, chunk: 256 << 10 },
];

/// How hosts reduce over the network: up to `doubling` bytes by recursive doubling between host leaders, above
/// that by rings, in blocks of `block` bytes; each slice uses `streams` wires for each of the two blocks under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NetRow {
    up_to_hosts: usize,
    pub(crate) doubling: usize,
    pub(crate) block: usize,
    pub(crate) streams: usize,
}

const NET: [NetRow; 3] = [
    NetRow { up_to_hosts: 2, doubling: 16 << 10, block: 8 << 20, streams: 1 },
    NetRow { up_to_hosts: 8, doubling: 16 << 10, block: 8 << 20, streams: 1 },
    NetRow { up_to_hosts: usize::MAX, doubling: 32 << 10, block: 16 << 20, streams: 1 },
];

/// From this size on a broadcast between hosts goes down a chain (every link carries the data once), below it
/// down a binary tree (fewer hops).
pub(crate) const CHAIN: usize = 256 << 10;

/// Largest payload that moves in one phase when only one member has something to say.
pub(crate) const ONE_PHASE_SHARE: usize = SMALL;

/// Between hosts, tensors of a batch travel together in private memory of at most so many bytes.
pub(crate) const STAGING: usize = 16 << 20;

/// From this size on a tensor of a batch travels between hosts alone, from and to where it lies: copying it would cost
/// more than the steps it saves.
pub(crate) const ALONE: usize = 4 << 20;

pub(crate) fn host(ranks: usize) -> HostRow {
    *HOST.iter().find(|row| ranks <= row.up_to_ranks).expect("the last row takes all")
}

pub(crate) fn net(hosts: usize) -> NetRow {
    *NET.iter().find(|row| hosts <= row.up_to_hosts).expect("the last row takes all")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::SLOT;

    #[test]
    fn every_row_stays_within_the_shared_slots() {
        for row in HOST {
            assert!(row.one_phase <= SMALL && row.chunk <= SLOT, "{row:?}");
        }
        for row in NET {
            assert!(row.doubling <= SMALL && row.streams > 0 && row.block > 0, "{row:?}");
        }
    }

    #[test]
    fn rows_are_found_for_any_count() {
        assert_eq!(host(3).one_phase, 16 << 10);
        assert_eq!(host(1000).one_phase, 1 << 10);
        assert_eq!(net(9).doubling, 32 << 10);
    }
}
