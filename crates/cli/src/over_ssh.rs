//! `ronde over-ssh`: one machine of a job that is started the classic way, over ssh. Pods of such jobs run it.

use std::io::Write;

use ronde_launch::{OverSsh, parse_hosts};

use crate::args::OverSshArgs;
use crate::problem::Problem;
use crate::status::Status;

pub(crate) fn over_ssh(args: OverSshArgs) -> Status {
    let hosts = match parse_hosts(&args.hosts) {
        Ok(hosts) => hosts,
        Err(error) => {
            let problem = Problem::from(error);
            let _ = std::io::stderr().write_all(problem.render().as_bytes());
            return problem.status();
        }
    };
    let request = OverSsh {
        keys: args.keys,
        folder: args.folder,
        hosts,
        domain: args.domain,
        patience: args.patience,
        command: args.command,
    };
    // It returns only if this process has not become another program.
    let error = ronde_launch::over_ssh(&request);
    let _ = std::io::stderr().write_all(error.render().as_bytes());
    Status::Failure
}
