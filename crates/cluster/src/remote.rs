//! Command lines that do something on a machine of the cluster, or in its container: by ssh as the inventory says, or
//! without it where the machine is this one.

use std::path::Path;
use std::process::Command;

use crate::inventory::{Machine, Way};

/// What ssh ends with if there is no connection.
pub(crate) const UNREACHED: i32 = 255;

/// Whether somebody sits at a terminal who may be asked for a passphrase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asking {
    May,
    MayNot,
}

/// A command line for `words` on a machine; without words, a shell.
pub(crate) fn on_machine(machine: &Machine, folder: &Path, asking: Asking, words: &[String]) -> Command {
    let Way::Ssh { .. } = &machine.way else {
        let mut command = Command::new(words.first().map_or("bash", String::as_str));
        command.args(words.iter().skip(1));
        return command;
    };
    let mut command = Command::new("ssh");
    command.args(options(machine, folder, asking)).arg(target(machine));
    if asking == Asking::MayNot {
        // Nor may the ssh that jumps through the master, which is not told by options.
        command.envs([("SSH_ASKPASS", "/bin/false"), ("SSH_ASKPASS_REQUIRE", "force")]);
    }
    if !words.is_empty() {
        command.arg("--").arg(quoted(words));
    }
    command
}

/// A command line for `words` in a machine's container; `-i` keeps its input open.
pub(crate) fn in_container(
    machine: &Machine,
    folder: &Path,
    asking: Asking,
    flags: &[&str],
    words: &[String],
) -> Command {
    let is_here = machine.way == Way::Here;
    let docker: &[&str] = if is_here { &["docker"] } else { &["sudo", "-n", "docker"] };
    let head = docker.iter().chain(&["exec", "--user", "ronde"]).chain(flags).copied().map(str::to_owned);
    let all: Vec<String> = head.chain([machine.container.clone()]).chain(words.iter().cloned()).collect();
    on_machine(machine, folder, asking, &all)
}

/// ssh's options for a machine. Where an option is given twice, ssh takes the first: what the inventory says counts more.
pub(crate) fn options(machine: &Machine, folder: &Path, asking: Asking) -> Vec<String> {
    let Way::Ssh { port, key, options, .. } = &machine.way else { return Vec::new() };
    let mut all = options.clone();
    let mut add = |words: &[&str]| all.extend(words.iter().map(|word| (*word).to_owned()));
    if let Some(port) = port {
        add(&["-p", &port.to_string()]);
    }
    if let Some(key) = key {
        add(&["-i", key]);
    }
    if asking == Asking::MayNot {
        add(&["-o", "BatchMode=yes"]);
    }
    let known = format!("UserKnownHostsFile=\"{}\"", folder.join("known_hosts").display());
    for option in ["ConnectTimeout=10", "ServerAliveInterval=15", "StrictHostKeyChecking=accept-new", &known]
    {
        add(&["-o", option]);
    }
    all
}

/// Whom ssh is to reach.
pub(crate) fn target(machine: &Machine) -> String {
    match &machine.way {
        Way::Ssh { address, user: Some(user), .. } => format!("{user}@{address}"),
        Way::Ssh { address, user: None, .. } => address.clone(),
        Way::Here => String::new(),
    }
}

/// Words as a shell reads them back.
pub(crate) fn quoted(words: &[String]) -> String {
    shlex::try_join(words.iter().map(String::as_str)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Cluster;

    fn line(command: &Command) -> Vec<String> {
        let words = [command.get_program()].into_iter().chain(command.get_args());
        words.map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn the_inventory_s_options_come_first_and_words_are_quoted() {
        let text = "all: {children: {master: {hosts: {m: {ansible_host: a, ansible_user: u, ansible_port: 22, \
                    ansible_ssh_common_args: \"-F 'x y'\"}}}}}";
        let cluster = Cluster::read(text).expect("it reads");
        let words = ["echo".to_owned(), "a b".to_owned()];
        let command = in_container(cluster.master(), Path::new("/c"), Asking::MayNot, &["-i"], &words);
        let line = line(&command);
        assert_eq!(line[..5], ["ssh", "-F", "x y", "-p", "22"]);
        assert!(line.contains(&"BatchMode=yes".to_owned()) && line.contains(&"u@a".to_owned()), "{line:?}");
        let last = line.last().expect("words");
        assert_eq!(last, "sudo -n docker exec --user ronde -i horovod_master echo 'a b'");
        assert!(command.get_envs().any(|(name, _)| name == "SSH_ASKPASS_REQUIRE"), "{command:?}");
        let asking = on_machine(cluster.master(), Path::new("/c"), Asking::May, &[]);
        assert_eq!(asking.get_envs().count(), 0, "{asking:?}");
    }

    #[test]
    fn here_neither_ssh_nor_sudo_is_used() {
        let text = "all: {children: {master: {hosts: {m: {ansible_connection: local, container: c1}}}}}";
        let cluster = Cluster::read(text).expect("it reads");
        let command =
            in_container(cluster.master(), Path::new("/c"), Asking::MayNot, &[], &["id".to_owned()]);
        assert_eq!(line(&command), ["docker", "exec", "--user", "ronde", "c1", "id"]);
    }
}
