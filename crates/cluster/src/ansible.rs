//! What `ansible-playbook` prints, task by task: which changed something, how long each took, what failed and why.
//!
//! Reads the default output, with results as JSON on one line or as YAML below it. Values in, values out.

use std::time::Duration;

use serde_json::Value;

/// A task that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    /// Its name, with the role's in front.
    pub(crate) name: String,
    /// How many machines it changed.
    pub(crate) changed: usize,
    pub(crate) took: Duration,
}

/// What went wrong on a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) task: String,
    pub(crate) machine: String,
    /// The machine could not be reached at all.
    pub(crate) is_unreachable: bool,
    pub(crate) message: String,
}

/// How far a play is.
#[derive(Debug, Default)]
pub(crate) struct Play {
    task: Option<(String, usize, Duration)>,
    failures: Vec<Failure>,
    /// The lines of a failure's result follow.
    reads_result: bool,
    /// Those of a value that says what went wrong.
    reads_reason: bool,
    /// What that value is quoted with, until the end of it.
    quote: Option<char>,
    /// Lines that are neither a task's nor a machine's: the words of an Ansible that does not start.
    words: Vec<String>,
}

impl Play {
    /// The task that runs.
    pub(crate) fn task(&self) -> Option<&str> {
        self.task.as_ref().map(|(name, ..)| name.as_str())
    }

    /// What went wrong so far.
    pub(crate) fn failures(&self) -> &[Failure] {
        &self.failures
    }

    /// What it said besides, the last lines of it.
    pub(crate) fn words(&self) -> String {
        self.words.iter().rev().take(6).rev().cloned().collect::<Vec<_>>().join("\n")
    }

    /// Takes a line in; returns the task that has ended with it.
    pub(crate) fn take(&mut self, line: &str, now: Duration) -> Option<Task> {
        let line = line.trim_end();
        for head in ["TASK [", "RUNNING HANDLER [", "PLAY [", "PLAY RECAP"] {
            let Some(rest) = line.strip_prefix(head) else { continue };
            self.reads_result = false;
            let ended = self.end(now);
            if !head.starts_with("PLAY") {
                let name = rest.rsplit_once(']').map_or(rest, |(name, _)| name);
                self.task = Some((name.to_owned(), 0, now));
            }
            return ended;
        }
        if line.starts_with("changed: [") {
            self.reads_result = false;
            if let Some((_, changed, _)) = &mut self.task {
                *changed += 1;
            }
        } else if line.trim() == "...ignoring" {
            self.reads_result = false;
            self.failures.pop();
        } else if let Some(failure) = self.failure(line) {
            self.failures.push(failure);
        } else if self.reads_result && line.starts_with(' ') {
            self.read_result(line);
        } else if !["ok: [", "skipping: [", "included: ", "Executing: ["]
            .iter()
            .any(|head| line.starts_with(head))
        {
            self.reads_result = false;
            if !line.trim().is_empty() {
                self.words.push(line.to_owned());
            }
        }
        None
    }

    /// Ends the task that runs, if one does.
    pub(crate) fn end(&mut self, now: Duration) -> Option<Task> {
        let (name, changed, since) = self.task.take()?;
        Some(Task { name, changed, took: now.saturating_sub(since) })
    }

    /// Reads `fatal: [machine]: FAILED! => {…}`, also with ` -> other` behind the machine, and what loops print.
    fn failure(&mut self, line: &str) -> Option<Failure> {
        let rest = line.strip_prefix("fatal: [").or_else(|| line.strip_prefix("failed: ["))?;
        let (machine, rest) = rest.split_once(']')?;
        let machine = machine.split(" -> ").next().unwrap_or(machine).to_owned();
        let result = rest.split_once("=>").map_or("", |(_, result)| result).trim();
        // `(item=…)` of a loop is followed by one `fatal` line that only says that items failed.
        let is_sum = self.failures.last().is_some_and(|last| last.machine == machine)
            && result.contains("One or more items failed");
        if is_sum {
            return None;
        }
        self.reads_result = result.is_empty();
        Some(Failure {
            task: self.task().unwrap_or_default().to_owned(),
            machine,
            is_unreachable: rest.contains("UNREACHABLE!"),
            message: serde_json::from_str::<Value>(result)
                .map_or_else(|_| result.to_owned(), |value| said(&value)),
        })
    }

    /// A line of a result in YAML. Its keys are indented by four; what is further in belongs to the key above.
    fn read_result(&mut self, line: &str) {
        let Some(failure) = self.failures.last_mut() else { return };
        let mut text = line.trim();
        if !line.starts_with("     ") {
            let (key, value) = text.split_once(':').unwrap_or((text, ""));
            self.reads_reason = ["msg", "stderr", "module_stderr"].contains(&key);
            text = value.trim();
            self.quote = text.chars().next().filter(|first| ['\'', '"'].contains(first));
            text = text.strip_prefix(['\'', '"']).unwrap_or(text);
            if self.quote.is_none() && text.starts_with(['|', '>']) {
                return;
            }
        }
        let said = match self.quote {
            Some(quote) => {
                let (said, has_ended) = unquoted(text, quote);
                self.quote = self.quote.filter(|_| !has_ended);
                said
            }
            None => text.to_owned(),
        };
        if self.reads_reason && !said.is_empty() {
            failure.message = join(&failure.message, &said);
        }
    }
}

