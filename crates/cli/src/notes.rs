//! What is to be said about a command line before anything runs: one line each, on standard error.
//!
//! A *warning* is about something that is probably a mistake and is always shown; a *note* says how
//! something is done here and is left out with `--quiet`.

use std::io::Write;

/// Lines to show, in their order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Notes {
    lines: Vec<Line>,
}

#[derive(Debug, PartialEq, Eq)]
enum Line {
    Warning(String),
    Note(String),
}

impl Notes {
    /// Adds a line about something that is probably a mistake.
    pub(crate) fn warn(&mut self, text: impl Into<String>) {
        self.lines.push(Line::Warning(text.into()));
    }

    /// Adds a line about how something is done here.
    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.lines.push(Line::Note(text.into()));
    }

    /// Adds a line about flags that change nothing.
    pub(crate) fn without_effect(&mut self, flags: &[&str], reason: &str) {
        let verb = if flags.len() == 1 { "has" } else { "have" };
        self.note(format!("{} {verb} no effect: {reason}", flags.join(", ")));
    }

    /// The lines as the user sees them.
    pub(crate) fn text(&self, quiet: bool) -> String {
        let mut text = String::new();
        for line in &self.lines {
            match line {
                Line::Warning(warning) => text.push_str(&format!("warning: {warning}\n")),
                Line::Note(_) if quiet => {}
                Line::Note(note) => text.push_str(&format!("note: {note}\n")),
            }
        }
        text
    }

    /// Shows them.
    pub(crate) fn show(&self, quiet: bool) {
        // Whoever closed our standard error does not want them.
        let _ = std::io::stderr().write_all(self.text(quiet).as_bytes());
    }
}
