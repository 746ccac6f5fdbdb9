//! Whose turn it is: jobs that wait for GPUs, by priority and then by age.
//!
//! The first of them plans first. Those behind it may take what it cannot use, so that GPUs do not lie idle, until it has
//! waited too long: from then on nobody overtakes it, and what becomes free is kept for it. Only jobs that count their GPUs
//! by the same name wait for each other, and only for one that could start if GPUs became free: neither for one that is
//! suspended or pauses, nor for one that asks for more than there is.
//!
//! Planning takes time, so when several could not be placed, of those behind them only such are tried as are easier to
//! place: who asks for as much as one that found too few, of the same nodes, would find too few as well.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use ronde_placement::Request;

/// How many that wait for one kind of GPUs may find too few before it is looked whether another attempt is worth it.
const REFUSED: usize = 16;

/// A job that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) uid: String,
    pub(crate) called: String,
    /// What its GPUs are counted by.
    pub(crate) resource: String,
    /// The fewest that it can do with.
    pub(crate) gpus: u32,
    /// What it asks of nodes, whatever the number.
    pub(crate) needs: Arc<Request>,
    pub(crate) priority: i32,
    pub(crate) created: Timestamp,
    /// Since when it waits: a job may have run before, or may have been suspended.
    pub(crate) since: Timestamp,
    /// Whether it could claim, were there GPUs.
    pub(crate) able: bool,
    /// Whether it leaves out nodes for a while, which others of the same needs do not.
    pub(crate) avoids: bool,
}

/// Puts those that wait in order. A cluster counts when they were created in whole seconds: of those that came in the same
/// one, whoever has waited is before whoever is new.
pub(crate) fn sort(waiting: &mut [Waiting]) {
    waiting.sort_by(|one, other| {
        let order = other.priority.cmp(&one.priority);
        let order = order.then_with(|| one.created.cmp(&other.created));
        order.then_with(|| one.since.cmp(&other.since)).then_with(|| one.uid.cmp(&other.uid))
    });
}

/// One pass through those that wait, in order: each asks, and what came of it counts for those behind it.
#[derive(Debug)]
pub(crate) struct Queue {
    hold_after: SignedDuration,
    now: Timestamp,
    lines: HashMap<String, Line>,
}

/// The jobs that found too few GPUs of one kind.
#[derive(Debug, Default)]
struct Line {
    /// The first of them, if it has waited so long that nobody overtakes it.
    held: Option<String>,
    refused: usize,
    /// By what they need, the fewest GPUs that could not be found.
    fewest: HashMap<Arc<Request>, u32>,
}

impl Queue {
    /// Nobody has asked yet; the first of a line is held its place after this time.
    pub(crate) fn new(hold_after: SignedDuration, now: Timestamp) -> Queue {
        Queue { hold_after, now, lines: HashMap::new() }
    }

