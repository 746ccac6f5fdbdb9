//! `ronde run`: what was typed becomes a request to the launcher.

use std::io::Write;

use ronde_launch::{Labels, Request, Talk, parse_hosts};

use crate::args::RunArgs;
use crate::invocation::Name;
use crate::status::Status;

pub(crate) fn run(args: RunArgs, name: Name) -> Status {
    match request(args, name).and_then(ronde_launch::run) {
        Ok(0) => Status::Success,
        Ok(code) => Status::Job(code),
        Err(error) => {
            let _ = std::io::stderr().write_all(error.render().as_bytes());
            Status::Failure
        }
    }
}

fn request(args: RunArgs, name: Name) -> Result<Request, ronde_launch::Error> {
    let np = match (args.num_proc, &args.hosts) {
        (Some(np), _) => np,
        (None, Some(hosts)) => parse_hosts(hosts)?.iter().map(|host| host.slots).sum(),
        // Clap asks for one of the two.
        (None, None) => 0,
    };
    let labels = match name {
        _ if args.no_prefix => Labels::None,
        Name::Ronde => Labels::Rank,
        Name::Horovodrun => Labels::Horovod,
    };
    let talk = match name {
        _ if args.quiet => Talk::Quiet,
        _ if args.verbose => Talk::Verbose,
        Name::Ronde => Talk::Normal,
        Name::Horovodrun => Talk::Sparing,
    };
    Ok(Request {
        np,
        hosts: args.hosts,
        command: args.command,
        labels,
        timestamps: args.prefix_output_with_timestamp,
        output_folder: args.output_filename,
        start_timeout: args.start_timeout,
        talk,
    })
}
