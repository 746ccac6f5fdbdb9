//! Hosts and slots that a batch system has given to this job: LSF and Slurm.
//!
//! They count only where the user names no hosts. Variables and the one file come in through
//! functions, so that tests need no batch system.

use std::path::Path;

use ronde_launch::Host;
use ronde_rendezvous::tasks_per_node;

use crate::problem::Problem;

const LSF: &str = "LSF";
const SLURM: &str = "Slurm";

/// More hosts than any cluster has: a list that names more is a mistake.
const MOST_HOSTS: usize = 100_000;

/// What a batch system has given.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    system: &'static str,
    job: String,
    pub(crate) hosts: Vec<Host>,
}

impl Allocation {
    /// The line that says whose hosts these are.
    pub(crate) fn note(&self) -> String {
        let hosts: Vec<String> =
            self.hosts.iter().map(|host| format!("{}:{}", host.name, host.slots)).collect();
        format!("hosts and slots are those of {} job {}: {}", self.system, self.job, hosts.join(","))
    }
}

/// The hosts of the LSF job this runs in, if it runs in one that says where.
pub(crate) fn lsf(
    var: impl Fn(&str) -> Option<String>,
    read: impl Fn(&Path) -> std::io::Result<String>,
) -> Result<Option<Allocation>, Problem> {
    let var = |name: &str| var(name).filter(|text| !text.trim().is_empty());
    let Some(job) = var("LSB_JOBID") else { return Ok(None) };
    let broken = |problem| Problem::Allocation { system: LSF, problem };
    let hosts = if let Some(text) = var("LSB_MCPU_HOSTS") {
        pairs(&text).map_err(broken)?
    } else if let Some(text) = var("LSB_HOSTS") {
        counted(&text)
    } else if let Some(file) = var("LSB_DJOB_HOSTFILE") {
        let text = read(Path::new(&file)).map_err(|error| broken(format!("cannot read {file}: {error}")))?;
        counted(&text)
    } else {
        Vec::new()
    };
    Ok((!hosts.is_empty()).then_some(Allocation { system: LSF, job, hosts }))
}

/// `gpu1 4 gpu2 2`: names and numbers in turn.
fn pairs(text: &str) -> Result<Vec<Host>, String> {
    let bad = || format!("LSB_MCPU_HOSTS={text} is not a list of hosts and numbers");
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut hosts: Vec<Host> = Vec::new();
    for pair in words.chunks(2) {
        let [name, count] = pair else { return Err(bad()) };
        let slots = count.parse().map_err(|_| bad())?;
        add(&mut hosts, name, slots);
    }
    Ok(hosts)
}

/// `gpu1 gpu1 gpu2`: a name for each slot.
fn counted(text: &str) -> Vec<Host> {
    let mut hosts = Vec::new();
    for name in text.split_whitespace() {
        add(&mut hosts, name, 1);
    }
    hosts
}

fn add(hosts: &mut Vec<Host>, name: &str, slots: usize) {
    match hosts.iter_mut().find(|host| host.name == name) {
        Some(host) => host.slots = host.slots.saturating_add(slots),
        None if slots > 0 => hosts.push(Host { name: name.to_owned(), slots }),
        None => {}
    }
}

/// The hosts of the Slurm allocation this runs in, if it runs in one.
pub(crate) fn slurm(var: impl Fn(&str) -> Option<String>) -> Result<Option<Allocation>, Problem> {
    let var = |name: &str| var(name).filter(|text| !text.trim().is_empty());
    let Some(list) = var("SLURM_JOB_NODELIST") else { return Ok(None) };
    let broken = |problem| Problem::Allocation { system: SLURM, problem };
    let names =
        node_names(&list).map_err(|problem| broken(format!("SLURM_JOB_NODELIST={list}: {problem}")))?;
    let slots = match var("SLURM_TASKS_PER_NODE") {
        Some(text) => {
            let bad = |problem| broken(format!("SLURM_TASKS_PER_NODE={text}: {problem}"));
            let slots = tasks_per_node(&text).filter(|slots| !slots.contains(&0));
            let slots = slots.ok_or_else(|| bad("it is not understood".to_owned()))?;
            if slots.len() != names.len() {
                return Err(bad(format!("it is for {} nodes, and there are {}", slots.len(), names.len())));
            }
            slots
        }
        None => vec![1; names.len()],
    };
    let hosts = names.into_iter().zip(slots).map(|(name, slots)| Host { name, slots }).collect();
    Ok(Some(Allocation { system: SLURM, job: var("SLURM_JOB_ID").unwrap_or_else(|| "?".to_owned()), hosts }))
}

/// `gpu[01-03,7],login` is gpu01, gpu02, gpu03, gpu7, login.
fn node_names(list: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for part in split_outside_brackets(list.trim())? {
        names.extend(expand(part)?);
        if names.len() > MOST_HOSTS {
            return Err("it names too many nodes".to_owned());
        }
    }
    Ok(names)
}

