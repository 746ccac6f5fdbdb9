//! Terraform, run in a cluster folder: what it says is shown as it comes, and an error ends with its cause and fix.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::cause::machine::{self, Place};
use crate::cause::{Cause, cloud};
use crate::error::Error;
use crate::folder::{APPLYING, Folder};
use crate::process::{Ended, News, Watcher};
use crate::screen::Screen;
use crate::terraform::event::{self, Diagnostic};
use crate::terraform::leftovers::{self, Answer};
use crate::terraform::progress::{Progress, runs_ansible};
use crate::words::span;

/// What is said when Terraform is told to stop.
const STOPPING: &str = "stopping: terraform finishes what it has begun and writes its state";
const STOPPING_STILL: &str =
    "terraform is still writing its state: to kill it now would lose track of what it made";

/// It is a program that reads this, and Ansible below it must not colour its lines.
const CALM: [(&str, &str); 3] =
    [("TF_IN_AUTOMATION", "1"), ("ANSIBLE_NOCOLOR", "1"), ("ANSIBLE_FORCE_COLOR", "0")];

/// Terraform in a folder.
pub(crate) struct Terraform<'a> {
    program: PathBuf,
    folder: &'a Folder,
    watcher: &'a Watcher,
    /// What follows on a failure, in the words of the command that was typed.
    go_on: String,
}

/// What a run is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Make,
    Delete,
}

