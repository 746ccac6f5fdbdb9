//! `ronde setup-ssh`: from hosts that have only a password to hosts that a job can start on.
//!
//! Every host is tried first, the way `ronde run` would. What is missing is then added: its key to `known_hosts`, after
//! somebody has seen the fingerprint (`host_keys.rs`); a key of our own, if there is none (`own_key.rs`); that key to the
//! host's `authorized_keys` (`install.rs`), for which `ssh` asks for the password on the terminal. Whoever has no terminal
//! is never asked. A host key that has *changed* is left to people: nothing here replaces one.

mod host_keys;
mod install;
mod own_key;

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::process::Stdio;
use std::thread;

use crate::machine::Machine;
use crate::plan::Ssh;
use crate::ssh::{self, Refusal, RefusalKind, Target};
use crate::{Error, Host};

/// How many hosts are tried at a time; servers drop connections when there are more.
const AT_ONCE: usize = 32;

/// What the user asked for.
#[derive(Clone, Debug)]
pub struct SetupSsh {
    /// The hosts; how many slots they have does not matter here.
    pub hosts: Vec<Host>,
    /// How to reach them.
    pub ssh: Ssh,
    /// As whom to log in, on hosts that do not name a user themselves.
    pub user: Option<String>,
    /// Whether host keys seen for the first time are recorded without asking.
    pub yes: bool,
}

/// How far one host is.
struct Login {
    /// As it is given to `ssh`.
    host: String,
    state: State,
}

enum State {
    /// This machine, which a job needs no `ssh` for.
    Here,
    /// A job can start there; and why it can.
    Ready(&'static str),
    Refused {
        refusal: Refusal,
        /// The words of `ssh`.
        said: String,
    },
}

/// Sets up the login to every host, shows how it went, and returns the status to exit with: 0 if all are ready.
pub fn setup_ssh(request: &SetupSsh) -> Result<u8, Error> {
    let here = Machine::here().among(&request.hosts);
    let login = |(host, here): (&Host, bool)| Login {
        host: with_user(&host.name, request.user.as_deref()),
        state: if here { State::Here } else { State::Ready("was set up before") },
    };
    let mut logins: Vec<Login> = request.hosts.iter().zip(here).map(login).collect();
    let others: Vec<usize> =
        (0..logins.len()).filter(|&at| !matches!(logins[at].state, State::Here)).collect();
    check(&mut logins, &others, &request.ssh);

    let unknown = refused_for(&logins, &[RefusalKind::UnknownHostKey]);
    let targets: Vec<(String, Target)> = unknown
        .iter()
        .map(|&at| (logins[at].host.clone(), Target::ask(&request.ssh, &logins[at].host)))
        .collect();
    if host_keys::record(&targets, request.yes)? {
        for &at in &unknown {
            logins[at].state = State::Ready("host key recorded");
        }
        check(&mut logins, &unknown, &request.ssh);
    } else if !io::stdin().is_terminal() {
        for &at in &unknown {
            logins[at].agree_beforehand();
        }
    }

    let keyless = refused_for(&logins, &[RefusalKind::KeyRefused, RefusalKind::TooManyKeys]);
    if !keyless.is_empty() {
        install_on(&mut logins, &keyless, &request.ssh)?;
    }
    show(&conclusion(&logins))?;
    let refused = logins.iter().any(|login| matches!(login.state, State::Refused { .. }));
    Ok(u8::from(refused))
}

impl Login {
    /// Without a terminal the same command would end the same way, unless it is told the answer.
    fn agree_beforehand(&mut self) {
        let State::Refused { refusal, .. } = &mut self.state else { return };
        let is_setup = |line: &&mut String| line.trim_start().starts_with("ronde setup-ssh");
        for line in refusal.fix.iter_mut().chain(&mut refusal.command).filter(is_setup) {
            line.push_str(" --yes");
        }
    }
}

/// Tries to log in, to all of these at a time. Those that let us in keep their state.
fn check(logins: &mut [Login], which: &[usize], options: &Ssh) {
    for some in which.chunks(AT_ONCE) {
        let hosts: Vec<(usize, String)> = some.iter().map(|&at| (at, logins[at].host.clone())).collect();
        thread::scope(|scope| {
            let started: Vec<_> =
                hosts.iter().map(|(at, host)| (*at, scope.spawn(move || log_in(options, host)))).collect();
            for (at, answer) in started {
                if let Ok(Some(state)) = answer.join() {
                    logins[at].state = state;
                }
            }
        });
    }
}

/// Logs in without a question, and says why that is not possible.
fn log_in(options: &Ssh, host: &str) -> Option<State> {
    let mut command = ssh::command(options, host, "exit 0");
    match command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            Some(State::Refused { refusal: ssh::explain(options, host, &said, output.status.code()), said })
        }
        Err(error) => Some(State::Refused { refusal: ssh::explain_start(&error), said: String::new() }),
    }
}

