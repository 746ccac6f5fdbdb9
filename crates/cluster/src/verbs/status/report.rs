//! What was found, as a table or as JSON, and the problems with their fixes. Values in, text out.

use serde_json::{Value, json};

use crate::cause::machine::{self, Place};
use crate::inventory::SHARE;

/// What was found on a machine.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub(crate) name: String,
    pub(crate) address: String,
    /// The machine is this one, so ssh is not asked.
    pub(crate) is_here: bool,
    /// The container's state, if the machine could be asked.
    pub(crate) container: Option<String>,
    pub(crate) container_name: String,
    /// It reads what the master has written into the shared folder.
    pub(crate) shares: bool,
    /// What ssh said, if the machine could not be asked.
    pub(crate) problem: Option<String>,
}

impl Finding {
    fn is_running(&self) -> bool {
        self.container.as_deref() == Some("running")
    }
}

/// JupyterLab.
#[derive(Clone, Debug)]
pub(crate) struct Jupyter {
    pub(crate) address: String,
    /// It answers on the master.
    pub(crate) answers: bool,
    /// Its port can be reached from here.
    pub(crate) is_reached: bool,
}

/// The job of two ranks.
#[derive(Clone, Debug)]
pub(crate) struct Smoke {
    pub(crate) hosts: String,
    pub(crate) problem: Option<String>,
}

/// All that was found.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) name: String,
    pub(crate) place: Place,
    pub(crate) ssh_port: u16,
    /// What commands for this cluster need behind them.
    pub(crate) option: String,
    pub(crate) findings: Vec<Finding>,
    /// What the master said, if nothing could be written into the shared folder.
    pub(crate) unwritten: Option<String>,
    pub(crate) jupyter: Jupyter,
    pub(crate) smoke: Option<Smoke>,
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) what: String,
    pub(crate) fix: String,
}

impl Report {
    /// What is wrong. What only follows from something else is left out.
    pub(crate) fn problems(&self) -> Vec<Problem> {
        let up = format!("ronde cluster up{}", self.option);
        let mut problems = Vec::new();
        let master = self.findings.first();
        let has_master = master.is_some_and(Finding::is_running);
        let unwritten = self.unwritten.as_ref().filter(|_| has_master);
        if let Some(said) = unwritten {
            let what = format!("nothing can be written into {SHARE} on the master: {said}");
            let fix = machine::of_text(said, &what).fix.unwrap_or_else(|| up.clone());
            problems.push(Problem { what, fix });
        }
        for finding in &self.findings {
            let name = &finding.name;
            if let Some(said) = &finding.problem {
                let what = format!("{name} cannot be reached: {said}");
                problems.push(Problem { what, fix: self.way_to(name, said, &up) });
            } else if !finding.is_running() {
                let state = finding.container.as_deref().unwrap_or("absent");
                let what = format!("{name}: the container {} is {state}", finding.container_name);
                problems.push(Problem { what, fix: up.clone() });
            } else if !finding.shares && unwritten.is_none() {
                let what = format!("{name} does not see what the master writes into {SHARE}");
                problems.push(Problem { what, fix: up.clone() });
            }
        }
        if has_master && !self.jupyter.answers {
            let fix = match master {
                Some(Finding { is_here: true, container_name, .. }) => {
                    format!("docker logs {container_name}")
                }
                _ => format!("ronde cluster ssh{} -- sudo docker logs horovod_master", self.option),
            };
            problems.push(Problem { what: "JupyterLab does not answer on the master".to_owned(), fix });
        } else if has_master && !self.jupyter.is_reached {
            let what = format!(
                "JupyterLab answers on the master, but {} cannot be reached from here",
                self.jupyter.address
            );
            let open = match self.place {
                Place::Cloud => "admin_cidr in resources.auto.tfvars must hold this machine's address",
                Place::Given => "open its port on the master for this machine",
            };
            let fix = format!("{open}; or go through ssh: ronde cluster jupyter --tunnel{}", self.option);
            problems.push(Problem { what, fix });
        }
        // Where a machine is down, a job between machines cannot work.
        if problems.is_empty()
            && let Some(Smoke { hosts, problem: Some(said) }) = &self.smoke
        {
            let what = format!("a job of two ranks on {hosts} fails: {said}");
            let fix = format!("in JupyterLab's terminal: ronde doctor -p {} -H {hosts}", self.ssh_port);
            problems.push(Problem { what, fix });
        }
        problems
    }

