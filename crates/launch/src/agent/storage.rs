//! What the driver sends to be kept on this host: the Python package, in a cache that later jobs find again; files that
//! the user ships, in a folder that is gone after the job; and the call of a task, in memory.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{MemfdFlags, Mode, fchmod, memfd_create};

use crate::Error;
use crate::package::Package;
use crate::wire::Attachment;

/// Everything that was sent so far.
#[derive(Default)]
pub(super) struct Storage {
    /// Where the package is, or will be once it is complete.
    package: Option<(PathBuf, String)>,
    /// Where it is meanwhile.
    unfinished: Option<PathBuf>,
    /// Where shipped files go.
    pub(super) scratch: Option<PathBuf>,
    pub(super) shipped: bool,
    payload: Option<File>,
    results: Vec<File>,
}

impl Storage {
    /// Nothing yet; shipped files would go to `scratch`.
    pub(super) fn new(scratch: Option<PathBuf>) -> Storage {
        let mut storage = Storage::default();
        storage.scratch = scratch;
        storage
    }

    /// Looks for a package: where Python has it anyway, or in the cache. Whether it has to be sent.
    pub(super) fn look_for(&mut self, path: &str, hash: &str) -> Result<bool, Error> {
        let is_it = |root: &Path| {
            Package::at(root).and_then(|package| package.hash().ok()).is_some_and(|found| found == hash)
        };
        if is_it(Path::new(path)) {
            return Ok(false);
        }
        let cached = cache()?.join(hash);
        let wanted = !is_it(&cached);
        self.package = Some((cached, hash.to_owned()));
        Ok(wanted)
    }

    /// The folder to put on Python's path, if Python does not find the package anyway.
    pub(super) fn python_path(&self) -> Option<PathBuf> {
        self.package.as_ref().map(|(folder, _)| folder.clone())
    }

    /// Takes a piece of a file.
    pub(super) fn take(
        &mut self,
        name: Attachment,
        path: &str,
        executable: bool,
        bytes: &[u8],
    ) -> Result<(), Error> {
        match name {
            Attachment::Payload => {
                let payload = match &mut self.payload {
                    Some(payload) => payload,
                    None => self.payload.insert(memory_file("ronde-task")?),
                };
                payload.write_all(bytes).map_err(Error::system("keep the task in memory"))
            }
            Attachment::Package => {
                let folder = self.unfinished()?;
                append(&folder, path, executable, bytes)
            }
            Attachment::Shipped => {
                let folder = self.scratch.clone().ok_or(Error::NotWelcome)?;
                self.shipped = true;
                append(&folder, path, executable, bytes)
            }
        }
    }

    /// All of the package is here: checks it, and gives it its name.
    pub(super) fn complete_package(&mut self) -> Result<(), Error> {
        let (Some((folder, hash)), Some(unfinished)) = (&self.package, &self.unfinished) else {
            return Ok(());
        };
        let problem = |source| Error::Store { path: folder.clone(), source };
        let found = Package::at(unfinished).map(|package| package.hash()).transpose().map_err(problem)?;
        if found.as_ref() != Some(hash) {
            return Err(problem(io::Error::other("what arrived is not what was sent")));
        }
        match fs::rename(unfinished, folder) {
            Ok(()) => {}
            // Somebody else was faster, with the same contents.
            Err(_) if folder.is_dir() => {
                let _ = fs::remove_dir_all(unfinished);
            }
            Err(source) => return Err(problem(source)),
        }
        self.unfinished = None;
        Ok(())
    }

    /// The names of the task's files: what to do, and where each rank's result goes.
    pub(super) fn task_files(&mut self, ranks: usize) -> Result<(String, Vec<String>), Error> {
        if self.payload.is_none() {
            self.payload = Some(memory_file("ronde-task")?);
        }
        self.results = (0..ranks).map(|_| memory_file("ronde-result")).collect::<Result<_, _>>()?;
        let payload = self.payload.as_ref().map(name_of).unwrap_or_default();
        Ok((payload, self.results.iter().map(name_of).collect()))
    }

    /// Passes on the result of the rank with this index, in pieces.
    pub(super) fn results(&mut self) -> Vec<File> {
        std::mem::take(&mut self.results)
    }

    /// Where the package is put together.
    fn unfinished(&mut self) -> Result<PathBuf, Error> {
        if let Some(folder) = &self.unfinished {
            return Ok(folder.clone());
        }
        let (_, hash) = self.package.as_ref().ok_or(Error::NotWelcome)?;
        let folder = cache()?.join(format!(".{hash}.{}", std::process::id()));
        self.unfinished = Some(folder.clone());
        Ok(folder)
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if let Some(folder) = &self.unfinished {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// Where packages are kept between jobs.
fn cache() -> Result<PathBuf, Error> {
    let base = std::env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let base = base.or_else(home).unwrap_or_else(std::env::temp_dir);
    let folder = base.join("ronde").join("packages");
    fs::create_dir_all(&folder).map_err(|source| Error::Store { path: folder.clone(), source })?;
    Ok(folder)
}

/// Adds to a file below `folder`. Names that lead elsewhere are refused: they come from outside.
fn append(folder: &Path, path: &str, executable: bool, bytes: &[u8]) -> Result<(), Error> {
    let relative = Path::new(path);
    let plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
    let full = folder.join(relative);
    let problem = |source| Error::Store { path: full.clone(), source };
    if !plain {
        return Err(problem(io::Error::other("it leads out of the folder")));
    }
    if let Some(parent) = full.parent() {
        fs::create_dir_all(parent).map_err(problem)?;
    }
    let mode = if executable { 0o755 } else { 0o644 };
    let mut file = File::options().create(true).append(true).mode(mode).open(&full).map_err(problem)?;
    file.write_all(bytes).map_err(problem)
}

/// A file that lies on no disk, for this user only.
fn memory_file(name: &str) -> Result<File, Error> {
    let file: OwnedFd =
        memfd_create(name, MemfdFlags::CLOEXEC).map_err(Error::system("make a memory file"))?;
    fchmod(&file, Mode::RUSR | Mode::WUSR).map_err(Error::system("make a memory file"))?;
    Ok(file.into())
}

fn name_of(file: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

/// Reads a file from its beginning, in pieces; the last is empty.
pub(super) fn pieces(mut file: File, mut pass: impl FnMut(Vec<u8>) -> bool) -> io::Result<()> {
    file.seek(SeekFrom::Start(0))?;
    let mut buffer = vec![0; 256 << 10];
    loop {
        let length = file.read(&mut buffer)?;
        if !pass(buffer[..length].to_vec()) || length == 0 {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_out_of_the_folder_are_refused() {
        let folder = std::env::temp_dir().join(format!("ronde-storage-{}", std::process::id()));
        for path in ["../x", "/etc/x", "a/../../x"] {
            assert!(append(&folder, path, false, b"x").is_err(), "{path}");
        }
        append(&folder, "a/b", true, b"one ").expect("written");
        append(&folder, "a/b", true, b"two").expect("written");
        assert_eq!(fs::read_to_string(folder.join("a/b")).expect("there"), "one two");
        assert!(crate::package::is_executable(&folder.join("a/b")));
        fs::remove_dir_all(folder).expect("removed");
    }
}
