//! From tuning flags and the configuration file to variables for every rank.
//!
//! The flags are made from a table (`tuning/table.rs`), so this implements clap's traits by hand where
//! the other arguments derive them. A flag wins over the file, wherever it stands, and both win over
//! the environment, because what is set for a rank covers what it inherits.

pub(crate) mod table;

use clap::{Arg, ArgAction, ArgMatches, Command};
use ronde_settings::Status;

use crate::config_file::{ConfigFile, Entry};
use crate::notes::Notes;
use crate::problem::Problem;
use table::{Form, Spelling, TUNABLES, Tunable};

/// The tuning flags that were given.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tuning {
    given: Vec<Setting>,
    /// Warnings about flags with a newer name.
    old_names: Vec<String>,
}

/// One thing that is set, and by what.
#[derive(Clone, Debug)]
struct Setting {
    tunable: &'static Tunable,
    /// The variable's value.
    value: String,
    /// The flag, or the key and line of the file.
    source: String,
}

/// The variables to set for every rank, and what is to be said about them.
pub(crate) fn variables(
    flags: &Tuning,
    file: Option<&ConfigFile>,
    notes: &mut Notes,
) -> Result<Vec<(String, String)>, Problem> {
    for warning in &flags.old_names {
        notes.warn(warning.clone());
    }
    let mut settings = match file {
        Some(file) => from_file(file, notes)?,
        None => Vec::new(),
    };
    settings.retain(|setting| {
        let same = |flag: &Setting| flag.tunable.key == setting.tunable.key;
        !flags.given.iter().any(same)
    });
    settings.extend(flags.given.iter().cloned());
    let (without_effect, set): (Vec<Setting>, Vec<Setting>) =
        settings.into_iter().partition(Setting::asks_for_what_is_not_there);
    explain(&without_effect, notes);
    Ok(set.into_iter().map(|setting| (setting.tunable.variable.name.to_owned(), setting.value)).collect())
}

impl Setting {
    /// Whether it asks for something that cannot be had. The launcher says so in the words of its flags; ranks,
    /// which would say it again in those of variables, are not told.
    fn asks_for_what_is_not_there(&self) -> bool {
        let variable = self.tunable.variable;
        let same = |default: &str| match (default.parse::<f64>(), self.value.parse::<f64>()) {
            (Ok(default), Ok(value)) => default == value,
            _ => default == self.value,
        };
        matches!(variable.status, Status::Explained(_)) && !variable.default.is_some_and(same)
    }
}

/// One line for each reason.
fn explain(settings: &[Setting], notes: &mut Notes) {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for setting in settings {
        let Status::Explained(reason) = setting.tunable.variable.status else { continue };
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, sources)) => sources.push(&setting.source),
            None => reasons.push((reason, vec![&setting.source])),
        }
    }
    for (reason, sources) in reasons {
        notes.without_effect(&sources, reason);
    }
}

/// What the file sets. Its keys outside sections are no tunables and are answered elsewhere.
fn from_file(file: &ConfigFile, notes: &mut Notes) -> Result<Vec<Setting>, Problem> {
    let mut settings = Vec::new();
    for Entry { key, line, value } in &file.entries {
        let at = format!("{}:{line}", file.path.display());
        let Some(tunable) = TUNABLES.iter().find(|tunable| tunable.key == key) else {
            // About a section that is not known, its keys say enough.
            let section = format!("{key}.");
            let has_keys = file.entries.iter().any(|entry| entry.key.starts_with(&section));
            if !OUTSIDE.contains(&key.as_str()) && !has_keys && !is_section(key) {
                notes.warn(unknown(&at, key));
            }
            continue;
        };
        let Some(text) = value else { continue };
        let value = tunable.read(text).map_err(|problem| {
            let problem = format!("{key}: {text:?} {problem}");
            Problem::ConfigFile { path: file.path.clone(), line: *line, problem }
        })?;
        settings.push(Setting { tunable, value, source: format!("{key} ({at})") });
    }
    Ok(settings)
}

