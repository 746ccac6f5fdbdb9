//! Page-aligned memory for f32 tensors.
//!
//! Where a buffer starts in its page changes what a copy costs on some processors, by a factor in
//! the worst case. Measurements start on a page, everybody's.

/// One page, which is what gives the buffer its alignment.
#[derive(Clone)]
#[repr(C, align(4096))]
struct Page([u8; Page::SIZE]);

impl Page {
    const SIZE: usize = 4096;
}

/// A tensor of f32 that starts on a page.
pub(crate) struct Buffer {
    pages: Vec<Page>,
    bytes: usize,
}

impl Buffer {
    /// A tensor of that many bytes, rounded down to whole elements, all zero and backed by memory.
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            pages: vec![Page([0; Page::SIZE]); bytes.div_ceil(Page::SIZE)],
            bytes: bytes - bytes % size_of::<f32>(),
        }
    }

    /// The tensor as the collectives take it.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        // SAFETY: the pages are contiguous, initialised, and at least `bytes` long together.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr().cast(), self.bytes) }
    }

    /// The tensor as the collectives change it.
    pub(crate) fn as_bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_bytes`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.pages.as_mut_ptr().cast(), self.bytes) }
    }

    /// The tensor's elements.
    pub(crate) fn as_floats(&self) -> &[f32] {
        // SAFETY: as in `as_bytes`; pages are aligned beyond what f32 needs and any bits are an f32.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr().cast(), self.bytes / size_of::<f32>()) }
    }

    /// The tensor's elements, to be changed.
    pub(crate) fn as_floats_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `as_floats`, and borrowed mutably.
        unsafe {
            std::slice::from_raw_parts_mut(self.pages.as_mut_ptr().cast(), self.bytes / size_of::<f32>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_starts_on_a_page_and_holds_whole_elements() {
        for bytes in [0, 3, 4, 4096, 4099, 10_000] {
            let mut buffer = Buffer::new(bytes);
            assert_eq!(buffer.as_bytes().as_ptr() as usize % 4096, 0);
            assert_eq!(buffer.as_bytes_mut().len(), bytes / 4 * 4);
            assert_eq!(buffer.as_floats().len(), bytes / 4);
        }
    }

    #[test]
    fn bytes_and_elements_are_the_same_memory() {
        let mut buffer = Buffer::new(8);
        buffer.as_floats_mut()[1] = 1.5;
        assert_eq!(buffer.as_bytes()[4..], 1.5f32.to_ne_bytes());
    }
}
