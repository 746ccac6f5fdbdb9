//! What travels to hosts and back besides messages: the Python package, files the user ships, the call of a task, and
//! its results.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::Error;
use crate::package::{Package, is_executable};
use crate::plan::Task;
use crate::wire::{Attachment, Outbox, ToAgent};

/// The most that is sent at a time.
const PIECE: usize = 256 << 10;

/// What one host is to be sent.
#[derive(Clone, Debug, Default)]
pub(super) struct Load {
    pub(super) package: Option<Package>,
    pub(super) payload: Option<PathBuf>,
    pub(super) ship: Vec<PathBuf>,
}

impl Load {
    pub(super) fn is_empty(&self) -> bool {
        self.package.is_none() && self.payload.is_none() && self.ship.is_empty()
    }

    /// Sends everything, waiting for the host where that is slow.
    pub(super) fn send(&self, outbox: &Outbox<ToAgent>) -> Result<(), Error> {
        if let Some(package) = &self.package {
            for file in &package.files {
                send_file(outbox, Attachment::Package, &package.root.join(file), &file.to_string_lossy())?;
            }
        }
        if let Some(payload) = &self.payload {
            send_file(outbox, Attachment::Payload, payload, "")?;
        }
        for path in &self.ship {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            ship(outbox, path, &name)?;
        }
        outbox.send_output(ToAgent::AllSent);
        Ok(())
    }
}

/// Sends a file, or everything in a folder.
fn ship(outbox: &Outbox<ToAgent>, path: &Path, name: &str) -> Result<(), Error> {
    let unreadable = |source| Error::Ship { path: path.to_owned(), source };
    if !fs::metadata(path).map_err(unreadable)?.is_dir() {
        return send_file(outbox, Attachment::Shipped, path, name);
    }
    for entry in fs::read_dir(path).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        ship(outbox, &entry.path(), &format!("{name}/{}", entry.file_name().to_string_lossy()))?;
    }
    Ok(())
}

fn send_file(outbox: &Outbox<ToAgent>, name: Attachment, path: &Path, relative: &str) -> Result<(), Error> {
    let unreadable = |source| Error::Ship { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(unreadable)?;
    let executable = is_executable(path);
    let mut buffer = vec![0; PIECE];
    // Once even if it is empty, so that it exists.
    loop {
        let length = file.read(&mut buffer).map_err(unreadable)?;
        let bytes = buffer[..length].to_vec();
        let sent = outbox.send_output(ToAgent::File { name, path: relative.to_owned(), executable, bytes });
        if length == 0 || !sent {
            return Ok(());
        }
    }
}

/// Tells whoever called for a task why it failed: the rank that failed first, if it was one, and the words for it.
pub(super) fn tell_failure(task: Option<&Task>, rank: Option<usize>, text: &str) {
    if let Some(task) = task {
        let rank = rank.map(|rank| rank.to_string()).unwrap_or_default();
        // The status says that it failed; without this it does not say why.
        let _ = fs::write(task.results.join("failure"), format!("{rank}\n{text}"));
    }
}

/// The results of a task on their way to files.
#[derive(Default)]
pub(super) struct Results {
    folder: Option<PathBuf>,
    files: HashMap<usize, File>,
}

impl Results {
    pub(super) fn into_folder(task: Option<&Task>) -> Result<Results, Error> {
        if let Some(task) = task {
            let problem = |source| Error::OutputFolder { path: task.results.clone(), source };
            fs::create_dir_all(&task.results).map_err(problem)?;
        }
        Ok(Results { folder: task.map(|task| task.results.clone()), files: HashMap::new() })
    }

    /// Takes a piece of a rank's result.
    pub(super) fn take(&mut self, rank: usize, bytes: &[u8]) -> Result<(), Error> {
        let Some(folder) = &self.folder else { return Ok(()) };
        if bytes.is_empty() {
            self.files.remove(&rank);
            return Ok(());
        }
        let path = folder.join(format!("rank.{rank}"));
        let problem = |source: io::Error| Error::OutputFolder { path: path.clone(), source };
        let file = match self.files.entry(rank) {
            std::collections::hash_map::Entry::Occupied(open) => open.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) => {
                new.insert(File::create(&path).map_err(problem)?)
            }
        };
        file.write_all(bytes).map_err(problem)
    }
}
