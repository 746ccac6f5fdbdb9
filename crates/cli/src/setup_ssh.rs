//! `ronde setup-ssh`: what was typed becomes a request to the launcher's library, which does the rest.

use std::io::Write;

use ronde_launch::SetupSsh;

use crate::args::SetupSshArgs;
use crate::problem::Problem;
use crate::status::Status;

pub(crate) fn setup_ssh(args: SetupSshArgs) -> Status {
    match request(args).and_then(|request| Ok(ronde_launch::setup_ssh(&request)?)) {
        Ok(0) => Status::Success,
        Ok(_) => Status::Failure,
        Err(problem) => {
            let _ = std::io::stderr().write_all(problem.render().as_bytes());
            problem.status()
        }
    }
}

fn request(args: SetupSshArgs) -> Result<SetupSsh, Problem> {
    let hosts = args.hosts.read()?.ok_or(Problem::NoHosts)?;
    Ok(SetupSsh { hosts, ssh: args.ssh.into_ssh(), user: args.user, yes: args.yes })
}
