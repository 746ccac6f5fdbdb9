//! Flags that belong together, each group under its heading in `--help`. Those about hosts and ssh can
//! be flattened into the arguments of any verb that reaches hosts.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ronde_launch::{Error, Host, Ssh, Task, Waiting, parse_hosts, read_hostfile};

use super::value::{self, Words};

/// Where to run.
#[derive(Debug, Default, Args)]
pub(crate) struct HostArgs {
    /// Where to run, and how many ranks at most on each: gpu1:4,gpu2:4,[fd00::7]:2. A host without a
    /// number has one slot. Without hosts, everything runs on this machine.
    #[arg(short = 'H', long, value_name = "HOST:SLOTS,...", conflicts_with = "hostfile")]
    pub(crate) hosts: Option<String>,

    /// The same from a file, one host a line: gpu1 slots=4; -hostfile works as well.
    #[arg(long, value_name = "FILE")]
    pub(crate) hostfile: Option<PathBuf>,
}

impl HostArgs {
    /// The hosts that are named, if any are.
    pub(crate) fn read(&self) -> Result<Option<Vec<Host>>, Error> {
        match (&self.hosts, &self.hostfile) {
            (Some(list), _) => parse_hosts(list).map(Some),
            (None, Some(file)) => read_hostfile(file).map(Some),
            (None, None) => Ok(None),
        }
    }
}

/// How ssh reaches them.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Reaching other hosts")]
pub(crate) struct SshArgs {
    /// The port of the hosts' ssh servers.
    #[arg(short = 'p', long, value_name = "PORT", value_parser = value::port)]
    pub(crate) ssh_port: Option<u16>,

    /// The private key to log in with.
    #[arg(short = 'i', long, value_name = "FILE")]
    pub(crate) ssh_identity_file: Option<PathBuf>,

    /// More arguments for ssh, in quotes: --ssh-args "-J gateway -o Compression=yes"; may be repeated.
    #[arg(long, value_name = "ARGUMENTS", value_parser = value::words, allow_hyphen_values = true)]
    pub(crate) ssh_args: Vec<Words>,

    /// Accept and record the keys of hosts that were never seen before; a changed key is still refused.
    #[arg(long)]
    pub(crate) accept_new_host_keys: bool,
}

impl SshArgs {
    /// As the launcher takes it.
    pub(crate) fn into_ssh(self) -> Ssh {
        Ssh {
            port: self.ssh_port,
            identity: self.ssh_identity_file,
            arguments: self.ssh_args.into_iter().flat_map(|words| words.0).collect(),
            accept_new_keys: self.accept_new_host_keys,
        }
    }
}

/// Connections between hosts, and what is sent over them.
#[derive(Debug, Args)]
#[command(next_help_heading = "Network and time limits")]
pub(crate) struct NetworkArgs {
    /// The network interfaces that may be used, by name; may be repeated. Without it, every pair of hosts uses
    /// addresses that were found to work.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub(crate) network_interfaces: Vec<String>,

    /// One such interface; may be repeated.
    #[arg(long, value_name = "NAME")]
    pub(crate) network_interface: Vec<String>,

    /// Listen at ports of this range only, for hosts behind a firewall.
    #[arg(long, value_name = "LOW-HIGH", value_parser = value::port_range)]
    pub(crate) port_range: Option<RangeInclusive<u16>>,

    /// How long a host may be silent before it counts as lost, in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = value::positive_seconds, default_value = "30",
          allow_negative_numbers = true)]
    pub(crate) heartbeat_timeout: Duration,

    /// How long ranks have to end by themselves before they are killed, in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = value::seconds, default_value = "4",
          allow_negative_numbers = true)]
    pub(crate) grace: Duration,

    /// Copy this file or folder to every other host, into the folder where its ranks run, under its own name without
    /// the folders before it; may be repeated.
    #[arg(long, value_name = "PATH")]
    pub(crate) ship: Vec<PathBuf>,
}

