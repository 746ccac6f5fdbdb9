//! Traces of several ranks, read and made one. Pure: bytes in, events out; `timeline.rs` has the files.
//!
//! A trace is a JSON array of events in Chrome's format, in which every tensor is a process with a name. Each begins at its
//! own moment: an opening event says which, by which clock, and on which rank.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

type Event = Map<String, Value>;

/// What can be wrong with a file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Problem {
    #[error("it is not a timeline: {0}")]
    NotATimeline(String),
    #[error("it does not say when it began (start_time_since_epoch_in_micros), so it cannot be aligned")]
    NoStart,
}

/// What one rank wrote.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) rank: u64,
    /// When it began, in microseconds since 1970 by the clock of rank 0.
    start: i64,
    events: Vec<Event>,
    /// Whether it ended in the middle.
    pub(crate) cut_off: bool,
}

impl Trace {
    /// Reads a file. Where the rank was killed while writing, it ends in the middle of an event; that event is left out.
    pub(crate) fn read(bytes: &[u8]) -> Result<Trace, Problem> {
        let (events, cut_off) = events(bytes)?;
        let opening = events.iter().find_map(|event| {
            let about = event.get("args")?;
            Some((about.get("start_time_since_epoch_in_micros")?.as_i64()?, about))
        });
        let (start, about) = opening.ok_or(Problem::NoStart)?;
        let offset = about.get("clock_offset_in_micros").and_then(Value::as_i64).unwrap_or(0);
        // Only rank 0 of Horovod wrote a timeline, and it did not say so.
        let rank = about.get("rank").and_then(Value::as_u64).unwrap_or(0);
        Ok(Trace { rank, start: start.saturating_add(offset), events, cut_off })
    }
}

/// The events of an array, and whether the array ends too early.
fn events(bytes: &[u8]) -> Result<(Vec<Event>, bool), Problem> {
    let mut at = blanks(bytes, 0);
    if bytes.get(at) != Some(&b'[') {
        return Err(Problem::NotATimeline("it does not begin with [".to_owned()));
    }
    at += 1;
    let mut events = Vec::new();
    loop {
        at = blanks(bytes, at);
        match bytes.get(at) {
            None => return Ok((events, true)),
            Some(b']') => return Ok((events, false)),
            Some(b',') => at += 1,
            // What a file system may leave behind the last written page after a power cut.
            Some(0) => return Ok((events, true)),
            Some(_) => {
                let mut values = serde_json::Deserializer::from_slice(&bytes[at..]).into_iter::<Event>();
                match values.next() {
                    Some(Ok(event)) => events.push(event),
                    Some(Err(error)) if !error.is_eof() => {
                        let line = bytes[..at].iter().filter(|byte| **byte == b'\n').count() + error.line();
                        return Err(Problem::NotATimeline(format!("line {line} is not an event")));
                    }
                    _ => return Ok((events, true)),
                }
                at += values.byte_offset();
            }
        }
    }
}

fn blanks(bytes: &[u8], from: usize) -> usize {
    let rest = bytes.get(from..).unwrap_or_default();
    from + rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count()
}

/// One trace of many: clocks aligned, processes numbered anew in the order of ranks, ranks in their names.
pub(crate) fn merge(mut traces: Vec<Trace>) -> Vec<Value> {
    traces.sort_by_key(|trace| trace.rank);
    let start = traces.iter().map(|trace| trace.start).min().unwrap_or_default();
    let ranks: Vec<u64> = traces.iter().map(|trace| trace.rank).collect();
    let about = json!({ "start_time_since_epoch_in_micros": start, "ranks": ranks });
    let mut merged = vec![json!({ "name": "merged_timelines", "ph": "M", "pid": 0, "args": about })];
    let mut processes = 0;
    for trace in traces {
        let shift = trace.start.saturating_sub(start);
        let mut renumbered: HashMap<String, u64> = HashMap::new();
        for mut event in trace.events {
            let old = event.get("pid").map(Value::to_string).unwrap_or_default();
            let pid = *renumbered.entry(old).or_insert_with(|| {
                processes += 1;
                processes
            });
            event.insert("pid".to_owned(), pid.into());
            shift_time(&mut event, shift);
            belong(&mut event, trace.rank, pid);
            merged.push(Value::Object(event));
        }
    }
    merged
}

fn shift_time(event: &mut Event, shift: i64) {
    let Some(time) = event.get_mut("ts") else { return };
    *time = match (time.as_i64(), time.as_f64()) {
        (Some(whole), _) => whole.saturating_add(shift).into(),
        (None, Some(fraction)) => (fraction + shift as f64).into(),
        (None, None) => return,
    };
}

/// Puts the rank where an event would otherwise speak for the whole trace.
fn belong(event: &mut Event, rank: u64, pid: u64) {
    match event.get("name").and_then(Value::as_str) {
        Some("process_name") => {
            let named =
                event.get("args").filter(|args| args.get("start_time_since_epoch_in_micros").is_none());
            let name = match named.and_then(|args| args.get("name")).and_then(Value::as_str) {
                Some(name) => format!("rank {rank}: {name}"),
                None => format!("rank {rank}"),
            };
            event.insert("args".to_owned(), json!({ "name": name }));
        }
        Some("process_sort_index") => {
            event.insert("args".to_owned(), json!({ "sort_index": pid }));
        }
        _ => {}
    }
    // An instant that reached over all processes is one of this rank only.
    if event.get("s").and_then(Value::as_str) == Some("g") {
        event.insert("s".to_owned(), "p".into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_be_cut_anywhere_and_keeps_its_whole_events() {
        let whole = "[\n{\"args\":{\"start_time_since_epoch_in_micros\":5}},\n{\"name\":\"größe\"},\n{\"pid\":1}\n]\n";
        let ends: Vec<usize> = whole.match_indices("}").map(|(at, _)| at + 1).collect();
        // The first event ends with two braces.
        let event_ends = &ends[1..];
        for length in 1..=whole.len() {
            let (events, cut_off) = events(&whole.as_bytes()[..length]).expect("a timeline");
            let complete = event_ends.iter().filter(|end| **end <= length).count();
            assert_eq!((events.len(), cut_off), (complete, length < whole.len() - 1), "{length} bytes");
        }
    }

    #[test]
    fn what_is_no_timeline_is_said_with_the_line() {
        let complaint = |text: &str| Trace::read(text.as_bytes()).expect_err(text).to_string();
        assert!(complaint("{}").contains("does not begin with ["));
        assert!(complaint("").contains("does not begin with ["));
        assert!(complaint("[\n{},\n5,\n{}]").contains("line 3 "));
        assert!(complaint("[\n{\"ph\": nonsense}\n]").contains("line 2 "));
        assert!(complaint("[\n{\"ph\": \"B\", \"ts\": 3}\n]").contains("start_time_since_epoch_in_micros"));
    }

    #[test]
    fn bytes_of_zero_after_a_power_cut_count_as_the_end() {
        let (events, cut_off) = events(b"[\n{},\n{}\0\0\0").expect("a timeline");
        assert_eq!((events.len(), cut_off), (2, true));
    }
}
