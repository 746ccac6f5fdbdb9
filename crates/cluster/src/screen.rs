//! Where progress is shown, on standard error: lines that stay, and on a terminal below them some that are drawn anew.

use std::io::Write;

use rustix::stdio::stderr;
use rustix::termios::{isatty, tcgetwinsize};

use crate::words::cut;

/// What is shown.
#[derive(Debug)]
pub(crate) struct Screen {
    is_terminal: bool,
    /// How many lines are drawn that do not stay.
    drawn: usize,
}

impl Screen {
    pub(crate) fn new() -> Screen {
        Screen { is_terminal: isatty(stderr()), drawn: 0 }
    }

    /// Shows lines that stay.
    pub(crate) fn say(&mut self, lines: &[String]) {
        if lines.is_empty() {
            return;
        }
        let mut text = self.wiped();
        for line in lines {
            text.push_str(line);
            text.push('\n');
        }
        Self::write(&text);
    }

    /// Shows lines until the next ones come; without a terminal, nothing.
    pub(crate) fn live(&mut self, lines: &[String]) {
        if !self.is_terminal {
            return;
        }
        // A terminal that does not know its size says 0.
        let size = tcgetwinsize(stderr()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
        let (width, height) = size.map_or((80, 24), |size| (size.ws_col, size.ws_row));
        let mut text = self.wiped();
        // What does not fit could not be taken back.
        let shown = lines.len().min(usize::from(height).saturating_sub(2).max(1));
        for line in &lines[lines.len() - shown..] {
            text.push_str(&cut(line, usize::from(width)));
            text.push('\n');
        }
        self.drawn = shown;
        Self::write(&text);
    }

    /// What takes back the lines that do not stay.
    fn wiped(&mut self) -> String {
        match std::mem::take(&mut self.drawn) {
            0 => String::new(),
            count => format!("\x1b[{count}A\x1b[J"),
        }
    }

    fn write(text: &str) {
        // Whoever closed it does not want to know.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let text = self.wiped();
        Self::write(&text);
    }
}
