//! What the driver sends to be kept on this host: the Python package, in a cache that later jobs find again; files that
//! the user ships, in a folder that is gone after the job; and the call of a task, in memory.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{MemfdFlags, Mode, fchmod, memfd_create};

use super::scratch::{Scratch, cache};
use crate::Error;
use crate::package::Package;
use crate::wire::Attachment;

/// Everything that was sent so far.
pub(super) struct Storage {
    scratch: Scratch,
    /// Where the package is, or will be once it is complete, and its hash.
    package: Option<(PathBuf, String)>,
    shipped: bool,
    payload: Option<File>,
    results: Vec<File>,
}

impl Storage {
    pub(super) fn new(scratch: Scratch) -> Storage {
        Storage { scratch, package: None, shipped: false, payload: None, results: Vec::new() }
    }

    /// The folder that has what the user shipped, if anything came.
    pub(super) fn shipped(&self) -> Option<PathBuf> {
        self.shipped.then(|| self.scratch.shipped.clone())
    }

    /// The folder for NVIDIA's MPS, which is not made yet.
    pub(super) fn for_mps(&self) -> PathBuf {
        self.scratch.mps.clone()
    }

    /// Looks for a package: where Python has it anyway, or in the cache. Whether it has to be sent.
    pub(super) fn look_for(&mut self, path: &str, hash: &str) -> Result<bool, Error> {
        if is_package(Path::new(path), hash) {
            return Ok(false);
        }
        let cached = cache().join(hash);
        let wanted = !is_package(&cached, hash);
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
            Attachment::Package => append(&self.scratch.package, path, executable, bytes),
            Attachment::Shipped => {
                self.shipped = true;
                append(&self.scratch.shipped, path, executable, bytes)
            }
        }
    }

    /// All of the package is here: checks it, and gives it its name.
    pub(super) fn complete_package(&mut self) -> Result<(), Error> {
        let unfinished = &self.scratch.package;
        let Some((folder, hash)) = self.package.as_ref().filter(|_| unfinished.is_dir()) else {
            return Ok(());
        };
        let problem = |source| Error::Store { path: folder.clone(), source };
        let found = Package::at(unfinished).map(|package| package.hash()).transpose().map_err(problem)?;
        if found.as_ref() != Some(hash) {
            return Err(problem(io::Error::other("what arrived is not what was sent")));
        }
        put(unfinished, folder, hash).map_err(problem)
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
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.scratch.remove();
    }
}

/// Whether a folder has the package with this hash.
fn is_package(root: &Path, hash: &str) -> bool {
    Package::at(root).and_then(|package| package.hash().ok()).is_some_and(|found| found == hash)
}

/// Gives a package that is complete its name.
fn put(unfinished: &Path, folder: &Path, hash: &str) -> io::Result<()> {
    match fs::rename(unfinished, folder) {
        Err(error) if !folder.is_dir() => Err(error),
        // Another agent was faster, with the same contents.
        Err(_) if is_package(folder, hash) => fs::remove_dir_all(unfinished),
        // What is there is damaged. It moves to where it is removed even if this agent is killed.
        Err(_) => {
            let damaged = unfinished.join("damaged");
            fs::rename(folder, &damaged)?;
            fs::remove_dir_all(damaged)?;
            fs::rename(unfinished, folder)
        }
        Ok(()) => Ok(()),
    }
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

    /// Makes a package whose modules have this content.
    fn package(root: &Path, content: &str) {
        for module in ["ronde/__init__.py", "horovod/__init__.py"] {
            append(root, module, false, content.as_bytes()).expect("written");
        }
    }

    #[test]
    fn a_package_that_arrives_replaces_a_damaged_one_but_not_an_equal_one() {
        let root = std::env::temp_dir().join(format!("ronde-packages-{}", std::process::id()));
        let (unfinished, folder) = (root.join("unfinished"), root.join("cached"));
        package(&unfinished, "x = 1");
        let hash = Package::at(&unfinished).expect("a package").hash().expect("readable");
        let entries = || fs::read_dir(&folder).expect("a folder").count();

        package(&folder, "x =");
        put(&unfinished, &folder, &hash).expect("in place of the damaged one");
        assert!(is_package(&folder, &hash));
        assert_eq!(entries(), 2, "nothing of the damaged one is left");

        fs::write(folder.join("compiled"), "").expect("written");
        package(&unfinished, "x = 1");
        put(&unfinished, &folder, &hash).expect("there already");
        assert_eq!(entries(), 3, "it is the one that was there");
        assert!(!unfinished.exists());

        package(&unfinished, "x = 1");
        assert!(put(&unfinished, &root.join("missing/cached"), &hash).is_err());
        fs::remove_dir_all(root).expect("removed");
    }

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
