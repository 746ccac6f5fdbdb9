//! What the launcher says about the job: the line at its start and the words at its end.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use rustix::process::Pid;

use crate::course::Failure;
use crate::ending::Ending;
use crate::plan::rank_folder;

/// `ronde 0.1.0 · 2 ranks on 1 host · job 7f3c`.
pub(crate) fn header(ranks: usize, hosts: usize, job: &str, unicode: bool) -> String {
    let dot = if unicode { "·" } else { "-" };
    let version = env!("CARGO_PKG_VERSION");
    let (ranks, hosts) = (counted(ranks, "rank"), counted(hosts, "host"));
    format!("ronde {version} {dot} {ranks} on {hosts} {dot} job {job}")
}

/// Whether the locale is one that can show `·`, by the variables that decide it.
pub(crate) fn is_unicode(var: impl Fn(&str) -> Option<String>) -> bool {
    let deciding = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(var);
    let locale = deciding.into_iter().find(|value| !value.is_empty()).unwrap_or_default();
    let locale = locale.to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// Everything the final words about a failed job are made of.
pub(crate) struct Failed<'a> {
    pub(crate) failure: &'a Failure,
    /// Where that rank ran.
    pub(crate) host: &'a str,
    pub(crate) hosts: &'a [&'a str],
    pub(crate) ranks: usize,
    /// What the rendezvous knows, where the process gives no reason.
    pub(crate) lost_because: Option<&'a str>,
    pub(crate) out_of_memory: bool,
    pub(crate) last_lines: &'a [String],
    /// From the failure until the last process was gone.
    pub(crate) stopped_after: Duration,
    /// Processes that could not be killed.
    pub(crate) left: &'a [Pid],
    pub(crate) output_folder: Option<&'a Path>,
}

impl Failed<'_> {
    pub(crate) fn text(&self) -> String {
        let rank = self.failure.rank;
        let mut text = format!("error: rank {rank} on {} failed first: {}\n", self.host, self.why());
        if !self.last_lines.is_empty() {
            let _ = writeln!(text, "  last output of rank {rank}:");
            for line in self.last_lines {
                let _ = writeln!(text, "    {line}");
            }
        }
        let _ = writeln!(text, "  {}", self.aftermath());
        let _ = writeln!(text, "hint: {}", self.hint());
        text
    }

    fn why(&self) -> String {
        match self.failure.ending {
            Some(Ending::Killed(9)) if self.out_of_memory => {
                format!("killed by signal 9 (out of memory on {})", self.host)
            }
            Some(ending) => ending.to_string(),
            None => {
                let reason = self.lost_because.unwrap_or("its connection closed without a goodbye");
                format!("it was lost to the job while its process went on: {reason}")
            }
        }
    }

    fn aftermath(&self) -> String {
        let others = match (self.failure.others, self.ranks) {
            (_, 1) => String::new(),
            (0, _) => "no other rank was running any more; ".to_owned(),
            (1, 2) => format!("the other rank was stopped ({}); ", self.later()),
            (1, _) => format!("1 other rank was stopped ({}); ", self.later()),
            (others, _) => format!("the other {others} ranks were stopped ({}); ", self.later()),
        };
        if self.left.is_empty() {
            return format!("{others}nothing is left running on {}", self.hosts.join(", "));
        }
        let pids: Vec<String> = self.left.iter().map(|pid| pid.as_raw_nonzero().to_string()).collect();
        format!("{others}could not be killed and still run: process {}", pids.join(", "))
    }

    fn later(&self) -> String {
        format!("{:.1} s later", self.stopped_after.as_secs_f64())
    }

    fn hint(&self) -> String {
        let rank = self.failure.rank;
        let output = match self.output_folder {
            Some(folder) => {
                let folder = rank_folder(folder, rank, self.ranks);
                format!("all output of rank {rank} is in {}", folder.display())
            }
            None => format!("see all output of rank {rank} with --output-filename logs"),
        };
        match self.failure.ending {
            Some(Ending::Killed(9)) if self.out_of_memory => {
                format!("lower the batch size or use fewer ranks; {output}")
            }
            Some(Ending::Killed(4 | 7 | 8 | 11)) => {
                format!("python -X faulthandler shows where a Python program crashed; {output}")
            }
            _ => output,
        }
    }
}

/// `1 rank`, `2 ranks`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(failure: &Failure) -> Failed<'_> {
        Failed {
            failure,
            host: "gpu1",
            hosts: &["gpu1", "gpu2"],
            ranks: 6,
            lost_because: None,
            out_of_memory: false,
            last_lines: &[],
            stopped_after: Duration::from_millis(420),
            left: &[],
            output_folder: None,
        }
    }

    fn failure(ending: Option<Ending>, others: usize) -> Failure {
        Failure { rank: 3, ending, status: 1, at: Duration::ZERO, others }
    }

    #[test]
    fn the_end_of_a_failed_job_names_rank_host_cause_and_last_lines() {
        let failure = failure(Some(Ending::Killed(9)), 5);
        let lines = ["[3] epoch 4  loss 0.118".to_owned()];
        let text = Failed { out_of_memory: true, last_lines: &lines, ..failed(&failure) }.text();
        assert_eq!(
            text,
            "error: rank 3 on gpu1 failed first: killed by signal 9 (out of memory on gpu1)\n  \
             last output of rank 3:\n    [3] epoch 4  loss 0.118\n  \
             the other 5 ranks were stopped (0.4 s later); nothing is left running on gpu1, gpu2\n\
             hint: lower the batch size or use fewer ranks; see all output of rank 3 with \
             --output-filename logs\n"
        );
    }

    #[test]
    fn the_words_fit_what_happened() {
        for (ending, others, ranks, expected) in [
            (Some(Ending::Exited(2)), 0, 1, "first: exit status 2\n  nothing is left"),
            (Some(Ending::Exited(2)), 0, 6, "no other rank was running"),
            (Some(Ending::Exited(2)), 1, 2, "the other rank was stopped"),
            (Some(Ending::Killed(11)), 1, 6, "1 other rank was stopped"),
            (Some(Ending::Killed(11)), 1, 6, "faulthandler"),
            (None, 5, 6, "it was lost to the job while its process went on"),
        ] {
            let failure = failure(ending, others);
            let text = Failed { ranks, ..failed(&failure) }.text();
            assert!(text.contains(expected), "{expected:?} not in {text}");
        }
    }

    #[test]
    fn processes_that_remain_are_not_kept_secret() {
        let failure = failure(Some(Ending::Exited(1)), 0);
        let left = [Pid::from_raw(77).expect("positive")];
        let text = Failed { left: &left, ..failed(&failure) }.text();
        assert!(text.contains("still run: process 77"), "{text}");
    }

    #[test]
    fn the_header_falls_back_to_plain_characters() {
        assert!(header(2, 1, "7f3c", true).ends_with("· 2 ranks on 1 host · job 7f3c"));
        assert!(header(1, 2, "7f3c", false).ends_with("- 1 rank on 2 hosts - job 7f3c"));
        let locale = |all: &'static str, lang: &'static str| {
            is_unicode(move |name| match name {
                "LC_ALL" => Some(all.to_owned()),
                "LANG" => Some(lang.to_owned()),
                _ => None,
            })
        };
        assert!(locale("", "en_GB.UTF-8"));
        assert!(locale("C.utf8", "C"));
        assert!(!locale("C", "en_GB.UTF-8"));
        assert!(!locale("", ""));
    }
}
