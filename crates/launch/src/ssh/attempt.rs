//! A login that failed, put into words: what happened, to which host, and the next command.
//!
//! Pure: everything that is known about the login comes in as values.

use std::fmt::Write as _;
use std::net::IpAddr;

use super::keys::HostKey;
use super::refusal::{Refusal, RefusalKind, between, classify};
use super::target::{OwnKey, Target};
use crate::plan::Ssh;

/// How many lines of `ssh` are shown where they are all there is.
const SHOWN_LINES: usize = 6;

/// A login that failed, and everything known about it.
pub(super) struct Attempt<'a> {
    /// The host as the user named it.
    pub(super) host: &'a str,
    pub(super) options: &'a Ssh,
    pub(super) target: &'a Target,
    pub(super) address: Option<IpAddr>,
    /// The keys that could be offered; looked for only where they matter.
    pub(super) keys: Vec<OwnKey>,
    /// The keys that the host shows; asked for only where they matter.
    pub(super) host_keys: Vec<HostKey>,
    /// What `ssh` wrote to its standard error.
    pub(super) said: &'a str,
    /// Its exit status, if it was not killed by a signal.
    pub(super) status: Option<i32>,
}

/// Message, details and what to do.
type Words = (String, Vec<String>, Vec<String>);

impl Attempt<'_> {
    /// Puts it into words.
    pub(super) fn refusal(&self) -> Refusal {
        use RefusalKind::*;
        let kind = classify(self.said, self.status, self.target.proxied);
        let (message, details, fix) = match kind {
            UnknownHostKey => self.unknown_host_key(),
            ChangedHostKey => self.changed_host_key(),
            KeyRefused => self.key_refused(),
            PasswordOnly => self.password_only(),
            TooManyKeys => self.too_many_keys(),
            ConnectionRefused => self.connection_refused(),
            TimedOut | Silent | NoRoute => self.no_answer(kind),
            NameNotFound | NoNameServer => self.no_name(kind),
            NoShell => self.no_shell(),
            IdentityPermissions => self.identity_permissions(),
            BadConfiguration => self.bad_configuration(),
            Dropped => self.dropped(),
            Remote | NoAgreement | Proxy | Lost | NoSsh | Other => self.in_its_own_words(kind),
        };
        let command = fix.iter().find_map(|line| line.strip_prefix("  ")).map(str::to_owned);
        Refusal { kind, message, details, fix, command }
    }

    fn unknown_host_key(&self) -> Words {
        let message = format!("{} presented a host key this machine does not know", self.who());
        let by_hand = self.ssh("");
        let mut fix = match self.host_keys.first() {
            Some(key) => {
                vec![format!("compare it with the key on {} ({}), then", self.host, show_key(&key.kind))]
            }
            None => vec!["log in once by hand and compare the key it shows:".to_owned(), by_hand],
        };
        if !self.host_keys.is_empty() {
            fix.push(self.setup());
        }
        fix.push("or accept new keys once:  ronde run --accept-new-host-keys …".to_owned());
        // The one that ssh compares; the others would only make the comparing harder.
        let details = self.host_keys.first().map(|key| format!("{}  {}", key.kind, key.fingerprint));
        (message, details.into_iter().collect(), fix)
    }

    fn changed_host_key(&self) -> Words {
        let message = format!("{} presented another host key than the one this machine knows", self.who());
        let mut details = Vec::new();
        let presented = between(self.said, "The fingerprint for the ", " key sent by");
        let fingerprint = self.said.lines().find(|line| line.starts_with("SHA256:"));
        if let (Some(kind), Some(fingerprint)) = (presented, fingerprint) {
            details.push(format!("{kind}  {}", fingerprint.trim().trim_end_matches('.')));
        }
        if let Some(known) = between(self.said, "Offending ", "\n").map(str::trim) {
            let (file, line) = known.rsplit_once(':').unwrap_or((known, "?"));
            let file = file.rsplit_once(" in ").map_or(file, |(_, file)| file);
            details.push(format!("the key known so far is in {file}, line {line}"));
        }
        let forget = self.said.lines().find(|line| line.trim_start().starts_with("ssh-keygen -f"));
        let forget = forget.map_or_else(
            || format!("ssh-keygen -R {}", quoted(&self.target.known_as())),
            |line| line.trim().to_owned(),
        );
        let kind = presented.unwrap_or("ED25519");
        let fix = vec![
            format!(
                "if {0} was set up anew, compare it with the key on {0} ({1}),",
                self.host,
                show_key(kind)
            ),
            "and forget the old one:".to_owned(),
            format!("  {forget}"),
            self.setup(),
            "if nobody changed it, somebody may be listening in; do not go on".to_owned(),
        ];
        (message, details, fix)
    }

    fn key_refused(&self) -> Words {
        let user = &self.target.user;
        let locked = self.keys.iter().find(|key| key.locked);
        let files: Vec<&str> = self.keys.iter().map(|key| key.file.as_str()).collect();
        let message = match files.as_slice() {
            [] => format!("{} wants a key of user {user}, and none was found here", self.who()),
            files => format!("{} refused the key of user {user} (tried {})", self.who(), files.join(", ")),
        };
        let mut details = Vec::new();
        let mut fix = Vec::new();
        if let Some(key) = locked {
            details.push(format!("{} has a passphrase, which nobody can type while a job starts", key.file));
            fix.push("if it is the right key, unlock it for this session:".to_owned());
            fix.push(format!("  ssh-add {}", key.file));
            fix.push("otherwise install a key there:".to_owned());
        } else if files.is_empty() {
            fix.push("make a key and install it there:".to_owned());
        } else {
            fix.push("install it there:".to_owned());
        }
        fix.push(self.setup());
        fix.push(format!("or log in as somebody else: -H {}", someone_else(self.host)));
        (message, details, fix)
    }

    fn password_only(&self) -> Words {
        let message = format!(
            "{} takes no keys, only passwords, for user {}; a launcher cannot type one",
            self.who(),
            self.target.user
        );
        let fix = vec![
            "let its sshd take keys (PubkeyAuthentication yes in /etc/ssh/sshd_config), then".to_owned(),
            self.setup(),
        ];
        (message, self.last_words(1), fix)
    }

    fn too_many_keys(&self) -> Words {
        let message = format!(
            "{} ended the login of user {} after too many keys that were not the right one",
            self.who(),
            self.target.user
        );
        let key = self.options.identity.as_deref().map_or_else(|| "KEY".into(), |key| key.to_string_lossy());
        let fix = vec![
            "offer the right one only:".to_owned(),
            format!("  ronde run -i {} --ssh-args='-o IdentitiesOnly=yes' …", quoted(&key)),
        ];
        (message, Vec::new(), fix)
    }

    fn connection_refused(&self) -> Words {
        let message = format!("{} refused the connection: nothing listens there", self.who());
        let port = self.target.port;
        let mut fix = vec![
            format!("is its sshd running, and is {port} its port? To start one there:"),
            format!("  /usr/sbin/sshd -p {port}"),
        ];
        if self.options.port.is_none() {
            fix.push("to use another port:  ronde run -p PORT …".to_owned());
        }
        (message, self.if_proxied(), fix)
    }

    fn no_answer(&self, kind: RefusalKind) -> Words {
        let who = self.who();
        let seconds = self.target.patience;
        let message = match kind {
            RefusalKind::NoRoute => {
                format!("{who} cannot be reached: it is down, or there is no route to it")
            }
            RefusalKind::Silent => format!("{who} accepted the connection, but said nothing as sshd would"),
            _ => format!("{who} did not answer within {seconds} s"),
        };
        let question = match kind {
            RefusalKind::NoRoute => "is the address right, and the network up? Look at",
            RefusalKind::Silent => "is this the port of sshd, and is the host not overloaded? Try",
            _ => "is it up, and does a firewall let the port through? Try",
        };
        let command = match (kind, self.address) {
            (RefusalKind::NoRoute, Some(address)) => format!("  ip route get {address}"),
            _ => self.ssh(" -v"),
        };
        (message, self.if_proxied(), vec![question.to_owned(), command])
    }

    fn no_name(&self, kind: RefusalKind) -> Words {
        let name = &self.target.name;
        let message = match kind {
            RefusalKind::NoNameServer => format!("no name server could say what {name:?} is"),
            _ => format!("there is no host called {name:?}"),
        };
        let fix = vec![
            "is it spelled right? This machine looks it up with".to_owned(),
            format!("  getent ahosts {}", quoted(name)),
            "an address, or a line in /etc/hosts or ~/.ssh/config, works as well".to_owned(),
        ];
        (message, self.if_proxied(), fix)
    }

    fn no_shell(&self) -> Words {
        let user = &self.target.user;
        let message = format!("{} let user {user} in, but starts no program for them", self.who());
        let fix = vec![
            "if the account has no shell, give it one there:".to_owned(),
            format!("  sudo usermod -s /bin/bash {}", quoted(user)),
            "otherwise look for ForceCommand and MaxSessions in its /etc/ssh/sshd_config".to_owned(),
        ];
        (message, self.last_words(2), fix)
    }

    fn identity_permissions(&self) -> Words {
        let file = between(self.said, " for '", "' are too open");
        let shown = file.unwrap_or("the private key");
        let message =
            format!("{shown} can be read by others, so ssh does not use it to log in to {}", self.host);
        let fix = vec![
            "keep it to yourself:".to_owned(),
            format!("  chmod 600 {}", file.map_or("KEY".into(), quoted)),
        ];
        (message, Vec::new(), fix)
    }

    fn bad_configuration(&self) -> Words {
        let owner = between(self.said, "Bad owner or permissions on ", "\n");
        let about = |line: &&str| {
            let line = line.to_ascii_lowercase();
            !line.contains("terminating")
                && ["bad ", "unknown option", "illegal option"].iter().any(|word| line.contains(word))
        };
        let line = self.said.lines().find(about).unwrap_or("it does not say why").trim();
        let message = format!("ssh does not understand how to log in to {}: {line}", self.host);
        let fix = match owner {
            Some(file) => vec![
                "nobody but you may write to it:".to_owned(),
                format!("  chmod go-w {0}; chown $(id -u) {0}", quoted(file.trim())),
            ],
            None if line.starts_with("command-line") || !line.contains("line ") => {
                vec!["correct --ssh-args".to_owned()]
            }
            None => vec!["correct that line, or take it out".to_owned()],
        };
        (message, Vec::new(), fix)
    }

    fn dropped(&self) -> Words {
        let message = format!("{} closed the connection before the login", self.who());
        let fix = vec![
            "its sshd may have too many logins at once (MaxStartups), or may not want this machine; ask it with".to_owned(),
            self.ssh(" -v"),
        ];
        (message, self.last_words(2), fix)
    }

    fn in_its_own_words(&self, kind: RefusalKind) -> Words {
        let who = self.who();
        let message = match (kind, self.status) {
            (RefusalKind::Proxy, _) => format!("the way to {who} through another host failed"),
            (RefusalKind::NoAgreement, _) => format!("{who} and the ssh here have no algorithm in common"),
            (RefusalKind::Lost, _) => format!("the connection to {who} ended"),
            (RefusalKind::Remote, Some(status)) => {
                format!("the login shell of {who} ended with status {status} instead of starting ronde")
            }
            (_, Some(status)) => format!("ssh could not log in to {who} and ended with status {status}"),
            (_, None) => format!("ssh was killed while it logged in to {who}"),
        };
        let details = match self.last_words(SHOWN_LINES) {
            lines if lines.is_empty() => vec!["it said nothing".to_owned()],
            lines => lines,
        };
        (message, details, vec!["try it by hand:".to_owned(), self.ssh("")])
    }

    /// `gpu2 (10.0.0.12, port 12345)`.
    fn who(&self) -> String {
        let port = self.target.port;
        match self.address.map(|address| address.to_string()) {
            Some(address) if address != self.host => format!("{} ({address}, port {port})", self.host),
            _ => format!("{} (port {port})", self.host),
        }
    }

    /// The last lines of `ssh` that say something.
    fn last_words(&self, count: usize) -> Vec<String> {
        let lines =
            self.said.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('@'));
        let lines: Vec<&str> = lines.collect();
        lines[lines.len().saturating_sub(count)..].iter().map(|line| format!("ssh: {line}")).collect()
    }

    /// Behind a jump host it is not clear whom a message is about, so `ssh` is quoted.
    fn if_proxied(&self) -> Vec<String> {
        if self.target.proxied { self.last_words(SHOWN_LINES) } else { Vec::new() }
    }

    /// The line that sets the login up.
    fn setup(&self) -> String {
        format!("  ronde setup-ssh -H {}{}", quoted(&bracketed(self.host)), self.flags())
    }

    /// The line that logs in by hand.
    fn ssh(&self, flag: &str) -> String {
        let arguments: String =
            self.options.arguments.iter().map(|word| format!(" {}", quoted(word))).collect();
        format!("  ssh{flag}{}{arguments} {} true", self.flags(), quoted(self.host))
    }

    fn flags(&self) -> String {
        let mut flags = String::new();
        if let Some(port) = self.options.port {
            let _ = write!(flags, " -p {port}");
        }
        if let Some(identity) = &self.options.identity {
            let _ = write!(flags, " -i {}", quoted(&identity.to_string_lossy()));
        }
        flags
    }
}

/// How to see, on a host, the fingerprint of its key of a kind.
fn show_key(kind: &str) -> String {
    format!("ssh-keygen -lf /etc/ssh/ssh_host_{}_key.pub", kind.to_ascii_lowercase())
}

/// `USER@gpu2`, whoever it was before.
fn someone_else(host: &str) -> String {
    format!("USER@{}", bracketed(host.rsplit_once('@').map_or(host, |(_, name)| name)))
}

/// A host as `-H` takes it: an IPv6 address in brackets.
fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

/// A word as a shell takes it.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./@:=+~,%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests;
