//! `ronde cluster down`: lists what it will delete, asks, deletes, and looks whether anything is left.

use std::fs;
use std::io::Write;

use serde_json::json;

use crate::args::DownArgs;
use crate::error::Error;
use crate::folder::{Folder, Kind, Noted};
use crate::playbook;
use crate::process::Watcher;
use crate::screen::Screen;
use crate::terraform::command::Terraform;
use crate::verbs::mend::{lost_to_terraform, mend, show_others};
use crate::verbs::option_for;
use crate::verbs::up::{agree, local, planned};
use crate::words::count;

pub(crate) fn down(args: &DownArgs) -> Result<(), Error> {
    let folder = Folder::find(args.folder.folder.as_deref())?;
    let noted = folder.noted()?;
    if args.local && !matches!(noted.kind, Kind::Local { .. }) {
        return Err(Error::Usage {
            what: format!("{} has no cluster on this machine", folder.path().display()),
            fix: "without --local, whatever it has is deleted".to_owned(),
        });
    }
    let watcher = Watcher::new()?;
    let told = match &noted.kind {
        Kind::Cloud => in_cloud(&folder, &watcher, args)?,
        Kind::Local { machines } => {
            if !args.yes {
                agree(
                    &watcher,
                    &format!("{} of this machine would be deleted", count(*machines, "container")),
                )?;
            }
            let variables = json!({ "image_context": folder.image_context() });
            by_playbook(&folder, &watcher, args, &local(&folder, variables, *machines, "absent"))?;
            "the containers are deleted; what was in the shared folder stays".to_owned()
        }
        Kind::Inventory { file } => {
            if !args.yes {
                agree(
                    &watcher,
                    &format!("the cluster would be taken off the machines of {}", file.display()),
                )?;
            }
            let words = ["-i", &file.display().to_string(), "ansible/remove.yml"].map(str::to_owned);
            by_playbook(&folder, &watcher, args, &words)?;
            "the cluster is taken off its machines; what was in the shared folder stays".to_owned()
        }
    };
    folder.note(&Noted::default())?;
    let text = format!(
        "{told}\nthe folder {} stays: {}{} makes it anew\n",
        folder.path().display(),
        noted.up(),
        option_for(&folder)
    );
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

fn in_cloud(folder: &Folder, watcher: &Watcher, args: &DownArgs) -> Result<String, Error> {
    let terraform = Terraform::new(args.programs.terraform.as_deref(), folder, watcher, &option_for(folder))?;
    let was_cut_short = terraform.was_cut_short()?;
    if terraform.resources()?.is_empty() && !was_cut_short {
        return Ok("there is nothing to delete".to_owned());
    }
    let mut screen = Screen::new();
    terraform.init(&mut screen)?;
    // First, since a network that has a lost port in it cannot be deleted.
    if was_cut_short && let Some(why) = mend(&terraform, watcher, &mut screen, args.yes)? {
        screen.say(&[lost_to_terraform(&why)]);
    }
    if terraform.resources()?.is_empty() {
        let known = show_others(&terraform, folder, &mut screen)?;
        forget_machines(folder);
        return Ok(format!("Terraform has nothing to delete; {known}"));
    }
    let (plan, progress) = terraform.plan_deletion(&mut screen)?;
    screen.say(&planned(&progress).collect::<Vec<_>>());
    let number = progress.planned().count();
    if !args.yes {
        agree(
            watcher,
            &format!(
                "{} would be deleted for good, with all that is in the shared folder",
                count(number, "thing")
            ),
        )?;
    }
    terraform.apply(&mut screen, &plan)?;
    let left = terraform.resources()?;
    if !left.is_empty() {
        return Err(Error::Remains { what: left.join(", ") });
    }
    let known = show_others(&terraform, folder, &mut screen)?;
    forget_machines(folder);
    Ok(format!("{} deleted; {known}", count(number, "thing")))
}

/// Removes the files that describe machines, if Terraform has not.
fn forget_machines(folder: &Folder) {
    for name in ["inventory.yaml", "ssh_config", "known_hosts"] {
        let _ = fs::remove_file(folder.file(name));
    }
}

fn by_playbook(folder: &Folder, watcher: &Watcher, args: &DownArgs, words: &[String]) -> Result<(), Error> {
    let program = playbook::program(args.programs.ansible.as_deref())?;
    let after = format!("`ronde cluster down{}` goes on from here", option_for(folder));
    playbook::play(&program, folder, watcher, &mut Screen::new(), words, &after)
}
