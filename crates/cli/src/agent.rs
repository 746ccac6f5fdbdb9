//! `ronde agent`: what was typed, or set for a container, becomes a request to the agent.

use std::io::Write;

use ronde_launch::AgentRequest;

use crate::args::{AgentArgs, at_least_one, port};
use crate::problem::Problem;
use crate::status::Status;

pub(crate) fn agent(args: AgentArgs) -> Status {
    if args.fingerprint {
        return fingerprint();
    }
    let request = request(args, |name| std::env::var(name).ok());
    match request.and_then(|request| Ok(ronde_launch::agent(request)?)) {
        Ok(0) => Status::Success,
        Ok(code) => Status::Job(code),
        Err(problem) => {
            let _ = std::io::stderr().write_all(problem.render().as_bytes());
            problem.status()
        }
    }
}

fn fingerprint() -> Status {
    match ronde_launch::fingerprint().and_then(|hash| writeln!(std::io::stdout(), "{hash}")) {
        Ok(()) => Status::Success,
        Err(_) => Status::Failure,
    }
}

/// Flags win over variables; a variable that is empty counts as not set.
fn request(args: AgentArgs, var: impl Fn(&str) -> Option<String>) -> Result<AgentRequest, Problem> {
    if args.stdio {
        return Ok(AgentRequest::Stdio);
    }
    let text = |name: &str| var(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    let lacks = |flag, variable| Problem::AgentLacks { flag, variable };
    let launcher = args.connect.or_else(|| text("RONDE_AGENT_CONNECT"));
    let secret_file = args.secret_file.or_else(|| text("RONDE_SECRET_FILE").map(Into::into));
    let interfaces = match args.network_interfaces {
        none if none.is_empty() => text("RONDE_AGENT_INTERFACES")
            .map(|names| names.split(',').map(|name| name.trim().to_owned()).collect())
            .unwrap_or_default(),
        given => given,
    };
    let data_port = or_variable(args.data_port, "RONDE_AGENT_DATA_PORT", text, port)?;
    let advertise = args.advertise.or_else(|| text("RONDE_AGENT_ADVERTISE"));
    if advertise.is_some() && data_port.is_none() {
        return Err(lacks("--data-port PORT", "RONDE_AGENT_DATA_PORT"));
    }
    Ok(AgentRequest::Dial {
        launcher: launcher.ok_or_else(|| lacks("--connect HOST:PORT", "RONDE_AGENT_CONNECT"))?,
        secret_file: secret_file.ok_or_else(|| lacks("--secret-file FILE", "RONDE_SECRET_FILE"))?,
        slots: or_variable(args.slots, "RONDE_AGENT_SLOTS", text, at_least_one)?,
        data_port,
        advertise,
        name: args.name.or_else(|| text("RONDE_AGENT_NAME")),
        interfaces,
        once: args.once,
        patience: args.patience,
    })
}

/// A flag's value, or else the variable's, read the same way.
fn or_variable<T>(
    given: Option<T>,
    name: &'static str,
    text: impl Fn(&str) -> Option<String>,
    read: fn(&str) -> Result<T, String>,
) -> Result<Option<T>, Problem> {
    match (given, text(name)) {
        (None, Some(value)) => match read(&value) {
            Ok(read) => Ok(Some(read)),
            Err(problem) => Err(Problem::BadVariable { name, value, problem }),
        },
        (given, _) => Ok(given),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(args: AgentArgs, variables: &[(&str, &str)]) -> Result<AgentRequest, String> {
        let var = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        request(args, var).map_err(|problem| problem.render())
    }

    #[test]
    fn a_container_can_say_everything_in_variables_and_flags_win() {
        let variables = [
            ("RONDE_AGENT_CONNECT", "chief:4000"),
            ("RONDE_SECRET_FILE", "/run/secret"),
            ("RONDE_AGENT_SLOTS", "2"),
            ("RONDE_AGENT_DATA_PORT", "9000"),
            ("RONDE_AGENT_ADVERTISE", "203.0.113.7:9001"),
            ("RONDE_AGENT_NAME", "worker-1"),
            ("RONDE_AGENT_INTERFACES", "eth0, eth1"),
        ];
        let all = AgentRequest::Dial {
            launcher: "chief:4000".to_owned(),
            secret_file: "/run/secret".into(),
            slots: Some(2),
            data_port: Some(9000),
            advertise: Some("203.0.113.7:9001".to_owned()),
            name: Some("worker-1".to_owned()),
            interfaces: vec!["eth0".to_owned(), "eth1".to_owned()],
            once: false,
            patience: None,
        };
        let asked_for = asked(AgentArgs::default(), &variables).expect("complete");
        assert_eq!(format!("{asked_for:?}"), format!("{all:?}"));
        let args = AgentArgs { slots: Some(4), name: Some("me".to_owned()), ..AgentArgs::default() };
        let Ok(AgentRequest::Dial { slots, name, data_port, .. }) = asked(args, &variables) else {
            panic!("not a dial");
        };
        assert_eq!((slots, name.as_deref(), data_port), (Some(4), Some("me"), Some(9000)));
    }

    #[test]
    fn what_is_not_said_is_left_to_the_agent() {
        let args = AgentArgs {
            connect: Some("chief:4000".to_owned()),
            secret_file: Some("secret".into()),
            ..AgentArgs::default()
        };
        let variables = [("RONDE_AGENT_SLOTS", ""), ("RONDE_AGENT_NAME", " ")];
        let Ok(AgentRequest::Dial { slots, data_port, advertise, name, interfaces, .. }) =
            asked(args, &variables)
        else {
            panic!("not a dial");
        };
        assert_eq!((slots, data_port, advertise, name, interfaces), (None, None, None, None, Vec::new()));
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let error = asked(AgentArgs::default(), &[("RONDE_AGENT_CONNECT", " ")]).expect_err("nothing given");
        let expected = "error: --connect HOST:PORT is missing\n\
                        hint: give --connect HOST:PORT, or set RONDE_AGENT_CONNECT\n";
        assert_eq!(error, expected);
        let dial = [("RONDE_AGENT_CONNECT", "chief:4000")];
        let error = asked(AgentArgs::default(), &dial).expect_err("no secret");
        assert!(error.contains("RONDE_SECRET_FILE"), "{error}");
        let no_port = [dial[0], ("RONDE_SECRET_FILE", "/s"), ("RONDE_AGENT_ADVERTISE", "gpu1:9000")];
        let error = asked(AgentArgs::default(), &no_port).expect_err("no port to advertise");
        assert!(error.starts_with("error: --data-port PORT is missing\n"), "{error}");
        let wrong = [dial[0], ("RONDE_SECRET_FILE", "/s"), ("RONDE_AGENT_SLOTS", "none")];
        let error = asked(AgentArgs::default(), &wrong).expect_err("no number");
        assert_eq!(error, "error: RONDE_AGENT_SLOTS=none: it is not a whole number of at least 1\n");
    }

    #[test]
    fn over_standard_streams_nothing_else_is_needed() {
        let args = AgentArgs { stdio: true, ..AgentArgs::default() };
        let asked = asked(args, &[("RONDE_AGENT_CONNECT", "chief:4000")]);
        assert!(matches!(asked, Ok(AgentRequest::Stdio)), "{asked:?}");
    }
}