    /// Whether a job may claim GPUs now, or what it waits for. The words change seldom: each time they do, every job that
    /// waits has its status written.
    pub(crate) fn ask(&self, job: &Waiting) -> Result<(), String> {
        match self.lines.get(&job.resource).filter(|_| job.able) {
            Some(Line { held: Some(head), .. }) => {
                Err(format!("waits behind {head}, which has waited long enough"))
            }
            Some(line) if line.refused >= REFUSED && line.has_refused(job) => {
                Err("waits behind jobs that came before it".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// A job that may claim found too few GPUs. One that leaves out nodes says nothing to those who look everywhere.
    pub(crate) fn refused(&mut self, job: &Waiting) {
        if !job.able || job.avoids {
            return;
        }
        let line = self.lines.entry(job.resource.clone()).or_default();
        if line.refused == 0 && self.now.duration_since(job.since) >= self.hold_after {
            line.held = Some(job.called.clone());
        }
        line.refused += 1;
        let fewest = line.fewest.entry(Arc::clone(&job.needs)).or_insert(job.gpus);
        *fewest = job.gpus.min(*fewest);
    }
}

impl Line {
    /// Whether one that asks for no more than this job has found too few.
    fn has_refused(&self, job: &Waiting) -> bool {
        self.fewest.get(&job.needs).is_some_and(|fewest| *fewest <= job.gpus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, priority: i32, created: i64) -> Waiting {
        let created = Timestamp::from_second(created).expect("a time");
        Waiting {
            uid: name.to_owned(),
            called: name.to_owned(),
            resource: "nvidia.com/gpu".to_owned(),
            gpus: 8,
            needs: Arc::default(),
            priority,
            created,
            since: created,
            able: true,
            avoids: false,
        }
    }

    /// Who may claim, if nobody finds enough.
    fn order(mut waiting: Vec<Waiting>, now: i64) -> Vec<(String, bool)> {
        let now = Timestamp::from_second(now).expect("a time");
        let mut queue = Queue::new(SignedDuration::from_secs(300), now);
        sort(&mut waiting);
        let turns = waiting.iter().map(|job| {
            let may = queue.ask(job).is_ok();
            if may {
                queue.refused(job);
            }
            (job.uid.clone(), may)
        });
        turns.collect()
    }

    fn all(names: &[(&str, bool)]) -> Vec<(String, bool)> {
        names.iter().map(|(name, may)| ((*name).to_owned(), *may)).collect()
    }

    #[test]
    fn priority_comes_before_age_and_all_may_try_at_first() {
        let jobs = vec![job("young", 0, 20), job("old", 0, 10), job("urgent", 5, 30)];
        assert_eq!(order(jobs, 40), all(&[("urgent", true), ("old", true), ("young", true)]));
    }

    #[test]
    fn of_one_second_whoever_has_waited_is_first() {
        let waited = Waiting { since: Timestamp::from_second(10).expect("a time"), ..job("z", 0, 10) };
        let new = Waiting { since: Timestamp::from_second(11).expect("a time"), ..job("a", 0, 10) };
        assert_eq!(order(vec![new, waited], 12), all(&[("z", true), ("a", true)]));
    }

    #[test]
    fn who_has_waited_long_is_not_overtaken() {
        let jobs = vec![job("young", 0, 500), job("old", 0, 10)];
        assert_eq!(order(jobs, 510), all(&[("old", true), ("young", false)]));
    }

    #[test]
    fn one_that_cannot_start_holds_up_nobody() {
        let suspended = Waiting { able: false, ..job("old", 0, 10) };
        assert_eq!(order(vec![suspended, job("young", 0, 500)], 510), all(&[("old", true), ("young", true)]));
    }

    #[test]
    fn waiting_counts_from_when_it_began_and_not_from_when_the_job_was_made() {
        let resumed = Waiting { since: Timestamp::from_second(400).expect("a time"), ..job("old", 0, 10) };
        let jobs = || vec![resumed.clone(), job("young", 0, 500)];
        assert_eq!(order(jobs(), 510), all(&[("old", true), ("young", true)]));
        assert_eq!(order(jobs(), 700), all(&[("old", true), ("young", false)]));
    }

    #[test]
    fn only_those_who_want_the_same_kind_of_gpus_are_held_up() {
        let slice = Waiting { resource: "nvidia.com/mig-1g.10gb".to_owned(), ..job("slice", 0, 500) };
        let jobs = vec![job("old", 0, 10), slice, job("young", 0, 505)];
        assert_eq!(order(jobs, 510), all(&[("old", true), ("slice", true), ("young", false)]));
    }

    #[test]
    fn those_that_find_gpus_hold_up_nobody_however_many_they_are() {
        let now = Timestamp::from_second(1000).expect("a time");
        let mut queue = Queue::new(SignedDuration::from_secs(300), now);
        for index in 0..40 {
            assert_eq!(queue.ask(&job(&format!("job-{index:02}"), 0, index)), Ok(()));
        }
        queue.refused(&job("job-40", 0, 40));
        assert!(queue.ask(&job("job-41", 0, 41)).is_err_and(|why| why.contains("behind job-40")));
    }

    #[test]
    fn what_a_job_does_not_find_elsewhere_says_nothing_to_those_who_look_everywhere() {
        let avoiding = |index| Waiting { avoids: true, ..job(&format!("job-{index:02}"), 0, index) };
        let mut jobs: Vec<Waiting> = (0..40).map(avoiding).collect();
        jobs.push(job("young", 0, 41));
        let may_claim = |now| order(jobs.clone(), now).last().is_some_and(|(_, may)| *may);
        assert!(may_claim(50));
        assert!(may_claim(1000), "although the first has waited for long");
    }

    #[test]
    fn when_several_have_found_too_few_only_those_that_are_easier_to_place_are_tried() {
        let mut jobs: Vec<Waiting> = (0..40).map(|index| job(&format!("job-{index:02}"), 0, index)).collect();
        jobs.push(Waiting { gpus: 1, ..job("small", 0, 41) });
        jobs.push(Waiting { gpus: 2, ..job("larger than the small one", 0, 42) });
        let needs = Arc::new(Request { product: Some("another".to_owned()), ..Request::default() });
        jobs.push(Waiting { needs, ..job("elsewhere", 0, 43) });
        let turns = order(jobs, 50);
        let (first, rest) = turns.split_at(40);
        assert_eq!(first.iter().filter(|(_, may)| *may).count(), REFUSED);
        assert_eq!(rest, all(&[("small", true), ("larger than the small one", false), ("elsewhere", true)]));
    }
}