/// The key of the file that is answered where `--mpi` is.
pub(crate) const CONTROLLER: &str = "controller";
/// The key of the file that says what `--gpus-per-rank` does.
pub(crate) const GPUS_PER_RANK: &str = "gpus_per_rank";
/// The key of the file that says what `--mps` does.
pub(crate) const MPS: &str = "mps";
/// The keys of the file outside a section.
const OUTSIDE: [&str; 3] = [CONTROLLER, GPUS_PER_RANK, MPS];

/// Whether keys can stand below this one.
fn is_section(key: &str) -> bool {
    TUNABLES.iter().any(|tunable| tunable.key.split_once('.').is_some_and(|(section, _)| section == key))
}

/// A warning about a key that is not known, with the one that was probably meant.
fn unknown(at: &str, key: &str) -> String {
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    // The section counts as much as the key, and a key that stands in the wrong one is still found.
    let likeness = |known: &str| {
        (strsim::jaro_winkler(known, key) + strsim::jaro_winkler(&last(known), &last(key))) / 2.0
    };
    let known = TUNABLES.iter().map(|tunable| tunable.key).chain(OUTSIDE);
    let nearest = known.map(|known| (known, likeness(known))).max_by(|one, other| one.1.total_cmp(&other.1));
    match nearest {
        Some((nearest, likeness)) if likeness > 0.7 => {
            format!("{at}: {key} is not known and is ignored; did you mean {nearest}?")
        }
        _ => format!("{at}: {key} is not known and is ignored"),
    }
}

impl clap::Args for Tuning {
    fn augment_args(command: Command) -> Command {
        TUNABLES.iter().flat_map(arguments).fold(command, Command::arg)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Tuning::augment_args(command)
    }
}

/// The arguments of one tunable, as clap takes them.
fn arguments(tunable: &'static Tunable) -> Vec<Arg> {
    let plain = |flag: &'static str| Arg::new(flag).long(flag).help_heading(tunable.heading());
    match tunable.form {
        Form::Value { flag, name, read } => {
            let read = move |text: &str| read(text.trim()).map_err(|problem| format!("it {problem}"));
            let arg = plain(flag).value_name(name).value_parser(read).allow_negative_numbers(true);
            vec![arg.help(tunable.help)]
        }
        Form::Switch { flags, .. } => {
            let switch = |(index, spelling): (usize, &Spelling)| {
                let others = flags.iter().map(|other| other.flag).filter(|other| *other != spelling.flag);
                let help = match index {
                    0 => tunable.help.to_owned(),
                    _ => format!("The opposite of --{}", flags[0].flag),
                };
                plain(spelling.flag)
                    .action(ArgAction::SetTrue)
                    .conflicts_with_all(others)
                    .hide(spelling.hidden)
                    .help(help)
            };
            flags.iter().enumerate().map(switch).collect()
        }
    }
}

impl clap::FromArgMatches for Tuning {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Tuning, clap::Error> {
        let mut tuning = Tuning::default();
        for tunable in TUNABLES {
            let (flag, value) = match tunable.form {
                Form::Value { flag, .. } => match matches.get_one::<String>(flag) {
                    Some(value) => (flag, value.clone()),
                    None => continue,
                },
                Form::Switch { flags, .. } => {
                    let Some(spelling) = flags.iter().find(|spelling| matches.get_flag(spelling.flag)) else {
                        continue;
                    };
                    if let Some(instead) = spelling.instead {
                        let warning = format!("--{} is an old name; use {instead}", spelling.flag);
                        tuning.old_names.push(warning);
                    }
                    (spelling.flag, spelling.value.to_owned())
                }
            };
            tuning.given.push(Setting { tunable, value, source: format!("--{flag}") });
        }
        Ok(tuning)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Tuning::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
