//! `ronde run`: what was typed becomes a request to the launcher.
//!
//! Who runs where comes from flags, or else from the batch system (`allocation.rs`); what is set for
//! every rank from tuning flags and the configuration file (`tuning.rs`), from what stands in for MPI
//! (`controller.rs`), and last from `--env`, which therefore wins.

use std::io::Write;
use std::time::Duration;

use ronde_launch::{Host, Labels, Request, Talk};
use ronde_settings::{Reading, registry, value};

use crate::allocation::{self, Allocation};
use crate::args::RunArgs;
use crate::config_file::{ConfigFile, Entry};
use crate::invocation::Name;
use crate::notes::Notes;
use crate::problem::Problem;
use crate::status::Status;
use crate::tuning::{GPUS_PER_RANK, MPS};
use crate::{config_file, controller, elastic, tuning};

pub(crate) fn run(args: RunArgs, name: Name) -> Status {
    let quiet = args.quiet;
    let mut notes = Notes::default();
    let request = request(args, name, &mut notes, |name| std::env::var(name).ok());
    notes.show(quiet);
    match request.and_then(|request| Ok(ronde_launch::run(request)?)) {
        Ok(0) => Status::Success,
        Ok(code) => Status::Job(code),
        Err(problem) => {
            let _ = std::io::stderr().write_all(problem.render().as_bytes());
            problem.status()
        }
    }
}

fn request(
    args: RunArgs,
    name: Name,
    notes: &mut Notes,
    var: impl Fn(&str) -> Option<String>,
) -> Result<Request, Problem> {
    elastic::check(&args.elastic, args.num_proc, notes)?;
    let (np, hosts) = ranks_and_hosts(&args, name, notes, &var)?;
    let file = args.config_file.as_deref().map(config_file::read).transpose()?;
    let gpus_per_rank = gpus_per_rank(args.gpus_per_rank, file.as_ref())?;
    let mps = mps(args.mps, file.as_ref(), notes, &var)?;
    let variables = variables(&args, file.as_ref(), notes, &var)?;
    let labels = match name {
        _ if args.task.task_output => Labels::Json,
        _ if args.no_prefix => Labels::None,
        Name::Ronde => Labels::Rank,
        Name::Horovodrun => Labels::Horovod,
    };
    let talk = match name {
        _ if args.quiet => Talk::Quiet,
        _ if args.verbose => Talk::Verbose,
        Name::Ronde => Talk::Normal,
        Name::Horovodrun => Talk::Sparing,
    };
    Ok(Request {
        np,
        hosts,
        gpus_per_rank,
        mps,
        command: args.command,
        labels,
        timestamps: args.prefix_output_with_timestamp,
        output_folder: args.output_filename,
        start_timeout: args.start_timeout.or_else(|| start_timeout(notes, &var)),
        talk,
        variables,
        ssh: args.ssh.into_ssh(),
        interfaces: args.network.interfaces(),
        ports: args.network.port_range,
        lost_after: args.network.heartbeat_timeout,
        grace: args.network.grace,
        led: args.led,
        waiting: args.waiting.into_waiting(),
        task: args.task.into_task(),
        ship: args.network.ship,
    })
}

/// How many ranks, and where; no hosts stand for this machine.
fn ranks_and_hosts(
    args: &RunArgs,
    name: Name,
    notes: &mut Notes,
    var: impl Fn(&str) -> Option<String>,
) -> Result<(usize, Option<Vec<Host>>), Problem> {
    if let Some(agents) = args.waiting.agents {
        return Ok((args.num_proc.ok_or(Problem::NoCountForAgents { agents })?, None));
    }
    let mut hosts = args.hosts.read()?;
    if hosts.is_none()
        && let Some(given) = allocated(args.num_proc, name, var)?
    {
        notes.note(given.note());
        hosts = Some(given.hosts);
    }
    let np = match (args.num_proc, &hosts) {
        (Some(np), _) => np,
        (None, Some(hosts)) => hosts.iter().fold(0, |sum: usize, host| sum.saturating_add(host.slots)),
        (None, None) => return Err(Problem::NoCount),
    };
    Ok((np, hosts))
}

