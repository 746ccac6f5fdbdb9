//! The job's secret as a file that lies on no disk.
//!
//! A sealed memory file, held open by the agent and named through its `/proc` entry: only the same
//! user can open it, it cannot be changed, and it is gone when the agent is.

use std::os::fd::{AsRawFd, OwnedFd};

use ronde_trust::Secret;
use rustix::fs::{MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, memfd_create};

use crate::Error;

/// Keeps the file in being; dropping it takes it away.
pub(crate) struct SecretFile(OwnedFd);

impl SecretFile {
    pub(crate) fn hold(secret: &Secret) -> Result<SecretFile, Error> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("ronde-secret", flags).map_err(Error::system(MAKING))?;
        fchmod(&file, Mode::RUSR | Mode::WUSR).map_err(Error::system(MAKING))?;
        let digits = secret.to_hex();
        let mut rest = digits.as_bytes();
        while !rest.is_empty() {
            let written = rustix::io::write(&file, rest).map_err(Error::system(MAKING))?;
            rest = &rest[written..];
        }
        let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        fcntl_add_seals(&file, seals).map_err(Error::system(MAKING))?;
        Ok(SecretFile(file))
    }

    /// The name by which other processes of this user can open it.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

const MAKING: &str = "make a memory file for the job's secret";

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_file_gives_the_secret_to_its_owner_only_and_cannot_be_changed() {
        let secret = Secret::random().expect("randomness");
        let file = SecretFile::hold(&secret).expect("memory file");
        let path = file.path();
        assert_eq!(*Secret::read_file(&path).expect("readable").to_hex(), *secret.to_hex());
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(fs::write(&path, "00").is_err());
        drop(file);
        assert!(Secret::read_file(&path).is_err());
    }
}
