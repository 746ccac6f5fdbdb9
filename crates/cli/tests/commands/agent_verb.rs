//! `ronde agent`: what it lacks is named, how long it waits, and a launcher that has ranks of its own beside it.

use std::net::TcpListener;

use crate::job::{Folder, Job, outcome, ronde};

#[test]
fn an_agent_that_does_not_know_where_to_dial_says_what_to_give_it() {
    let mut command = ronde(&["agent"]);
    let nothing = outcome(command.env_remove("RONDE_AGENT_CONNECT"));
    let expected =
        "error: --connect HOST:PORT is missing\nhint: give --connect HOST:PORT, or set RONDE_AGENT_CONNECT\n";
    assert_eq!((nothing.code(), nothing.stderr.as_str()), (Some(2), expected));
    let mut command = ronde(&["agent"]);
    let no_secret =
        outcome(command.env("RONDE_AGENT_CONNECT", "127.0.0.1:1").env_remove("RONDE_SECRET_FILE"));
    assert_eq!(no_secret.code(), Some(2));
    assert!(no_secret.stderr.contains("--secret-file FILE is missing"), "{}", no_secret.stderr);
}

#[test]
fn values_that_make_no_sense_are_refused_wherever_they_come_from() {
    let flag = outcome(&mut ronde(&["agent", "--connect", "127.0.0.1:1", "--slots", "0"]));
    assert_eq!(flag.code(), Some(2));
    assert!(flag.stderr.contains("--slots") && flag.stderr.contains("at least 1"), "{}", flag.stderr);
    let mut command = ronde(&["agent", "--connect", "127.0.0.1:1", "--secret-file", "s"]);
    let variable = outcome(command.env("RONDE_AGENT_DATA_PORT", "70000"));
    let expected = "error: RONDE_AGENT_DATA_PORT=70000: it is not a port (1 to 65535)\n";
    assert_eq!((variable.code(), variable.stderr.as_str()), (Some(1), expected));
}

/// A secret, and a port that nobody listens at.
fn secret_and_port(folder: &Folder) -> (String, u16) {
    let secret = folder.file("secret", &"5a".repeat(32)).to_string_lossy().into_owned();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    (secret, listener.local_addr().expect("an address").port())
}

#[test]
fn an_agent_gives_up_if_no_launcher_answers_in_time() {
    let folder = Folder::new("agent-patience");
    let (secret, port) = secret_and_port(&folder);
    let connect = format!("127.0.0.1:{port}");
    let words = ["agent", "--connect", &connect, "--secret-file", &secret, "--patience", "1"];
    let given_up = outcome(&mut ronde(&words));
    assert_eq!(given_up.code(), Some(69), "{given_up:?}");
    assert!(given_up.stderr.contains(&format!("no launcher at {connect} within 1 s")), "{}", given_up.stderr);
}

#[test]
fn a_launcher_runs_ranks_of_its_own_beside_an_agent_that_serves_once() {
    let folder = Folder::new("own-slots");
    let (secret, port) = secret_and_port(&folder);
    let address = format!("127.0.0.1:{port}");
    let words = [
        "agent",
        "--connect",
        &address,
        "--secret-file",
        &secret,
        "--slots",
        "2",
        "--name",
        "worker",
        "--once",
    ];
    let agent = Job::start(&mut ronde(&words));
    let launcher = ["run", "-np", "3", "--agents", "1", "--listen", &address, "--secret-file", &secret];
    let mut launcher = ronde(&launcher);
    let script = "echo $HOROVOD_RANK of $HOROVOD_SIZE on $HOROVOD_HOSTNAME";
    let ran = outcome(launcher.args(["--own-slots", "1", "--own-name", "chief", "sh", "-c", script]));
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    let mut lines: Vec<&str> = ran.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0] 0 of 3 on chief", "[1] 1 of 3 on worker", "[2] 2 of 3 on worker"]);
    assert_eq!(agent.end().code(), Some(0));
}
