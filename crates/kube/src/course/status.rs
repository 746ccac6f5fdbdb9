//! What is told about a job: phase, reason, message, conditions.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::Observed;
use crate::job::{JobStatus, Phase};

/// A reason, in a word for programs and in a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl Said {
    pub(crate) fn new(reason: &str, message: impl Into<String>) -> Said {
        Said { reason: reason.to_owned(), message: message.into() }
    }
}

/// The last status with a new phase and reason.
pub(super) fn told(seen: &Observed<'_>, phase: Phase, attempt: u32, said: Said) -> JobStatus {
    let mut status =
        JobStatus { phase, reason: said.reason, message: said.message, attempt, ..seen.status.clone() };
    status.avoid.retain(|one| one.until.0 > seen.now);
    // A reason to wait says for how long others have had their GPUs. That alone is nothing new.
    let before = seen.status;
    if before.phase == phase
        && before.reason == status.reason
        && essence(&before.message) == essence(&status.message)
    {
        status.message.clone_from(&before.message);
    }
    status.waiting_since = match phase {
        Phase::Pending => status.waiting_since.or(Some(Time(seen.now))),
        // A claim may have to be given up again.
        Phase::Claimed => status.waiting_since,
        _ => None,
    };
    status.stuck_since = None;
    if matches!(phase, Phase::Pending | Phase::Suspended) {
        status.nodes = String::new();
        status.gpus = seen.job.spec.gpus.to_string();
        status.started = None;
    }
    complete(&mut status, seen);
    status
}

/// Fills in what follows from the rest.
pub(super) fn complete(status: &mut JobStatus, seen: &Observed<'_>) {
    status.observed_generation = seen.job.generation;
    let done = |phases: &[Phase]| phases.contains(&status.phase);
    use Phase::{Claimed, Failed, Placing, Running, Scheduled, Succeeded};
    let states = [
        ("Claimed", done(&[Claimed, Placing, Scheduled, Running, Succeeded])),
        ("Scheduled", done(&[Scheduled, Running, Succeeded])),
        ("Running", done(&[Running])),
        ("Succeeded", done(&[Succeeded])),
        ("Failed", done(&[Failed])),
    ];
    let conditions = states.map(|(kind, holds)| {
        let word = if holds { "True" } else { "False" };
        let before = seen.status.conditions.iter().find(|one| one.type_ == kind && one.status == word);
        // A condition that has not changed keeps what was said when it did; that it holds of what is asked for now is new.
        let new = || Condition {
            type_: kind.to_owned(),
            status: word.to_owned(),
            reason: if status.reason.is_empty() { "Unknown".to_owned() } else { status.reason.clone() },
            message: status.message.clone(),
            last_transition_time: Time(seen.now),
            observed_generation: None,
        };
        Condition { observed_generation: seen.job.generation, ..before.cloned().unwrap_or_else(new) }
    });
    status.conditions = conditions.to_vec();
}

/// A message without what stands in parentheses.
fn essence(message: &str) -> String {
    let mut depth = 0_usize;
    let outside = message.chars().filter(|letter| {
        depth += usize::from(*letter == '(');
        let is_outside = depth == 0;
        depth -= usize::from(*letter == ')' && depth > 0);
        is_outside
    });
    outside.collect()
}

#[cfg(test)]
mod tests {
    use super::essence;

    #[test]
    fn what_stands_in_parentheses_is_not_new() {
        let one =
            essence("waiting for 2 more GPUs: node-4 is full (job bert, 3 h 20 m so far), node-5 is full");
        assert_eq!(one, "waiting for 2 more GPUs: node-4 is full , node-5 is full");
        assert_eq!(
            one,
            essence("waiting for 2 more GPUs: node-4 is full (job bert, 3 h 21 m so far), node-5 is full")
        );
        assert_eq!(essence("a) b ((c) d) e"), "a) b  e");
    }
}