/// What a batch system has given. Horovod's launcher knew LSF; Slurm's users give it `-np` for this machine, so
/// an allocation of Slurm's counts only where nothing else is said and the program is called by its own name.
fn allocated(
    np: Option<usize>,
    name: Name,
    var: impl Fn(&str) -> Option<String>,
) -> Result<Option<Allocation>, Problem> {
    let lsf = allocation::lsf(&var, |path| std::fs::read_to_string(path))?;
    match (lsf, np, name) {
        (None, None, Name::Ronde) => allocation::slurm(&var),
        (lsf, ..) => Ok(lsf),
    }
}

/// What is set for every rank; of two values for one variable the later counts.
fn variables(
    args: &RunArgs,
    file: Option<&ConfigFile>,
    notes: &mut Notes,
    var: impl Fn(&str) -> Option<String>,
) -> Result<Vec<(String, String)>, Problem> {
    let mut variables = tuning::variables(&args.tuning, file, notes)?;
    variables.extend(controller::answer(&args.mpi, file, notes)?);
    if args.network.network_interface.iter().any(|name| name.contains(',')) {
        notes.warn("--network-interface takes one name; use --network-interfaces for a list");
    }
    let interfaces = args.network.interfaces();
    if !interfaces.is_empty() {
        variables.push((registry::foreign::NCCL_SOCKET_IFNAME.name.to_owned(), interfaces.join(",")));
    }
    for value::Assignment { name, value } in &args.env {
        let value = value.clone().or_else(|| var(name)).ok_or(Problem::NotSet { name: name.clone() })?;
        variables.push((name.clone(), value));
    }
    let mut counting: Vec<(String, String)> = Vec::new();
    for (name, value) in variables {
        counting.retain(|(known, _)| *known != name);
        counting.push((name, value));
    }
    Ok(counting)
}

/// How many GPUs each rank gets, by the flag or else by the file.
fn gpus_per_rank(flag: Option<usize>, file: Option<&ConfigFile>) -> Result<Option<usize>, Problem> {
    let count = from_file(file, GPUS_PER_RANK, value::positive_count)?;
    Ok(flag.or(count))
}

/// Whether hosts start NVIDIA's MPS, by the flag, else by the file, else by the environment.
fn mps(
    flag: bool,
    file: Option<&ConfigFile>,
    notes: &mut Notes,
    var: impl Fn(&str) -> Option<String>,
) -> Result<bool, Problem> {
    let in_file = from_file(file, MPS, value::switch)?;
    let mut reading = Reading::new(var);
    let set = reading.read(&registry::gpu::MPS, value::switch);
    for note in reading.into_notes() {
        notes.warn(note.text);
    }
    Ok(flag || in_file.or(set).unwrap_or(false))
}

/// What a key outside any section says, if it is there and not empty.
fn from_file<T>(
    file: Option<&ConfigFile>,
    key: &str,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, Problem> {
    let entry = file.and_then(|file| Some((file, file.entries.iter().find(|entry| entry.key == key)?)));
    let Some((file, Entry { line, value: Some(text), .. })) = entry else { return Ok(None) };
    read(text).map(Some).map_err(|problem| Problem::ConfigFile {
        path: file.path.clone(),
        line: *line,
        problem: format!("{key}: {text:?} {problem}"),
    })
}

/// What `HOROVOD_START_TIMEOUT` says, if it says something.
fn start_timeout(notes: &mut Notes, var: impl Fn(&str) -> Option<String>) -> Option<Duration> {
    let variable = &registry::place::START_TIMEOUT;
    let mut reading = Reading::new(var);
    reading.text(variable)?;
    let time = reading.read(variable, value::positive_seconds);
    for note in reading.into_notes() {
        notes.warn(note.text);
    }
    time
}

#[cfg(test)]
mod tests;
