//! What Terraform's events add up to: what is planned, what goes on, what is done, what went wrong.
//!
//! ```text
//!   ✓ created   openstack_networking_network_v2.cluster    4.1 s
//!   … creating  openstack_compute_instance_v2.master       12 s
//! ```
//! Events and the time in, lines out. Lines that [`Progress::take`] returns stay; those of [`Progress::live`] are
//! for a terminal, which draws them anew.

use std::time::Duration;

use crate::ansible::{Failure, Play, Task};
use crate::terraform::event::{Action, Diagnostic, Event};
use crate::words::{count, span};

/// Whether this is the resource whose provisioner runs Ansible, whatever its index.
pub(crate) fn runs_ansible(address: &str) -> bool {
    address.split('[').next() == Some("terraform_data.configure")
}

/// A change that is planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) address: String,
    pub(crate) action: Action,
}

#[derive(Debug)]
struct Running {
    address: String,
    action: Action,
    since: Duration,
}

/// How far a run of Terraform is.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    planned: Vec<Planned>,
    running: Vec<Running>,
    done: usize,
    play: Play,
    errors: Vec<Diagnostic>,
    text: Vec<String>,
    /// How wide addresses are.
    width: usize,
}

impl Progress {
    /// What is planned; reading is no change.
    pub(crate) fn planned(&self) -> impl Iterator<Item = &Planned> {
        self.planned.iter().filter(|planned| !matches!(planned.action, Action::Nothing | Action::Read))
    }

    /// The errors, each once.
    pub(crate) fn errors(&self) -> &[Diagnostic] {
        &self.errors
    }

    /// What failed in Ansible.
    pub(crate) fn failures(&self) -> &[Failure] {
        self.play.failures()
    }

    /// Lines that were no events.
    pub(crate) fn text(&self) -> &[String] {
        &self.text
    }

    /// Takes an event in, this long after the start; returns the lines that say so.
    pub(crate) fn take(&mut self, event: Event, now: Duration) -> Vec<String> {
        match event {
            Event::Planned { address, action } => {
                self.width = self.width.max(address.len());
                let planned = Planned { address, action };
                // An apply repeats what the plan that it was given says.
                if !self.planned.contains(&planned) {
                    self.planned.push(planned);
                }
            }
            Event::Started { address, action } => self.running.push(Running { address, action, since: now }),
            Event::Finished { address, action } => {
                let mut lines = self.end_play(&address, now);
                let took = self.end(&address, now);
                self.done += 1;
                lines.push(self.line('✓', action.done(), &address, took));
                return lines;
            }
            Event::Failed { address } => {
                let mut lines = self.end_play(&address, now);
                let took = self.end(&address, now);
                lines.push(self.line('✗', "failed", &address, took));
                return lines;
            }
            Event::Output { address, text } if runs_ansible(&address) => {
                // Several lines may come at once.
                return text
                    .lines()
                    .filter_map(|line| self.play.take(line, now))
                    .filter_map(of_task)
                    .collect();
            }
            Event::Diagnostic(diagnostic) => {
                // "execution halted" and its like say that it was interrupted, which whoever did so knows.
                let is_news = diagnostic.is_error()
                    && !diagnostic.summary.contains("execution halted")
                    && !self.errors.contains(&diagnostic);
                if is_news {
                    self.errors.push(diagnostic);
                }
            }
            Event::Text(text) => self.text.push(text),
            Event::Output { .. } | Event::Other => {}
        }
        Vec::new()
    }

    /// What goes on at the moment, for a terminal.
    pub(crate) fn live(&self, now: Duration) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for running in &self.running {
            let so_far = now.saturating_sub(running.since);
            lines.push(self.line('…', running.action.going_on(), &running.address, so_far));
            if let Some(task) = self.play.task().filter(|_| runs_ansible(&running.address)) {
                lines.push(format!("      {task}"));
            }
        }
        let all = self.planned().count();
        if all > 0 {
            lines.push(format!("  {} of {}, {}", self.done.min(all), count(all, "change"), span(now)));
        }
        lines
    }

    fn line(&self, mark: char, word: &str, address: &str, took: Duration) -> String {
        format!("  {mark} {word:<9} {address:<width$}  {}", span(took), width = self.width)
    }

    /// Takes a resource off those that run; returns how long that took.
    fn end(&mut self, address: &str, now: Duration) -> Duration {
        match self.running.iter().position(|running| running.address == address) {
            Some(at) => now.saturating_sub(self.running.remove(at).since),
            None => Duration::ZERO,
        }
    }

    fn end_play(&mut self, address: &str, now: Duration) -> Vec<String> {
        let ended = if runs_ansible(address) { self.play.end(now) } else { None };
        ended.and_then(of_task).into_iter().collect()
    }
}