impl NetworkArgs {
    /// The interfaces that are named, each once.
    pub(crate) fn interfaces(&self) -> Vec<String> {
        let single = self.network_interface.iter().flat_map(|names| names.split(','));
        let mut names: Vec<String> = Vec::new();
        for name in self.network_interfaces.iter().map(String::as_str).chain(single).map(str::trim) {
            if !name.is_empty() && !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
        names
    }
}

/// Agents that dial in.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Agents that dial in, instead of hosts reached by ssh")]
pub(crate) struct WaitingArgs {
    /// How many agents to wait for; on each host run `ronde agent --connect`.
    #[arg(long, value_name = "N", value_parser = value::at_least_one, requires_all = ["listen", "secret_file"],
          conflicts_with_all = ["hosts", "hostfile"])]
    pub(crate) agents: Option<usize>,

    /// The address and port they dial.
    #[arg(long, value_name = "ADDRESS:PORT", requires = "agents")]
    pub(crate) listen: Option<SocketAddr>,

    /// The file with the secret that they know as well: 64 hexadecimal digits, readable by its owner only.
    #[arg(long, value_name = "FILE", requires = "agents")]
    pub(crate) secret_file: Option<PathBuf>,

    /// How many ranks to run on this machine, besides those of the agents.
    #[arg(long, value_name = "N", value_parser = value::at_least_one, requires = "agents")]
    pub(crate) own_slots: Option<usize>,

    /// What this machine is called then; hosts are in the order of their names.
    #[arg(long, value_name = "NAME", requires = "own_slots", default_value = "chief")]
    pub(crate) own_name: String,
}

impl WaitingArgs {
    /// As the launcher takes it.
    pub(crate) fn into_waiting(self) -> Option<Waiting> {
        let WaitingArgs { agents, listen, secret_file, own_slots, own_name } = self;
        let own = own_slots.map(|slots| Host { name: own_name, slots });
        Some(Waiting { agents: agents?, listen: listen?, secret_file: secret_file?, own })
    }
}

/// Jobs whose size changes; what becomes of these flags is said in `elastic.rs`.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Elastic jobs (not in this version)")]
pub(crate) struct ElasticArgs {
    /// The fewest ranks to go on with.
    #[arg(long, value_name = "N", visible_alias = "min-num-proc")]
    pub(crate) min_np: Option<usize>,

    /// The most ranks to grow to.
    #[arg(long, value_name = "N", visible_alias = "max-num-proc")]
    pub(crate) max_np: Option<usize>,

    /// A program that prints which hosts there are.
    #[arg(long, value_name = "COMMAND")]
    pub(crate) host_discovery_script: Option<String>,

    /// The slots of a discovered host that does not say how many it has.
    #[arg(long, value_name = "N")]
    pub(crate) slots_per_host: Option<usize>,

    /// How long to wait for enough slots after a change, in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = value::seconds)]
    pub(crate) elastic_timeout: Option<Duration>,

    /// How often a job may be reset.
    #[arg(long, value_name = "N")]
    pub(crate) reset_limit: Option<usize>,

    /// How long a failed host is left out, in seconds: at first, and at most.
    #[arg(long, num_args = 2, value_names = ["LEAST", "MOST"])]
    pub(crate) blacklist_cooldown_range: Option<Vec<u64>>,
}

/// What only MPI, Gloo or jsrun would need.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Taken for the sake of existing command lines")]
pub(crate) struct MpiArgs {
    /// Ronde's own controller and operations are used, in place of Gloo's.
    #[arg(long, conflicts_with_all = ["mpi", "jsrun"])]
    pub(crate) gloo: bool,

    /// MPI is not used; Ronde reaches the hosts over ssh and moves tensors itself.
    #[arg(long, conflicts_with = "jsrun")]
    pub(crate) mpi: bool,

    /// jsrun is not used; Ronde reaches the hosts over ssh.
    #[arg(long)]
    pub(crate) jsrun: bool,

    /// Arguments for mpirun, which is not used.
    #[arg(long, value_name = "ARGUMENTS", allow_hyphen_values = true)]
    pub(crate) mpi_args: Option<String>,

    /// How mpirun binds ranks to cores, which is not used.
    #[arg(long, value_name = "ARGUMENTS", allow_hyphen_values = true)]
    pub(crate) binding_args: Option<String>,

    /// Tensors go over TCP in any case; also sets NCCL_IB_DISABLE=1.
    #[arg(long)]
    pub(crate) tcp: bool,

    /// Nothing is remembered between jobs in any case.
    #[arg(long)]
    pub(crate) disable_cache: bool,
}

/// A function call in place of a script: what `horovod.run()` passes.
#[derive(Debug, Default, Args)]
pub(crate) struct TaskArgs {
    /// The file that every rank is given.
    #[arg(long, value_name = "FILE", hide = true, requires = "task_results")]
    pub(crate) task_payload: Option<PathBuf>,

    /// The folder for the ranks' results.
    #[arg(long, value_name = "DIR", hide = true, requires = "task_payload")]
    pub(crate) task_results: Option<PathBuf>,

    /// Write each line of the ranks' output as an object of JSON, for a page that shows it.
    #[arg(long, hide = true, requires = "task_payload")]
    pub(crate) task_output: bool,
}

impl TaskArgs {
    /// As the launcher takes it.
    pub(crate) fn into_task(self) -> Option<Task> {
        Some(Task { payload: self.task_payload?, results: self.task_results? })
    }
}
