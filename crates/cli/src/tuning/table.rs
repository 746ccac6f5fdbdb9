//! The flags that set a variable for every rank, each described once: its spellings, its key in the
//! file of `--config-file`, its variable, and how its value is read. Help, the file's keys and the
//! checks of values all come from here.

use ronde_settings::registry::{absent, gpu, moving, place, telling};
use ronde_settings::{Status, Variable, value};

/// What can be tuned by a flag or a key of the configuration file.
#[derive(Debug)]
pub(crate) struct Tunable {
    /// Where the file of `--config-file` has it: `section.key`.
    pub(crate) key: &'static str,
    /// The variable that every rank gets.
    pub(crate) variable: Variable,
    /// How it is written.
    pub(crate) form: Form,
    heading: &'static str,
    /// What it does, for `--help`.
    pub(crate) help: &'static str,
}

/// How a tunable is written.
#[derive(Debug)]
pub(crate) enum Form {
    /// A flag with a value, which `read` checks and turns into the variable's.
    Value { flag: &'static str, name: &'static str, read: fn(&str) -> Result<String, String> },
    /// Flags without a value. `inverted`: the file's key says the opposite of the variable.
    Switch { flags: &'static [Spelling], inverted: bool },
}

/// One of the flags of a switch.
#[derive(Debug)]
pub(crate) struct Spelling {
    pub(crate) flag: &'static str,
    /// What the variable becomes.
    pub(crate) value: &'static str,
    /// Whether `--help` leaves it out.
    pub(crate) hidden: bool,
    /// The flag to use instead, if this one is an old name.
    pub(crate) instead: Option<&'static str>,
}

const TUNING: &str = "Tuning";
const TELLING: &str = "Stalls, traces and the log";
const TAKEN: &str = "Taken for the sake of existing command lines";

impl Tunable {
    /// Under which heading `--help` has it: what changes nothing stands with its like.
    pub(crate) fn heading(&self) -> &'static str {
        if self.variable.status == Status::Honoured { self.heading } else { TAKEN }
    }

    /// The variable's value for what stands in the file.
    pub(crate) fn read(&self, text: &str) -> Result<String, String> {
        match self.form {
            Form::Value { read, .. } => read(text),
            Form::Switch { inverted, .. } => {
                let on = value::switch(text)? != inverted;
                Ok(if on { "1" } else { "0" }.to_owned())
            }
        }
    }
}

const fn spelling(flag: &'static str, value: &'static str) -> Spelling {
    Spelling { flag, value, hidden: false, instead: None }
}

const fn hidden(flag: &'static str, value: &'static str) -> Spelling {
    Spelling { flag, value, hidden: true, instead: None }
}

const fn old(flag: &'static str, value: &'static str, instead: &'static str) -> Spelling {
    Spelling { flag, value, hidden: true, instead: Some(instead) }
}

fn as_written<T>(text: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<String, String> {
    read(text).map(|_| text.to_owned())
}

fn mebibytes(text: &str) -> Result<String, String> {
    let bytes = value::count(text)?.checked_mul(1 << 20).ok_or("is larger than any memory")?;
    Ok(bytes.to_string())
}

fn count(text: &str) -> Result<String, String> {
    as_written(text, value::count)
}

fn positive_count(text: &str) -> Result<String, String> {
    as_written(text, value::positive_count)
}

fn number(text: &str) -> Result<String, String> {
    as_written(text, value::number)
}

fn fraction(text: &str) -> Result<String, String> {
    match value::number(text) {
        Ok(number) if number <= 1.0 => Ok(text.to_owned()),
        _ => Err("is not a number from 0 to 1".to_owned()),
    }
}

fn seconds(text: &str) -> Result<String, String> {
    as_written(text, value::seconds)
}

fn cores(text: &str) -> Result<String, String> {
    as_written(text, value::cores)
}

fn level(text: &str) -> Result<String, String> {
    as_written(text, |text| value::word(text, &["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"]))
}

fn path(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("is empty".to_owned()) } else { Ok(text.to_owned()) }
}

