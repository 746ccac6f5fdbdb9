//! Everything that can be typed. The help texts come from here, and so does the list of flags
//! that take a value, which `invocation.rs` needs to find where the user's command begins.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

/// Data-parallel training on the machines you have.
///
/// Ronde starts the ranks of a training job, connects them, shows their output, and says which
/// failed first and why. Scripts written for Horovod run unchanged.
#[derive(Debug, Parser)]
#[command(name = "ronde", version, max_term_width = 100)]
#[command(after_help = "Called as horovodrun, this program behaves as `ronde run`.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// `horovodrun`: the run verb alone.
#[derive(Debug, Parser)]
#[command(name = "horovodrun", version, max_term_width = 100)]
#[command(about = "Start a training job (Ronde, called by the name of Horovod's launcher)")]
pub(crate) struct Horovodrun {
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Run(RunArgs),
    Rendezvous(RendezvousArgs),
    Timeline(TimelineArgs),
}

/// Start a training job and watch over it.
///
/// Starts the command once for each rank, shows every line of their output with the rank in front,
/// and ends when all have ended. The first rank that fails ends the job: the others get SIGTERM,
/// and SIGKILL 5 seconds later; the error names the rank, its host, how it ended and its last
/// lines. Ctrl-C, SIGTERM and SIGHUP are passed on to the ranks; a second Ctrl-C kills them.
/// However it ends, even if ronde itself is killed, no process of the job is left running.
///
/// Exit status: 0 if every rank exited with 0; that of the rank that failed first, or 128 and the
/// number of the signal that killed it; 130, 143 or 129 after Ctrl-C, SIGTERM or SIGHUP; 1 if the
/// job could not be started; 2 for wrong usage.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ronde run -np 2 python train.py\n  \
    ronde run -np 4 --output-filename logs python -u train.py --epochs 3\n\n\
    A rank finds HOROVOD_RANK, HOROVOD_SIZE, HOROVOD_LOCAL_RANK, HOROVOD_LOCAL_SIZE,\n\
    HOROVOD_CROSS_RANK, HOROVOD_CROSS_SIZE and HOROVOD_HOSTNAME in its environment, and\n\
    OMP_NUM_THREADS (cores / ranks) and PYTHONUNBUFFERED=1 unless they are set already.")]
pub(crate) struct RunArgs {
    /// How many ranks to start; -np N works as well. Without it, every slot of --hosts is used.
    #[arg(short = 'n', long, value_name = "N", required_unless_present_any = ["hosts", "check_build"])]
    pub(crate) num_proc: Option<usize>,

    /// Where to run, and how many ranks at most on each: localhost:2,[::1]:4. A host without a
    /// number has one slot. This version runs on this machine only.
    #[arg(short = 'H', long, value_name = "HOST:SLOTS,...")]
    pub(crate) hosts: Option<String>,

    /// Also write each rank's output to DIR/rank.N/stdout and DIR/rank.N/stderr.
    #[arg(long, value_name = "DIR")]
    pub(crate) output_filename: Option<PathBuf>,

    /// Put the time (UTC) in front of every line of output.
    #[arg(long)]
    pub(crate) prefix_output_with_timestamp: bool,

    /// Show the ranks' output as it is, without the rank in front of every line.
    #[arg(long)]
    pub(crate) no_prefix: bool,

    /// How long a rank waits in init() for the others, in seconds [default: HOROVOD_START_TIMEOUT, or 600].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) start_timeout: Option<Duration>,

    /// Say which process each rank is and what was set for it.
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) verbose: bool,

    /// Say nothing but errors.
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// Show which frameworks are served here, by which controller and operations, and end; -cb works as well.
    #[arg(long)]
    pub(crate) check_build: bool,

    /// The program each rank runs, and its arguments; everything from here on is passed as it is.
    #[arg(required_unless_present = "check_build", trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Serve a job whose ranks something else starts.
///
/// For ranks started by hand, by a batch system or in containers. Prints the line that every rank
/// needs in its environment (RONDE_RENDEZVOUS=host:port) and waits: it ends with status 0 when all
/// ranks have joined and left again, and with 1, naming the rank, when one is lost. Ranks also
/// need HOROVOD_RANK, HOROVOD_SIZE and RONDE_SECRET_FILE.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  \
    (umask 077; od -An -tx1 -N32 /dev/urandom | tr -d ' \\n' > secret)\n  \
    ronde rendezvous --size 2 --listen 0.0.0.0:4000 --secret-file secret")]
pub(crate) struct RendezvousArgs {
    /// How many ranks the job has.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) size: u32,

    /// The address and port to listen on; port 0 picks a free one.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: SocketAddr,

    /// The file with the job's secret: 64 hexadecimal digits, readable by its owner only.
    #[arg(long, value_name = "FILE")]
    pub(crate) secret_file: PathBuf,
}

/// Work with the traces that HOROVOD_TIMELINE asks for.
#[derive(Debug, Args)]
pub(crate) struct TimelineArgs {
    #[command(subcommand)]
    pub(crate) verb: TimelineVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TimelineVerb {
    Merge(MergeArgs),
}

/// Make one trace of the files that several ranks wrote.
///
/// Ranks write files of their own where the name in HOROVOD_TIMELINE holds {rank}. Their clocks are aligned by what each
/// file says about them, the rank is put in front of every name, and a file that ends in the middle because its rank was
/// killed is taken as far as it goes. Files of Horovod's own are taken as well.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  \
    HOROVOD_TIMELINE='trace-{rank}.json' ronde run -np 2 python train.py\n  \
    ronde timeline merge all.json trace-0.json trace-1.json")]
pub(crate) struct MergeArgs {
    /// The file to write, for chrome://tracing or https://ui.perfetto.dev.
    #[arg(value_name = "OUT")]
    pub(crate) out: PathBuf,

    /// The files of the ranks.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| "a positive number of seconds is needed".to_owned())
}
