//! What `ssh` makes of a host's name: user, address, port, keys and files, by the user's configuration.
//!
//! `ssh -G` resolves the configuration and prints it without connecting to anybody.

use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::command::{CONNECT_TIMEOUT, login, plain_messages, program};
use crate::plan::Ssh;

/// Where a login to a host goes, and with what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// As whom.
    pub(crate) user: String,
    /// The name or address that is connected to, which the configuration may have put in place of the one given.
    pub(crate) name: String,
    /// The port.
    pub(crate) port: u16,
    /// The files keys are looked for in, whether they exist or not.
    pub(crate) identities: Vec<PathBuf>,
    /// Where accepted host keys are recorded: the first is written to.
    pub(crate) known_hosts: Vec<PathBuf>,
    /// What stands for the host in those files instead of its name.
    pub(crate) alias: Option<String>,
    /// Whether the way goes through a jump host or another program.
    pub(crate) proxied: bool,
    /// How many seconds the host may take to answer.
    pub(crate) patience: u64,
}

/// A key that `ssh` can offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnKey {
    /// Its file, the home folder as `~`.
    pub(crate) file: String,
    /// Whether it has a passphrase, which nobody is there to type.
    pub(crate) locked: bool,
}

impl Target {
    /// Asks `ssh`. If that fails too, the values are those it would take by default.
    pub(crate) fn ask(options: &Ssh, host: &str) -> Target {
        let mut command = Command::new(program());
        command.arg("-G").args(login(options)).args(["--", host]);
        plain_messages(&mut command).stdin(Stdio::null()).stderr(Stdio::null());
        let answer = command.output().map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        Target::read(options, host, &answer.unwrap_or_default(), home().as_deref())
    }

    /// Reads what `ssh -G` printed.
    fn read(options: &Ssh, host: &str, text: &str, home: Option<&Path>) -> Target {
        let (user, name) = match host.rsplit_once('@') {
            Some((user, name)) => (Some(user), name),
            None => (None, host),
        };
        let mut target = Target {
            user: user.map_or_else(default_user, str::to_owned),
            name: name.to_owned(),
            port: options.port.unwrap_or(22),
            identities: options.identity.iter().cloned().collect(),
            known_hosts: Vec::new(),
            alias: None,
            proxied: false,
            patience: CONNECT_TIMEOUT.as_secs(),
        };
        let file = |name: &str| match (name.strip_prefix("~/"), home) {
            (Some(rest), Some(home)) => home.join(rest),
            _ => PathBuf::from(name),
        };
        for line in text.lines() {
            let Some((key, value)) = line.split_once(' ') else { continue };
            match key {
                "user" => target.user = value.to_owned(),
                "hostname" => target.name = value.to_owned(),
                "port" => target.port = value.parse().unwrap_or(target.port),
                "identityfile" if !target.identities.contains(&file(value)) => {
                    target.identities.push(file(value));
                }
                "userknownhostsfile" => target.known_hosts = value.split(' ').map(file).collect(),
                "connecttimeout" => target.patience = value.parse().unwrap_or(target.patience),
                "hostkeyalias" => target.alias = Some(value.to_owned()),
                "proxyjump" | "proxycommand" => target.proxied = value != "none",
                _ => {}
            }
        }
        target
    }

    /// How the host is written in `known_hosts`: the port stands there unless it is ssh's own.
    pub(crate) fn known_as(&self) -> String {
        match (&self.alias, self.port) {
            (Some(alias), _) => alias.clone(),
            (None, 22) => self.name.clone(),
            (None, port) => format!("[{}]:{port}", self.name),
        }
    }

    /// The address that the name stands for. Behind a jump host the name need not mean anything here.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        if self.proxied {
            return None;
        }
        (self.name.as_str(), self.port).to_socket_addrs().ok()?.next().map(|address| address.ip())
    }

    /// The keys that exist.
    pub(crate) fn keys(&self) -> Vec<OwnKey> {
        let home = home();
        let there = self.identities.iter().filter(|file| file.is_file());
        there.map(|file| OwnKey { file: shown(file, home.as_deref()), locked: is_locked(file) }).collect()
    }
}

/// A path as people write it.
pub(crate) fn shown(file: &Path, home: Option<&Path>) -> String {
    match home.and_then(|home| file.strip_prefix(home).ok()) {
        Some(rest) => format!("~/{}", rest.display()),
        None => file.display().to_string(),
    }
}

/// The user's home folder.
pub(crate) fn home() -> Option<PathBuf> {
    std::env::home_dir().filter(|home| !home.as_os_str().is_empty())
}

fn default_user() -> String {
    std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_else(|_| "you".to_owned())
}

/// Whether a key cannot be read without a passphrase.
pub(crate) fn is_locked(file: &Path) -> bool {
    let mut command = Command::new("ssh-keygen");
    command.args(["-y", "-P", "", "-f"]).arg(file);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let said = plain_messages(&mut command).output();
    said.is_ok_and(|said| String::from_utf8_lossy(&said.stderr).contains("incorrect passphrase"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of `ssh -G -p 12345 -- gpu2`, with a `HostName` and a jump host in the configuration.
    const ANSWER: &str = "host gpu2\nuser anna\nhostname 10.0.0.12\nport 12345\nbatchmode no\n\
        identityfile ~/.ssh/id_rsa\nidentityfile /keys/id_ed25519\n\
        userknownhostsfile /home/anna/.ssh/known_hosts /home/anna/.ssh/known_hosts2\nproxyjump gate\nconnecttimeout 60\n";

    #[test]
    fn the_configuration_decides_where_a_name_leads() {
        let home = Some(Path::new("/home/anna"));
        let options = Ssh { port: Some(12345), identity: Some("key".into()), ..Ssh::default() };
        let target = Target::read(&options, "gpu2", ANSWER, home);
        assert_eq!((target.user.as_str(), target.name.as_str(), target.port), ("anna", "10.0.0.12", 12345));
        let identities = ["key", "/home/anna/.ssh/id_rsa", "/keys/id_ed25519"].map(PathBuf::from);
        assert_eq!(target.identities, identities);
        assert_eq!(target.known_hosts[0], Path::new("/home/anna/.ssh/known_hosts"));
        assert!(target.proxied);
        assert_eq!(target.patience, 60);
        assert_eq!(target.known_as(), "[10.0.0.12]:12345");
        assert_eq!(shown(&target.identities[1], home), "~/.ssh/id_rsa");
    }

    #[test]
    fn without_an_answer_the_name_is_taken_as_it_is() {
        let target = Target::read(&Ssh::default(), "bert@gpu2", "", None);
        assert_eq!((target.user.as_str(), target.name.as_str(), target.port), ("bert", "gpu2", 22));
        assert!(!target.proxied && target.identities.is_empty());
        assert_eq!(target.known_as(), "gpu2");
    }
}
