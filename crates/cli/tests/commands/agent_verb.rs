//! `ronde agent` before it reaches anybody: what it lacks is named.

use crate::job::{outcome, ronde};

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
