//! Starting the rank processes of one host: each its own process group, nothing on its input, its output in two pipes,
//! and the environment put together of the host's, the driver's and the job's.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ronde_rendezvous::variable;
use rustix::process::{Pid, Signal};

use super::pump::Source;
use crate::label::Stream;
use crate::variables::{self, FROM_OUR_AGENT};
use crate::wire::Start;
use crate::{Error, program};

/// What a rank is started with, besides what [`Start`] says.
pub(super) struct Surroundings {
    /// Where ranks find the rendezvous.
    pub(super) rendezvous: String,
    /// The file with the job's secret.
    pub(super) secret_file: String,
    /// Folders to put first on Python's path.
    pub(super) python_path: Option<PathBuf>,
    /// Where to run, if the user shipped files.
    pub(super) folder: Option<PathBuf>,
    /// The name of the doorway, if there is one.
    pub(super) doorway: Option<String>,
    /// The files of a task: what to do, and where each rank's result goes.
    pub(super) task: Option<(String, Vec<String>)>,
}

/// The started ranks.
pub(super) struct Started {
    pub(super) ranks: Vec<(usize, Pid)>,
    pub(super) sources: Vec<Source>,
    /// What the user may want to know.
    pub(super) notes: Vec<(bool, String)>,
}

/// Starts all ranks of this host. If one cannot be started, whoever was started before is still there.
pub(super) fn start(start: &Start, surroundings: &Surroundings) -> Result<Started, Error> {
    let mut notes = Vec::new();
    let mut environment = environment(&start.environment);
    put_package_first(&mut environment, surroundings.python_path.as_deref());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let is_set = |name: &str| environment.contains_key(OsStr::new(name));
    let defaults = variables::defaults(is_set, cores, start.ranks.len());
    for (name, value) in defaults {
        notes.push((true, format!("{name}={value} for every rank here, since it was not set")));
        environment.insert(name.into(), value.into());
    }
    let folder = match &surroundings.folder {
        Some(folder) => folder.clone(),
        None => folder(start, &mut notes),
    };
    let command: Vec<OsString> = start.command.iter().map(|word| OsString::from_vec(word.clone())).collect();
    let name = command.first().ok_or(Error::NoCommand)?;
    let program = program::find(name, environment.get(OsStr::new("PATH")).map(OsString::as_os_str), &folder)?;

    let mut started = Started { ranks: Vec::new(), sources: Vec::new(), notes };
    for (index, one) in start.ranks.iter().enumerate() {
        let rank = one.rank;
        let failed = |source| Error::Start { rank, source };
        let mut process = Command::new(&program);
        // Programs look at the name they were called by: Python finds its environment through it.
        process.arg0(name).args(&command[1..]).env_clear().envs(&environment).current_dir(&folder);
        process.envs(start.variables.iter().map(|(name, value)| (name, value)));
        process.envs(one.variables.iter().map(|(name, value)| (name, value)));
        process.env(variable::RENDEZVOUS, &surroundings.rendezvous);
        process.env(variable::SECRET_FILE, &surroundings.secret_file);
        if let Some(doorway) = &surroundings.doorway {
            process.env(variables::DOORWAY, doorway);
        }
        if let Some((payload, results)) = &surroundings.task {
            process.env(variables::TASK_PAYLOAD, payload).env(variables::TASK_RESULT, &results[index]);
        }
        process.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        // SAFETY: between fork and exec only one system call is made, which allocates nothing and takes no lock.
        unsafe {
            process.pre_exec(|| {
                // Should agent and guardian be killed at the same moment, at least the ranks themselves go with them.
                Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?)
            });
        }
        let mut child = process.spawn().map_err(failed)?;
        let missing = || failed(std::io::Error::other("its output has no pipe"));
        let stdout = child.stdout.take().ok_or_else(missing)?;
        let stderr = child.stderr.take().ok_or_else(missing)?;
        started.ranks.push((rank, Pid::from_child(&child)));
        started.sources.push(Source { rank, stream: Stream::Stdout, pipe: stdout.into() });
        started.sources.push(Source { rank, stream: Stream::Stderr, pipe: stderr.into() });
    }
    Ok(started)
}

/// Has Python look first where our package is, if it was sent with the job or brought before.
fn put_package_first(environment: &mut BTreeMap<OsString, OsString>, sent: Option<&Path>) {
    let brought = environment.remove(OsStr::new(variables::PYTHON_PATH));
    for folder in brought.as_deref().into_iter().chain(sent.map(Path::as_os_str)) {
        put_first(environment, "PYTHONPATH", folder);
    }
}

/// The host's environment with the driver's over it. The driver's folders of programs come first, and the host's own
/// stay, since the two machines need not be alike.
pub(crate) fn environment(sent: &[(Vec<u8>, Vec<u8>)]) -> BTreeMap<OsString, OsString> {
    let mut merged: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
    let own_path = merged.get(OsStr::new("PATH")).cloned();
    for (name, value) in sent {
        merged.insert(OsString::from_vec(name.clone()), OsString::from_vec(value.clone()));
    }
    if let (Some(own), Some(given)) = (own_path, merged.get(OsStr::new("PATH")).cloned()) {
        let mut folders: Vec<PathBuf> = std::env::split_paths(&given).collect();
        for folder in std::env::split_paths(&own) {
            if !folders.contains(&folder) {
                folders.push(folder);
            }
        }
        // Folders that came out of such a list contain no colon.
        if let Ok(joined) = std::env::join_paths(folders) {
            merged.insert("PATH".into(), joined);
        }
    }
    for name in FROM_OUR_AGENT {
        merged.remove(OsStr::new(name));
    }
    merged
}

fn put_first(environment: &mut BTreeMap<OsString, OsString>, name: &str, folder: &OsStr) {
    let mut value = folder.to_owned();
    if let Some(before) = environment.get(OsStr::new(name)).filter(|before| !before.is_empty()) {
        value.push(":");
        value.push(before);
    }
    environment.insert(name.into(), value);
}

/// The folder to run in: the same as on the driver's machine if this host has it, else where the agent is.
fn folder(start: &Start, notes: &mut Vec<(bool, String)>) -> PathBuf {
    let wanted = PathBuf::from(OsStr::from_bytes(&start.folder));
    if wanted.is_dir() {
        return wanted;
    }
    let own = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    notes.push((
        false,
        format!("warning: there is no folder {} here; ranks run in {}", wanted.display(), own.display()),
    ));
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_that_was_brought_comes_before_what_the_image_has_on_pythons_path() {
        let path = |variables: &[(&str, &str)], sent: Option<&str>| {
            let pairs = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
            let mut environment: BTreeMap<OsString, OsString> = pairs.collect();
            put_package_first(&mut environment, sent.map(Path::new));
            assert!(!environment.contains_key(OsStr::new(variables::PYTHON_PATH)));
            environment.remove(OsStr::new("PYTHONPATH")).map(|path| path.into_string().expect("text"))
        };
        let brought = (variables::PYTHON_PATH, "/ronde/lib");
        assert_eq!(path(&[brought, ("PYTHONPATH", "/app")], None).as_deref(), Some("/ronde/lib:/app"));
        assert_eq!(path(&[brought], None).as_deref(), Some("/ronde/lib"));
        assert_eq!(path(&[("PYTHONPATH", "/app")], Some("/sent")).as_deref(), Some("/sent:/app"));
        assert_eq!(path(&[], None), None);
    }
}