/// The line of a task that has ended. Those that found all in order are left out: there are dozens.
pub(crate) fn of_task(task: Task) -> Option<String> {
    let machines = count(task.changed, "machine");
    (task.changed > 0).then(|| format!("    ✓ {}  {}  changed {machines}", task.name, span(task.took)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIGURE: &str = "terraform_data.configure[0]";

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn address(name: &str) -> String {
        name.to_owned()
    }

    fn planned(progress: &mut Progress, names: &[&str]) {
        for name in names {
            progress.take(Event::Planned { address: address(name), action: Action::Create }, at(0));
        }
    }

    #[test]
    fn each_resource_is_shown_with_its_own_time() {
        let mut progress = Progress::default();
        planned(&mut progress, &["a.long", "b.x", "a.long"]);
        assert_eq!(progress.planned().count(), 2);
        let start = |name| Event::Started { address: address(name), action: Action::Create };
        let finish = |name| Event::Finished { address: address(name), action: Action::Create };
        assert!(progress.take(start("a.long"), at(1000)).is_empty());
        assert!(progress.take(start("b.x"), at(3000)).is_empty());
        assert_eq!(
            progress.live(at(4000)),
            ["  … creating  a.long  3.0 s", "  … creating  b.x     1.0 s", "  0 of 2 changes, 4.0 s"]
        );
        assert_eq!(progress.take(finish("b.x"), at(5000)), ["  ✓ created   b.x     2.0 s"]);
        let failed = progress.take(Event::Failed { address: address("a.long") }, at(6000));
        assert_eq!(failed, ["  ✗ failed    a.long  5.0 s"]);
        assert_eq!(progress.live(at(7000)), ["  1 of 2 changes, 7.0 s"]);
    }

    #[test]
    fn tasks_of_ansible_stand_below_the_resource_that_runs_it() {
        let mut progress = Progress::default();
        planned(&mut progress, &[CONFIGURE]);
        progress.take(Event::Started { address: address(CONFIGURE), action: Action::Create }, at(0));
        let mut output = |text: &str, millis| {
            progress.take(Event::Output { address: address(CONFIGURE), text: text.to_owned() }, at(millis))
        };
        assert!(output("TASK [base : time] ***\nok: [m]", 0).is_empty());
        assert!(output("TASK [base : users] ***\nchanged: [m]\nchanged: [w]", 100).is_empty());
        let lines = output("TASK [nfs : mount] ***", 1100);
        assert_eq!(lines, ["    ✓ base : users  1.0 s  changed 2 machines"]);
        assert!(progress.live(at(1200))[1].contains("nfs : mount"));
        let text = r#"fatal: [w]: FAILED! => {"msg": "no route"}"#.to_owned();
        progress.take(Event::Output { address: address(CONFIGURE), text }, at(1300));
        progress.take(Event::Failed { address: address(CONFIGURE) }, at(1400));
        assert_eq!(progress.failures()[0].message, "no route");
    }

    #[test]
    fn errors_count_once_and_warnings_and_halts_do_not() {
        let mut progress = Progress::default();
        for (severity, summary) in
            [("error", "quota"), ("error", "quota"), ("warning", "old"), ("error", "execution halted")]
        {
            let diagnostic = Diagnostic {
                severity: severity.to_owned(),
                summary: summary.to_owned(),
                ..Diagnostic::default()
            };
            progress.take(Event::Diagnostic(diagnostic), at(0));
        }
        assert_eq!(progress.errors().len(), 1);
    }
}
