//! The flags of `ronde run`, which are those of `horovodrun`: first the eleven that matter to a newcomer,
//! then the groups, each under its heading in `--help`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use ronde_settings::value::Assignment;

use super::value;
use super::{ElasticArgs, HostArgs, MpiArgs, NetworkArgs, SshArgs, TaskArgs, WaitingArgs};
use crate::tuning::Tuning;

/// Start a training job and watch over it.
///
/// Starts the command once for each rank, shows every line of their output with the rank in front,
/// and ends when all have ended. The first rank that fails ends the job: the others get SIGTERM,
/// and SIGKILL a little later; the error names the rank, its host, how it ended and its last
/// lines. Ctrl-C, SIGTERM and SIGHUP are passed on to the ranks; a second Ctrl-C kills them.
/// However it ends, even if ronde itself is killed, no process of the job is left running.
///
/// Exit status: 0 if every rank exited with 0; that of the rank that failed first, or 128 and the
/// number of the signal that killed it; 130, 143 or 129 after Ctrl-C, SIGTERM or SIGHUP; 1 if the
/// job could not be started; 2 for wrong usage.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(after_help = "Examples:\n  \
    ronde run -np 2 python train.py\n  \
    ronde run -np 6 -H gpu1:5,gpu2:1 -p 12345 python train.py\n  \
    ronde run -np 4 --output-filename logs python -u train.py --epochs 3\n\n\
    A rank finds HOROVOD_RANK, HOROVOD_SIZE, HOROVOD_LOCAL_RANK, HOROVOD_LOCAL_SIZE,\n\
    HOROVOD_CROSS_RANK, HOROVOD_CROSS_SIZE and HOROVOD_HOSTNAME in its environment, and\n\
    OMP_NUM_THREADS (cores / ranks) and PYTHONUNBUFFERED=1 unless they are set already.")]
pub(crate) struct RunArgs {
    /// The program each rank runs, and its arguments; everything from here on is passed as it is.
    #[arg(required_unless_present = "check_build", trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,

    /// How many ranks to start; -np N works as well. Without it, every slot of the hosts is used.
    #[arg(short = 'n', long, value_name = "N", value_parser = value::count, allow_negative_numbers = true)]
    pub(crate) num_proc: Option<usize>,

    #[command(flatten)]
    pub(crate) hosts: HostArgs,

    /// Give each rank N GPUs of its own, which are cuda:0 to cuda:N-1 to it: CUDA_VISIBLE_DEVICES is set to its share of
    /// what is visible on its host. Without it, all ranks of a host see the same GPUs, and scripts choose by
    /// local_rank(). What works in both cases: torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count()).
    #[arg(long, value_name = "N", value_parser = value::at_least_one, allow_negative_numbers = true)]
    pub(crate) gpus_per_rank: Option<usize>,

    /// Start NVIDIA's MPS on hosts where ranks outnumber GPUs, for this job alone: ranks that share a GPU then compute side
    /// by side instead of taking turns [variable: RONDE_MPS]. Where it runs already, that one is used.
    #[arg(long)]
    pub(crate) mps: bool,

    /// Take settings from this YAML file; flags win over it, and it wins over the environment.
    #[arg(long, value_name = "FILE")]
    pub(crate) config_file: Option<PathBuf>,

    /// Set a variable for every rank, or pass on the one that is set here; may be repeated.
    #[arg(short = 'x', long, value_name = "NAME[=VALUE]", value_parser = ronde_settings::value::assignment)]
    pub(crate) env: Vec<Assignment>,

    /// Also write each rank's output to DIR/rank.N/stdout and DIR/rank.N/stderr; with more than ten ranks N has zeros
    /// in front, as in rank.03.
    #[arg(long, value_name = "DIR")]
    pub(crate) output_filename: Option<PathBuf>,

    /// How long to wait for hosts, and in init() for the other ranks, in seconds
    /// [default: HOROVOD_START_TIMEOUT, or 600].
    #[arg(long, value_name = "SECONDS", value_parser = value::positive_seconds, allow_negative_numbers = true)]
    pub(crate) start_timeout: Option<Duration>,

    /// Say which process each rank is, what was set for it, and which addresses are used.
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) verbose: bool,

    /// Say nothing but errors and warnings.
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// Show which frameworks are served here, by which controller and operations, and end; -cb works as well.
    #[arg(long)]
    pub(crate) check_build: bool,

    /// End the job when rank 0 has ended well: the other ranks only stand by for it.
    #[arg(long, hide = true)]
    pub(crate) led: bool,

    #[command(flatten)]
    pub(crate) ssh: SshArgs,

    #[command(flatten)]
    pub(crate) network: NetworkArgs,

    #[command(flatten)]
    pub(crate) waiting: WaitingArgs,

    /// Put the time (UTC) in front of every line of output; -prefix-timestamp works as well.
    #[arg(long, help_heading = "Output")]
    pub(crate) prefix_output_with_timestamp: bool,

    /// Show the ranks' output as it is, without the rank in front of every line.
    #[arg(long, help_heading = "Output")]
    pub(crate) no_prefix: bool,

    #[command(flatten)]
    pub(crate) tuning: Tuning,

    #[command(flatten)]
    pub(crate) elastic: ElasticArgs,

    #[command(flatten)]
    pub(crate) mpi: MpiArgs,

    #[command(flatten)]
    pub(crate) task: TaskArgs,
}
