//! Files of the user's that travel in a config map: one script, or a small folder.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;

use super::{FileItem, Files, Job, names};
use crate::fingerprint::fingerprint;

/// The most that a config map holds.
const MOST: u64 = 1 << 20;

/// Files, read and ready to be sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shipment {
    contents: BTreeMap<String, Vec<u8>>,
    items: Vec<FileItem>,
}

/// Why files cannot be shipped.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// They cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// What was tried.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// There is nothing.
    #[error("{} is empty", .0.display())]
    Empty(PathBuf),
    /// They are more than fits.
    #[error("{} holds more than 1 MiB, which is all that travels with a job", .0.display())]
    TooMuch(PathBuf),
}

impl FilesError {
    /// What to do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            FilesError::TooMuch(_) => {
                Some("put the files on a volume and mount it: --volume CLAIM:/path, or into the image")
            }
            _ => None,
        }
    }
}

/// Reads one file, or everything in a folder but what is hidden or compiled by Python.
pub fn collect(path: &Path) -> Result<Shipment, FilesError> {
    let mut shipment = Shipment::default();
    let unreadable = |source| FilesError::Unreadable { path: path.to_owned(), source };
    let mut size = 0;
    if fs::metadata(path).map_err(unreadable)?.is_dir() {
        add_folder(path, "", &mut shipment, &mut size, path)?;
    } else {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        add_file(path, name, &mut shipment, &mut size, path)?;
    }
    if shipment.items.is_empty() {
        return Err(FilesError::Empty(path.to_owned()));
    }
    Ok(shipment)
}

fn add_folder(
    folder: &Path,
    prefix: &str,
    into: &mut Shipment,
    size: &mut u64,
    top: &Path,
) -> Result<(), FilesError> {
    let unreadable = |source| FilesError::Unreadable { path: folder.to_owned(), source };
    let mut entries: Vec<_> =
        fs::read_dir(folder).map_err(unreadable)?.collect::<Result<_, _>>().map_err(unreadable)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') || name == "__pycache__" {
            continue;
        }
        let path = entry.path();
        let relative = format!("{prefix}{name}");
        match fs::metadata(&path) {
            Ok(kind) if kind.is_dir() => add_folder(&path, &format!("{relative}/"), into, size, top)?,
            Ok(kind) if kind.is_file() => add_file(&path, relative, into, size, top)?,
            Ok(_) => {}
            Err(source) => return Err(FilesError::Unreadable { path, source }),
        }
    }
    Ok(())
}

fn add_file(
    path: &Path,
    relative: String,
    into: &mut Shipment,
    size: &mut u64,
    top: &Path,
) -> Result<(), FilesError> {
    let unreadable = |source| FilesError::Unreadable { path: path.to_owned(), source };
    let about = fs::metadata(path).map_err(unreadable)?;
    *size += about.len();
    // Keys and paths count as well, a little.
    if *size + 200 * into.items.len() as u64 > MOST - (16 << 10) {
        return Err(FilesError::TooMuch(top.to_owned()));
    }
    let contents = fs::read(path).map_err(unreadable)?;
    // A node may have in mind what an earlier job of the name sent. By this key it does not find that, and asks anew.
    let key = format!("file-{}-{:016x}", into.items.len(), fingerprint(contents.iter().copied()));
    into.contents.insert(key.clone(), contents);
    let executable = about.permissions().mode() & 0o111 != 0;
    into.items.push(FileItem { key, path: relative, executable });
    Ok(())
}

impl Shipment {
    /// What the job says about them.
    pub fn files(&self, job: &str) -> Files {
        Files { config_map: names::files(job), items: self.items.clone() }
    }

    /// The config map that carries them.
    pub(crate) fn config_map(&self, job: &Job) -> ConfigMap {
        let contents = self.contents.iter().map(|(key, bytes)| (key.clone(), ByteString(bytes.clone())));
        ConfigMap {
            metadata: job.metadata(names::files(&job.name)),
            // Not immutable: nodes would never ask again.
            binary_data: Some(contents.collect()),
            ..ConfigMap::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("ronde-kube-files-{name}-{}", std::process::id()));
        fs::create_dir_all(folder.join("sub")).expect("a folder");
        folder
    }

    #[test]
    fn a_folder_is_taken_with_its_paths_and_without_what_is_hidden() {
        let folder = folder("taken");
        for (name, text) in [("train.py", "x"), ("sub/data.txt", "y"), (".git", "z")] {
            fs::write(folder.join(name), text).expect("a file");
        }
        fs::set_permissions(folder.join("train.py"), fs::Permissions::from_mode(0o755)).expect("a mode");
        let shipment = collect(&folder).expect("small");
        let paths: Vec<_> = shipment.items.iter().map(|item| (item.path.as_str(), item.executable)).collect();
        assert_eq!(paths, [("sub/data.txt", false), ("train.py", true)]);
        let alone = collect(&folder.join("train.py")).expect("one file");
        assert_eq!(alone.items[0].path, "train.py");
        fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn a_file_that_was_changed_is_another() {
        let script = folder("changed").join("train.py");
        let keys = ["first", "second", "first"].map(|text| {
            fs::write(&script, text).expect("a file");
            collect(&script).expect("small").items.remove(0).key
        });
        assert!(keys[0] != keys[1] && keys[0] == keys[2], "{keys:?}");
        fs::remove_dir_all(script.parent().expect("a folder")).expect("removed");
    }

    #[test]
    fn what_is_too_much_is_refused_and_the_volume_named() {
        let folder = folder("refused");
        assert!(matches!(collect(&folder), Err(FilesError::Empty(_))));
        fs::write(folder.join("large"), vec![0; 1 << 20]).expect("a file");
        let error = collect(&folder).expect_err("too much");
        assert!(
            error.to_string().contains("1 MiB") && error.hint().is_some_and(|hint| hint.contains("--volume"))
        );
        fs::remove_dir_all(folder).expect("removed");
    }
}
