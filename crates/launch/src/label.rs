//! What stands in front of a rank's line, or around it.

use serde::{Deserialize, Serialize};

use crate::lines::End;

/// Which stream a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

/// How lines are labelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Labels {
    /// Not at all.
    None,
    /// `[0] `.
    Rank,
    /// `[0]<stdout>:`, as Horovod's launcher writes it.
    Horovod,
    /// Each line is an object of JSON, for programs: everything goes to standard output, beginning with the hosts.
    Json,
}

impl Labels {
    pub(crate) fn text(self, rank: usize, stream: Stream) -> String {
        match (self, stream) {
            (Labels::None, _) => String::new(),
            // An object names its rank itself; this is for people, who are shown the last lines of a rank that failed.
            (Labels::Rank | Labels::Json, _) => format!("[{rank}] "),
            (Labels::Horovod, Stream::Stdout) => format!("[{rank}]<stdout>:"),
            (Labels::Horovod, Stream::Stderr) => format!("[{rank}]<stderr>:"),
        }
    }
}

/// A rank's line as an object: `{"rank":0,"stream":"stdout","text":"epoch 1","end":"newline"}`.
///
/// What is not UTF-8 is replaced. The ends are `newline`, also for a line without one, and `return`: the next line of the
/// stream is meant to overwrite this one, unless it is empty.
pub(crate) fn object(rank: usize, stream: Stream, text: &[u8], end: End) -> String {
    let stream = match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
    };
    let end = if end == End::Return { "return" } else { "newline" };
    serde_json::json!({ "rank": rank, "stream": stream, "text": String::from_utf8_lossy(text), "end": end })
        .to_string()
}

/// Which host each rank is on, as an object: `{"hosts":["gpu1","gpu2"]}`.
pub(crate) fn hosts_object(hosts: &[String]) -> String {
    serde_json::json!({ "hosts": hosts }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_say_where_a_line_comes_from_and_how_it_ends() {
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        let line = read(&object(3, Stream::Stderr, b"50% \"\xff\x1b[0m", End::Return));
        let expected = serde_json::json!(
            { "rank": 3, "stream": "stderr", "text": "50% \"\u{fffd}\u{1b}[0m", "end": "return" }
        );
        assert_eq!(line, expected);
        for end in [End::Newline, End::LateNewline, End::Cut] {
            assert_eq!(read(&object(0, Stream::Stdout, b"", end))["end"], "newline");
        }
        assert!(!object(0, Stream::Stdout, b"a\nb", End::Newline).contains('\n'));
        assert_eq!(read(&hosts_object(&["a".to_owned()])), serde_json::json!({ "hosts": ["a"] }));
    }

    #[test]
    fn labels_are_those_of_the_launcher_that_was_called() {
        assert_eq!(Labels::Rank.text(3, Stream::Stderr), "[3] ");
        assert_eq!(Labels::Horovod.text(3, Stream::Stdout), "[3]<stdout>:");
        assert_eq!(Labels::Horovod.text(3, Stream::Stderr), "[3]<stderr>:");
        assert_eq!(Labels::None.text(3, Stream::Stdout), "");
    }
}
