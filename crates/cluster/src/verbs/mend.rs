//! What a run that was cut short has lost: found in the cloud, shown, and deleted if that is agreed to. What no run of
//! this folder can have lost is another cluster's, and only shown.

use std::path::Path;

use crate::error::Error;
use crate::folder::Folder;
use crate::process::Watcher;
use crate::remote::quoted;
use crate::screen::Screen;
use crate::terraform::command::Terraform;
use crate::terraform::leftovers::Answer;
use crate::verbs::up::agree;
use crate::words::count;

/// Deletes what the cloud has and Terraform does not know of; returns why that could not be found out, if so. It asks, and is
/// only for folders whose last run was cut short: clusters from before they had an identity are known by their name alone,
/// and somebody else's may have the same.
pub(crate) fn mend(
    terraform: &Terraform<'_>,
    watcher: &Watcher,
    screen: &mut Screen,
    yes: bool,
) -> Result<Option<String>, Error> {
    let left = match terraform.leftovers(false)? {
        Answer::Nothing => return Ok(None),
        Answer::Unknown { why } => return Ok(Some(why)),
        Answer::Left(left) => left,
    };
    screen.say(&left.iter().map(|thing| format!("  lost     {thing}")).collect::<Vec<_>>());
    if !yes {
        let number = count(left.len(), "thing");
        agree(watcher, &format!("{number} that an unfinished run has lost track of would be deleted"))?;
    }
    match terraform.leftovers(true)? {
        Answer::Nothing => Ok(None),
        Answer::Unknown { why } => Err(Error::Remains { what: format!("{} ({why})", left.join(", ")) }),
        Answer::Left(left) => Err(Error::Remains { what: left.join(", ") }),
    }
}

/// The warning for those whose cloud cannot be asked.
pub(crate) fn lost_to_terraform(why: &str) -> String {
    format!(
        "warning: a run was cut short, and what it was making may be lost to Terraform; the cloud cannot be asked \
         for it: {why}"
    )
}

/// Shows what carries the cluster's mark though all that Terraform knew of is deleted; returns what is known now.
pub(crate) fn show_others(
    terraform: &Terraform<'_>,
    folder: &Folder,
    screen: &mut Screen,
) -> Result<String, Error> {
    Ok(match terraform.leftovers(false)? {
        Answer::Nothing => "the cloud has nothing of it any more".to_owned(),
        Answer::Unknown { why } => {
            format!("Terraform's state has nothing left; the cloud was not asked: {why}")
        }
        Answer::Left(others) => {
            screen.say(&of_others(&others, folder.path()));
            "what else carries the cluster's mark was left alone".to_owned()
        }
    })
}

/// The warning about things that may be somebody else's.
fn of_others(others: &[String], folder: &Path) -> Vec<String> {
    let head =
        "warning: these carry the cluster's mark, and Terraform does not know of them; they were left alone";
    let command = format!("cd {} && python3 leftovers.py --delete", quoted(&[folder.display().to_string()]));
    let end = format!("if they are nobody else's, this deletes them: {command}");
    let lines = others.iter().map(|thing| format!("  other    {thing}"));
    [head.to_owned()].into_iter().chain(lines).chain([end]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_somebody_else_s_is_listed_with_the_command_that_deletes_it() {
        let lines = of_others(&["server ronde-master (1)".to_owned()], Path::new("/a b"));
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with("warning: ") && lines[0].contains("left alone"), "{lines:?}");
        assert_eq!(lines[1], "  other    server ronde-master (1)");
        assert!(lines[2].ends_with("cd '/a b' && python3 leftovers.py --delete"), "{lines:?}");
    }
}
