//! What is counted, in the words of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::connect::Answers;
use crate::job::Phase;

const PHASES: [Phase; 8] = [
    Phase::Pending,
    Phase::Suspended,
    Phase::Claimed,
    Phase::Placing,
    Phase::Scheduled,
    Phase::Running,
    Phase::Succeeded,
    Phase::Failed,
];

/// The spans into which waits are sorted, in seconds: from at once to half a day.
const SPANS: [u64; 9] = [1, 5, 15, 60, 300, 900, 3600, 14_400, 43_200];

/// How long a manager that acts may take to begin with the next round. It does so every half minute at least.
const STUCK: Duration = Duration::from_secs(120);

/// What is counted.
#[derive(Debug, Default)]
pub(super) struct Figures {
    /// When this manager last began with a round, or to be the one that acts, if it is.
    active: Mutex<Option<Instant>>,
    counted: Mutex<Counted>,
    answers: Mutex<Arc<Answers>>,
}

#[derive(Debug, Default)]
struct Counted {
    rounds: u64,
    jobs: [u64; PHASES.len()],
    /// By resource name, how many there are and how many are free.
    gpus: BTreeMap<String, (u64, u64)>,
    /// How many waits fell into each span, and longer ones.
    waits: [u64; SPANS.len() + 1],
    waited: Duration,
}

impl Figures {
    /// This manager is the one that acts from now on.
    pub(super) fn leads(&self) {
        *self.active() = Some(Instant::now());
    }

    /// Why this manager should be started anew, if it should: it is to act, and does not.
    pub(super) fn trouble(&self, now: Instant) -> Option<String> {
        let lasts = now.saturating_duration_since((*self.active())?);
        (lasts > STUCK).then(|| format!("no round has begun for {} s", lasts.as_secs()))
    }

    /// Whether the API server has ever answered. One that waits for the lease is ready, too.
    pub(super) fn is_connected(&self) -> bool {
        !self.heard().counts().is_empty()
    }

    /// What the API server answers is counted here.
    pub(super) fn answers(&self, answers: &Arc<Answers>) {
        *self.heard() = Arc::clone(answers);
    }

    /// Notes a round and the phases of all jobs in it.
    pub(super) fn count(&self, phases: impl Iterator<Item = Phase>) {
        let mut counted = self.counted();
        counted.jobs = [0; PHASES.len()];
        for phase in phases {
            if let Some(place) = PHASES.iter().position(|known| *known == phase) {
                counted.jobs[place] += 1;
            }
        }
        counted.rounds += 1;
        if let Some(last) = self.active().as_mut() {
            *last = Instant::now();
        }
    }

    /// Notes how many GPUs there are, and how many are free.
    pub(super) fn gpus(&self, gpus: BTreeMap<String, (u64, u64)>) {
        self.counted().gpus = gpus;
    }

