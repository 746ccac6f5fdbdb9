//! What stands in front of a rank's line.

use serde::{Deserialize, Serialize};

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
}

impl Labels {
    pub(crate) fn text(self, rank: usize, stream: Stream) -> String {
        match (self, stream) {
            (Labels::None, _) => String::new(),
            (Labels::Rank, _) => format!("[{rank}] "),
            (Labels::Horovod, Stream::Stdout) => format!("[{rank}]<stdout>:"),
            (Labels::Horovod, Stream::Stderr) => format!("[{rank}]<stderr>:"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_those_of_the_launcher_that_was_called() {
        assert_eq!(Labels::Rank.text(3, Stream::Stderr), "[3] ");
        assert_eq!(Labels::Horovod.text(3, Stream::Stdout), "[3]<stdout>:");
        assert_eq!(Labels::Horovod.text(3, Stream::Stderr), "[3]<stderr>:");
        assert_eq!(Labels::None.text(3, Stream::Stdout), "");
    }
}
