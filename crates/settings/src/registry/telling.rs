//! What the user is told while a job runs: stalls, the timeline, the log.

use crate::variable::Kind::{Path, Seconds, Switch, Word};
use crate::variable::Status::{Accepted, Honoured};
use crate::variable::variables;

variables! {
    /// Turns off the warnings about tensors that some ranks wait for and others have not offered.
    STALL_CHECK_DISABLE = "HOROVOD_STALL_CHECK_DISABLE": Switch, Some("0"), Honoured;

    /// How long a tensor may wait for missing ranks before a warning names them. 0: for ever.
    STALL_CHECK_TIME = "HOROVOD_STALL_CHECK_TIME_SECONDS": Seconds, Some("60"), Honoured;

    /// How long a tensor may wait for missing ranks before the job is ended. 0: for ever. A time shorter than
    /// `HOROVOD_STALL_CHECK_TIME_SECONDS` is ignored with a warning.
    STALL_SHUTDOWN_TIME = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": Seconds, Some("0"), Honoured;

    /// The file for a trace of all operations, to be opened in `chrome://tracing` or Perfetto. Rank 0 writes it; with
    /// `{rank}` in the name every rank writes its own, and `ronde timeline merge` makes one of them. The word `DYNAMIC`
    /// means that `start_timeline()` will name the file later.
    TIMELINE = "HOROVOD_TIMELINE": Path, None, Honoured;

    /// Marks in the timeline each batch that the engine runs.
    TIMELINE_MARK_CYCLES = "HOROVOD_TIMELINE_MARK_CYCLES": Switch, Some("0"), Honoured;

    /// The least important messages to show. Up to `info` they go to standard output, the others to standard error.
    LOG_LEVEL = "HOROVOD_LOG_LEVEL":
        Word(&["trace", "debug", "info", "warning", "error", "fatal"]), Some("warning"), Honoured;

    /// Leaves the time out of messages.
    LOG_HIDE_TIME = "HOROVOD_LOG_HIDE_TIME": Switch, Some("0"), Honoured;

    /// Keeps operations out of NVIDIA's profilers.
    DISABLE_NVTX_RANGES = "HOROVOD_DISABLE_NVTX_RANGES": Switch, Some("0"),
        Accepted("no ranges are reported to NVIDIA's profilers; the timeline shows the same");
}
