//! The file through which the ranks of a job that another launcher started find rank 0 and prove that they belong to it.
//!
//! Rank 0 makes it in a folder that all ranks see, usually `~/.ronde/jobs` of a shared home: the job's secret and the port
//! of the rendezvous, readable by its owner only. It is needed until everybody has joined and is removed then. One that a
//! killed job left behind is replaced by the next job of the same key; ranks that read the old one before that find nobody
//! there who knows its secret, and read it again.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ronde_trust::Secret;
use rustix::fs::{Access, OFlags};
use zeroize::Zeroizing;

use crate::Error;

/// More than a secret, a port and two line ends.
const LONGEST: usize = 128;

/// The file of a running start, which is removed when this is dropped.
pub(crate) struct JobFile {
    path: PathBuf,
    /// Device and number, so that a successor's file is left alone.
    identity: (u64, u64),
}

impl JobFile {
    /// Makes the file, in the place of one that is there already. Whoever opens it sees all of it or an earlier one.
    pub(crate) fn create(path: &Path, secret: &Secret, port: u16) -> Result<JobFile, Error> {
        JobFile::write(path, secret, port).map_err(|source| Error::File {
            doing: "write",
            path: path.to_owned(),
            source,
        })
    }

    fn write(path: &Path, secret: &Secret, port: u16) -> io::Result<JobFile> {
        // One name for all that come after each other: what a kill leaves of it does not add up.
        let unfinished = path.with_extension("new");
        let _ = fs::remove_file(&unfinished);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
        let written = (|| {
            let mut text = Zeroizing::new(String::with_capacity(LONGEST));
            text.push_str(&secret.to_hex());
            text.push_str(&format!("\n{port}\n"));
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            let metadata = file.metadata()?;
            fs::rename(&unfinished, path)?;
            Ok(JobFile { path: path.to_owned(), identity: (metadata.dev(), metadata.ino()) })
        })();
        if written.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        written
    }
}

impl Drop for JobFile {
    fn drop(&mut self) {
        let there = fs::symlink_metadata(&self.path);
        if there.is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// What a job's file says; `None` while there is none.
pub(crate) fn read(path: &Path) -> Result<Option<(Secret, u16)>, Error> {
    let failed = |source| Error::File { doing: "read", path: path.to_owned(), source };
    // Over a network a name that was not there a moment ago is believed to be missing for a while; looking through the
    // folder asks the server.
    if let Some(folder) = path.parent() {
        let _ = fs::read_dir(folder).map(Iterator::count);
    }
    let opened = OpenOptions::new().read(true).custom_flags(OFlags::NOFOLLOW.bits() as i32).open(path);
    let mut file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        // Replaced on the server while it was opened.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::STALE.raw_os_error()) => {
            return Ok(None);
        }
        Err(error) => return Err(failed(error)),
    };
    check_owner(&file).map_err(failed)?;
    let mut text = Zeroizing::new(String::with_capacity(LONGEST));
    Read::by_ref(&mut file).take(LONGEST as u64).read_to_string(&mut text).map_err(failed)?;
    let (secret, port) = text.trim_end().split_once('\n').unwrap_or_default();
    let secret = Secret::from_hex(secret).map_err(Error::Secret)?;
    let port = port.parse().map_err(|_| failed(io::Error::other("it names no port")))?;
    Ok(Some((secret, port)))
}

/// A secret that others could have read, or written, is none.
fn check_owner(file: &File) -> io::Result<()> {
    let metadata = file.metadata()?;
    let me = rustix::process::geteuid().as_raw();
    if metadata.uid() != me {
        return Err(io::Error::other(format!("it belongs to user {}, not to {me}", metadata.uid())));
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(io::Error::other(format!("others may use it (mode {:o})", metadata.mode() & 0o777)));
    }
    Ok(())
}

/// The folder for the files of this user's jobs: in the home or, for a job of one host without a usable home, in `/tmp`.
/// `None` where there is neither.
pub(crate) fn folder(home: Option<&str>, local: bool) -> Option<PathBuf> {
    let home = home.filter(|home| !home.is_empty()).map(|home| Path::new(home).join(".ronde/jobs"));
    let temporary = local.then(|| {
        let me = rustix::process::geteuid().as_raw();
        // Not what TMPDIR says, which need not be the same for all ranks.
        Path::new("/tmp").join(format!("ronde-{me}"))
    });
    home.into_iter().chain(temporary).find(|folder| is_ours(folder))
}

/// Makes a folder, if need be, and says whether files of this user are safe in it.
fn is_ours(folder: &Path) -> bool {
    // It may be there, and it may just have been made by another rank; what counts is what is there now.
    let _ = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    let me = rustix::process::geteuid().as_raw();
    let owned = fs::symlink_metadata(folder)
        .is_ok_and(|found| found.is_dir() && found.uid() == me && found.mode() & 0o022 == 0);
    owned && rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A folder that is gone after the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("ronde-job-file-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).expect("a folder");
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_rank_0_writes_the_others_read_until_it_is_dropped() {
        let folder = Folder::new("written");
        let path = folder.0.join("job");
        assert!(read(&path).expect("readable").is_none());
        fs::write(&path, "what an earlier job left").expect("write");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("mode");
        assert!(read(&path).is_err(), "nonsense is no secret");

        let secret = Secret::random().expect("randomness");
        let file = JobFile::create(&path, &secret, 4711).expect("made in the place of the other");
        let (found, port) = read(&path).expect("readable").expect("there");
        assert_eq!((&*found.to_hex(), port), (&*secret.to_hex(), 4711));
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);

        let successor = JobFile::create(&path, &secret, 4712).expect("again");
        drop(file);
        assert_eq!(read(&path).expect("readable").expect("the successor's stays").1, 4712);
        drop(successor);
        assert!(read(&path).expect("readable").is_none());
        assert_eq!(fs::read_dir(&folder.0).expect("listed").count(), 0, "nothing else is left");
    }

    #[test]
    fn a_file_that_others_may_read_and_a_link_are_refused() {
        let folder = Folder::new("refused");
        let path = folder.0.join("job");
        let secret = Secret::random().expect("randomness");
        let _file = JobFile::create(&path, &secret, 1).expect("made");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("mode");
        let error = read(&path).expect_err("readable by the group").to_string();
        assert!(error.contains("mode 640") && error.contains(&*path.to_string_lossy()), "{error}");

        let link = folder.0.join("link");
        std::os::unix::fs::symlink(&path, &link).expect("link");
        assert!(read(&link).is_err());
    }

    #[test]
    fn the_folder_is_in_the_home_and_only_local_jobs_can_do_without_one() {
        let home = Folder::new("home");
        let text = home.0.to_string_lossy().into_owned();
        assert_eq!(folder(Some(&text), false), Some(home.0.join(".ronde/jobs")));
        let mode = fs::metadata(home.0.join(".ronde/jobs")).expect("made").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);

        assert_eq!(folder(None, false), None);
        assert_eq!(folder(Some("/proc"), false), None);
        let elsewhere = folder(Some("/proc"), true).expect("a folder of this host");
        assert!(elsewhere.starts_with("/tmp"), "{elsewhere:?}");
    }
}
