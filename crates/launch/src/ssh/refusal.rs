//! What a failure of `ssh` is: its kinds, and by which words of `ssh` they are told apart.
//!
//! Pure. `ssh` has no other way to say why it failed than text; the phrases looked for here are OpenSSH's, unchanged for
//! a decade, and whatever matches none is shown as it is. What a server or a login shell prints may stand between its
//! lines, so single lines are looked for, never the text as a whole. What is then said to the user is in `attempt.rs`.

use std::fmt::{self, Write as _};
use std::io;

/// Why a host could not be logged in to, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What went wrong.
    pub kind: RefusalKind,
    /// The same in one line, with host, port and user.
    pub message: String,
    /// What else is to be known: fingerprints, or what `ssh` itself said.
    pub details: Vec<String>,
    /// What to do, in lines; commands are indented.
    pub fix: Vec<String>,
    /// The one command that fixes it, or that shows more.
    pub command: Option<String>,
}

/// The ways in which a login fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalKind {
    /// The host's key is not known here.
    UnknownHostKey,
    /// The host's key is another than the one known here.
    ChangedHostKey,
    /// No key was accepted.
    KeyRefused,
    /// The server takes no keys at all.
    PasswordOnly,
    /// The server ended the login before the right key was offered.
    TooManyKeys,
    /// Nobody listens at that port.
    ConnectionRefused,
    /// The host did not answer.
    TimedOut,
    /// Somebody accepted the connection and then said nothing.
    Silent,
    /// This machine has no way to the host.
    NoRoute,
    /// The name stands for no address.
    NameNotFound,
    /// Nobody could say what the name stands for.
    NoNameServer,
    /// The login was accepted, but no program is started.
    NoShell,
    /// The login shell ended, with a status of its own, before it did what was asked.
    Remote,
    /// Others can read the key, so `ssh` does not use it.
    IdentityPermissions,
    /// `ssh` does not understand its configuration or arguments.
    BadConfiguration,
    /// Client and server have no algorithm in common.
    NoAgreement,
    /// The jump host, or whatever stands between, failed.
    Proxy,
    /// The server closed the connection before the login.
    Dropped,
    /// The connection ended after the login.
    Lost,
    /// There is no `ssh` on this machine, or it cannot be started.
    NoSsh,
    /// Something else.
    Other,
}

impl RefusalKind {
    /// Whether trying again in a moment may help, with nobody changing anything.
    pub fn is_retryable(self) -> bool {
        matches!(self, RefusalKind::Dropped | RefusalKind::Silent | RefusalKind::NoNameServer)
    }
}

impl Refusal {
    /// Whether trying again in a moment may help, with nobody changing anything.
    pub fn is_retryable(&self) -> bool {
        self.kind.is_retryable()
    }

    /// What to do, as it stands behind `hint: `; empty if nothing is known to help.
    pub fn hint(&self) -> String {
        self.fix.join("\n      ")
    }

    /// Everything, as the user sees it.
    pub fn render(&self) -> String {
        let mut text = format!("error: {self}\n");
        if !self.fix.is_empty() {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "hint: {}", self.hint());
        }
        text
    }
}

/// The message and, each on a line of its own, the details.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.details.iter().try_for_each(|detail| write!(f, "\n  {detail}"))
    }
}

impl std::error::Error for Refusal {}

/// What went wrong, by the words of `ssh` and its status. Its own failures have the status 255, all others are the
/// remote command's.
pub(super) fn classify(said: &str, status: Option<i32>, proxied: bool) -> RefusalKind {
    use RefusalKind::*;
    let has = |phrase: &str| said.lines().any(|line| line.contains(phrase));
    if has("This account is currently not available") || has("request failed on channel") {
        return NoShell;
    }
    match status {
        Some(255) | None => {}
        Some(_) => return Remote,
    }
    // How it looks when the program in between ends; what that itself said stands before.
    if proxied && (has("UNKNOWN port 65535") || has("UNKNOWN] port 65535")) {
        return Proxy;
    }
    // In this order, since a later phrase may follow from an earlier one.
    let phrases = [
        ("REMOTE HOST IDENTIFICATION HAS CHANGED", ChangedHostKey),
        ("Host key verification failed", UnknownHostKey),
        ("bad configuration option", BadConfiguration),
        ("Bad configuration option", BadConfiguration),
        ("Bad owner or permissions on", BadConfiguration),
        ("unknown option --", BadConfiguration),
        ("illegal option --", BadConfiguration),
        ("Bad port '", BadConfiguration),
        ("UNPROTECTED PRIVATE KEY FILE", IdentityPermissions),
        ("Too many authentication failures", TooManyKeys),
        ("Permission denied (", KeyRefused),
        ("Unable to negotiate with", NoAgreement),
        ("Temporary failure in name resolution", NoNameServer),
        ("Could not resolve hostname", NameNotFound),
        ("hostname contains invalid characters", NameNotFound),
        ("during banner exchange", Silent),
        (": Connection refused", ConnectionRefused),
        (": Connection timed out", TimedOut),
        (": Operation timed out", TimedOut),
        (": No route to host", NoRoute),
        (": Network is unreachable", NoRoute),
        ("open failed:", NoShell),
        ("kex_exchange_identification:", Dropped),
        ("ssh_exchange_identification:", Dropped),
        ("closed by remote host.", Lost),
        ("client_loop: ", Lost),
        ("not responding", Lost),
        ("Connection reset by ", Dropped),
        ("Connection closed by ", Dropped),
    ];
    let kind = phrases.into_iter().find(|(phrase, _)| has(phrase)).map_or(Other, |(_, kind)| kind);
    match kind {
        KeyRefused if takes_passwords_only(said) => PasswordOnly,
        kind => kind,
    }
}

/// Puts into words that `ssh` itself could not be started.
pub(super) fn cannot_start(program: &str, error: &io::Error) -> Refusal {
    let fix = match error.kind() {
        io::ErrorKind::NotFound => vec![
            "install it, on Debian and Ubuntu with".to_owned(),
            "  apt-get install openssh-client".to_owned(),
            "or name another program with RONDE_SSH".to_owned(),
        ],
        _ => vec!["is the program that RONDE_SSH or PATH names the right one?".to_owned()],
    };
    let command =
        (error.kind() == io::ErrorKind::NotFound).then(|| "apt-get install openssh-client".to_owned());
    let message = format!("cannot start {program} on this machine: {error}");
    Refusal { kind: RefusalKind::NoSsh, message, details: Vec::new(), fix, command }
}

/// Whether keys are not among the methods by which the server lets people in.
fn takes_passwords_only(said: &str) -> bool {
    let methods = between(said, "Permission denied (", ")").unwrap_or_default();
    let has = |name| methods.split(',').any(|method| method == name);
    !has("publickey") && (has("password") || has("keyboard-interactive"))
}

/// What stands between two pieces of text.
pub(crate) fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(before)?;
    Some(rest.split_once(after).map_or(rest, |(found, _)| found))
}