    /// Notes that a job has its GPUs after this time.
    pub(super) fn waited(&self, time: Duration) {
        let mut counted = self.counted();
        let fits = |span: &u64| time <= Duration::from_secs(*span);
        let place = SPANS.iter().position(fits).unwrap_or(SPANS.len());
        counted.waits[place] += 1;
        counted.waited += time;
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn active(&self) -> MutexGuard<'_, Option<Instant>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn heard(&self) -> MutexGuard<'_, Arc<Answers>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of it, as Prometheus reads it.
    pub(super) fn text(&self) -> String {
        let counted = self.counted();
        let mut page = Page::default();
        page.head("ronde_jobs", "gauge", "Jobs by phase.");
        for (phase, count) in PHASES.iter().zip(&counted.jobs) {
            page.line("ronde_jobs", &format!("phase=\"{phase:?}\""), count);
        }
        page.head("ronde_gpus", "gauge", "GPUs that nodes give to pods, by resource name.");
        for (resource, (all, _)) in &counted.gpus {
            page.line("ronde_gpus", &format!("resource=\"{resource}\""), all);
        }
        page.head("ronde_gpus_free", "gauge", "Those of them that no pod has and no job claims.");
        for (resource, (_, free)) in &counted.gpus {
            page.line("ronde_gpus_free", &format!("resource=\"{resource}\""), free);
        }
        let name = "ronde_queue_wait_seconds";
        page.head(name, "histogram", "How long jobs waited for their GPUs.");
        let mut sum = 0;
        for (span, count) in SPANS.iter().zip(&counted.waits) {
            sum += count;
            page.line(&format!("{name}_bucket"), &format!("le=\"{span}\""), sum);
        }
        let all: u64 = counted.waits.iter().sum();
        page.line(&format!("{name}_bucket"), "le=\"+Inf\"", all);
        page.line(&format!("{name}_sum"), "", counted.waited.as_secs_f64());
        page.line(&format!("{name}_count"), "", all);
        page.head("ronde_api_requests_total", "counter", "Answers of the API server, by status code.");
        for (code, count) in self.heard().counts() {
            page.line("ronde_api_requests_total", &format!("code=\"{code}\""), count);
        }
        page.head("ronde_leader", "gauge", "Whether this manager acts.");
        page.line("ronde_leader", "", u8::from(self.active().is_some()));
        page.head("ronde_rounds_total", "counter", "How often all jobs were looked at.");
        page.line("ronde_rounds_total", "", counted.rounds);
        page.0
    }
}

/// The text format: a head for each figure, and a line for each of its values.
#[derive(Default)]
struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn line(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_counted_is_told_and_buckets_add_up() {
        let figures = Figures::default();
        figures.leads();
        figures.count([Phase::Running, Phase::Running, Phase::Pending].into_iter());
        figures.gpus([("nvidia.com/gpu".to_owned(), (10, 4))].into());
        for seconds in [0, 1, 70, 100_000] {
            figures.waited(Duration::from_secs(seconds));
        }
        let answers = Arc::new(Answers::default());
        answers.count(200);
        answers.count(409);
        answers.count(200);
        figures.answers(&answers);
        let text = figures.text();
        for line in [
            "ronde_jobs{phase=\"Running\"} 2",
            "ronde_jobs{phase=\"Failed\"} 0",
            "ronde_gpus{resource=\"nvidia.com/gpu\"} 10",
            "ronde_gpus_free{resource=\"nvidia.com/gpu\"} 4",
            "ronde_queue_wait_seconds_bucket{le=\"1\"} 2",
            "ronde_queue_wait_seconds_bucket{le=\"60\"} 2",
            "ronde_queue_wait_seconds_bucket{le=\"300\"} 3",
            "ronde_queue_wait_seconds_bucket{le=\"43200\"} 3",
            "ronde_queue_wait_seconds_bucket{le=\"+Inf\"} 4",
            "ronde_queue_wait_seconds_sum 100071",
            "ronde_queue_wait_seconds_count 4",
            "ronde_api_requests_total{code=\"200\"} 2",
            "ronde_api_requests_total{code=\"409\"} 1",
            "ronde_leader 1",
            "ronde_rounds_total 1",
        ] {
            assert!(text.lines().any(|told| told == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn who_is_to_act_and_does_not_begin_a_round_is_in_trouble() {
        let figures = Figures::default();
        let later = |seconds| Instant::now() + Duration::from_secs(seconds);
        assert_eq!(figures.trouble(later(3600)), None, "another acts");
        figures.leads();
        assert_eq!(figures.trouble(later(100)), None);
        let trouble = figures.trouble(later(200)).expect("nothing has begun");
        assert!(trouble.starts_with("no round has begun for "), "{trouble}");
        figures.count(std::iter::empty());
        assert_eq!(figures.trouble(later(100)), None);
        assert!(figures.trouble(later(200)).is_some());
    }

    #[test]
    fn every_line_is_one_that_prometheus_reads_and_follows_its_own_head() {
        let figures = Figures::default();
        figures.gpus([("nvidia.com/gpu".to_owned(), (1, 1))].into());
        let (mut told, mut seen) = (String::new(), Vec::new());
        for line in figures.text().lines() {
            if let Some(head) = line.strip_prefix("# TYPE ") {
                let (name, kind) = head.split_once(' ').expect("a kind");
                assert!(["gauge", "counter", "histogram"].contains(&kind), "{line}");
                assert!(!seen.contains(&name.to_owned()), "{name} comes twice");
                seen.push(name.to_owned());
                name.clone_into(&mut told);
            } else if !line.starts_with("# HELP ") {
                let (name, value) = line.rsplit_once(' ').expect("a value");
                value.parse::<f64>().expect("a number");
                let bare = name.split('{').next().unwrap_or_default();
                assert!(bare.starts_with(&told) && !told.is_empty(), "{line} is not below its head");
                assert!(bare.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_'), "{line}");
            }
        }
    }
}