impl<'a> Terraform<'a> {
    /// The program that is named, or `terraform`, or `tofu`.
    pub(crate) fn new(
        named: Option<&Path>,
        folder: &'a Folder,
        watcher: &'a Watcher,
        options: &str,
    ) -> Result<Terraform<'a>, Error> {
        let candidates = match named {
            Some(path) => vec![path],
            None => vec![Path::new("terraform"), Path::new("tofu")],
        };
        let program = candidates.into_iter().find_map(on_path).ok_or(Error::NoProgram {
            program: "Terraform",
            fix: "install Terraform 1.5 or newer, or OpenTofu; or name the program: --terraform FILE",
        })?;
        let go_on = format!(
            "`ronde cluster up{options}` goes on from here, `ronde cluster down{options}` deletes it all"
        );
        Ok(Terraform { program, folder, watcher, go_on })
    }

    /// Gets the provider.
    pub(crate) fn init(&self, screen: &mut Screen) -> Result<(), Error> {
        let log = self.folder.own("init.log")?;
        let started = Instant::now();
        let mut text = String::new();
        let ended =
            self.watcher.run(&mut self.command(&["init", "-input=false", "-no-color"]), &log, |news| {
                match news {
                    News::Line(line) => {
                        text.push_str(line.trim_start_matches(['│', '╷', '╵']));
                        text.push('\n');
                    }
                    News::Pulse => screen.live(&[format!("  … terraform init  {}", span(started.elapsed()))]),
                    News::Stop { .. } => screen.say(&["stopping".to_owned()]),
                }
            })?;
        let causes = || {
            let errors = text.find("Error:").map_or(text.as_str(), |at| &text[at..]);
            vec![cloud::of_text(errors.trim())]
        };
        self.judge("terraform init", &ended, causes, "nothing was changed".to_owned())?;
        screen.say(&[format!("  ✓ terraform init  {}", span(started.elapsed()))]);
        Ok(())
    }

    /// Plans, and returns what is planned. The plan holds the login, and is deleted when it is dropped.
    pub(crate) fn plan(
        &self,
        screen: &mut Screen,
        wish: Wish,
        options: &[String],
    ) -> Result<(Plan, Progress), Error> {
        let (plan, ended, progress) = self.tried_plan(screen, wish, options)?;
        self.judge_plan(&ended, &progress)?;
        Ok((plan, progress))
    }

    /// Plans to delete everything, and returns what is planned. That asks the cloud again for all that the files name,
    /// and fails if it has a flavour, a key or an address no more; to delete what was made, its state is enough.
    pub(crate) fn plan_deletion(&self, screen: &mut Screen) -> Result<(Plan, Progress), Error> {
        let (plan, ended, progress) = self.tried_plan(screen, Wish::Delete, &[])?;
        let has_failed = ended.signal.is_none() && !ended.status.success();
        if has_failed && is_about_things(progress.errors()) {
            let cause = causes(&progress).into_iter().next().map(|cause| cause.what);
            screen.say(&[by_state_alone(&cause.unwrap_or_default())]);
            // Both plans have the same file.
            drop(plan);
            return self.plan(screen, Wish::Delete, &["-refresh=false".to_owned()]);
        }
        self.judge_plan(&ended, &progress)?;
        Ok((plan, progress))
    }

    fn judge_plan(&self, ended: &Ended, progress: &Progress) -> Result<(), Error> {
        self.judge("terraform plan", ended, || causes(progress), "nothing was changed".to_owned())
    }

    /// Plans, and returns how that went.
    fn tried_plan(
        &self,
        screen: &mut Screen,
        wish: Wish,
        options: &[String],
    ) -> Result<(Plan, Ended, Progress), Error> {
        let plan = Plan(self.folder.own("plan")?);
        let out = format!("-out={}", plan.0.display());
        let mut words = vec!["plan", "-input=false", "-json", &out];
        if wish == Wish::Delete {
            words.push("-destroy");
        }
        words.extend(options.iter().map(String::as_str));
        let (ended, progress) = self.follow(&words, "plan.log", "asking the cloud", screen)?;
        Ok((plan, ended, progress))
    }

    /// Does what is planned.
    pub(crate) fn apply(&self, screen: &mut Screen, plan: &Plan) -> Result<Progress, Error> {
        let file = plan.0.display().to_string();
        let words = ["apply", "-input=false", "-json", &file];
        let was_cut_short = self.was_cut_short()?;
        let mark = self.folder.own(APPLYING)?;
        fs::write(&mark, "").map_err(Error::file("write", &mark))?;
        let (ended, progress) = self.follow(&words, "apply.log", "starting", screen)?;
        if !may_have_lost(&ended, was_cut_short) {
            let _ = fs::remove_file(&mark);
        }
        let log = self.folder.own("apply.log")?;
        let after = format!("{}; all that was said is in {}", self.go_on, log.display());
        self.judge("terraform apply", &ended, || causes(&progress), after)?;
        Ok(progress)
    }

    /// Whether a run was cut short, and may have lost what it was making; the cloud has not been asked since.
    pub(crate) fn was_cut_short(&self) -> Result<bool, Error> {
        self.folder.was_cut_short()
    }

    /// Looks for what the cloud has and Terraform does not know of, and may delete it.
    pub(crate) fn leftovers(&self, delete: bool) -> Result<Answer, Error> {
        let answer = leftovers::look(self.folder, &self.program, delete);
        if answer == Answer::Nothing {
            let _ = fs::remove_file(self.folder.own(APPLYING)?);
        }
        Ok(answer)
    }

    /// What its state still has.
    pub(crate) fn resources(&self) -> Result<Vec<String>, Error> {
        if !self.folder.file("terraform.tfstate").exists() && !self.folder.file(".terraform").exists() {
            return Ok(Vec::new());
        }
        let failed = |source| Error::System { doing: "run terraform", source };
        let output = self.command(&["state", "list"]).output().map_err(failed)?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() && !said.contains("No state file was found") {
            let causes = vec![cloud::of_text(said.trim())];
            return Err(Error::Failed { doing: "terraform state list", causes, after: String::new() });
        }
        let listed = String::from_utf8_lossy(&output.stdout);
        let is_data = |line: &str| line.starts_with("data.") || line.contains(".data.");
        Ok(listed.lines().filter(|line| !line.is_empty() && !is_data(line)).map(str::to_owned).collect())
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(self.folder.path()).args(words).envs(CALM);
        command
    }

    /// Runs something that writes events.
    fn follow(
        &self,
        words: &[&str],
        log: &str,
        doing: &str,
        screen: &mut Screen,
    ) -> Result<(Ended, Progress), Error> {
        let log = self.folder.own(log)?;
        let started = Instant::now();
        let mut progress = Progress::default();
        let ended = self.watcher.run(&mut self.command(words), &log, |news| match news {
            News::Line(line) => screen.say(&progress.take(event::parse(line), started.elapsed())),
            News::Pulse => {
                let lines = progress.live(started.elapsed());
                let idle = vec![format!("  … {doing}  {}", span(started.elapsed()))];
                screen.live(if lines.is_empty() { &idle } else { &lines });
            }
            News::Stop { again: false } => screen.say(&[STOPPING.to_owned()]),
            News::Stop { again: true } => screen.say(&[STOPPING_STILL.to_owned()]),
        })?;
        screen.live(&[]);
        Ok((ended, progress))
    }

    fn judge(
        &self,
        doing: &'static str,
        ended: &Ended,
        causes: impl FnOnce() -> Vec<Cause>,
        after: String,
    ) -> Result<(), Error> {
        match ended.signal {
            Some(signal) => Err(Error::Interrupted { signal, after }),
            None if ended.status.success() => Ok(()),
            None => Err(Error::Failed { doing, causes: causes(), after }),
        }
    }
}

