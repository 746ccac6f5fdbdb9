//! Whether the kernel ran out of memory: its counters of killed processes, before and after.
//!
//! A process that the kernel kills for memory ends by SIGKILL like any other killed one; only
//! these counters tell the difference. They may count somebody else's death, so they are compared
//! over the life of the job and spoken of only for a rank that SIGKILL ended.

use std::fs;

/// How many processes the kernel has killed for memory, on this machine and in our cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfMemoryKills(u64);

impl OutOfMemoryKills {
    /// As of now. What cannot be read counts as none.
    pub(crate) fn now() -> OutOfMemoryKills {
        let read = |path: String| fs::read_to_string(path).unwrap_or_default();
        let groups = read("/proc/self/cgroup".to_owned());
        let files = cgroup_files(&groups).into_iter().chain(["/proc/vmstat".to_owned()]);
        OutOfMemoryKills(files.map(|file| count(&read(file))).sum())
    }

    pub(crate) fn rose_since(self, before: OutOfMemoryKills) -> bool {
        self.0 > before.0
    }
}

/// Where our cgroup counts, for either version of cgroups.
fn cgroup_files(groups: &str) -> Vec<String> {
    groups
        .lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let path = path.trim_end_matches('/');
            if controllers.is_empty() {
                Some(format!("/sys/fs/cgroup{path}/memory.events"))
            } else if controllers.split(',').any(|controller| controller == "memory") {
                Some(format!("/sys/fs/cgroup/memory{path}/memory.oom_control"))
            } else {
                None
            }
        })
        .collect()
}

/// The value of `oom_kill` in a file of names and numbers.
fn count(text: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{cgroup_files, count};

    #[test]
    fn counters_are_found_in_both_versions_of_cgroups() {
        let hybrid = "9:memory:/job/a\n3:cpu,cpuacct:/\n0::/user/b\n";
        assert_eq!(
            cgroup_files(hybrid),
            ["/sys/fs/cgroup/memory/job/a/memory.oom_control", "/sys/fs/cgroup/user/b/memory.events",]
        );
        assert_eq!(cgroup_files("0::/\n"), ["/sys/fs/cgroup/memory.events"]);
        assert_eq!(cgroup_files("nonsense\n"), [""; 0]);
    }

    #[test]
    fn counts_are_read_by_their_whole_name() {
        assert_eq!(count("low 0\noom 4\noom_kill 3\noom_group_kill 9\n"), 3);
        assert_eq!(count("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"), 2);
        assert_eq!(count(""), 0);
        assert_eq!(count("oom_kill many\n"), 0);
    }
}