fn install_on(logins: &mut [Login], which: &[usize], options: &Ssh) -> Result<(), Error> {
    let first = Target::ask(options, &logins[which[0]].host);
    let key = own_key::find_or_make(options, &first)?;
    let mut installed = Vec::new();
    for &at in which {
        let Login { host, state: State::Refused { refusal, said } } = &mut logins[at] else { continue };
        match install::install(options, host, said, &key)? {
            install::Outcome::Installed => installed.push(at),
            install::Outcome::ByHand(fix) => *refusal = Refusal { fix, ..refusal.clone() },
            install::Outcome::Failed(instead) => *refusal = instead,
        }
    }
    for &at in &installed {
        logins[at].state = State::Ready("key installed");
    }
    check(logins, &installed, options);
    Ok(())
}

fn refused_for(logins: &[Login], kinds: &[RefusalKind]) -> Vec<usize> {
    let refused = |login: &Login| matches!(&login.state, State::Refused { refusal, .. } if kinds.contains(&refusal.kind));
    (0..logins.len()).filter(|&at| refused(&logins[at])).collect()
}

/// `gpu2` as `anna@gpu2`, unless it says who already.
fn with_user(host: &str, user: Option<&str>) -> String {
    match user {
        Some(user) if !host.contains('@') => format!("{user}@{host}"),
        _ => host.to_owned(),
    }
}

/// A line for every host, and what to do about those that are not ready.
fn conclusion(logins: &[Login]) -> String {
    let width = logins.iter().map(|login| login.host.chars().count()).max().unwrap_or_default();
    let mut text = String::new();
    // Writing to a string cannot fail.
    for login in logins {
        let (state, how) = match &login.state {
            State::Here => ("ready", "this machine, no ssh needed"),
            State::Ready(how) => ("ready", *how),
            State::Refused { .. } => ("NOT READY", "see below"),
        };
        let _ = writeln!(text, "  {:width$}  {state:9}  {how}", login.host);
    }
    for login in logins {
        if let State::Refused { refusal, .. } = &login.state {
            let _ = write!(text, "\n{}", refusal.render());
        }
    }
    text
}

fn show(text: &str) -> Result<(), Error> {
    io::stdout().write_all(text.as_bytes()).map_err(Error::system("write to the standard output"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_put_before_hosts_that_name_none() {
        assert_eq!(with_user("gpu2", Some("anna")), "anna@gpu2");
        assert_eq!(with_user("bert@gpu2", Some("anna")), "bert@gpu2");
        assert_eq!(with_user("gpu2", None), "gpu2");
    }

    #[test]
    fn without_a_terminal_the_fix_answers_the_question() {
        let setup = "ronde setup-ssh -H gpu2";
        let refusal = Refusal {
            kind: RefusalKind::UnknownHostKey,
            message: "gpu2 presented a host key".to_owned(),
            details: Vec::new(),
            fix: vec!["compare it, then".to_owned(), format!("  {setup}")],
            command: Some(setup.to_owned()),
        };
        let mut login =
            Login { host: "gpu2".to_owned(), state: State::Refused { refusal, said: String::new() } };
        login.agree_beforehand();
        let State::Refused { refusal, .. } = login.state else { panic!("it was refused") };
        assert_eq!(refusal.fix, ["compare it, then", "  ronde setup-ssh -H gpu2 --yes"]);
        assert_eq!(refusal.command.as_deref(), Some("ronde setup-ssh -H gpu2 --yes"));
    }

    #[test]
    fn every_host_has_a_line_and_every_failure_its_fix() {
        let refusal = Refusal {
            kind: RefusalKind::TimedOut,
            message: "gpu3 (port 22) did not answer within 10 s".to_owned(),
            details: Vec::new(),
            fix: vec!["is it up?".to_owned()],
            command: None,
        };
        let logins = [
            Login { host: "localhost".to_owned(), state: State::Here },
            Login { host: "gpu2".to_owned(), state: State::Ready("key installed") },
            Login { host: "gpu3".to_owned(), state: State::Refused { refusal, said: String::new() } },
        ];
        assert_eq!(
            conclusion(&logins),
            "  localhost  ready      this machine, no ssh needed\n  \
             gpu2       ready      key installed\n  \
             gpu3       NOT READY  see below\n\n\
             error: gpu3 (port 22) did not answer within 10 s\nhint: is it up?\n"
        );
    }
}
