//! Something the user should be told about a variable.

use std::fmt;

/// One line about one or more variables, to be shown once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The variables it is about.
    pub variables: Vec<&'static str>,
    /// The whole line.
    pub text: String,
}

impl Note {
    /// A value that cannot be read. `problem` goes on after the value: "is not a number".
    pub(crate) fn unreadable(
        name: &'static str,
        value: &str,
        problem: &str,
        default: Option<&'static str>,
    ) -> Note {
        let instead = match default {
            Some(default) => format!("{default} is used instead"),
            None => "it is ignored".to_owned(),
        };
        Note { variables: vec![name], text: format!("{name}={value} {problem}; {instead}") }
    }

    /// Something asked for that cannot be had.
    pub(crate) fn without_effect(variables: Vec<&'static str>, reason: &str) -> Note {
        let verb = if variables.len() == 1 { "has" } else { "have" };
        let text = format!("{} {verb} no effect: {reason}", variables.join(", "));
        Note { variables, text }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
