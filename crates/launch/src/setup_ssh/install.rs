//! Our public key goes into a host's `authorized_keys`, by one `ssh` that may ask for a password on the terminal.

use std::io::{self, IsTerminal, Write};
use std::process::{Command, Stdio};

use super::own_key::OwnKey;
use crate::Error;
use crate::plan::Ssh;
use crate::ssh::{self, Refusal, RefusalKind, Target};

/// Reads the key from its input and appends it, once. It speaks the language of every shell: whatever the login shell is,
/// it only has to understand `exec` and single quotes.
const APPEND: &str = "exec sh -c 'umask 077; cd && mkdir -p .ssh && chmod 700 .ssh && cd .ssh && \
    touch authorized_keys && chmod 600 authorized_keys && IFS= read -r key && \
    { grep -qxF \"$key\" authorized_keys || \
    { [ -z \"$(tail -c 1 authorized_keys)\" ] || echo >> authorized_keys; echo \"$key\" >> authorized_keys; }; }'";

/// How it went on one host.
pub(super) enum Outcome {
    /// The key is there.
    Installed,
    /// It could not be tried; what the user can do instead.
    ByHand(Vec<String>),
    /// It was tried.
    Failed(Refusal),
}

/// Installs a key on a host that has just refused a login, with these words.
pub(super) fn install(options: &Ssh, host: &str, said: &str, key: &OwnKey) -> Result<Outcome, Error> {
    let user = Target::ask(options, host).user;
    if !takes_passwords(said) {
        return Ok(Outcome::ByHand(vec![
            "it takes no passwords either; add this line, in whatever way you get in,".to_owned(),
            format!("to ~/.ssh/authorized_keys of {user} there:"),
            format!("  {}", key.public),
        ]));
    }
    if !io::stdin().is_terminal() {
        return Ok(Outcome::ByHand(vec![
            format!("it wants the password of {user}, and there is no terminal to ask on; run this on one:"),
            format!("  {}", again(options, host)),
        ]));
    }
    let told = writeln!(
        io::stdout(),
        "{host}: installing {}.pub for {user}; ssh asks for the password there",
        key.shown
    );
    told.map_err(Error::system("write to the standard output"))?;
    let mut command = ssh::asking_command(options, host, APPEND);
    match feed(&mut command, &key.public) {
        Ok((true, _)) => Ok(Outcome::Installed),
        Ok((false, status)) => Ok(Outcome::Failed(not_installed(options, host, status))),
        Err(error) => Ok(Outcome::Failed(ssh::explain_start(&error))),
    }
}

/// What is said when `ssh` has ended badly; it has already told why, on the terminal.
fn not_installed(options: &Ssh, host: &str, status: Option<i32>) -> Refusal {
    let why = match status {
        Some(255) | None => "the login with a password failed".to_owned(),
        Some(status) => format!("writing ~/.ssh/authorized_keys there failed with status {status}"),
    };
    let again = again(options, host);
    Refusal {
        kind: RefusalKind::KeyRefused,
        message: format!("the key was not installed on {host}: {why}"),
        details: Vec::new(),
        fix: vec!["once that is cleared up, try again:".to_owned(), format!("  {again}")],
        command: Some(again),
    }
}

/// Runs a program with a line as its input; its output and what it asks go to the terminal.
fn feed(command: &mut Command, line: &str) -> io::Result<(bool, Option<i32>)> {
    let mut child = command.stdin(Stdio::piped()).spawn()?;
    if let Some(mut input) = child.stdin.take() {
        // If nobody reads it, the status says why.
        let _ = writeln!(input, "{line}");
    }
    let status = child.wait()?;
    Ok((status.success(), status.code()))
}

/// Whether the server, by what it says when it refuses, would take a password.
fn takes_passwords(said: &str) -> bool {
    let methods = ssh::between(said, "Permission denied (", ")");
    // A server that hung up after too many keys has not said what else it takes.
    methods.is_none_or(|methods| {
        methods.split(',').any(|method| matches!(method, "password" | "keyboard-interactive"))
    })
}

/// This very command, for one host.
fn again(options: &Ssh, host: &str) -> String {
    let port = options.port.map(|port| format!(" -p {port}"));
    let identity =
        options.identity.as_ref().map(|key| format!(" -i {}", ssh::quoted(&key.to_string_lossy())));
    let flags: String = [port, identity].into_iter().flatten().collect();
    format!("ronde setup-ssh -H {host}{flags}")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_server_says_whether_it_takes_passwords() {
        for (said, takes) in [
            ("anna@gpu2: Permission denied (publickey,password).\r\n", true),
            ("anna@gpu2: Permission denied (publickey,keyboard-interactive).\r\n", true),
            ("anna@gpu2: Permission denied (publickey).\r\n", false),
            ("Received disconnect from 10.0.0.2 port 22:2: Too many authentication failures\r\n", true),
        ] {
            assert_eq!(takes_passwords(said), takes, "{said}");
        }
    }

    #[test]
    fn a_wrong_password_is_told_from_a_full_disk() {
        let options = Ssh { port: Some(12345), ..Ssh::default() };
        assert_eq!(
            not_installed(&options, "gpu2", Some(255)).render(),
            "error: the key was not installed on gpu2: the login with a password failed\n\
             hint: once that is cleared up, try again:\n        ronde setup-ssh -H gpu2 -p 12345\n"
        );
        let full = not_installed(&options, "gpu2", Some(1)).message;
        assert!(full.ends_with("writing ~/.ssh/authorized_keys there failed with status 1"), "{full}");
    }

    #[test]
    fn a_key_is_appended_once_and_to_its_own_line() {
        let home = std::env::temp_dir().join(format!("ronde-install-{}", std::process::id()));
        fs::create_dir_all(home.join(".ssh")).expect("a home");
        let file = home.join(".ssh/authorized_keys");
        fs::write(&file, "ssh-ed25519 old one").expect("a file");
        for _ in 0..2 {
            let mut shell = Command::new("sh");
            shell.args(["-c", APPEND]).env("HOME", &home);
            let (done, _) = feed(&mut shell, "ssh-ed25519 new key").expect("a shell");
            assert!(done);
        }
        let text = fs::read_to_string(&file).expect("a file");
        assert_eq!(text, "ssh-ed25519 old one\nssh-ed25519 new key\n");
        let mode = |path: &std::path::Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(&home.join(".ssh"))), (0o600, 0o700));
        fs::remove_dir_all(&home).expect("removed");
    }
}
