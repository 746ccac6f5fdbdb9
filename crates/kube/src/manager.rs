//! One job's manager: looks, decides, acts, and looks again.
//!
//! Used by `ronde kube run` for its one job and by the controller for each of many. It holds no state but the last
//! status, and that only to know what was said already.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use crate::Error;
use crate::act::Hands;
use crate::cluster::{Claim, GangKey, Promise};
use crate::course::{Action, Decision, Observed, Said, Setback, SetbackKind, answer, decide};
use crate::job::{Job, JobStatus, request};
use crate::view::View;

/// How long to wait after a request that a busy server did not take.
const PAUSE: Duration = Duration::from_secs(2);
/// How often to decide in one turn: from nothing to a claim that is safe takes three times. A world that never comes to
/// rest must not keep the others waiting.
const DECISIONS: usize = 10;

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
    let key = job.key();
    if let Some(rest) = hands.rest(&key.to_string()) {
        return Turn { status, wake: Some(rest), trouble: None };
    }
    let mut listed = false;
    let mut setback: Option<(Action, Error)> = None;
    let mut promised = Promised { view, key: None };
    for _ in 0..DECISIONS {
        let now = hands.clock.now();
        let decision = look(job, &status, may_claim, view, listed, setback.as_ref(), now);
        // Before anything is waited for, so that whoever plans next knows of it.
        promised.renew(job, &decision.actions);
        let (actions, wake) = (decision.actions, decision.wake);
        let wake = wake.map(|wake| Duration::try_from(wake).unwrap_or_default());
        status = decision.status;
        if let Err(error) = said(&status).await {
            return Turn { status, wake: Some(PAUSE), trouble: Some(error) };
        }
        if let Some((action, _)) = setback.as_ref().filter(|_| actions.is_empty()) {
            if action.frees() {
                // Others' changes wake us up as well, and must not make us ask again and again.
                hands.rest_for(&key.to_string(), wake.unwrap_or(PAUSE));
            }
            return Turn { status, wake, trouble: setback.map(|(_, error)| error) };
        }
        (listed, setback) = (false, None);
        let mut again = false;
        for group in groups(&actions) {
            // A watch that is far enough knows what a list would say, and asks nobody.
            if group.contains(&Action::List) && view.is_past(&key).await {
                listed = true;
                continue;
            }
            let outcome = hands.perform(job, group).await;
            if let Some(pods) = outcome.listed {
                view.ledger().replace_own(pods);
                listed = true;
            }
            {
                let mut ledger = view.ledger();
                outcome.pods.iter().for_each(|pod| ledger.note_answer(pod));
            }
            match outcome.error {
                // Written down afterwards, so that it is done again if we are killed in between.
                None if group.first() == Some(&Action::Sweep) => (status.swept, again) = (true, true),
                None => {}
                // Of a job that was deleted nothing is left to decide.
                Some(error) if error.is_passing() || matches!(error, Error::Deleted { .. }) => {
                    return Turn { status, wake: Some(PAUSE), trouble: Some(error) };
                }
                Some(error) => {
                    setback = group.first().cloned().map(|action| (action, error));
                    break;
                }
            }
        }
        if !listed && !again && setback.is_none() {
            return Turn { status, wake, trouble: None };
        }
    }
    let message = "the cluster changes faster than can be decided".to_owned();
    let trouble = Error::Passing { doing: "bring the job on".to_owned(), message };
    Turn { status, wake: Some(PAUSE), trouble: Some(trouble) }
}

fn look(
    job: &Job,
    status: &JobStatus,
    turn: Result<(), &str>,
    view: &View,
    listed: bool,
    setback: Option<&(Action, Error)>,
    now: Timestamp,
) -> Decision {
    let ledger = view.ledger();
    let seen = Observed { job, status, ledger: &ledger, listed, turn, now };
    match setback {
        None => decide(&seen),
        Some((action, error)) => answer(&seen, action, &meaning(error)),
    }
}

/// What an answer of the API server means for a job.
fn meaning(error: &Error) -> Setback {
    let (kind, reason) = match error {
        Error::Taken { .. } => (SetbackKind::Taken, "NameTaken"),
        Error::Quota { .. } => (SetbackKind::Withheld, "QuotaExceeded"),
        Error::Forbidden { .. } => (SetbackKind::Withheld, "Forbidden"),
        Error::Unauthorized { .. } => (SetbackKind::Withheld, "Unauthorized"),
        Error::NoNamespace { .. } => (SetbackKind::Refused, "NoNamespace"),
        _ => (SetbackKind::Refused, "Refused"),
    };
    Setback { kind, said: Said::new(reason, error.to_string()) }
}

/// What is about to be created counts as taken for as long as this exists.
struct Promised<'a> {
    view: &'a View,
    key: Option<GangKey>,
}

impl Promised<'_> {
    /// Gives up what was promised before, and promises what these actions will create.
    fn renew(&mut self, job: &Job, actions: &[Action]) {
        let mut ledger = self.view.ledger();
        if let Some(key) = self.key.take() {
            ledger.give_up(&key);
        }
        let created = actions.iter().find_map(|action| match action {
            Action::CreatePod { gang, .. } => Some(gang),
            _ => None,
        });
        let Some(gang) = created else { return };
        let request = request(&job.spec, &[], Timestamp::now());
        let key = GangKey { job: job.key(), attempt: gang.attempt };
        let promise = Promise {
            called: format!("job {}", job.name),
            claim: Claim { resource: request.resource.clone(), nodes: gang.claim() },
            request,
        };
        ledger.promise(key.clone(), promise);
        self.key = Some(key);
    }
}

impl Drop for Promised<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.view.ledger().give_up(&key);
        }
    }
}

/// Actions of one kind that follow each other are done at once.
fn groups(actions: &[Action]) -> impl Iterator<Item = &[Action]> {
    let kind = |action: &Action| std::mem::discriminant(action);
    actions.chunk_by(move |one, other| kind(one) == kind(other))
}

#[cfg(test)]
mod tests;
