//! Cutting a stream of bytes into lines, wherever reads happen to break it.
//!
//! A line ends at a newline or at a carriage return, which is how progress bars redraw themselves.
//! Cuts fall on those two bytes only, so characters and escape sequences stay whole.

/// A line longer than this is cut, so that a rank that never ends one cannot take all memory.
const LONGEST: usize = 1 << 20;

/// How a piece of output ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With a newline (or a carriage return and a newline).
    Newline,
    /// With a carriage return: the next piece is meant to overwrite this one.
    Return,
    /// Nothing but the newline of a carriage return that was passed on already.
    LateNewline,
    /// Without an end: the stream is over, or the line too long.
    Cut,
}

/// One stream's unfinished line.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    partial: Vec<u8>,
    /// The last byte seen was a carriage return, passed on as [`End::Return`].
    after_return: bool,
}

impl Lines {
    /// Takes in what was read and passes every finished line on, without its end.
    pub(crate) fn feed(&mut self, mut bytes: &[u8], mut line: impl FnMut(&[u8], End)) {
        if std::mem::take(&mut self.after_return) && bytes.first() == Some(&b'\n') {
            line(b"", End::LateNewline);
            bytes = &bytes[1..];
        }
        while let Some(at) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let (text, rest) = (&bytes[..at], &bytes[at + 1..]);
            let (end, rest) = match (bytes[at], rest.first()) {
                (b'\n', _) => (End::Newline, rest),
                (_, Some(b'\n')) => (End::Newline, &rest[1..]),
                (_, next) => {
                    self.after_return = next.is_none();
                    (End::Return, rest)
                }
            };
            if self.partial.is_empty() {
                line(text, end);
            } else {
                self.partial.extend_from_slice(text);
                line(&self.partial, end);
                self.partial.clear();
            }
            bytes = rest;
        }
        self.partial.extend_from_slice(bytes);
        while self.partial.len() > LONGEST {
            let cut = character_boundary(&self.partial, LONGEST);
            line(&self.partial[..cut], End::Cut);
            self.partial.drain(..cut);
        }
    }

    /// The stream is over: passes on what is left of it.
    pub(crate) fn finish(&mut self, mut line: impl FnMut(&[u8], End)) {
        if !self.partial.is_empty() {
            line(&std::mem::take(&mut self.partial), End::Cut);
        }
    }
}

/// The last place at or before `limit` that is not inside a UTF-8 character.
fn character_boundary(bytes: &[u8], limit: usize) -> usize {
    let continues = |at: &usize| bytes[*at] & 0b1100_0000 == 0b1000_0000;
    // Characters have at most four bytes; what is longer is not UTF-8 and may be cut anywhere.
    (limit.saturating_sub(3)..=limit).rev().find(|at| !continues(at)).unwrap_or(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(reads: &[&[u8]]) -> Vec<(String, End)> {
        let mut lines = Lines::default();
        let mut seen = Vec::new();
        let mut keep = |text: &[u8], end| {
            seen.push((String::from_utf8(text.to_vec()).expect("whole characters"), end));
        };
        for read in reads {
            lines.feed(read, &mut keep);
        }
        lines.finish(&mut keep);
        seen
    }

    fn told(seen: &[(String, End)]) -> Vec<(&str, End)> {
        seen.iter().map(|(text, end)| (text.as_str(), *end)).collect()
    }

    #[test]
    fn lines_come_out_whole_however_the_reads_fall() {
        let text = "größe 1\r\n\nlast\n".as_bytes();
        let expected = [("größe 1", End::Newline), ("", End::Newline), ("last", End::Newline)];
        for at in 0..text.len() {
            // A split inside \r\n shows the line early; that case has its own test.
            if text[..at].ends_with(b"\r") {
                continue;
            }
            let (head, tail) = text.split_at(at);
            assert_eq!(told(&cut(&[head, tail])), expected, "split at {at}");
        }
        let bytes: Vec<&[u8]> = b"ab\nc\n".chunks(1).collect();
        assert_eq!(told(&cut(&bytes)), [("ab", End::Newline), ("c", End::Newline)]);
    }

    #[test]
    fn progress_bars_show_at_every_carriage_return() {
        assert_eq!(
            told(&cut(&[b"10%\r20%\r", b"30%"])),
            [("10%", End::Return), ("20%", End::Return), ("30%", End::Cut)]
        );
        assert_eq!(
            told(&cut(&[b"done\r", b"\nnext\n"])),
            [("done", End::Return), ("", End::LateNewline), ("next", End::Newline)]
        );
    }

    #[test]
    fn an_endless_line_is_cut_between_characters() {
        let endless = "é".repeat(LONGEST);
        let seen = cut(&[b"x", endless.as_bytes()]);
        assert!(seen.len() > 1 && seen.iter().all(|(text, _)| text.len() <= LONGEST));
        let joined: String = seen.iter().map(|(text, _)| text.as_str()).collect();
        assert!(joined == format!("x{endless}"));
    }
}