/// Everything that can be tuned, in the order of `--help`.
pub(crate) const TUNABLES: &[Tunable] = &[
    Tunable {
        key: "params.fusion_threshold_mb",
        variable: moving::FUSION_THRESHOLD,
        form: Form::Value { flag: "fusion-threshold-mb", name: "MB", read: mebibytes },
        heading: TUNING,
        help: "How much may travel as one batch, in MiB; 0 turns batches off [default: 128]",
    },
    Tunable {
        key: "params.cycle_time_ms",
        variable: moving::CYCLE_TIME,
        form: Form::Value { flag: "cycle-time-ms", name: "MS", read: number },
        heading: TUNING,
        help: "The longest that a tensor waits for others to make a batch with, in milliseconds [default: 1]",
    },
    Tunable {
        key: "params.cache_capacity",
        variable: moving::CACHE_CAPACITY,
        form: Form::Value { flag: "cache-capacity", name: "N", read: count },
        heading: TUNING,
        help: "How many tensors are remembered by name; 0 turns remembering off [default: 1024]",
    },
    Tunable {
        key: "library_options.thread_affinity",
        variable: moving::THREAD_AFFINITY,
        form: Form::Value { flag: "thread-affinity", name: "CORE,...", read: cores },
        heading: TUNING,
        help: "The core for the engine's thread, one for each rank of a host",
    },
    Tunable {
        key: "library_options.gloo_timeout_seconds",
        variable: place::GLOO_TIMEOUT_SECONDS,
        form: Form::Value { flag: "gloo-timeout-seconds", name: "SECONDS", read: seconds },
        heading: TUNING,
        help: "How long a rank that does not answer is waited for [default: 30]",
    },
    Tunable {
        key: "library_options.num_nccl_streams",
        variable: gpu::NUM_NCCL_STREAMS,
        form: Form::Value { flag: "num-nccl-streams", name: "N", read: positive_count },
        heading: TUNING,
        help: "How many streams NCCL works on [default: 1]",
    },
    Tunable {
        key: "stall_check.enabled",
        variable: telling::STALL_CHECK_DISABLE,
        form: Form::Switch {
            flags: &[spelling("no-stall-check", "1"), hidden("stall-check", "0")],
            inverted: true,
        },
        heading: TELLING,
        help: "No warnings about tensors that some ranks wait for and others have not offered",
    },
    Tunable {
        key: "stall_check.warning_time_seconds",
        variable: telling::STALL_CHECK_TIME,
        form: Form::Value { flag: "stall-check-warning-time-seconds", name: "SECONDS", read: seconds },
        heading: TELLING,
        help: "How long a tensor may wait before a warning names the missing ranks [default: 60]",
    },
    Tunable {
        key: "stall_check.shutdown_time_seconds",
        variable: telling::STALL_SHUTDOWN_TIME,
        form: Form::Value { flag: "stall-check-shutdown-time-seconds", name: "SECONDS", read: seconds },
        heading: TELLING,
        help: "How long a tensor may wait before the job is ended; 0: for ever [default: 0]",
    },
    Tunable {
        key: "timeline.filename",
        variable: telling::TIMELINE,
        form: Form::Value { flag: "timeline-filename", name: "FILE", read: path },
        heading: TELLING,
        help: "Write a trace of all operations; with {rank} in the name, one for each rank",
    },
    Tunable {
        key: "timeline.mark_cycles",
        variable: telling::TIMELINE_MARK_CYCLES,
        form: Form::Switch {
            flags: &[spelling("timeline-mark-cycles", "1"), hidden("no-timeline-mark-cycles", "0")],
            inverted: false,
        },
        heading: TELLING,
        help: "Mark in the trace each batch that runs",
    },
    Tunable {
        key: "logging.level",
        variable: telling::LOG_LEVEL,
        form: Form::Value { flag: "log-level", name: "LEVEL", read: level },
        heading: TELLING,
        help: "The least important messages to show: TRACE, DEBUG, INFO, WARNING, ERROR or FATAL [default: WARNING]",
    },
    Tunable {
        key: "logging.with_timestamp",
        variable: telling::LOG_HIDE_TIME,
        form: Form::Switch {
            flags: &[
                spelling("log-without-timestamp", "1"),
                hidden("log-with-timestamp", "0"),
                old("log-hide-timestamp", "1", "--log-without-timestamp"),
                old("no-log-hide-timestamp", "0", "--log-with-timestamp"),
            ],
            inverted: true,
        },
        heading: TELLING,
        help: "Leave the time out of messages",
    },
    Tunable {
        key: "params.hierarchical_allreduce",
        variable: moving::HIERARCHICAL_ALLREDUCE,
        form: Form::Switch {
            flags: &[spelling("hierarchical-allreduce", "1"), spelling("no-hierarchical-allreduce", "0")],
            inverted: false,
        },
        heading: TUNING,
        help: "Allreduce inside hosts first, or not; the layout is always chosen from what is there",
    },
    Tunable {
        key: "params.hierarchical_allgather",
        variable: moving::HIERARCHICAL_ALLGATHER,
        form: Form::Switch {
            flags: &[spelling("hierarchical-allgather", "1"), spelling("no-hierarchical-allgather", "0")],
            inverted: false,
        },
        heading: TUNING,
        help: "The same for allgather",
    },
    Tunable {
        key: "params.torus_allreduce",
        variable: moving::TORUS_ALLREDUCE,
        form: Form::Switch {
            flags: &[spelling("torus-allreduce", "1"), spelling("no-torus-allreduce", "0")],
            inverted: false,
        },
        heading: TUNING,
        help: "Allreduce along the dimensions of a torus, or not; the layout is always chosen from what is there",
    },
    Tunable {
        key: "library_options.mpi_threads_disable",
        variable: absent::MPI_THREADS_DISABLE,
        form: Form::Switch {
            flags: &[spelling("mpi-threads-disable", "1"), hidden("no-mpi-threads-disable", "0")],
            inverted: false,
        },
        heading: TUNING,
        help: "Ask MPI for a single thread, which is not used",
    },
    Tunable {
        key: "autotune.enabled",
        variable: absent::AUTOTUNE,
        form: Form::Switch {
            flags: &[spelling("autotune", "1"), hidden("no-autotune", "0")],
            inverted: false,
        },
        heading: TUNING,
        help: "Search for good values while the job runs; there is no autotuner, and no cycle to tune",
    },
    Tunable {
        key: "autotune.log_file",
        variable: absent::AUTOTUNE_LOG,
        form: Form::Value { flag: "autotune-log-file", name: "FILE", read: path },
        heading: TUNING,
        help: "Where the autotuner wrote what it tried",
    },
    Tunable {
        key: "autotune.warmup_samples",
        variable: absent::AUTOTUNE_WARMUP_SAMPLES,
        form: Form::Value { flag: "autotune-warmup-samples", name: "N", read: count },
        heading: TUNING,
        help: "How many samples the autotuner threw away at first",
    },
    Tunable {
        key: "autotune.steps_per_sample",
        variable: absent::AUTOTUNE_STEPS_PER_SAMPLE,
        form: Form::Value { flag: "autotune-steps-per-sample", name: "N", read: count },
        heading: TUNING,
        help: "How many steps a sample of the autotuner took",
    },
    Tunable {
        key: "autotune.bayes_opt_max_samples",
        variable: absent::AUTOTUNE_BAYES_OPT_MAX_SAMPLES,
        form: Form::Value { flag: "autotune-bayes-opt-max-samples", name: "N", read: count },
        heading: TUNING,
        help: "How many samples the autotuner took at most",
    },
    Tunable {
        key: "autotune.gaussian_process_noise",
        variable: absent::AUTOTUNE_GAUSSIAN_PROCESS_NOISE,
        form: Form::Value { flag: "autotune-gaussian-process-noise", name: "NUMBER", read: fraction },
        heading: TUNING,
        help: "How noisy the autotuner took its samples to be, from 0 to 1",
    },
];
