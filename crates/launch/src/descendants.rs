//! Finding and ending every process below this one.
//!
//! Process groups and sessions are not enough: a program that forks twice and calls `setsid`
//! leaves both. It cannot leave the tree, though, because this process is a child subreaper: the
//! kernel makes it the parent of every orphan below. So the tree is read from `/proc`, stopped, so
//! that nobody forks on while we look, and killed, again and again until nothing is left.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, set_child_subreaper, wait,
};

use crate::Error;

/// How long to try before giving up on processes that cannot be killed (stuck in the kernel, or
/// run as another user).
const PERSISTENCE: Duration = Duration::from_secs(10);

/// Makes this process the parent of all orphans below it.
pub fn adopt_orphans() -> Result<(), Error> {
    set_child_subreaper(Some(getpid())).map_err(Error::system("become a child subreaper"))
}

/// Kills every process below this one, except `spared` ones and their descendants, and returns
/// those that could not be killed. Whatever ends meanwhile is passed to `reaped`.
pub fn kill_all(spared: &HashSet<Pid>, mut reaped: impl FnMut(Pid, WaitStatus)) -> Vec<Pid> {
    let deadline = Instant::now() + PERSISTENCE;
    let mut stopped = HashSet::new();
    loop {
        let living = living(spared);
        if living.is_empty() || Instant::now() >= deadline {
            reap(&mut reaped);
            return living;
        }
        let mut fresh = false;
        for pid in &living {
            if stopped.insert(*pid) {
                fresh = true;
                let _ = kill_process(*pid, Signal::STOP);
            }
        }
        // Whoever forked before it was stopped has children that are not; look again first.
        if fresh {
            continue;
        }
        for pid in &living {
            let _ = kill_process(*pid, Signal::KILL);
        }
        reap(&mut reaped);
        // The dead leave /proc a moment after the signal.
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Takes in every child that has ended.
pub(crate) fn reap(reaped: &mut impl FnMut(Pid, WaitStatus)) {
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        reaped(pid, status);
    }
}

/// Direct children of this process, as of now.
pub(crate) fn children() -> HashSet<Pid> {
    let own = getpid();
    processes().into_iter().filter(|process| process.parent == own).map(|p| p.pid).collect()
}

/// Every process below this one that has not ended yet.
fn living(spared: &HashSet<Pid>) -> Vec<Pid> {
    let mut below: HashMap<Pid, Vec<Process>> = HashMap::new();
    for process in processes() {
        below.entry(process.parent).or_default().push(process);
    }
    let mut found = Vec::new();
    let mut parents = vec![getpid()];
    while let Some(parent) = parents.pop() {
        for child in below.remove(&parent).unwrap_or_default() {
            if spared.contains(&child.pid) {
                continue;
            }
            parents.push(child.pid);
            if !child.ended {
                found.push(child.pid);
            }
        }
    }
    found
}

#[derive(Debug, PartialEq, Eq)]
struct Process {
    pid: Pid,
    parent: Pid,
    ended: bool,
}

fn processes() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let pid = Pid::from_raw(name.to_str()?.parse().ok()?)?;
            // Read as bytes: a program may call itself anything.
            parse_stat(pid, &fs::read(entry.path().join("stat")).ok()?)
        })
        .collect()
}

/// Reads `PID (name) STATE PARENT …`, where the name may itself hold spaces and brackets.
fn parse_stat(pid: Pid, stat: &[u8]) -> Option<Process> {
    let after_name = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let rest = std::str::from_utf8(&stat[after_name..]).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = Pid::from_raw(fields.next()?.parse().ok()?)?;
    Some(Process { pid, parent, ended: matches!(state, "Z" | "X") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pid(number: i32) -> Pid {
        Pid::from_raw(number).expect("positive")
    }

    #[test]
    fn a_stat_line_is_read_whatever_the_program_calls_itself() {
        let of = |line: &[u8]| parse_stat(pid(7), line);
        let process = |parent, ended| Some(Process { pid: pid(7), parent: pid(parent), ended });
        assert_eq!(of(b"7 (python3) S 3 7 7 0 -1"), process(3, false));
        assert_eq!(of(b"7 (a) R 1 (b) c) Z 4 7"), process(4, true));
        assert_eq!(of(b"7 (\xff\xfe) R 5 7"), process(5, false));
        assert_eq!(of(b"7 (kthreadd) S 0 0"), None);
        assert_eq!(of(b"garbage"), None);
    }

    #[test]
    fn a_child_is_found_among_the_children() {
        let mut command = std::process::Command::new("sleep"); // sleep: is there until it is killed
        let mut child = command.arg("1000").spawn().expect("sleep is there");
        let found = children();
        child.kill().expect("kill");
        child.wait().expect("wait");
        assert!(found.contains(&pid(child.id().try_into().expect("small"))));
        assert!(!children().contains(&pid(child.id().try_into().expect("small"))));
    }
}
