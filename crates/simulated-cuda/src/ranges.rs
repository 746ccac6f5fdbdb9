//! Every address that the driver knows, and which devices may touch it.
//!
//! Kernels and copies are checked against this, so that use after free, or of memory that no GPU could reach,
//! is an error of the device instead of silence.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use crate::context::Device;
use crate::handles::lock;

/// Where a range of addresses comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `cuMemAlloc`, `cuMemAllocAsync`
    Device,
    /// `cuMemAllocHost`
    Pinned,
    /// `cuMemHostRegister`
    Registered,
    /// `cuMemMap`
    Mapped,
}

impl Kind {
    /// Whether it is host memory that stays where it is.
    fn is_host(self) -> bool {
        matches!(self, Kind::Pinned | Kind::Registered)
    }
}

/// A range of addresses, without its beginning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) len: usize,
    pub(crate) kind: Kind,
    /// The device on which it is counted.
    pub(crate) home: Option<usize>,
    /// The devices whose kernels may touch it, a bit each.
    pub(crate) devices: u64,
    /// Whether a stream is going to free it.
    pub(crate) ending: bool,
}

impl Range {
    /// Host memory, which all devices reach.
    pub(crate) fn host(len: usize, kind: Kind) -> Range {
        Range { len, kind, home: None, devices: u64::MAX, ending: false }
    }

    /// Memory of one device, which no other reaches.
    pub(crate) fn device(len: usize, device: &Device) -> Range {
        Range { len, kind: Kind::Device, home: Some(device.index), devices: 1 << device.index, ending: false }
    }

    /// Mapped memory, which no device reaches yet.
    pub(crate) fn mapped(len: usize) -> Range {
        Range { len, kind: Kind::Mapped, home: None, devices: 0, ending: false }
    }
}

/// All ranges, by where they begin.
pub(crate) struct Ranges(BTreeMap<usize, Range>);

static RANGES: Mutex<Ranges> = Mutex::new(Ranges(BTreeMap::new()));

/// All ranges. None comes or goes while this is held.
pub(crate) fn all() -> MutexGuard<'static, Ranges> {
    lock(&RANGES)
}

/// How many ranges of a kind there are.
pub(crate) fn count(kind: Kind) -> usize {
    all().0.values().filter(|range| range.kind == kind).count()
}

impl Ranges {
    pub(crate) fn add(&mut self, start: usize, range: Range) {
        self.0.insert(start, range);
    }

    /// The range of that kind that begins there.
    pub(crate) fn get(&mut self, start: usize, kind: Kind) -> Option<&mut Range> {
        self.0.get_mut(&start).filter(|range| range.kind == kind)
    }

    pub(crate) fn remove(&mut self, start: usize, kind: Kind) -> Option<Range> {
        self.get(start, kind)?;
        self.0.remove(&start)
    }

    /// Whether any range has a byte in common with these.
    pub(crate) fn overlap(&self, start: usize, len: usize) -> bool {
        self.0
            .range(..start.saturating_add(len))
            .next_back()
            .is_some_and(|(at, range)| at + range.len > start)
    }

    /// The ranges that lie side by side over all of these bytes; none if there is a gap.
    fn cover(&self, start: usize, len: usize) -> Option<Vec<(usize, Range)>> {
        let end = start.checked_add(len)?;
        let mut found = Vec::new();
        let mut at = start;
        while at < end {
            let (&begin, &range) = self.0.range(..=at).next_back()?;
            if begin + range.len <= at {
                return None;
            }
            found.push((begin, range));
            at = begin + range.len;
        }
        Some(found)
    }

    /// Whether a kernel of a device, or a copy of the driver if none is given, may touch these bytes.
    pub(crate) fn reachable(&self, device: Option<&Device>, start: usize, len: usize) -> bool {
        let mask = device.map_or(u64::MAX, |device| 1 << device.index);
        self.cover(start, len).is_some_and(|ranges| ranges.iter().all(|(_, range)| range.devices & mask != 0))
    }

    /// Whether these bytes are host memory that the driver knows, so that copies need not go through other
    /// memory.
    pub(crate) fn is_pinned(&self, start: usize, len: usize) -> bool {
        self.cover(start, len).is_some_and(|ranges| ranges.iter().all(|(_, range)| range.kind.is_host()))
    }

    /// Where mapped ranges begin that make up exactly these bytes.
    pub(crate) fn mapped(&self, start: usize, len: usize) -> Option<Vec<usize>> {
        let ranges = self.cover(start, len)?;
        let (first, last) = (ranges.first()?, ranges.last()?);
        let exact = first.0 == start && last.0 + last.1.len == start + len;
        let mapped = ranges.iter().all(|(_, range)| range.kind == Kind::Mapped);
        (exact && mapped).then(|| ranges.iter().map(|(start, _)| *start).collect())
    }

    /// Bytes that are counted on a device.
    pub(crate) fn used(&self, device: &Device) -> usize {
        self.0.values().filter(|range| range.home == Some(device.index)).map(|range| range.len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bytes_without_a_gap_between_them_are_reached() {
        let mut ranges = Ranges(BTreeMap::new());
        ranges.add(100, Range::host(50, Kind::Pinned));
        ranges.add(150, Range::host(50, Kind::Registered));
        ranges.add(300, Range::mapped(50));
        assert!(ranges.reachable(None, 120, 80) && ranges.is_pinned(100, 100));
        assert!(!ranges.reachable(None, 120, 81) && !ranges.reachable(None, 99, 2));
        assert!(!ranges.reachable(None, 300, 1), "no device may touch it yet");
        assert!(!ranges.reachable(None, usize::MAX, 2));
        assert!(ranges.overlap(199, 10) && !ranges.overlap(200, 100) && ranges.overlap(200, 101));
        assert_eq!(ranges.mapped(300, 50), Some(vec![300]));
        assert_eq!(ranges.mapped(300, 49), None);
        assert_eq!(ranges.mapped(150, 50), None);
    }
}
