//! Host keys that this machine sees for the first time: shown, asked about, and recorded.

use std::fs::{self, File};
use std::io::{self, BufRead, IsTerminal, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use crate::Error;
use crate::ssh::{HostKey, Target, home, scan, shown};

/// Shows the keys of hosts and records them, if the user agrees or has agreed to before. Says whether any was recorded.
/// Hosts behind a jump host show no keys from here and are left out.
pub(super) fn record(hosts: &[(String, Target)], yes: bool) -> Result<bool, Error> {
    let mut found: Vec<(&str, &Target, HostKey)> = Vec::new();
    for (host, target) in hosts.iter().filter(|(_, target)| !target.proxied) {
        let keys = scan(target).map_err(Error::system("start ssh-keyscan"))?;
        // The first is the one that ssh will compare, so it is the one to look at.
        found.extend(keys.into_iter().next().map(|key| (host.as_str(), target, key)));
    }
    if found.is_empty() {
        return Ok(false);
    }
    let mut out = io::stdout();
    let rows: Vec<_> = found.iter().map(|(host, _, key)| (*host, key)).collect();
    let tell = |source| Error::System { doing: "write to the standard output", source };
    out.write_all(question(&rows).as_bytes()).map_err(tell)?;
    if !yes && !agreed(&mut out).map_err(tell)? {
        return Ok(false);
    }
    for (_, target, key) in &found {
        let Some(file) = target.known_hosts.first() else { continue };
        append(file, &format!("{} {}", target.known_as(), key.key))
            .map_err(Error::system("record a host key in known_hosts"))?;
        let file = shown(file, home().as_deref());
        writeln!(out, "recorded the key of {} in {file}", target.known_as()).map_err(tell)?;
    }
    Ok(true)
}

/// What is shown before a key is recorded.
fn question(keys: &[(&str, &HostKey)]) -> String {
    let width = keys.iter().map(|(host, _)| host.chars().count()).max().unwrap_or_default();
    let lines =
        keys.iter().map(|(host, key)| format!("  {host:width$}  {}  {}\n", key.kind, key.fingerprint));
    format!(
        "these host keys are not known here yet:\n{}compare each with what its host says:  \
         ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub\n",
        lines.collect::<String>()
    )
}

/// Asks, where there is a terminal to ask on.
fn agreed(out: &mut impl Write) -> io::Result<bool> {
    let input = io::stdin();
    if !input.is_terminal() {
        writeln!(
            out,
            "nothing was recorded: there is no terminal to ask on; if they are right, run this again with --yes"
        )?;
        return Ok(false);
    }
    write!(out, "record them? [y/N] ")?;
    out.flush()?;
    let mut answer = String::new();
    input.lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// Adds a line to a file that only its owner can read, making the file and its folder where they are not there.
fn append(file: &Path, line: &str) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut file = File::options().read(true).append(true).create(true).mode(0o600).open(file)?;
    // A last line without its end would swallow ours.
    let mut last = [b'\n'];
    if file.seek(SeekFrom::End(0))? > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    let start = if last == [b'\n'] { "" } else { "\n" };
    // In one piece, since others may append at the same time.
    file.write_all(format!("{start}{line}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_line_is_added_to_a_file_that_others_cannot_read() {
        let folder = std::env::temp_dir().join(format!("ronde-known-hosts-{}", std::process::id()));
        let file = folder.join("ssh/known_hosts");
        append(&file, "a key").expect("a new file");
        assert_eq!(fs::read_to_string(&file).expect("a file"), "a key\n");
        fs::write(&file, "one without an end").expect("a file");
        append(&file, "b key").expect("an old file");
        assert_eq!(fs::read_to_string(&file).expect("a file"), "one without an end\nb key\n");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(&folder.join("ssh"))), (0o600, 0o700));
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn the_question_shows_every_fingerprint() {
        let key = |fingerprint: &str| HostKey {
            kind: "ED25519".to_owned(),
            fingerprint: fingerprint.to_owned(),
            key: String::new(),
        };
        let (one, two) = (key("SHA256:one"), key("SHA256:two"));
        assert_eq!(
            question(&[("gpu2", &one), ("gpu10", &two)]),
            "these host keys are not known here yet:\n  \
             gpu2   ED25519  SHA256:one\n  \
             gpu10  ED25519  SHA256:two\n\
             compare each with what its host says:  ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub\n"
        );
    }
}
