//! What a run that was cut short has lost: found in the cloud, shown, and deleted if that is agreed to.

use crate::error::Error;
use crate::process::Watcher;
use crate::screen::Screen;
use crate::terraform::command::Terraform;
use crate::terraform::leftovers::Answer;
use crate::verbs::up::agree;
use crate::words::count;

/// Deletes what the cloud has and Terraform does not know of; returns why that could not be found out, if so. It asks,
/// since things are known by the cluster's name, and somebody else's cluster may have the same.
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