/// Splits at commas that are in no bracket.
fn split_outside_brackets(list: &str) -> Result<Vec<&str>, String> {
    let (mut parts, mut start, mut inside) = (Vec::new(), 0, false);
    for (at, letter) in list.char_indices() {
        match letter {
            '[' if !inside => inside = true,
            ']' if inside => inside = false,
            '[' | ']' => return Err("its brackets do not match".to_owned()),
            ',' if !inside => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err("a bracket is not closed".to_owned());
    }
    parts.push(&list[start..]);
    if parts.contains(&"") {
        return Err("a name is empty".to_owned());
    }
    Ok(parts)
}

/// The names of one part; the first bracket is expanded here, those after it by calling this again.
fn expand(part: &str) -> Result<Vec<String>, String> {
    let Some((before, rest)) = part.split_once('[') else { return Ok(vec![part.to_owned()]) };
    let (ranges, after) = rest.split_once(']').ok_or("a bracket is not closed")?;
    let endings = expand(after)?;
    let mut names = Vec::new();
    for range in ranges.split(',') {
        let bad = || format!("{range:?} is not a range of numbers");
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) =
            (low.parse().map_err(|_| bad())?, high.parse().map_err(|_| bad())?);
        let width = low.len();
        if last < first || (last - first + 1).saturating_mul(endings.len()) > MOST_HOSTS {
            return Err(bad());
        }
        for number in first..=last {
            names.extend(endings.iter().map(|ending| format!("{before}{number:0width$}{ending}")));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from<'a>(variables: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        move |name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    }

    fn no_file(_: &Path) -> std::io::Result<String> {
        Err(std::io::ErrorKind::NotFound.into())
    }

    fn note(found: Result<Option<Allocation>, Problem>) -> Result<Option<String>, String> {
        found.map(|found| found.map(|it| it.note())).map_err(|problem| problem.to_string())
    }

    #[test]
    fn lsf_says_it_in_three_ways() {
        let expected = Ok(Some("hosts and slots are those of LSF job 7: gpu1:4,gpu2:2".to_owned()));
        let job = ("LSB_JOBID", "7");
        let variables = [job, ("LSB_MCPU_HOSTS", "gpu1 4 gpu2 2 "), ("LSB_HOSTS", "wrong")];
        assert_eq!(note(lsf(from(&variables), no_file)), expected);
        let variables = [job, ("LSB_HOSTS", "gpu1 gpu1 gpu1 gpu1 gpu2 gpu2")];
        assert_eq!(note(lsf(from(&variables), no_file)), expected);
        let variables = [job, ("LSB_DJOB_HOSTFILE", "/lsf/hosts")];
        let file = |path: &Path| {
            assert_eq!(path, Path::new("/lsf/hosts"));
            Ok("gpu1\ngpu1\ngpu2\ngpu1\ngpu1\ngpu2\n".to_owned())
        };
        assert_eq!(note(lsf(from(&variables), file)), expected);
    }

    #[test]
    fn outside_lsf_or_without_a_list_there_is_nothing() {
        assert_eq!(note(lsf(from(&[("LSB_HOSTS", "gpu1")]), no_file)), Ok(None));
        assert_eq!(note(lsf(from(&[("LSB_JOBID", "7")]), no_file)), Ok(None));
        assert_eq!(note(lsf(from(&[("LSB_JOBID", "7"), ("LSB_HOSTS", " ")]), no_file)), Ok(None));
    }

    #[test]
    fn what_lsf_says_wrongly_is_shown() {
        for (variable, value, problem) in [
            ("LSB_MCPU_HOSTS", "gpu1", "not a list of hosts and numbers"),
            ("LSB_MCPU_HOSTS", "gpu1 many", "not a list of hosts and numbers"),
            ("LSB_DJOB_HOSTFILE", "/no/file", "cannot read /no/file"),
        ] {
            let variables = [("LSB_JOBID", "7"), (variable, value)];
            let error = note(lsf(from(&variables), no_file)).expect_err(value);
            assert!(error.contains("this LSF job") && error.contains(problem), "{error}");
        }
    }

    #[test]
    fn slurm_lists_are_unfolded() {
        let variables = [
            ("SLURM_JOB_ID", "9"),
            ("SLURM_JOB_NODELIST", "gpu[09-11,7],login"),
            ("SLURM_TASKS_PER_NODE", "4(x3),2,1"),
        ];
        let expected = "hosts and slots are those of Slurm job 9: gpu09:4,gpu10:4,gpu11:4,gpu7:2,login:1";
        assert_eq!(note(slurm(from(&variables))), Ok(Some(expected.to_owned())));
        for (list, names) in [
            ("a", "a"),
            ("a,b", "a b"),
            ("r[1-2]n[3,5]x", "r1n3x r1n5x r2n3x r2n5x"),
            ("n[001-002]", "n001 n002"),
            ("n[99-101]", "n99 n100 n101"),
        ] {
            assert_eq!(node_names(list).map(|names| names.join(" ")), Ok(names.to_owned()), "{list}");
        }
        assert_eq!(note(slurm(from(&[("SLURM_JOB_ID", "9")]))), Ok(None));
    }

    #[test]
    fn what_slurm_says_wrongly_is_shown() {
        for list in
            ["a[1-2", "a]1[", "a[[1]]", "a,,b", "a[x]", "a[3-1]", "a[1-999999999]", "a[0-999]b[0-999]"]
        {
            assert!(node_names(list).is_err(), "{list}");
        }
        for (tasks, problem) in [
            ("2", "it is for 1 nodes, and there are 2"),
            ("2(x", "not understood"),
            ("0(x2)", "not understood"),
        ] {
            let variables = [("SLURM_JOB_NODELIST", "a,b"), ("SLURM_TASKS_PER_NODE", tasks)];
            let error = note(slurm(from(&variables))).expect_err(tasks);
            assert!(error.contains("this Slurm job") && error.contains(problem), "{error}");
        }
    }
}
