//! The key that lets the user into the machines, where none is named: their own, which Terraform finds by itself, or else
//! one that came with `ssh -A`, of which this machine has no file.

use std::path::Path;
use std::process::{Command, Stdio};

/// What `machines.tf` looks for.
const OWN: [&str; 3] = ["id_ed25519.pub", "id_ecdsa.pub", "id_rsa.pub"];

/// The first key of the user's agent, if there is no file of their own.
pub(super) fn of_agent(home: Option<&Path>) -> Option<String> {
    let has = |name: &&str| home.is_some_and(|home| home.join(".ssh").join(name).is_file());
    if OWN.iter().any(has) {
        return None;
    }
    let listed =
        Command::new("ssh-add").arg("-L").stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    first(&String::from_utf8_lossy(&listed.stdout))
}

/// Whether this is a public key itself. The name of a key pair has no second word.
pub(super) fn is_text(key: &str) -> bool {
    let mut words = key.split_whitespace();
    let kind = words.next().unwrap_or_default();
    words.next().is_some() && ["ssh-", "ecdsa-", "sk-"].iter().any(|start| kind.starts_with(start))
}

/// What people know a key by: its comment, or else its kind.
pub(super) fn called(key: &str) -> &str {
    let mut parts = key.splitn(3, ' ');
    let kind = parts.next().unwrap_or_default();
    parts.nth(1).map(str::trim).filter(|comment| !comment.is_empty()).unwrap_or(kind)
}

/// The first key of what `ssh-add -L` lists. A certificate is no key that a cloud could put into a machine.
fn first(listed: &str) -> Option<String> {
    let is_key =
        |line: &&str| is_text(line) && !line.split(' ').next().unwrap_or_default().contains("-cert-");
    listed.lines().map(str::trim).find(is_key).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_key_of_an_agent_is_taken_and_no_certificate() {
        let listed = "ssh-ed25519-cert-v01@openssh.com AAAA1 anna@lab\nsk-ssh-ed25519@openssh.com AAAA2 anna's token\n";
        let key = first(listed).expect("there is a key");
        assert_eq!(key, "sk-ssh-ed25519@openssh.com AAAA2 anna's token");
        assert_eq!(called(&key), "anna's token");
        assert_eq!(first("The agent has no identities.\n"), None);
    }

    #[test]
    fn a_key_is_told_from_a_name() {
        assert!(is_text("ssh-ed25519 AAAA anna@lab") && is_text("ecdsa-sha2-nistp256 AAAA"));
        assert!(!is_text("ssh-of-anna") && !is_text("anna") && !is_text(""));
        assert_eq!(called("ssh-rsa AAAA"), "ssh-rsa");
    }
}
