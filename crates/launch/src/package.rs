//! This build, for hosts that lack it: the program itself, and the Python package that was installed with it.
//!
//! Both are known by a hash of their contents, so that what lies on another host is either the same or not used.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// The folders of the Python package.
const MODULES: [&str; 2] = ["ronde", "horovod"];

/// The hash of this program.
pub fn fingerprint() -> io::Result<String> {
    let mut hash = Sha256::new();
    digest(&mut hash, &mut File::open("/proc/self/exe")?)?;
    Ok(digits(hash))
}

/// The Python package that was installed with this program: the folder that Python imports from, and the files in it.
pub fn own_package() -> Option<(PathBuf, Vec<PathBuf>)> {
    Package::own().map(|package| (package.root, package.files))
}

/// An installed Python package.
#[derive(Debug, Clone)]
pub(crate) struct Package {
    /// The folder that Python imports from.
    pub(crate) root: PathBuf,
    /// Its files, relative to the root, sorted.
    pub(crate) files: Vec<PathBuf>,
}

impl Package {
    /// The one installed with this program: `PREFIX/bin/ronde` and `PREFIX/lib/pythonX.Y/site-packages/ronde`.
    pub(crate) fn own() -> Option<Package> {
        let program = std::env::current_exe().ok()?;
        let libraries = program.parent()?.parent()?.join("lib");
        let mut versions: Vec<PathBuf> =
            fs::read_dir(libraries).ok()?.flatten().map(|entry| entry.path().join("site-packages")).collect();
        versions.sort();
        versions.iter().find_map(|root| Package::at(root))
    }

    /// The one in this folder, if there is one.
    pub(crate) fn at(root: &Path) -> Option<Package> {
        let mut files = Vec::new();
        for module in MODULES {
            list(root, Path::new(module), &mut files).ok()?;
        }
        files.sort();
        (!files.is_empty()).then(|| Package { root: root.to_owned(), files })
    }

    /// The hash of all names and contents.
    pub(crate) fn hash(&self) -> io::Result<String> {
        let mut hash = Sha256::new();
        for file in &self.files {
            let mut contents = File::open(self.root.join(file))?;
            let length = contents.metadata()?.len();
            hash.update(file.as_os_str().as_encoded_bytes());
            hash.update([0]);
            hash.update(length.to_le_bytes());
            digest(&mut hash, &mut contents)?;
        }
        Ok(digits(hash))
    }
}

/// What Python compiled on its own differs from host to host and is left out.
fn list(root: &Path, folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_name() == "__pycache__" {
            continue;
        }
        match entry.metadata()?.is_dir() {
            true => list(root, &path, files)?,
            false => files.push(path),
        }
    }
    Ok(())
}

/// Whether a file is marked as executable.
pub(crate) fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o111 != 0)
}

fn digest(hash: &mut Sha256, contents: &mut impl Read) -> io::Result<()> {
    let mut buffer = vec![0; 256 << 10];
    loop {
        match contents.read(&mut buffer)? {
            0 => return Ok(()),
            length => hash.update(&buffer[..length]),
        }
    }
}

fn digits(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_known_by_names_and_contents_and_not_by_what_python_compiles() {
        let root = std::env::temp_dir().join(format!("ronde-package-{}", std::process::id()));
        for module in MODULES {
            fs::create_dir_all(root.join(module).join("__pycache__")).expect("a folder");
            fs::write(root.join(module).join("__init__.py"), "x = 1\n").expect("a file");
        }
        let hash = || Package::at(&root).expect("a package").hash().expect("readable");
        let before = hash();
        fs::write(root.join("ronde/__pycache__/x.pyc"), "compiled").expect("a file");
        assert_eq!(hash(), before);
        fs::write(root.join("ronde/__init__.py"), "x = 2\n").expect("a file");
        assert_ne!(hash(), before);
        fs::write(root.join("ronde/__init__.py"), "x = 1\n").expect("a file");
        fs::rename(root.join("ronde/__init__.py"), root.join("ronde/other.py")).expect("renamed");
        assert_ne!(hash(), before);
        fs::remove_dir_all(&root).expect("removed");
        assert!(Package::at(&root).is_none());
    }
}
