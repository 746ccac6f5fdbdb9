//! One job's manager: looks, decides, acts, and looks again.
//!
//! Used by `ronde kube run` for its one job and by the controller for each of many. It holds no state but the last
//! status, and that only to know what was said already.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use crate::Error;
use crate::act::{Hands, Outcome};
use crate::course::{Action, Decision, Observed, Said, decide, refused};
use crate::job::{Job, JobStatus};
use crate::view::View;

/// How long to wait after a request that a busy server did not take.
const PAUSE: Duration = Duration::from_secs(2);

/// What came of a turn.
pub(crate) struct Turn {
    pub(crate) status: JobStatus,
    /// When to look again, if nothing happens before.
    pub(crate) wake: Option<Duration>,
    /// What did not work, and will be tried again.
    pub(crate) trouble: Option<Error>,
}

/// Decides, and does what was decided until there is nothing more to do at once.
///
/// `said` is called with every new status, before anything is done for it.
pub(crate) async fn turn(
    job: &Job,
    mut status: JobStatus,
    may_claim: Result<(), &str>,
    hands: &Hands,
    view: &View,
    mut said: impl AsyncFnMut(&JobStatus) -> Result<(), Error>,
) -> Turn {
    let mut listed = false;
    let mut failed: Option<Error> = None;
    loop {
        let decision = look(job, &status, may_claim, view, listed, failed.take());
        listed = false;
        let (actions, wake) = (decision.actions, decision.wake);
        status = decision.status;
        if let Err(error) = said(&status).await {
            return Turn { status, wake: Some(PAUSE), trouble: Some(error) };
        }
        for group in groups(&actions) {
            match hands.perform(job, group).await {
                Ok(Outcome::Listed(pods)) => {
                    view.ledger().replace_own(&pods);
                    listed = true;
                }
                Ok(Outcome::Done(pods)) => {
                    let mut ledger = view.ledger();
                    pods.iter().for_each(|pod| ledger.note_pod(pod));
                }
                // What is gone will be seen to be gone.
                Err(Error::Gone { .. }) => {}
                Err(error) if error.is_passing() => {
                    return Turn { status, wake: Some(PAUSE), trouble: Some(error) };
                }
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        if !listed && failed.is_none() {
            let wake = wake.map(|wake| Duration::try_from(wake).unwrap_or_default());
            return Turn { status, wake, trouble: None };
        }
    }
}

fn look(
    job: &Job,
    status: &JobStatus,
    turn: Result<(), &str>,
    view: &View,
    listed: bool,
    failed: Option<Error>,
) -> Decision {
    let ledger = view.ledger();
    let seen = Observed { job, status, ledger: &ledger, listed, turn, now: Timestamp::now() };
    match failed {
        None => decide(&seen),
        Some(error) => {
            let reason = match &error {
                Error::Quota { .. } => "QuotaExceeded",
                Error::Forbidden { .. } => "Forbidden",
                _ => "Refused",
            };
            let for_good = !matches!(error, Error::Quota { .. } | Error::Forbidden { .. });
            refused(&seen, Said::new(reason, error.to_string()), for_good)
        }
    }
}

/// Actions of one kind that follow each other are done at once.
fn groups(actions: &[Action]) -> impl Iterator<Item = &[Action]> {
    let kind = |action: &Action| std::mem::discriminant(action);
    actions.chunk_by(move |one, other| kind(one) == kind(other))
}
