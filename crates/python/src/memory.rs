//! Addresses from Python, as slices. The only place where a number becomes memory.

use std::slice;

use ronde_collective::types::DType;

/// Some elements in memory that Python keeps alive for the length of a call.
#[derive(Clone, Copy)]
pub(crate) struct Elements {
    address: usize,
    bytes: usize,
}

impl Elements {
    /// `count` elements of a type from an address on.
    pub(crate) fn new(address: usize, count: usize, dtype: DType) -> Elements {
        Elements { address, bytes: count * dtype.size() }
    }

    /// The elements for reading.
    ///
    /// # Safety
    /// The memory is readable and nobody writes to it while the slice is in use.
    pub(crate) unsafe fn read<'a>(self) -> &'a [u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: as the caller promises; an address with elements behind it is not null.
        unsafe { slice::from_raw_parts(self.address as *const u8, self.bytes) }
    }

    /// The elements for writing.
    ///
    /// # Safety
    /// The memory is writable and nobody else touches it while the slice is in use.
    pub(crate) unsafe fn write<'a>(self) -> &'a mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        // SAFETY: as the caller promises; an address with elements behind it is not null.
        unsafe { slice::from_raw_parts_mut(self.address as *mut u8, self.bytes) }
    }

    /// Whether two ranges are one and the same.
    pub(crate) fn is_same_as(self, other: Elements) -> bool {
        self.address == other.address
    }
}
