//! The file of `--config-file`: YAML with sections of keys, as Horovod has it.
//!
//! ```yaml
//! params:
//!   fusion_threshold_mb: 32
//! stall_check:
//!   enabled: false
//! ```
//!
//! This reads what stands there, with its line; what the keys mean is said in `tuning/table.rs`.

use std::path::{Path, PathBuf};

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

use crate::problem::Problem;

/// What a file says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ConfigFile {
    /// Where it is.
    pub(crate) path: PathBuf,
    /// Its keys, in their order.
    pub(crate) entries: Vec<Entry>,
}

/// A key and its value.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// `section.key`, or just the key if it is in no section.
    pub(crate) key: String,
    /// The line it stands in, counted from 1.
    pub(crate) line: usize,
    /// The text of its value; a list is joined with commas. `None` if it is empty or null.
    pub(crate) value: Option<String>,
}

/// Reads a file.
pub(crate) fn read(path: &Path) -> Result<ConfigFile, Problem> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| Problem::ConfigUnreadable { path: path.to_owned(), source })?;
    let entries = entries(&text).map_err(|(line, problem)| Problem::ConfigFile {
        path: path.to_owned(),
        line,
        problem,
    })?;
    Ok(ConfigFile { path: path.to_owned(), entries })
}

/// What is wrong, and in which line.
type Complaint = (usize, String);

fn entries(text: &str) -> Result<Vec<Entry>, Complaint> {
    let mut reader = Reader { parser: Parser::new_from_str(text), entries: Vec::new() };
    loop {
        let (event, span) = reader.next()?;
        match event {
            Event::MappingStart(..) if reader.entries.is_empty() => reader.mapping(None)?,
            Event::StreamEnd => return Ok(reader.entries),
            Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing => {}
            Event::Scalar(text, style, ..) if is_null(&text, style) => {}
            Event::MappingStart(..) => {
                return Err((span.start.line(), "a second document is too many".to_owned()));
            }
            _ => return Err((span.start.line(), "sections such as `params:` are expected".to_owned())),
        }
    }
}

struct Reader<'text, I: saphyr_parser::Input> {
    parser: Parser<'text, I>,
    entries: Vec<Entry>,
}

impl<'text, I: saphyr_parser::Input> Reader<'text, I> {
    fn next(&mut self) -> Result<(Event<'text>, Span), Complaint> {
        match self.parser.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err((error.marker().line(), format!("this is not YAML: {}", error.info()))),
            // The stream's own end is an event, and nobody asks after it.
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    /// Reads the keys of a section, or, without one, those of the file.
    fn mapping(&mut self, section: Option<&str>) -> Result<(), Complaint> {
        loop {
            let (event, span) = self.next()?;
            let line = span.start.line();
            let name = match event {
                Event::MappingEnd => return Ok(()),
                Event::Scalar(name, ..) => name,
                _ => return Err((line, "a key is expected here".to_owned())),
            };
            let key = match section {
                Some(section) => format!("{section}.{name}"),
                None => name.into_owned(),
            };
            if let Some(first) = self.entries.iter().find(|entry| entry.key == key) {
                return Err((line, format!("{key} is already in line {}", first.line)));
            }
            let (event, span) = self.next()?;
            let value = match event {
                Event::Scalar(text, style, ..) => (!is_null(&text, style)).then(|| text.into_owned()),
                Event::SequenceStart(..) => Some(self.sequence(&key)?),
                Event::MappingStart(..) if section.is_none() => {
                    self.entries.push(Entry { key: key.clone(), line, value: None });
                    self.mapping(Some(&key))?;
                    continue;
                }
                _ => return Err((span.start.line(), format!("{key} has a value that is not understood"))),
            };
            self.entries.push(Entry { key, line, value });
        }
    }

    /// Reads a list of simple values.
    fn sequence(&mut self, key: &str) -> Result<String, Complaint> {
        let mut values = Vec::new();
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::SequenceEnd => return Ok(values.join(",")),
                Event::Scalar(text, ..) => values.push(text.into_owned()),
                _ => return Err((span.start.line(), format!("{key} has a list that is not understood"))),
            }
        }
    }
}

fn is_null(text: &str, style: ScalarStyle) -> bool {
    style == ScalarStyle::Plain && matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_with_their_section_and_line() {
        let text = "\
# tuned in spring
controller: gloo
params:
  fusion_threshold_mb: 32   # MiB
  cycle_time_ms: '5'

library_options: {thread_affinity: [0, 2]}
timeline:
logging:
  level:
";
        let expected = [
            ("controller", 2, Some("gloo")),
            ("params", 3, None),
            ("params.fusion_threshold_mb", 4, Some("32")),
            ("params.cycle_time_ms", 5, Some("5")),
            ("library_options", 7, None),
            ("library_options.thread_affinity", 7, Some("0,2")),
            ("timeline", 8, None),
            ("logging", 9, None),
            ("logging.level", 10, None),
        ];
        let read = entries(text).expect("YAML");
        let read: Vec<_> =
            read.iter().map(|entry| (entry.key.as_str(), entry.line, entry.value.as_deref())).collect();
        assert_eq!(read, expected);
    }

    #[test]
    fn empty_files_say_nothing() {
        for text in ["", "# nothing\n", "---\n", "{}\n", "~\n"] {
            assert_eq!(entries(text), Ok(Vec::new()), "{text:?}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_explained_with_its_line() {
        for (text, line, problem) in [
            ("params:\n  cycle_time_ms: [1\n", 3, "not YAML"),
            ("just words\n", 1, "sections such as"),
            ("- 1\n- 2\n", 1, "sections such as"),
            ("params:\n  a: 1\n  a: 2\n", 3, "params.a is already in line 2"),
            ("params:\n  a:\n    b: 1\n", 3, "params.a has a value that is not understood"),
            ("a: &x 1\nb: *x\n", 2, "b has a value that is not understood"),
            ("a: [[1]]\n", 1, "a has a list that is not understood"),
            ("[1]: 2\n", 1, "a key is expected"),
            ("a: 1\n---\nb: 2\n", 3, "second document"),
        ] {
            let (at, complaint) = entries(text).expect_err(text);
            assert!(complaint.contains(problem), "{text:?}: {complaint}");
            assert_eq!(at, line, "{text:?}: {complaint}");
        }
    }
}