    /// What to do about a machine that ssh did not get to. Where the master was reached, the way that far is open.
    fn way_to(&self, name: &str, said: &str, up: &str) -> String {
        let master = self.findings.first();
        let is_beyond_master = master.is_some_and(|master| master.problem.is_none() && master.name != name);
        let found = match is_beyond_master {
            true => machine::refusal(said),
            false => machine::of_ssh(said, self.place).fix,
        };
        found.unwrap_or_else(|| match self.place {
            Place::Cloud => format!(
                "openstack server show {name} tells whether it runs, and openstack server start {name} starts it; then {up}"
            ),
            Place::Given => format!("look whether {name} is on, and whether the network gets to it; then {up}"),
        })
    }

    /// As a table for people.
    pub(crate) fn text(&self) -> String {
        let width = self.findings.iter().map(|finding| finding.name.len()).max().unwrap_or(0);
        let mark = |is_good: bool| if is_good { "✓" } else { "✗" };
        let mut text = format!("{:width$}  {:<15}  ssh  {:<10}  share\n", self.name, "address", "container");
        for finding in &self.findings {
            let ssh = if finding.is_here { "–" } else { mark(finding.problem.is_none()) };
            let container = finding.container.as_deref().unwrap_or("–");
            let share = if finding.is_running() { mark(finding.shares) } else { "–" };
            text.push_str(&format!(
                "{:width$}  {:<15}  {ssh:<3}  {container:<10}  {share}\n",
                finding.name, finding.address
            ));
        }
        let jupyter = &self.jupyter;
        text.push_str(&format!(
            "JupyterLab  {}  {}\n",
            mark(jupyter.answers && jupyter.is_reached),
            jupyter.address
        ));
        let smoke = match &self.smoke {
            Some(smoke) => format!("{}  two ranks on {}", mark(smoke.problem.is_none()), smoke.hosts),
            None => "–  not tried".to_owned(),
        };
        text.push_str(&format!("job         {smoke}\n"));
        let problems = self.problems();
        match problems.len() {
            0 => {}
            1 => text.push_str("1 problem\n"),
            number => text.push_str(&format!("{number} problems\n")),
        }
        for problem in problems {
            text.push_str(&format!(
                "  {}\n      fix:  {}\n",
                problem.what.replace('\n', "\n    "),
                problem.fix
            ));
        }
        text
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        let machine = |finding: &Finding| {
            json!({
                "name": finding.name,
                "address": finding.address,
                "reached": finding.problem.is_none(),
                "container": finding.container,
                "share": finding.shares,
            })
        };
        let smoke = |smoke: &Smoke| json!({ "hosts": smoke.hosts, "passed": smoke.problem.is_none() });
        let problem = |problem: Problem| json!({ "what": problem.what, "fix": problem.fix });
        json!({
            "cluster": self.name,
            "machines": self.findings.iter().map(machine).collect::<Vec<_>>(),
            "jupyter": {
                "address": self.jupyter.address,
                "answers": self.jupyter.answers,
                "reached": self.jupyter.is_reached,
            },
            "job": self.smoke.as_ref().map(smoke),
            "problems": self.problems().into_iter().map(problem).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(name: &str) -> Finding {
        Finding {
            name: name.to_owned(),
            address: "10.0.0.10".to_owned(),
            is_here: false,
            container: Some("running".to_owned()),
            container_name: "horovod_worker".to_owned(),
            shares: true,
            problem: None,
        }
    }

    fn report(findings: Vec<Finding>) -> Report {
        Report {
            name: "ronde".to_owned(),
            place: Place::Cloud,
            ssh_port: 12345,
            option: String::new(),
            findings,
            unwritten: None,
            jupyter: Jupyter {
                address: "https://203.0.113.7:8888/lab".to_owned(),
                answers: true,
                is_reached: true,
            },
            smoke: Some(Smoke { hosts: "ronde-master:1,ronde-worker-1:1".to_owned(), problem: None }),
        }
    }

    #[test]
    fn all_is_well() {
        let report = report(vec![finding("ronde-master"), finding("ronde-worker-1")]);
        assert_eq!(report.problems(), []);
        let text = report.text();
        assert_eq!(
            text.lines().nth(2),
            Some("ronde-worker-1  10.0.0.10        ✓    running     ✓"),
            "{text}"
        );
        assert!(text.ends_with("job         ✓  two ranks on ronde-master:1,ronde-worker-1:1\n"), "{text}");
        assert_eq!(report.json()["machines"][1]["share"], true);
    }

    #[test]
    fn each_machine_is_told_about_once_with_its_fix() {
        let gone = Finding {
            container: None,
            shares: false,
            problem: Some("channel 0: open failed: connect failed: No route to host".to_owned()),
            ..finding("w1")
        };
        let dead = Finding { container: Some("exited".to_owned()), shares: false, ..finding("w2") };
        let alone = Finding { shares: false, ..finding("w3") };
        let mut report = report(vec![finding("m"), gone, dead, alone]);
        report.smoke = Some(Smoke { hosts: "m:1,w1:1".to_owned(), problem: Some("no".to_owned()) });
        let problems = report.problems();
        assert_eq!(problems.len(), 3, "the job's failure follows from these: {problems:?}");
        assert!(problems[0].what.contains("w1 cannot be reached"), "{problems:?}");
        assert_eq!(
            problems[0].fix,
            "openstack server show w1 tells whether it runs, and openstack server start w1 starts it; then ronde cluster up"
        );
        assert!(
            problems[1].what.contains("horovod_worker is exited") && problems[1].fix == "ronde cluster up"
        );
        assert!(problems[2].what.contains("w3 does not see"));
        assert!(report.text().contains("3 problems\n"));
    }

    #[test]
    fn a_share_that_is_full_is_one_problem_and_not_one_of_each_machine() {
        let alone = |name: &str| Finding { shares: false, ..finding(name) };
        let mut report = report(vec![alone("m"), alone("w1")]);
        report.unwritten = Some("sh: 1: echo: echo: I/O error: No space left on device".to_owned());
        report.smoke = None;
        let problems = report.problems();
        let [problem] = problems.as_slice() else { panic!("{problems:?}") };
        assert!(
            problem.what.starts_with("nothing can be written into /mnt/share on the master: sh"),
            "{problem:?}"
        );
        assert!(problem.fix.contains("df -h"), "{problem:?}");
        // That it cannot be written where nothing runs says nothing more.
        report.findings[0].container = Some("exited".to_owned());
        assert!(report.problems().iter().all(|problem| !problem.what.contains("written")));
    }

    #[test]
    fn the_way_to_a_machine_depends_on_who_was_reached_and_whose_it_is() {
        let silent = |name: &str, said: &str| Finding {
            container: None,
            shares: false,
            problem: Some(said.to_owned()),
            ..finding(name)
        };
        let timed_out = "ssh: connect to host 10.0.0.10 port 22: Connection timed out";
        let mut report =
            report(vec![silent("m", timed_out), silent("w1", "Connection closed by UNKNOWN port 65535")]);
        let fixes =
            |report: &Report| report.problems().into_iter().map(|found| found.fix).collect::<Vec<_>>();
        assert!(fixes(&report).iter().all(|fix| fix.contains("admin_cidr")), "{:?}", fixes(&report));
        report.place = Place::Given;
        let of_inventory = fixes(&report);
        assert!(of_inventory.iter().all(|fix| fix.contains("ansible_host")), "{of_inventory:?}");
        report.findings[0] = finding("m");
        assert!(fixes(&report)[0].starts_with("look whether w1 is on"), "{:?}", fixes(&report));
        report.findings[1].problem = Some("anna@w1: Permission denied (publickey).".to_owned());
        assert!(fixes(&report)[0].contains("ssh-add"), "{:?}", fixes(&report));
        report.findings.pop();
        report.jupyter.is_reached = false;
        assert!(fixes(&report)[0].starts_with("open its port on the master"), "{:?}", fixes(&report));
    }

    #[test]
    fn a_job_that_fails_is_a_problem_if_nothing_else_is() {
        let mut report = report(vec![finding("m"), finding("w1")]);
        report.smoke = Some(Smoke { hosts: "m:1,w1:1".to_owned(), problem: Some("key refused".to_owned()) });
        let problems = report.problems();
        assert!(
            problems[0].what.contains("key refused") && problems[0].fix.contains("ronde doctor"),
            "{problems:?}"
        );
        report.jupyter.is_reached = false;
        assert!(report.problems()[0].fix.contains("--tunnel"));
    }
}
