//! `ronde run`: what was typed becomes a request to the launcher.

use std::io::Write;
use std::time::Duration;

use ronde_launch::{Labels, Request, Talk, parse_hosts};
use ronde_settings::{Reading, registry, value};

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
        start_timeout: args.start_timeout.or_else(start_timeout),
        talk,
    })
}

/// What `HOROVOD_START_TIMEOUT` says, if it says something.
fn start_timeout() -> Option<Duration> {
    let variable = &registry::place::START_TIMEOUT;
    let mut reading = Reading::new(|name| std::env::var(name).ok());
    reading.text(variable)?;
    let time = reading.read(variable, value::positive_seconds);
    for note in reading.into_notes() {
        let _ = writeln!(std::io::stderr(), "warning: {note}");
    }
    time
}
