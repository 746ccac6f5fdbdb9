//! Reading variables one by one, with their defaults, and collecting what is to be said about them.

use std::time::Duration;

use crate::note::Note;
use crate::registry;
use crate::value;
use crate::variable::{Status, Variable};

/// Reads variables through a function, so that it can be the environment, a test's table, or anything else. An empty value
/// counts as not set. A value that cannot be read becomes a [`Note`], and the default is used.
pub struct Reading<F> {
    var: F,
    notes: Vec<Note>,
}

impl<F: Fn(&str) -> Option<String>> Reading<F> {
    /// Reads through `var`.
    pub fn new(var: F) -> Reading<F> {
        Reading { var, notes: Vec::new() }
    }

    /// The text of a variable, if it is set.
    pub fn text(&self, variable: &Variable) -> Option<String> {
        let text = (self.var)(variable.name)?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// The value of a variable, or its default; `None` if it has neither.
    pub fn read<T>(&mut self, variable: &Variable, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        if let Some(text) = self.text(variable) {
            match parse(&text) {
                Ok(value) => return Some(value),
                Err(problem) => {
                    self.notes.push(Note::unreadable(variable.name, &text, &problem, variable.default));
                }
            }
        }
        // A test reads every default of the registry, so only a missing one ends in `None`.
        variable.default.and_then(|default| parse(default).ok())
    }

    /// A switch; off if it has no default.
    pub fn switch(&mut self, variable: &Variable) -> bool {
        self.read(variable, value::switch).unwrap_or_default()
    }

    /// A number of things or bytes that fits in memory.
    pub fn size(&mut self, variable: &Variable) -> usize {
        let parse = |text: &str| {
            let count = value::count(text)?;
            usize::try_from(count).map_err(|_| "is larger than any memory".to_owned())
        };
        self.read(variable, parse).unwrap_or_default()
    }

    /// A time in seconds; `None` for 0, which stands for never.
    pub fn seconds(&mut self, variable: &Variable) -> Option<Duration> {
        self.read(variable, value::seconds).filter(|time| !time.is_zero())
    }

    /// Adds a note of the caller's own.
    pub(crate) fn note(&mut self, variable: &Variable, text: String) {
        self.notes.push(Note { variables: vec![variable.name], text });
    }

    /// Notes for all variables that are set and ask for something that cannot be had: one for each reason.
    pub(crate) fn explain(&mut self) {
        let mut reasons: Vec<(&str, Vec<&'static str>)> = Vec::new();
        for variable in registry::all() {
            let Status::Explained(reason) = variable.status else { continue };
            let Some(text) = self.text(variable) else { continue };
            if variable.default.is_some_and(|default| value::equal(variable.kind, &text, default)) {
                continue;
            }
            match reasons.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, names)) => names.push(variable.name),
                None => reasons.push((reason, vec![variable.name])),
            }
        }
        self.notes.extend(reasons.into_iter().map(|(reason, names)| Note::without_effect(names, reason)));
    }

    /// Everything there is to say.
    pub fn into_notes(self) -> Vec<Note> {
        self.notes
    }
}