/// A line of a value in quotes, and whether the value ends with it.
fn unquoted(text: &str, quote: char) -> (String, bool) {
    let (escape, escaped) = if quote == '"' { ('\\', "\\\"") } else { ('\'', "''") };
    // The last quote may be part of what is said.
    let is_end = |inner: &&str| inner.chars().rev().take_while(|letter| *letter == escape).count() % 2 == 0;
    let inner = text.strip_suffix(quote).filter(is_end);
    (inner.unwrap_or(text).replace(escaped, &quote.to_string()), inner.is_some())
}

fn join(before: &str, text: &str) -> String {
    if before.is_empty() { text.to_owned() } else { format!("{before}\n{text}") }
}

/// What a result says of its failure: the message, and what the command printed as its error.
fn said(result: &Value) -> String {
    let text = |name: &str| result.get(name).and_then(Value::as_str).unwrap_or_default().trim().to_owned();
    let (message, stderr) = (text("msg"), text("stderr"));
    // Modules put all output into the message as well, or only "non-zero return code".
    if stderr.is_empty() || message.contains(&stderr) { message } else { join(&message, &stderr) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn a_task_ends_when_the_next_begins() {
        let mut play = Play::default();
        assert_eq!(play.take("PLAY [all] ******", seconds(0)), None);
        assert_eq!(play.take("TASK [base : Users are there] *****", seconds(1)), None);
        play.take("ok: [ronde-master]", seconds(2));
        play.take("changed: [ronde-worker-1]", seconds(2));
        assert_eq!(play.task(), Some("base : Users are there"));
        let ended = play.take("RUNNING HANDLER [base : restart] ***", seconds(4)).expect("a task");
        assert_eq!(
            (ended.name.as_str(), ended.changed, ended.took),
            ("base : Users are there", 1, seconds(3))
        );
        assert!(play.take("PLAY RECAP ****", seconds(5)).is_some_and(|task| task.changed == 0));
        assert_eq!(play.take("ronde-master : ok=5 changed=1", seconds(5)), None);
        assert!(play.failures().is_empty());
    }

    #[test]
    fn failures_name_the_task_the_machine_and_the_cause() {
        let mut play = Play::default();
        play.take("TASK [nfs : Mount] ***", seconds(0));
        let line = r#"fatal: [w1]: FAILED! => {"changed": false, "msg": "non-zero return code", "stderr": "access denied"}"#;
        play.take(line, seconds(1));
        play.take(r#"fatal: [w2]: UNREACHABLE! => {"changed": false, "msg": "Failed to connect", "unreachable": true}"#, seconds(1));
        play.take(r#"fatal: [w3 -> master(10.0.0.1)]: FAILED! => {"msg": "no"}"#, seconds(1));
        let failures = play.failures();
        assert_eq!(failures[0].task, "nfs : Mount");
        assert_eq!(failures[0].message, "non-zero return code\naccess denied");
        assert!(failures[1].is_unreachable && !failures[0].is_unreachable);
        assert_eq!(failures[2].machine, "w3");
    }

    #[test]
    fn results_in_yaml_are_read() {
        let mut play = Play::default();
        let text = "TASK [image : Build] ***\nfatal: [master]: FAILED! =>\n    ansible_facts:\n        python: 3\n    \
                    changed: false\n    module_stderr: |-\n        no space left\n    msg: 'Build ''x'' failed'\n    rc: 1\n\
                    PLAY RECAP ***";
        for line in text.lines() {
            play.take(line, seconds(1));
        }
        assert_eq!(play.failures()[0].message, "no space left\nBuild 'x' failed");
    }

    #[test]
    fn quotes_of_a_value_of_several_lines_are_none_of_its_own() {
        let read = |value: &str| {
            let mut play = Play::default();
            let text =
                format!("TASK [a] ***\nfatal: [m]: FAILED! =>\n    msg: {value}\n    rc: 1\nPLAY RECAP ***");
            for line in text.lines() {
                play.take(line, seconds(1));
            }
            play.failures()[0].message.clone()
        };
        let pulled = "'Error pulling ''x'' -\n        (\"not found\")'";
        assert_eq!(read(pulled), "Error pulling 'x' -\n(\"not found\")");
        assert_eq!(read(r#""one \"two\"""#), r#"one "two""#);
        assert_eq!(read("'it''s ''x'''"), "it's 'x'");
        assert_eq!(read("plain 'x'"), "plain 'x'");
    }

    #[test]
    fn what_is_ignored_is_no_failure_and_items_count_once() {
        let mut play = Play::default();
        play.take("TASK [a] ***", seconds(0));
        play.take(r#"fatal: [m]: FAILED! => {"msg": "x"}"#, seconds(0));
        play.take("...ignoring", seconds(0));
        assert!(play.failures().is_empty());
        play.take(r#"failed: [m] (item=b) => {"msg": "no such file"}"#, seconds(0));
        play.take(r#"fatal: [m]: FAILED! => {"msg": "One or more items failed"}"#, seconds(0));
        assert_eq!(play.failures().len(), 1);
        assert_eq!(play.failures()[0].message, "no such file");
    }

    #[test]
    fn words_of_an_ansible_that_does_not_start_are_kept() {
        let mut play = Play::default();
        play.take("ERROR! the playbook: site.yml could not be found", seconds(0));
        assert!(play.words().contains("could not be found"));
    }
}
