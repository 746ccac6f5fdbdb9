//! The command line of `ssh`.
//!
//! Of an option given twice, `ssh` takes the first. So what the protocol over its standard streams depends on comes
//! first and cannot be changed, the user's own arguments come second, and what is merely our preference comes last.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use crate::plan::Ssh;

/// How long a host may take to answer; the user's arguments may say otherwise (`-o ConnectTimeout=60`).
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Names another program to use instead of `ssh`, which must understand its options.
const PROGRAM: &str = "RONDE_SSH";

/// What the user cannot change: carry bytes unchanged, be a connection of one's own (one that is shared ends when its
/// first user does), run our command and nothing else.
const FIXED: [&str; 5] =
    ["-T", "-oControlMaster=no", "-oRemoteCommand=none", "-oClearAllForwardings=yes", "-oForwardAgent=no"];

/// The program that is used as `ssh`.
pub(super) fn program() -> OsString {
    std::env::var_os(PROGRAM).filter(|name| !name.is_empty()).unwrap_or_else(|| "ssh".into())
}

/// `ssh` that runs the shell command `remote` on `host` and never asks a question. The caller says where its standard streams go.
///
/// No keep-alive is asked for: the heartbeat of the protocol notices a dead connection, and the user's configuration may
/// ask for more. It is a process group of its own, so that Ctrl-C on the terminal reaches the launcher only, which then
/// ends the job in order.
pub(crate) fn command(options: &Ssh, host: &str, remote: &str) -> Command {
    let mut command = words("yes", options, host, remote);
    command.process_group(0);
    command
}

/// The same, for a person at a terminal: it asks for passwords there, and Ctrl-C ends it.
pub(crate) fn asking_command(options: &Ssh, host: &str, remote: &str) -> Command {
    words("no", options, host, remote)
}

fn words(batch_mode: &str, options: &Ssh, host: &str, remote: &str) -> Command {
    let mut command = Command::new(program());
    command.arg(format!("-oBatchMode={batch_mode}")).args(FIXED).args(login(options));
    // A name that begins with a dash is still a name.
    command.args(["--", host, remote]);
    plain_messages(&mut command);
    command
}

/// The options that say as whom and how to log in: what flags of ours ask for, then the user's own arguments, then what is
/// merely our preference.
pub(super) fn login(options: &Ssh) -> Vec<OsString> {
    let mut words: Vec<OsString> = Vec::new();
    if let Some(port) = options.port {
        words.extend(["-p".into(), port.to_string().into()]);
    }
    if let Some(identity) = &options.identity {
        words.extend(["-i".into(), identity.into()]);
    }
    if options.accept_new_keys {
        words.push("-oStrictHostKeyChecking=accept-new".into());
    }
    words.extend(options.arguments.iter().map(OsString::from));
    words.push(format!("-oConnectTimeout={}", CONNECT_TIMEOUT.as_secs()).into());
    words
}

/// Makes a program's messages those that `refusal.rs` reads. `LC_ALL` is not set, as one would expect, but removed:
/// many configurations pass `LC_*` on to the host, where the whole job would then run without its character set.
pub(super) fn plain_messages(command: &mut Command) -> &mut Command {
    command.env_remove("LC_ALL").env_remove("LANGUAGE").env("LC_MESSAGES", "C")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(options: &Ssh, host: &str) -> Vec<String> {
        let command = command(options, host, "true");
        command.get_args().skip(1).map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn the_users_arguments_stand_between_what_is_fixed_and_what_is_preferred() {
        let options = Ssh {
            port: Some(12345),
            identity: Some("key".into()),
            arguments: vec!["-oConnectTimeout=60".to_owned(), "-v".to_owned()],
            accept_new_keys: true,
        };
        let words = words(&options, "gpu2");
        assert_eq!(words[..FIXED.len()], FIXED.map(str::to_owned));
        assert_eq!(
            words[FIXED.len()..],
            [
                "-p",
                "12345",
                "-i",
                "key",
                "-oStrictHostKeyChecking=accept-new",
                "-oConnectTimeout=60",
                "-v",
                "-oConnectTimeout=10",
                "--",
                "gpu2",
                "true"
            ]
        );
    }

    #[test]
    fn a_host_that_looks_like_an_option_is_none() {
        let words = words(&Ssh::default(), "-oProxyCommand=evil");
        assert_eq!(words[words.len() - 3..], ["--", "-oProxyCommand=evil", "true"]);
    }
}
