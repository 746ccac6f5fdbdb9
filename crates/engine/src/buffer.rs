//! Memory for results whose size only the ranks together know (allgather, alltoall).
//!
//! The engine allocates it, a framework takes it over and frees it through [`Buffer`]'s drop.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// A page: copies between buffers whose addresses differ by a few bytes modulo a page are slow on some processors.
const ALIGN: usize = 4096;

/// Aligned as the least of buffers, so that one without bytes may stand for a slice of any type.
#[repr(align(64))]
struct Line;

/// Uninitialised bytes, page-aligned if there are enough of them to matter.
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer owns its memory; sharing it is as safe as sharing a slice.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

fn layout(len: usize) -> Layout {
    let align = if len >= ALIGN { ALIGN } else { align_of::<Line>() };
    Layout::from_size_align(len, align).unwrap_or_else(|_| handle_alloc_error(Layout::new::<u8>()))
}

impl Buffer {
    pub(crate) fn new(len: usize) -> Buffer {
        if len == 0 {
            return Buffer { start: NonNull::<Line>::dangling().cast(), len };
        }
        let layout = layout(len);
        // SAFETY: the layout has a size.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        Buffer { start, len }
    }

    /// Where the bytes begin; dangling if there are none.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: allocated in `new` with this very layout.
            unsafe { dealloc(self.start.as_ptr(), layout(self.len)) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_buffers_begin_at_a_page_and_empty_ones_allocate_nothing() {
        assert_eq!(Buffer::new(10_000).as_ptr() as usize % ALIGN, 0);
        assert!(Buffer::new(0).is_empty());
        assert_eq!(Buffer::new(3).len(), 3);
    }
}