/// A plan's file.
pub(crate) struct Plan(PathBuf);

impl Drop for Plan {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Whether something that was being made may be lost after a run: it was cut short, by a kill or an interrupt, or one
/// before it was, and the cloud has not been asked since. That one succeeds finds nothing of what another has lost.
fn may_have_lost(ended: &Ended, was_cut_short: bool) -> bool {
    was_cut_short || ended.signal.is_some() || ended.status.signal().is_some()
}

/// Whether what went wrong is about things that the cloud has or has not. Who is not let in cannot delete either.
fn is_about_things(errors: &[Diagnostic]) -> bool {
    let heads = ["provider[", "data.openstack_identity_auth_scope_v3."];
    let is_login = |error: &Diagnostic| heads.iter().any(|head| error.address.starts_with(head));
    // OpenTofu says some things twice, the second time without their place.
    errors.iter().any(|error| !error.address.is_empty()) && !errors.iter().any(is_login)
}

/// What is said when a plan is made without asking the cloud.
fn by_state_alone(cause: &str) -> String {
    format!(
        "warning: the plan failed: {}; it is made again from the state alone (-refresh=false), which is enough to delete",
        cause.lines().next().unwrap_or_default()
    )
}

/// Everything that went wrong. Of Ansible's failures Terraform only repeats the output.
fn causes(progress: &Progress) -> Vec<Cause> {
    let mut causes = machine::of_failures(progress.failures(), Place::Cloud);
    let is_told = |address: &str| !causes.is_empty() && runs_ansible(address);
    let errors: Vec<Cause> =
        progress.errors().iter().filter(|error| !is_told(&error.address)).map(cloud::of).collect();
    causes.extend(errors);
    if causes.is_empty() {
        let text = progress.text().join("\n");
        causes.push(cloud::of_text(if text.is_empty() { "it gave no reason" } else { &text }));
    }
    causes
}

/// The program of this name in one of the folders of `PATH`, or at this place.
pub(crate) fn on_path(program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 {
        // A link stays one: some programs are told by their names what to be.
        return std::path::absolute(program).ok().filter(|path| path.is_file());
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn only_what_the_cloud_has_no_more_is_no_obstacle_to_deleting() {
        let errors = |addresses: &[&str]| {
            let error =
                |address: &&str| Diagnostic { address: (*address).to_owned(), ..Diagnostic::default() };
            addresses.iter().map(error).collect::<Vec<_>>()
        };
        let (flavor, login) =
            ("data.openstack_compute_flavor_v2.master", "data.openstack_identity_auth_scope_v3.project");
        for (addresses, expected) in [
            (vec![flavor], true),
            (vec![flavor, "openstack_compute_instance_v2.master"], true),
            (vec![flavor, login], false),
            (vec![flavor, ""], true),
            (vec![""], false),
            (vec!["provider[\"registry.terraform.io/terraform-provider-openstack/openstack\"]"], false),
            (vec![], false),
        ] {
            assert_eq!(is_about_things(&errors(&addresses)), expected, "{addresses:?}");
        }
    }

    #[test]
    fn what_a_run_lost_is_remembered_whatever_comes_after_it() {
        let [good, bad, killed] = [0, 1 << 8, 9].map(ExitStatus::from_raw);
        for (status, signal, was_cut_short, expected) in [
            (good, None, false, false),
            (good, None, true, true),
            (bad, None, false, false),
            (bad, None, true, true),
            (killed, None, false, true),
            (bad, Some(2), false, true),
            (good, Some(2), false, true),
        ] {
            let ended = Ended { status, signal };
            assert_eq!(may_have_lost(&ended, was_cut_short), expected, "{ended:?} {was_cut_short}");
        }
    }
}
