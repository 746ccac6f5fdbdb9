//! What the launcher says about the job: the line at its start and the words at its end.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use ronde_rendezvous::Ranks;

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
pub fn is_unicode(var: impl Fn(&str) -> Option<String>) -> bool {
    let deciding = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(var);
    let locale = deciding.into_iter().find(|value| !value.is_empty()).unwrap_or_default();
    let locale = locale.to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// What CUDA says to a program that chooses a GPU it does not see.
const NO_SUCH_GPU: &str = "invalid device ordinal";

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
    pub(crate) left: &'a [(String, i32)],
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
        format!("{others}{}", still_running(self.left))
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
            Some(_) if self.last_lines.iter().any(|line| line.contains(NO_SUCH_GPU)) => format!(
                "a rank sees only the GPUs of its host, or its share with --gpus-per-rank; choose one with \
                 torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count()); {output}"
            ),
            _ => output,
        }
    }
}

/// Everything the final words about a lost host are made of.
pub(crate) struct HostLost<'a> {
    pub(crate) host: &'a str,
    pub(crate) ranks: std::ops::Range<usize>,
    pub(crate) why: &'a str,
    pub(crate) hosts: &'a [&'a str],
    /// All hosts that were lost.
    pub(crate) lost: &'a [&'a str],
    /// How many ranks ran elsewhere.
    pub(crate) others: usize,
    pub(crate) stopped_after: Duration,
    /// If it was silence that gave it away, how long that lasts until the host itself gives up.
    pub(crate) silent_for: Option<Duration>,
    /// The port of its ssh server, if not the usual one.
    pub(crate) port: Option<u16>,
    pub(crate) left: &'a [(String, i32)],
}

impl HostLost<'_> {
    pub(crate) fn text(&self) -> String {
        let ranks = Ranks::new(self.ranks.clone());
        let mut text = format!("error: lost {} ({ranks}): {}\n", self.host, self.why);
        let later = format!("{:.1} s later", self.stopped_after.as_secs_f64());
        let others = match self.others {
            0 => "no other rank was running".to_owned(),
            1 => format!("the other rank was stopped ({later})"),
            others => format!("the other {others} ranks were stopped ({later})"),
        };
        let reached: Vec<&str> =
            self.hosts.iter().filter(|host| !self.lost.contains(host)).copied().collect();
        let fate = match (self.left, reached.as_slice()) {
            ([], []) => String::new(),
            ([], reached) => format!("; nothing is left running on {}", reached.join(", ")),
            (left, _) => format!("; {}", still_running(left)),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {others}{fate}");
        let lost = self.lost.join(", ");
        let _ = match self.silent_for {
            Some(limit) => {
                let seconds = limit.as_secs();
                writeln!(
                    text,
                    "  ranks on {lost} end by themselves at the latest {seconds} s after they last heard of us"
                )
            }
            None => writeln!(text, "  ranks on {lost} are ended by what is left of the job there"),
        };
        let port = self.port.map(|port| format!(" -p {port}")).unwrap_or_default();
        let hosts = self.hosts.join(",");
        let _ = writeln!(text, "hint: see whether {} is up: ronde doctor -H {hosts}{port}", self.host);
        text
    }
}

/// `could not be killed and still run: process 77 on gpu1`.
fn still_running(left: &[(String, i32)]) -> String {
    let each: Vec<String> = left.iter().map(|(host, pid)| format!("process {pid} on {host}")).collect();
    format!("could not be killed and still run: {}", each.join(", "))
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
    fn a_rank_that_chose_a_gpu_that_is_not_there_is_told_how_to_choose() {
        let failure = failure(Some(Ending::Exited(1)), 5);
        let lines = ["[3] torch.AcceleratorError: CUDA error: invalid device ordinal".to_owned()];
        let text = Failed { last_lines: &lines, ..failed(&failure) }.text();
        assert!(text.contains("set_device(hvd.local_rank() % torch.cuda.device_count()); see all"), "{text}");
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
        let left = [("gpu1".to_owned(), 77)];
        let text = Failed { left: &left, ..failed(&failure) }.text();
        assert!(text.contains("still run: process 77 on gpu1"), "{text}");
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
