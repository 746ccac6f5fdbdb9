//! Ansible, run without Terraform: on machines that are there, or on this one.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::ansible::Play;
use crate::cause::machine::{self, Place};
use crate::error::Error;
use crate::folder::Folder;
use crate::process::{News, Watcher};
use crate::screen::Screen;
use crate::terraform::command::on_path;
use crate::terraform::progress::of_task;
use crate::words::span;

/// The program, if it is here.
pub(crate) fn program(named: Option<&Path>) -> Result<PathBuf, Error> {
    on_path(named.unwrap_or(Path::new("ansible-playbook"))).ok_or(Error::NoProgram {
        program: "Ansible",
        fix: "pip install -r ansible/requirements.txt in the cluster folder; or name the program: --ansible FILE",
    })
}

/// Runs a playbook of the folder to its end.
pub(crate) fn play(
    program: &Path,
    folder: &Folder,
    watcher: &Watcher,
    screen: &mut Screen,
    words: &[String],
    after: &str,
) -> Result<(), Error> {
    let log = folder.own("ansible.log")?;
    let started = Instant::now();
    let mut play = Play::default();
    let mut command = Command::new(program);
    command
        .current_dir(folder.path())
        .args(words)
        .env("ANSIBLE_CONFIG", folder.file("ansible/ansible.cfg"))
        .env("ANSIBLE_NOCOLOR", "1")
        .env("ANSIBLE_FORCE_COLOR", "0");
    let ended = watcher.run(&mut command, &log, |news| match news {
        News::Line(line) => {
            let ended = play.take(line, started.elapsed()).and_then(of_task);
            screen.say(&ended.into_iter().collect::<Vec<_>>());
        }
        News::Pulse => {
            let task = play.task().unwrap_or("starting Ansible");
            screen.live(&[format!("  … {task}  {}", span(started.elapsed()))]);
        }
        News::Stop { again: false } => screen.say(&["stopping".to_owned()]),
        News::Stop { again: true } => {}
    })?;
    screen.live(&[]);
    match ended.signal {
        Some(signal) => Err(Error::Interrupted { signal, after: after.to_owned() }),
        None if ended.status.success() => Ok(()),
        None => {
            let mut causes = machine::of_failures(play.failures(), Place::Given);
            if causes.is_empty() {
                causes.push(machine::of_text(&play.words(), &play.words()));
            }
            let after = format!("{after}; all that was said is in {}", log.display());
            Err(Error::Failed { doing: "ansible-playbook", causes, after })
        }
    }
}
