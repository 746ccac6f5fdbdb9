//! Where files of one job lie on this host until they have their place or are done with.
//!
//! The names are made before there is an agent, so that its guardian knows them too: if the agent is killed in the middle
//! of writing, the guardian removes what it left.

use std::fs;
use std::path::PathBuf;

use crate::Error;
use crate::gpus::mps;

/// Names of folders; nothing is made yet.
#[derive(Clone, Debug)]
pub(super) struct Scratch {
    /// For files that the user ships: where the ranks then run.
    pub(super) shipped: PathBuf,
    /// For a Python package that is not complete: in the cache, so that it only has to be renamed.
    pub(super) package: PathBuf,
    /// For NVIDIA's MPS, where the driver names no folder: on other machines than its own.
    pub(super) mps: PathBuf,
}

impl Scratch {
    pub(super) fn name() -> Result<Scratch, Error> {
        let mut random = [0; 8];
        getrandom::fill(&mut random)
            .map_err(|error| Error::system("name a folder")(std::io::Error::other(error.to_string())))?;
        let number = u64::from_ne_bytes(random);
        Ok(Scratch {
            shipped: std::env::temp_dir().join(format!("ronde-{number:016x}")),
            package: cache().join(format!(".{number:016x}")),
            mps: mps::folder()?,
        })
    }

    /// Removes whatever is there.
    pub(super) fn remove(&self) {
        for folder in [&self.shipped, &self.package, &self.mps] {
            // Most often there is none.
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// Where packages are kept between jobs.
pub(super) fn cache() -> PathBuf {
    let base = std::env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let base = base.or_else(home).unwrap_or_else(std::env::temp_dir);
    base.join("ronde").join("packages")
}
