//! The keys by which a host proves who it is, and their fingerprints, as `ssh-keyscan` and `ssh-keygen` show them.

use std::io::{self, Write};
use std::process::{Command, Output, Stdio};

use super::Target;
use super::command::plain_messages;

/// How long a host may take to show its keys.
const SCAN_SECONDS: &str = "5";

/// One key of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostKey {
    /// `ED25519`, `ECDSA` or `RSA`.
    pub(crate) kind: String,
    /// `SHA256:…`, by which people compare it.
    pub(crate) fingerprint: String,
    /// Its type and itself, as they stand in `known_hosts` behind the host's name.
    pub(crate) key: String,
}

/// Asks a host for its keys, the one that `ssh` prefers first. This proves nothing: whoever answers at the address may
/// show a key, and somebody has to compare fingerprints.
pub(crate) fn scan(target: &Target) -> io::Result<Vec<HostKey>> {
    let mut command = Command::new("ssh-keyscan");
    command.args(["-T", SCAN_SECONDS, "-p", &target.port.to_string(), "--", &target.name]);
    plain_messages(&mut command).stdin(Stdio::null());
    let output = command.output()?;
    let mut keys = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines().filter(|line| !line.starts_with('#')) {
        let Some((_, key)) = line.split_once(' ') else { continue };
        if let Some((fingerprint, kind)) = fingerprint(key)? {
            keys.push(HostKey { kind, fingerprint, key: key.to_owned() });
        }
    }
    keys.sort_by_key(|key| preference(&key.kind));
    Ok(keys)
}

/// Fingerprint and kind of a public key, if it is one.
fn fingerprint(key: &str) -> io::Result<Option<(String, String)>> {
    let mut command = Command::new("ssh-keygen");
    command.args(["-l", "-f", "-"]);
    plain_messages(&mut command);
    let output = feed(&mut command, key)?;
    Ok(read_fingerprint(&String::from_utf8_lossy(&output.stdout)))
}

/// Reads `256 SHA256:… a comment of any kind (ED25519)`.
fn read_fingerprint(line: &str) -> Option<(String, String)> {
    let line = line.lines().next()?;
    let fingerprint = line.split(' ').nth(1)?;
    let (_, kind) = line.strip_suffix(')')?.rsplit_once('(')?;
    Some((fingerprint.to_owned(), kind.to_owned()))
}

/// Runs a program with a line as its input.
fn feed(command: &mut Command, line: &str) -> io::Result<Output> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    if let Some(mut input) = child.stdin.take() {
        // A program that does not read to the end has said already what is wrong.
        let _ = writeln!(input, "{line}");
    }
    child.wait_with_output()
}

fn preference(kind: &str) -> usize {
    ["ED25519", "ECDSA", "RSA"].iter().position(|known| *known == kind).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_told_from_the_comment_behind_it() {
        let line = "256 SHA256:mVPwvezndPv/ARoIadVY98vAC0g+P/5633yTC4d/wXE a (strange) comment (ED25519)\n";
        let expected = ("SHA256:mVPwvezndPv/ARoIadVY98vAC0g+P/5633yTC4d/wXE", "ED25519");
        assert_eq!(read_fingerprint(line), Some((expected.0.to_owned(), expected.1.to_owned())));
        assert_eq!(read_fingerprint(""), None);
        assert_eq!(read_fingerprint("(stdin) is not a public key file."), None);
    }
}
