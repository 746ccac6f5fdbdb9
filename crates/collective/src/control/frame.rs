//! Frames in a stream of bytes: a length of four bytes (little-endian), then as many bytes.
//!
//! Pipes carry bytes as they come and go; an [`Outbox`] keeps what a pipe has not taken yet, an [`Inbox`] what is not a
//! whole frame yet. A frame larger than a pipe flows through it in parts. A length that no frame has says goodbye:
//! nothing comes after it, and the end of the stream is then no surprise.

/// Longest frame. Far more than any message needs; a length beyond it is a broken peer, not a message.
pub(super) const LONGEST: usize = 64 << 20;
/// Room that a box keeps when it is empty.
const KEPT_ROOM: usize = 256 << 10;
const HEADER: usize = 4;
/// Stands where a length would.
const GOODBYE: u32 = u32::MAX - 1;

/// A peer announced a frame of so many bytes, which is more than [`LONGEST`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong(pub(super) usize);

/// Bytes on their way out.
#[derive(Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outbox {
    /// Adds a frame, of at most [`LONGEST`] bytes.
    pub(super) fn push(&mut self, frame: &[u8]) {
        assert!(frame.len() <= LONGEST);
        self.bytes.extend_from_slice(&(frame.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(frame);
    }

    /// Says that nothing comes after this.
    pub(super) fn push_goodbye(&mut self) {
        self.bytes.extend_from_slice(&GOODBYE.to_le_bytes());
    }

    /// Gives up what is still to be sent.
    pub(super) fn discard(&mut self) {
        self.sent = self.bytes.len();
    }

    /// What is still to be sent.
    pub(super) fn rest(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// So many more bytes were sent.
    pub(super) fn advance(&mut self, sent: usize) {
        self.sent += sent;
        debug_assert!(self.sent <= self.bytes.len());
        // Moving the rest to the front only when it is the smaller part keeps the cost of moving below that of sending.
        if self.sent * 2 >= self.bytes.len() {
            remove_front(&mut self.bytes, self.sent);
            self.sent = 0;
        }
    }
}

/// Bytes on their way in.
#[derive(Default)]
pub(super) struct Inbox {
    /// Where arriving bytes are appended.
    pub(super) bytes: Vec<u8>,
    /// Whether a goodbye has come.
    pub(super) said_goodbye: bool,
}

impl Inbox {
    /// Hands over the frames that are complete, in order.
    pub(super) fn deliver(&mut self, mut take: impl FnMut(&[u8])) -> Result<(), TooLong> {
        let mut rest = &self.bytes[..];
        let outcome = loop {
            let Some((header, behind)) = rest.split_first_chunk::<HEADER>() else { break Ok(()) };
            let len = u32::from_le_bytes(*header);
            if len == GOODBYE {
                self.said_goodbye = true;
                rest = &[];
                break Ok(());
            }
            let len = len as usize;
            if len > LONGEST {
                break Err(TooLong(len));
            }
            let Some((frame, next)) = behind.split_at_checked(len) else { break Ok(()) };
            take(frame);
            rest = next;
        };
        let done = self.bytes.len() - rest.len();
        remove_front(&mut self.bytes, done);
        outcome
    }
}

/// Removes the first bytes, and unusual amounts of room with the last of them.
fn remove_front(bytes: &mut Vec<u8>, count: usize) {
    if count == bytes.len() && bytes.capacity() > KEPT_ROOM {
        *bytes = Vec::new();
    } else {
        bytes.drain(..count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivered(inbox: &mut Inbox) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        inbox.deliver(|frame| frames.push(frame.to_vec())).expect("sensible lengths");
        frames
    }

    #[test]
    fn frames_survive_any_cutting_of_the_stream() {
        let frames: Vec<Vec<u8>> =
            [0, 1, 5, 0, 300_000, 17].iter().map(|&len| vec![len as u8; len]).collect();
        for step in [1, 3, 4, 1000, 1 << 20] {
            let (mut outbox, mut inbox, mut got) = (Outbox::default(), Inbox::default(), Vec::new());
            for frame in &frames {
                outbox.push(frame);
            }
            while !outbox.is_empty() {
                let len = step.min(outbox.rest().len());
                inbox.bytes.extend_from_slice(&outbox.rest()[..len]);
                outbox.advance(len);
                got.extend(delivered(&mut inbox));
            }
            assert!(got == frames, "step {step}");
            assert!(inbox.bytes.is_empty());
        }
    }

    #[test]
    fn after_a_goodbye_nothing_is_delivered() {
        let (mut outbox, mut inbox) = (Outbox::default(), Inbox::default());
        outbox.push(&[7]);
        outbox.push_goodbye();
        outbox.push(&[8]);
        inbox.bytes.extend_from_slice(outbox.rest());
        assert_eq!(delivered(&mut inbox), [[7]]);
        assert!(inbox.said_goodbye && inbox.bytes.is_empty());
    }

    #[test]
    fn frames_before_an_impossible_length_are_delivered_and_the_length_is_named() {
        let mut inbox = Inbox::default();
        inbox.bytes.extend_from_slice(&[1, 0, 0, 0, 9, 0xFF, 0xFF, 0xFF, 0xFF]);
        let mut frames = Vec::new();
        let outcome = inbox.deliver(|frame| frames.push(frame.to_vec()));
        assert_eq!((outcome, frames), (Err(TooLong(u32::MAX as usize)), vec![vec![9]]));
        assert_eq!(inbox.deliver(|_| ()), Err(TooLong(u32::MAX as usize)));
    }
}
