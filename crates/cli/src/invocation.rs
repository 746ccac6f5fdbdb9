//! From the words of a command line to parsed arguments.
//!
//! Two things clap cannot do by itself: flags of several letters after one dash, which Horovod's
//! users type (`-np 2`), and being two programs by the name it is called with. The words after the
//! user's own command are never looked at.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::{Args, CommandFactory, Parser};

use crate::args::{Cli, Horovodrun, RunArgs, Verb};

/// Horovod's flags of several letters, and what they are called here.
pub(crate) const LONG_SHORTS: [(&str, &str); 4] = [
    ("-np", "--num-proc"),
    ("-cb", "--check-build"),
    ("-hostfile", "--hostfile"),
    ("-prefix-timestamp", "--prefix-output-with-timestamp"),
];

/// The name this program was called by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Ronde,
    Horovodrun,
}

/// What is to be done, and as whom.
#[derive(Debug)]
pub(crate) struct Invocation {
    pub(crate) name: Name,
    pub(crate) verb: Verb,
}

/// Reads a command line, the program's name first.
pub(crate) fn read(words: impl IntoIterator<Item = OsString>) -> Result<Invocation, clap::Error> {
    let mut words: Vec<OsString> = words.into_iter().collect();
    let called = words.first().and_then(|word| Path::new(word).file_name());
    if called == Some(OsStr::new("horovodrun")) {
        let rest = words.split_off(1);
        words.extend(spell_out(rest, Name::Horovodrun));
        let parsed = Horovodrun::try_parse_from(words)?;
        return Ok(Invocation { name: Name::Horovodrun, verb: Verb::Run(Box::new(parsed.run)) });
    }
    if words.get(1).is_some_and(|verb| verb == "run") {
        let rest = words.split_off(2);
        words.extend(spell_out(rest, Name::Ronde));
    }
    Ok(Invocation { name: Name::Ronde, verb: Cli::try_parse_from(words)?.verb })
}

/// Replaces Horovod's flags up to where the user's command begins.
fn spell_out(words: Vec<OsString>, name: Name) -> Vec<OsString> {
    let with_value = flags_with_value();
    let mut spelled = Vec::with_capacity(words.len());
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let Some(flag) = word.to_str().filter(|text| text.starts_with('-') && *text != "--") else {
            // The command itself, or the mark that it follows.
            spelled.push(word);
            break;
        };
        let (flag, value) = match flag.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (flag, None),
        };
        let flag = match LONG_SHORTS.iter().find(|(short, _)| *short == flag) {
            Some((_, long)) => long,
            // Horovod's launcher has -v for its version.
            None if flag == "-v" && name == Name::Horovodrun => "--version",
            None => flag,
        };
        let takes = match value {
            Some(_) => 0,
            None => with_value.iter().find(|(known, _)| known == flag).map_or(0, |(_, values)| *values),
        };
        spelled.push(match value {
            Some(value) => format!("{flag}={value}").into(),
            None => flag.into(),
        });
        spelled.extend(words.by_ref().take(takes));
    }
    spelled.extend(words);
    spelled
}

/// The flags of `run` that take the next words as their values, by every name they have, and how many they take.
fn flags_with_value() -> Vec<(String, usize)> {
    // Building settles how many values a flag takes.
    let mut command = RunArgs::augment_args(Cli::command().name("run"));
    command.build();
    let takes_value = command.get_arguments().filter(|arg| arg.get_action().takes_values());
    takes_value
        .flat_map(|arg| {
            let values = arg.get_num_args().map_or(1, |range| range.min_values());
            let short = arg.get_short().map(|letter| format!("-{letter}"));
            let longs = arg.get_long_and_visible_aliases().unwrap_or_default();
            let longs: Vec<String> = longs.iter().map(|name| format!("--{name}")).collect();
            short.into_iter().chain(longs).map(move |flag| (flag, values))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(line: &str) -> (Name, RunArgs) {
        let invocation = read(line.split(' ').map(OsString::from));
        match invocation.unwrap_or_else(|error| panic!("{line}: {error}")) {
            Invocation { name, verb: Verb::Run(args) } => (name, *args),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn the_number_of_ranks_can_be_written_in_every_way_people_do() {
        for flag in ["-np 2", "-np=2", "--num-proc 2", "--num-proc=2", "-n 2", "-n2", "-n=2"] {
            for (program, name) in [("ronde run", Name::Ronde), ("/opt/bin/horovodrun", Name::Horovodrun)] {
                let (called, args) = run(&format!("{program} {flag} python x.py"));
                assert_eq!((called, args.num_proc), (name, Some(2)), "{program} {flag}");
                assert_eq!(args.command, ["python", "x.py"], "{program} {flag}");
            }
        }
    }

    #[test]
    fn the_users_command_is_passed_untouched() {
        for (line, command) in [
            ("ronde run -np 2 python -u x.py -np 3", "python -u x.py -np 3"),
            ("ronde run -np 2 -- python -np 3", "python -np 3"),
            ("ronde run -np 2 -H localhost:2 a -H b -- --help -v", "a -H b -- --help -v"),
            ("ronde run --output-filename logs -np 2 a -np=3", "a -np=3"),
            ("horovodrun -np 2 a -v --version", "a -v --version"),
        ] {
            let (_, args) = run(line);
            assert_eq!(args.num_proc, Some(2), "{line}");
            let expected: Vec<OsString> = command.split(' ').map(OsString::from).collect();
            assert_eq!(args.command, expected, "{line}");
        }
    }

    #[test]
    fn horovods_other_flags_are_understood_before_the_command() {
        let (_, args) = run("horovodrun -np 2 -prefix-timestamp --verbose -H localhost:2 a");
        assert!(args.prefix_output_with_timestamp && args.verbose);
        assert_eq!(args.hosts.hosts.as_deref(), Some("localhost:2"));
        let version = read(["horovodrun", "-np", "2", "-v", "a"].map(OsString::from)).expect_err("not a run");
        assert_eq!(version.kind(), clap::error::ErrorKind::DisplayVersion);
    }

    #[test]
    fn a_flag_that_does_not_exist_is_refused_and_not_taken_for_the_command() {
        let words = ["ronde", "run", "-np", "2", "--quite", "a"].map(OsString::from);
        let error = read(words).expect_err("no such flag").to_string();
        assert!(error.contains("--quiet"), "{error}");
    }

    #[test]
    fn the_definition_of_the_flags_is_consistent() {
        Cli::command().debug_assert();
        Horovodrun::command().debug_assert();
    }
}
