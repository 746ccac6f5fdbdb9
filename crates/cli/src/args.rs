//! Everything that can be typed. The help texts come from here, and so does the list of flags
//! that take a value, which `invocation.rs` needs to find where the user's command begins.
//!
//! The run verb has by far the most flags: `args/run.rs` has them, `args/groups.rs` those that several
//! verbs share or that belong together, `args/value.rs` how their values are read. The flags that only
//! set a variable for every rank are a table of their own (`tuning/table.rs`).

#![allow(
    rustdoc::bare_urls,
    rustdoc::broken_intra_doc_links,
    reason = "comments of arguments are the text of --help"
)]

mod groups;
mod hosts;
mod run;
mod value;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

pub(crate) use groups::{ElasticArgs, HostArgs, MpiArgs, NetworkArgs, SshArgs, TaskArgs, WaitingArgs};
pub(crate) use hosts::{DoctorArgs, SetupSshArgs};
pub(crate) use run::RunArgs;
pub(crate) use value::{at_least_one, port};

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
#[command(name = "horovodrun", version, max_term_width = 100, args_override_self = true)]
#[command(about = "Start a training job (Ronde, called by the name of Horovod's launcher)")]
pub(crate) struct Horovodrun {
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// What a program beside this one is to do.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct BesideArgs {
    /// What it is to do; `--help` lists it.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORDS")]
    pub(crate) words: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Run(Box<RunArgs>),
    Doctor(DoctorArgs),
    SetupSsh(SetupSshArgs),
    Agent(AgentArgs),
    Rendezvous(RendezvousArgs),
    Timeline(TimelineArgs),
    /// Run jobs on a Kubernetes cluster.
    Kube(BesideArgs),
    /// Make a cluster of cloud machines, or of ones you have, and train on it.
    Cluster(BesideArgs),
    OverSsh(OverSshArgs),
}

/// Be one machine of a job over ssh; `ronde kube run --ssh` starts it as a rank.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct OverSshArgs {
    /// The folder with the job's keys.
    #[arg(long, value_name = "DIR")]
    pub(crate) keys: PathBuf,

    /// A folder for what ssh must find.
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: PathBuf,

    /// The machines and their slots, with rank 0's first.
    #[arg(short = 'H', long, value_name = "NAME:SLOTS,...")]
    pub(crate) hosts: String,

    /// What is put behind a machine's name to reach it.
    #[arg(long, value_name = "NAME")]
    pub(crate) domain: String,

    /// How long the other machines' servers are waited for, in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = value::positive_seconds)]
    pub(crate) patience: Duration,

    /// What rank 0 runs.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Hold this machine's ranks for a launcher elsewhere.
///
/// For containers and hosts that cannot be reached by ssh. Dials the launcher, which was started with
/// `ronde run --agents N --listen ADDRESS:PORT`, and keeps trying until it is there. Runs the ranks
/// that it is given, and then waits for the next job. Whatever is not given as a flag is taken from
/// the variable that the flag's help names.
#[derive(Debug, Default, Args)]
#[command(after_help = "Example:\n  \
    chief$  ronde run -np 4 --agents 2 --listen 0.0.0.0:4000 --secret-file secret python train.py\n  \
    worker$ ronde agent --connect chief:4000 --secret-file secret --slots 2")]
pub(crate) struct AgentArgs {
    /// Speak with the launcher over standard input and output; ssh starts it so.
    #[arg(long, hide = true)]
    pub(crate) stdio: bool,

    /// Print the hash of this program, by which a launcher knows whether a host has the same.
    #[arg(long, hide = true)]
    pub(crate) fingerprint: bool,

    /// Where the launcher listens [variable: RONDE_AGENT_CONNECT].
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) connect: Option<String>,

    /// The file with the secret: 64 hexadecimal digits, readable by its owner only [variable: RONDE_SECRET_FILE].
    #[arg(long, value_name = "FILE")]
    pub(crate) secret_file: Option<PathBuf>,

    /// How many ranks this machine takes; without it, as many as the launcher wants [variable: RONDE_AGENT_SLOTS].
    #[arg(long, value_name = "N", value_parser = value::at_least_one)]
    pub(crate) slots: Option<usize>,

    /// The one port through which other hosts' ranks reach those here, where only a published port can be reached
    /// [variable: RONDE_AGENT_DATA_PORT].
    #[arg(long, value_name = "PORT", value_parser = value::port)]
    pub(crate) data_port: Option<u16>,

    /// How others reach that port: the machine's address and the published port [variable: RONDE_AGENT_ADVERTISE].
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) advertise: Option<String>,

    /// What this machine is called in messages; without it, its host name [variable: RONDE_AGENT_NAME].
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// The network interfaces that may be used; without it, all [variable: RONDE_AGENT_INTERFACES].
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub(crate) network_interfaces: Vec<String>,

    /// End after one job, instead of waiting for the next.
    #[arg(long)]
    pub(crate) once: bool,

    /// End with status 69 if no launcher answers for so long, in seconds; without it, wait for ever.
    #[arg(long, value_name = "SECONDS", value_parser = value::positive_seconds)]
    pub(crate) patience: Option<Duration>,
}

/// Serve a job whose ranks something else starts.
///
/// For ranks started by hand, by a batch system or in containers. Prints the line that every rank
/// needs in its environment (RONDE_RENDEZVOUS=host:port) and waits: it ends with status 0 when all
/// ranks have joined and left again, and with 1, naming the rank, when one is lost. Ranks also
/// need HOROVOD_RANK, HOROVOD_SIZE and RONDE_SECRET_FILE.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  \
    (umask 077; od -An -v -tx1 -N32 /dev/urandom | tr -d ' \\n' > secret)\n  \
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

#[cfg(test)]
mod tests;
