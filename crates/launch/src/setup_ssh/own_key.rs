//! The user's own key: found, or made.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Error;
use crate::plan::Ssh;
use crate::ssh::{Target, home, is_locked, shown};

/// A key that can be installed on hosts.
pub(super) struct OwnKey {
    /// Its private half, as people write the path.
    pub(super) shown: String,
    /// The line for `authorized_keys`.
    pub(super) public: String,
}

/// The key that a login to `target` would use; if there is none, a new one.
pub(super) fn find_or_make(options: &Ssh, target: &Target) -> Result<OwnKey, Error> {
    let (file, made) = match choose(options, target) {
        Some(file) => (file, false),
        None => {
            let file = place(options, target);
            make(&file)?;
            (file, true)
        }
    };
    let public = public_half(&file)?;
    let shown = shown(&file, home().as_deref());
    if made {
        let written =
            writeln!(io::stdout(), "made {shown}, a key without a passphrase, for logins without a question");
        written.map_err(Error::system("write to the standard output"))?;
    }
    Ok(OwnKey { shown, public })
}

/// The key that the user named, or the first that can be used without a passphrase, or the first.
fn choose(options: &Ssh, target: &Target) -> Option<PathBuf> {
    if let Some(named) = &options.identity {
        return named.is_file().then(|| named.clone());
    }
    let there: Vec<&PathBuf> = target.identities.iter().filter(|file| file.is_file()).collect();
    there.iter().find(|file| !is_locked(file)).or(there.first()).map(|file| (*file).clone())
}

/// Where a new key goes: where the user said, or where `ssh` looks for one of this kind.
fn place(options: &Ssh, target: &Target) -> PathBuf {
    let named = options.identity.as_ref();
    let usual = target.identities.iter().find(|file| file.ends_with("id_ed25519"));
    let home = home().unwrap_or_default();
    named.or(usual).cloned().unwrap_or_else(|| home.join(".ssh/id_ed25519"))
}

fn make(file: &Path) -> Result<(), Error> {
    let doing = "make a key with ssh-keygen";
    if let Some(folder) = file.parent() {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(Error::system("make a folder for the new key"))?;
    }
    let mut command = Command::new("ssh-keygen");
    command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(file).stdin(Stdio::null());
    let output = command.output().map_err(Error::system(doing))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::System { doing, source: io::Error::other(said) })
}

/// The public half of a key: from the file beside it, or from the key itself.
fn public_half(file: &Path) -> Result<String, Error> {
    let doing = "read the public half of the key";
    let mut beside = file.as_os_str().to_owned();
    beside.push(".pub");
    let text = match fs::read_to_string(&beside) {
        Ok(text) => text,
        Err(_) => {
            let mut command = Command::new("ssh-keygen");
            // It may ask for a passphrase, on the terminal; without one it fails.
            command.arg("-y").arg("-f").arg(file).stderr(Stdio::inherit());
            let output = command.output().map_err(Error::system(doing))?;
            String::from_utf8_lossy(&output.stdout).into_owned()
        }
    };
    match text.lines().find(|line| line.split(' ').count() >= 2) {
        Some(line) => Ok(line.trim().to_owned()),
        None => {
            let source = io::Error::other(format!("there is none in {}", Path::new(&beside).display()));
            Err(Error::System { doing, source })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_found_again() {
        let folder = std::env::temp_dir().join(format!("ronde-own-key-{}", std::process::id()));
        let options = Ssh { identity: Some(folder.join("keys/id")), ..Ssh::default() };
        let target = Target::ask(&options, "localhost");
        let made = find_or_make(&options, &target).expect("a new key");
        assert!(made.public.starts_with("ssh-ed25519 AAAA"), "{}", made.public);
        let found = find_or_make(&options, &target).expect("the same key");
        assert_eq!(found.public, made.public);
        fs::remove_file(folder.join("keys/id.pub")).expect("the public half");
        let derived = find_or_make(&options, &target).expect("the same key");
        assert!(
            made.public.starts_with(derived.public.trim_end()),
            "{} is not {}",
            derived.public,
            made.public
        );
        fs::remove_dir_all(&folder).expect("removed");
    }
}
