//! What is shown of a job while it comes to run: one line for each thing that has come about, and why it waits.
//!
//! ```text
//! job mnist-x7k · 6 GPUs · node-1: 5, node-3: 1
//!   ✓ claimed        0.1 s
//!   ✓ scheduled      0.4 s
//!   ✓ image          12 s   node-1 (node-3 had it)
//!   ✓ started        1.1 s
//! ```
//! Values in, lines out; whoever shows them knows whether there is a terminal.

use std::fmt::Write;
use std::time::Duration;

use crate::cluster::OwnPod;
use crate::job::{JobStatus, Phase};

/// What has been shown.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    attempt: Option<u32>,
    steps: usize,
    /// When the last step was done.
    last: Duration,
    waits: String,
    trouble: String,
}

/// What pods go through, in order.
const STEPS: [&str; 4] = ["claimed", "scheduled", "image", "started"];

impl Progress {
    /// The lines to show now, this long after the start.
    pub(crate) fn lines(
        &mut self,
        name: &str,
        status: &JobStatus,
        pods: &[&OwnPod],
        since: Duration,
    ) -> Vec<String> {
        let mut lines = Vec::new();
        if status.phase == Phase::Pending || status.phase == Phase::Suspended {
            if status.message != self.waits && !status.message.is_empty() {
                lines.push(status.message.clone());
                self.waits.clone_from(&status.message);
            }
            self.attempt = None;
            self.last = since;
            return lines;
        }
        let set: Vec<&OwnPod> = pods.iter().copied().filter(|pod| pod.attempt == status.attempt).collect();
        let done = reached(status.phase, &set);
        // A claim that is not safe yet may be given up again in a moment, so nothing is said of it.
        if done == 0 {
            return lines;
        }
        if self.attempt != Some(status.attempt) {
            (self.attempt, self.steps) = (Some(status.attempt), 0);
            let again = if status.failures > 0 {
                format!(" · attempt {}", status.failures + 1)
            } else {
                String::new()
            };
            lines.push(format!("job {name} · {} · {}{again}", gpus(&status.gpus), status.nodes));
        }
        for step in STEPS.iter().take(done).skip(self.steps) {
            let mut line = format!("  ✓ {step:<14} {}", span(since.saturating_sub(self.last)));
            if *step == "image" {
                let nodes: Vec<&str> = set.iter().map(|pod| pod.pinned.as_str()).collect();
                let _ = write!(line, "   {}", nodes.join(", "));
            }
            lines.push(line);
            self.last = since;
        }
        self.steps = self.steps.max(done);
        if done < STEPS.len() {
            let trouble = trouble(status);
            if trouble != self.trouble && !trouble.is_empty() {
                lines.push(format!("  … {trouble}"));
                self.trouble = trouble;
            }
        }
        lines
    }
}

/// How many steps are done.
fn reached(phase: Phase, set: &[&OwnPod]) -> usize {
    let all = |is_done: fn(&OwnPod) -> bool| !set.is_empty() && set.iter().all(|pod| is_done(pod));
    match phase {
        Phase::Running | Phase::Succeeded => 4,
        Phase::Scheduled | Phase::Failed if all(|pod| pod.started.is_some()) => 4,
        Phase::Scheduled | Phase::Failed if all(|pod| pod.pulled) => 3,
        Phase::Scheduled => 2,
        Phase::Placing => 1,
        _ => 0,
    }
}

/// What keeps it from going on, if it is more than a matter of time.
fn trouble(status: &JobStatus) -> String {
    match status.reason.as_str() {
        "Starting" | "Placing" | "Claimed" | "Running" => String::new(),
        _ => status.message.clone(),
    }
}

/// `1 GPU`, `6 GPUs`.
pub(crate) fn gpus(count: &str) -> String {
    format!("{count} {}", if count == "1" { "GPU" } else { "GPUs" })
}

/// A span of time as people say it: `0.4 s`, `12 s`, `4 m 12 s`, `1 h`.
pub(crate) fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        10..60 => format!("{seconds} s"),
        60..3600 if seconds.is_multiple_of(60) => format!("{} m", seconds / 60),
        60..3600 => format!("{} m {} s", seconds / 60, seconds % 60),
        _ if seconds % 3600 < 60 => format!("{} h", seconds / 3600),
        _ => format!("{} h {} m", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(phase: Phase, reason: &str, message: &str) -> JobStatus {
        JobStatus {
            phase,
            reason: reason.to_owned(),
            message: message.to_owned(),
            gpus: "6".to_owned(),
            nodes: "node-1: 5, node-3: 1".to_owned(),
            ..JobStatus::default()
        }
    }

    #[test]
    fn every_step_is_shown_once_with_the_time_it_took() {
        let mut progress = Progress::default();
        let mut lines = |phase, reason: &str, message: &str, millis| {
            progress.lines("mnist", &status(phase, reason, message), &[], Duration::from_millis(millis))
        };
        let waits = "waiting for 2 more GPUs: node-2 is cordoned";
        assert_eq!(lines(Phase::Pending, "NotEnoughGpus", waits, 0), [waits]);
        assert!(lines(Phase::Pending, "NotEnoughGpus", waits, 900).is_empty());
        assert!(lines(Phase::Claimed, "Claimed", "", 950).is_empty());
        let first = lines(Phase::Placing, "Placing", "", 1000);
        assert_eq!(first, ["job mnist · 6 GPUs · node-1: 5, node-3: 1", "  ✓ claimed        0.1 s"]);
        assert_eq!(lines(Phase::Scheduled, "Starting", "x starts", 1400), ["  ✓ scheduled      0.4 s"]);
        let image = "mnist-chief on node-3: its image cannot be pulled (ErrImagePull)";
        assert_eq!(lines(Phase::Scheduled, "ErrImagePull", image, 2000), [format!("  … {image}")]);
        assert!(lines(Phase::Scheduled, "ErrImagePull", image, 2500).is_empty());
        assert_eq!(
            lines(Phase::Running, "Running", "", 14_000),
            ["  ✓ image          12 s   ", "  ✓ started        0.0 s"]
        );
        assert!(lines(Phase::Running, "Running", "", 60_000).is_empty());
    }

    #[test]
    fn spans_read_well() {
        for (millis, text) in [
            (400, "0.4 s"),
            (12_000, "12 s"),
            (252_000, "4 m 12 s"),
            (3_600_000, "1 h"),
            (5_400_000, "1 h 30 m"),
            (120_000, "2 m"),
        ] {
            assert_eq!(span(Duration::from_millis(millis)), text);
        }
    }
}
