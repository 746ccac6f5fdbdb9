//! What to do when the API server does not take an action.
//!
//! Nothing is kept half: a set that cannot be made is given back as a whole. What was achieved is never lost because
//! tidying up is not allowed: a job that has ended well has ended well. Nothing is tried again at once, so that an answer
//! that stays the same costs a request now and then.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::SignedDuration;

use super::status::{Said, told};
use super::{Action, Current, Decision, Observed, ending, pause};

/// How long to wait before asking again for what was not allowed.
pub(crate) const AGAIN: SignedDuration = SignedDuration::from_secs(10);
/// The most that is waited for a name to become free.
const LONGEST_FOR_A_NAME: f64 = 30.0;

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setback {
    pub(crate) kind: Kind,
    pub(crate) said: Said,
}

/// What it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Somebody else's object has the name.
    Taken,
    /// It is not allowed, or a quota is used up: may be better another time.
    Withheld,
    /// What was sent is not accepted, and will not be.
    Refused,
}

/// Decides after an action was not taken.
pub(crate) fn answer(seen: &Observed<'_>, action: &Action, setback: &Setback) -> Decision {
    let current = Current::of(seen);
    let said = setback.said.clone();
    if action.frees() || seen.status.phase.is_final() {
        let status = match seen.status.phase.is_final() {
            true => seen.status.clone(),
            false => told(seen, seen.status.phase, seen.status.attempt, said),
        };
        return Decision { actions: Vec::new(), status, wake: Some(AGAIN) };
    }
    match setback.kind {
        Kind::Refused => ending::give_up(seen, &current, said),
        Kind::Withheld => later(seen, &current, said, AGAIN, current.attempt),
        // The next set has other names.
        Kind::Taken => {
            let wait = pause(seen, 1.0, LONGEST_FOR_A_NAME);
            later(seen, &current, said, wait, current.attempt + 1)
        }
    }
}

/// Gives everything back and waits.
fn later(
    seen: &Observed<'_>,
    current: &Current<'_>,
    said: Said,
    wait: SignedDuration,
    least: u32,
) -> Decision {
    let mut decision = ending::release(seen, current, said);
    decision.status.attempt = decision.status.attempt.max(least);
    decision.status.yields = seen.status.yields.saturating_add(1);
    decision.status.not_before = seen.now.checked_add(wait).ok().map(Time);
    decision.wake = Some(wait);
    decision
}
