//! What can go wrong with a cluster, in words, with what to do about it.

use std::path::{Path, PathBuf};

use crate::cause::Cause;
use crate::remote::quoted;

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("there is no cluster folder {}", path.display())]
    NoFolder { path: PathBuf },
    #[error("{} is there already", path.display())]
    Exists { path: PathBuf },
    #[error("{program} is not installed here")]
    NoProgram { program: &'static str, fix: &'static str },
    #[error("cannot make the wheel that the cluster's image needs: {problem}")]
    NoWheel { problem: String },
    #[error("cannot read {}: {problem}", path.display())]
    Unreadable { path: PathBuf, problem: String },
    #[error("cannot use the inventory {}: {problem}", path.display())]
    Inventory { path: PathBuf, problem: String },
    #[error("cannot {doing} {}: {source}", path.display())]
    File { doing: &'static str, path: PathBuf, source: std::io::Error },
    #[error("cannot {doing}: {source}")]
    System { doing: &'static str, source: std::io::Error },
    #[error(transparent)]
    Launch(#[from] ronde_launch::Error),
    /// A program that was run for it has failed.
    #[error("{doing} failed")]
    Failed { doing: &'static str, causes: Vec<Cause>, after: String },
    /// It was told to stop, and has.
    #[error("interrupted")]
    Interrupted { signal: i32, after: String },
    #[error("no cluster is up in {}", folder.display())]
    NotUp { folder: PathBuf },
    #[error("there is no machine {name}")]
    NoMachine { name: String, known: Vec<String> },
    #[error("{what}")]
    NotConfirmed { what: String, fix: String },
    #[error("{what} is still there after everything was deleted")]
    Remains { what: String },
    /// The command line lacks something, or it makes no sense.
    #[error("{what}")]
    Usage { what: String, fix: String },
}

impl Error {
    /// What a file met with.
    pub(crate) fn file(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::File { doing, path, source }
    }

    /// What to do about it.
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Error::NoFolder { path } => format!("make one: ronde cluster init {}", path.display()),
            Error::Exists { .. } => {
                "nothing was changed; --force writes the files anew and keeps auth_data.auto.tfvars, \
                 resources.auto.tfvars and the state"
                    .to_owned()
            }
            Error::NoProgram { fix, .. } => (*fix).to_owned(),
            Error::NoWheel { .. } => {
                "name the file: --wheel ronde-….whl (pip download --no-deps ronde gets it)".to_owned()
            }
            Error::Inventory { path, .. } => format!(
                "nothing was changed; Ansible reads more than is read here, and writes it out like this: \
                 ansible-inventory -i {} --list --yaml --export",
                quoted(&[path.display().to_string()])
            ),
            Error::Launch(error) => return error.hint(),
            Error::Failed { after, .. } | Error::Interrupted { after, .. } => after.clone(),
            Error::NotUp { folder } => format!("ronde cluster up --folder {}", folder.display()),
            Error::NoMachine { known, .. } => format!("there are {}", known.join(", ")),
            Error::NotConfirmed { fix, .. } | Error::Usage { fix, .. } => fix.clone(),
            Error::Remains { .. } => "run it again: ronde cluster down".to_owned(),
            Error::Unreadable { .. } | Error::File { .. } | Error::System { .. } => return None,
        };
        Some(hint).filter(|hint| !hint.is_empty())
    }

    /// The error with its causes and what to do, as people see it.
    pub(crate) fn render(&self) -> String {
        let mut text = String::new();
        if let Error::Failed { causes, .. } = self {
            for (at, cause) in causes.iter().enumerate() {
                let mut lines = cause.what.lines();
                text.push_str(&format!("error: {}\n", lines.next().unwrap_or_default()));
                for line in lines.filter(|line| !line.trim().is_empty()) {
                    text.push_str(&format!("  {line}\n"));
                }
                // Once for several that need the same.
                let is_last = causes.get(at + 1).is_none_or(|next| next.fix != cause.fix);
                if let Some(fix) = cause.fix.as_ref().filter(|_| is_last) {
                    text.push_str(&format!("  fix: {fix}\n"));
                }
            }
        }
        text.push_str(&format!("error: {self}\n"));
        if let Some(hint) = self.hint() {
            text.push_str(&format!("hint: {hint}\n"));
        }
        text
    }

    /// What to exit with.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Error::Usage { .. } => 2,
            Error::Interrupted { signal, .. } => 128_u8.saturating_add(u8::try_from(*signal).unwrap_or(0)),
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_shows_every_cause_with_its_fix_and_how_to_go_on() {
        let causes = vec![
            Cause { what: "the quota\nin its own words".to_owned(), fix: Some("ask for more".to_owned()) },
            Cause { what: "strange".to_owned(), fix: None },
        ];
        let error = Error::Failed { doing: "terraform apply", causes, after: "ronde cluster up".to_owned() };
        assert_eq!(
            error.render(),
            "error: the quota\n  in its own words\n  fix: ask for more\nerror: strange\n\
             error: terraform apply failed\nhint: ronde cluster up\n"
        );
        assert_eq!(error.status(), 1);
        assert_eq!(Error::Interrupted { signal: 2, after: String::new() }.status(), 130);
    }
}
