//! Whose turn it is: jobs that wait for GPUs, by priority and then by age.
//!
//! The first of them plans first. Those behind it may take what it cannot use, so that GPUs do not lie idle, until it has
//! waited too long: from then on nobody overtakes it, and what becomes free is kept for it.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// How many of those that wait are looked at in one round.
const LOOKED_AT: usize = 16;

/// A job that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) uid: String,
    pub(crate) called: String,
    pub(crate) priority: i32,
    pub(crate) created: Timestamp,
    /// Whether it could claim now, were there GPUs: not suspended, and not pausing after a failure.
    pub(crate) able: bool,
}

/// Puts those that wait in order, and says of each whether it may claim now, or what it waits for.
pub(crate) fn turns(
    mut waiting: Vec<Waiting>,
    hold_after: SignedDuration,
    now: Timestamp,
) -> Vec<(Waiting, Result<(), String>)> {
    waiting.sort_by(|one, other| {
        let order = other.priority.cmp(&one.priority);
        order.then_with(|| one.created.cmp(&other.created)).then_with(|| one.uid.cmp(&other.uid))
    });
    let head = waiting.iter().find(|job| job.able).cloned();
    let is_held = |head: &Waiting| now.duration_since(head.created) >= hold_after;
    let mut ahead = 0;
    let mut turns = Vec::with_capacity(waiting.len());
    for job in waiting {
        let turn = match &head {
            Some(head) if head.uid != job.uid && job.able && is_held(head) => {
                Err(format!("waits behind {}, which has waited long enough", head.called))
            }
            Some(head) if job.able && ahead >= LOOKED_AT => {
                Err(format!("waits behind {ahead} jobs, the first of them {}", head.called))
            }
            _ => Ok(()),
        };
        ahead += usize::from(job.able);
        turns.push((job, turn));
    }
    turns
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, priority: i32, created: i64) -> Waiting {
        let created = Timestamp::from_second(created).expect("a time");
        Waiting { uid: name.to_owned(), called: name.to_owned(), priority, created, able: true }
    }

    fn order(waiting: Vec<Waiting>, now: i64) -> Vec<(String, bool)> {
        let now = Timestamp::from_second(now).expect("a time");
        let turns = turns(waiting, SignedDuration::from_secs(300), now);
        turns.into_iter().map(|(job, turn)| (job.uid, turn.is_ok())).collect()
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
    fn only_the_first_few_are_looked_at() {
        let jobs: Vec<Waiting> = (0..40).map(|index| job(&format!("job-{index:02}"), 0, index)).collect();
        let may = order(jobs, 50).into_iter().filter(|(_, may)| *may).count();
        assert_eq!(may, LOOKED_AT);
    }
}
