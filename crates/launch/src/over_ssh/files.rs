//! What ssh and sshd are told, as text.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::Path;

use crate::Host;

/// The name under which all machines of a job are known, since all show the same key.
const ALIAS: &str = "ronde-job";

/// Variables that a session has for itself.
const OF_A_SESSION: [&str; 4] = ["PWD", "OLDPWD", "SHLVL", "_"];

/// What the texts depend on.
pub(super) struct Texts<'a> {
    pub(super) folder: &'a Path,
    pub(super) domain: &'a str,
    pub(super) hosts: &'a [Host],
    pub(super) port: u16,
}

impl Texts<'_> {
    /// For mpirun and its like.
    pub(super) fn hostfile(&self) -> String {
        self.hosts.iter().map(|host| format!("{} slots={}\n", host.name, host.slots)).collect()
    }

    /// For ssh: how machines of the job are reached. For others it is as ever.
    pub(super) fn client(&self) -> String {
        let folder = self.folder.display();
        let mut text = String::new();
        for Host { name, .. } in self.hosts {
            let _ = writeln!(text, "Host {name}\n  HostName {name}.{}", self.domain);
        }
        let mut names = String::new();
        for Host { name, .. } in self.hosts {
            let _ = write!(names, " {name} {name}.*");
        }
        let _ = write!(
            text,
            "Host{names}\n  Port {}\n  IdentityFile \"{folder}/key\"\n  IdentitiesOnly yes\n  \
             UserKnownHostsFile \"{folder}/known-hosts\"\n  HostKeyAlias {ALIAS}\n  StrictHostKeyChecking yes\n  \
             BatchMode yes\n  LogLevel ERROR\n  ServerAliveInterval 15\n",
            self.port
        );
        text
    }

    /// For sshd as any user: one key opens, and sessions find the container's environment.
    pub(super) fn server(&self, variables: &[(OsString, OsString)]) -> String {
        let folder = self.folder.display();
        format!(
            "Port {}\nHostKey \"{folder}/host-key\"\nAuthorizedKeysFile \"{folder}/authorized-keys\"\n\
             AuthenticationMethods publickey\nUsePAM no\nStrictModes no\nPidFile none\nLogLevel ERROR\n\
             AllowTcpForwarding no\nX11Forwarding no\nPermitTunnel no\nPrintMotd no\nMaxStartups 200\nMaxSessions 200\n\
             ClientAliveInterval 15\nSubsystem sftp internal-sftp\n{}\n",
            self.port,
            environment(variables)
        )
    }
}

/// One line, since sshd heeds the first one only. What does not fit on a line is left out.
fn environment(variables: &[(OsString, OsString)]) -> String {
    let mut line = String::from("SetEnv");
    for (name, value) in variables {
        let (Some(name), Some(value)) = (name.to_str(), value.to_str()) else { continue };
        let is_plain = !value.contains(|letter: char| letter.is_control());
        if is_plain && !OF_A_SESSION.contains(&name) && !name.contains(['"', '\\', ' ']) {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"");
            let _ = write!(line, " \"{name}={value}\"");
        }
    }
    line
}

/// Who machines of the job are.
pub(super) fn known_hosts(public: &str) -> String {
    format!("{ALIAS} {}\n", public.trim())
}

/// `ssh`, told where its configuration is: it would look for one in the user's home, which an image may not have.
pub(super) fn program(ssh: &Path, folder: &Path) -> String {
    format!("#!/bin/sh\nexec '{}' -F '{}/config' \"$@\"\n", ssh.display(), folder.display())
}

/// Whether a list of users knows this number.
pub(super) fn has_user(passwd: &str, uid: u32) -> bool {
    passwd.lines().any(|line| line.split(':').nth(2) == Some(&uid.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> Vec<Host> {
        [("job-chief", 1), ("job-worker-0", 5)]
            .map(|(name, slots)| Host { name: name.to_owned(), slots })
            .into()
    }

    #[test]
    fn machines_are_reached_by_their_short_names_and_others_as_ever() {
        let hosts = hosts();
        let texts =
            Texts { folder: Path::new("/ronde/ssh"), domain: "job.ns.svc.local.", hosts: &hosts, port: 2222 };
        assert_eq!(texts.hostfile(), "job-chief slots=1\njob-worker-0 slots=5\n");
        let config = texts.client();
        assert!(
            config.contains("Host job-worker-0\n  HostName job-worker-0.job.ns.svc.local.\n"),
            "{config}"
        );
        assert!(
            config.contains("Host job-chief job-chief.* job-worker-0 job-worker-0.*\n  Port 2222\n"),
            "{config}"
        );
        assert!(config.contains("StrictHostKeyChecking yes") && !config.contains("Host *"), "{config}");
        assert_eq!(known_hosts("ssh-ed25519 AAAA\n"), "ronde-job ssh-ed25519 AAAA\n");
    }

    #[test]
    fn sessions_find_the_containers_environment_on_one_line() {
        let variables = [("A", "1 2"), ("B", "say \"x\\y\""), ("C", "two\nlines"), ("PWD", "/tmp")];
        let variables = variables.map(|(name, value)| (name.into(), value.into()));
        assert_eq!(environment(&variables), r#"SetEnv "A=1 2" "B=say \"x\\y\"""#);
        let server = Texts { folder: Path::new("/f"), domain: "", hosts: &[], port: 2222 }.server(&variables);
        assert_eq!(server.matches("SetEnv").count(), 1);
        assert!(server.contains("AuthenticationMethods publickey\nUsePAM no\n"), "{server}");
    }

    #[test]
    fn users_are_known_by_their_number() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nronde:x:1000:1000::/home/ronde:/bin/bash\n";
        assert!(has_user(passwd, 1000) && has_user(passwd, 0) && !has_user(passwd, 100));
    }
}
