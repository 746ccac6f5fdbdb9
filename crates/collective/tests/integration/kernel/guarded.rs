//! Buffers at odd addresses, with bytes around them that nobody may touch.

const MARGIN: usize = 192;
const GUARD: u8 = 0xa5;

/// `len` bytes that begin `shift` bytes after a cache line.
pub(crate) struct Guarded {
    room: Vec<u8>,
    start: usize,
    len: usize,
}

impl Guarded {
    /// A buffer filled with the guard's own byte.
    pub(crate) fn empty(len: usize, shift: usize) -> Guarded {
        let room = vec![GUARD; len + 2 * MARGIN];
        let line = room.as_ptr().addr().wrapping_neg() % 64;
        let start = 64 + line + shift;
        assert!(start + len <= room.len());
        Guarded { room, start, len }
    }

    pub(crate) fn holding(bytes: &[u8], shift: usize) -> Guarded {
        let mut buffer = Guarded::empty(bytes.len(), shift);
        buffer.room[buffer.start..][..bytes.len()].copy_from_slice(bytes);
        buffer
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.room[self.start..].as_ptr()
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.room[self.start..].as_mut_ptr()
    }

    /// The bytes, after checking that everything around them is as it was.
    pub(crate) fn bytes(&self) -> &[u8] {
        let end = self.start + self.len;
        let mut around = self.room[..self.start].iter().chain(&self.room[end..]);
        assert!(around.all(|&byte| byte == GUARD), "wrote outside of the buffer");
        &self.room[self.start..end]
    }
}
