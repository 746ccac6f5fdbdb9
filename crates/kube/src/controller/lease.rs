//! Leader election: of several controllers the one that holds the lease acts.
//!
//! A lease runs out when its holder has not renewed it for as long as it says. Whether it has is told by a clock that nobody
//! sets, from when its last renewal was first seen here: the clocks of two machines need not agree. The holder stops acting
//! well before that ([`ACTS`] against [`HOLDS`]), counted from before it asked for its last renewal, so that what it still
//! has under way is over when another begins. Whoever ends in order gives the lease back, and need not be waited for.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease as LeaseObject, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::PostParams;
use tokio::time::Instant;

use crate::{Connection, Error, MANAGER};

/// How long a lease holds without being renewed, in seconds.
const HOLDS: i32 = 15;
/// How long whoever holds it acts without having renewed it.
const ACTS: Duration = Duration::from_secs(10);
/// How often it is renewed, and how often others look whether it has run out.
const RENEW: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_secs(2);
/// How soon a renewal that failed is tried again.
const AGAIN: Duration = Duration::from_millis(300);
/// How long a request may take.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Clone)]
pub(super) struct Lease {
    leases: Api<LeaseObject>,
    identity: String,
}

/// What is known of a lease that another holds: its last renewal, and when that was first seen.
#[derive(Clone, Debug)]
struct Watched {
    holder: String,
    renewed: Option<MicroTime>,
    first_seen: Instant,
}

/// What came of a try.
#[derive(Debug)]
enum Tried {
    Ours,
    Others(LeaseSpec),
}

impl Lease {
    pub(super) fn new(connection: &Connection, identity: &str) -> Lease {
        let leases = Api::namespaced(connection.client.clone(), connection.namespace());
        Lease { leases, identity: identity.to_owned() }
    }

    /// Waits until the lease is ours; returns since when.
    pub(super) async fn take(&self) -> Result<Instant, Error> {
        let mut watched: Option<Watched> = None;
        loop {
            let began = Instant::now();
            match self.try_once(watched.as_ref()).await {
                Ok(Tried::Ours) => return Ok(began),
                Ok(Tried::Others(held)) => watched = Some(Watched::again(watched, &held, Instant::now())),
                Err(error) if error.is_passing() => {}
                Err(error) => return Err(error),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Renews it until that is not possible any more; returns why, before anybody else can have taken it.
    pub(super) async fn keep(self, since: Instant) -> Error {
        let (mut renewed, mut pause) = (since, RENEW);
        let mut trouble = "the API server does not answer".to_owned();
        loop {
            let end = renewed + ACTS;
            let renewing = async {
                tokio::time::sleep(pause).await;
                let began = Instant::now();
                self.try_once(None).await.map(|tried| (began, tried))
            };
            match tokio::time::timeout_at(end, renewing).await {
                Ok(Ok((began, Tried::Ours))) => (renewed, pause) = (began, RENEW),
                Ok(Ok((_, Tried::Others(held)))) => {
                    let holder = held.holder_identity.unwrap_or_default();
                    return lost(&format!("{holder} has taken over"));
                }
                Ok(Err(error)) => (trouble, pause) = (error.to_string(), AGAIN),
                Err(_) => return lost(&format!("the lease could not be renewed: {trouble}")),
            }
        }
    }

    /// Gives the lease back, so that another need not wait for it to run out. If that fails, it does.
    pub(super) async fn give_back(&self) {
        let giving = async {
            let mut lease = self.leases.get(MANAGER).await?;
            let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
            if holder == Some(&self.identity) {
                lease.spec = lease.spec.map(|spec| LeaseSpec { holder_identity: None, ..spec });
                self.leases.replace(MANAGER, &PostParams::default(), &lease).await?;
            }
            Ok::<(), kube::Error>(())
        };
        let _ = tokio::time::timeout(PATIENCE, giving).await;
    }

    /// Takes or renews the lease, if it is ours, nobody's, or has run out.
    async fn try_once(&self, watched: Option<&Watched>) -> Result<Tried, Error> {
        let trying = self.try_once_patiently(watched);
        let late = || Error::Passing {
            doing: "renew the lease".to_owned(),
            message: "the API server does not answer".to_owned(),
        };
        tokio::time::timeout(PATIENCE, trying).await.unwrap_or_else(|_| Err(late()))
    }

    async fn try_once_patiently(&self, watched: Option<&Watched>) -> Result<Tried, Error> {
        let params = PostParams::default();
        let found =
            self.leases.get_opt(MANAGER).await.map_err(|error| Error::met("read the lease", error))?;
        let now = Timestamp::now();
        let Some(mut lease) = found else {
            let mut lease = LeaseObject::default();
            lease.metadata.name = Some(MANAGER.to_owned());
            lease.spec = Some(self.spec(now, None));
            let made = self.leases.create(&params, &lease).await;
            return made.map(|_| Tried::Ours).map_err(|error| match Error::met("take the lease", error) {
                // Another was quicker, and will be seen the next time.
                Error::Exists { doing } => Error::Passing { doing, message: "there is one now".to_owned() },
                other => other,
            });
        };
        let held = lease.spec.clone().unwrap_or_default();
        if !may_take(&held, &self.identity, watched, Instant::now()) {
            return Ok(Tried::Others(held));
        }
        lease.spec = Some(self.spec(now, Some(&held)));
        // The version that was read goes along, so of two who try at a time one is refused.
        let replaced = self.leases.replace(MANAGER, &params, &lease).await;
        replaced.map(|_| Tried::Ours).map_err(|error| Error::met("renew the lease", error))
    }

    fn spec(&self, now: Timestamp, before: Option<&LeaseSpec>) -> LeaseSpec {
        let is_ours = before.is_some_and(|held| held.holder_identity.as_deref() == Some(&self.identity));
        let since = before.filter(|_| is_ours).and_then(|held| held.acquire_time.clone());
        let changes = before.and_then(|held| held.lease_transitions).unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(HOLDS),
            acquire_time: since.or(Some(MicroTime(now))),
            renew_time: Some(MicroTime(now)),
            lease_transitions: Some(changes + i32::from(!is_ours)),
            ..LeaseSpec::default()
        }
    }
}

impl Watched {
    /// What is known after another look.
    fn again(before: Option<Watched>, held: &LeaseSpec, now: Instant) -> Watched {
        let holder = held.holder_identity.clone().unwrap_or_default();
        match before {
            Some(before) if before.holder == holder && before.renewed == held.renew_time => before,
            _ => Watched { holder, renewed: held.renew_time.clone(), first_seen: now },
        }
    }
}

/// Whether a lease is ours, nobody's, or was not renewed for as long as it holds.
fn may_take(held: &LeaseSpec, identity: &str, watched: Option<&Watched>, now: Instant) -> bool {
    let holder = held.holder_identity.as_deref().unwrap_or_default();
    let holds = u64::try_from(held.lease_duration_seconds.unwrap_or(HOLDS)).unwrap_or(0);
    let has_run_out = watched.is_some_and(|watched| {
        watched.holder == holder
            && watched.renewed == held.renew_time
            && now.duration_since(watched.first_seen) > Duration::from_secs(holds)
    });
    holder.is_empty() || holder == identity || has_run_out
}

/// Why this manager does not act any more.
pub(super) fn lost(why: &str) -> Error {
    Error::Passing { doing: "go on".to_owned(), message: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(holder: &str, renewed: &str) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(HOLDS),
            renew_time: Some(MicroTime(renewed.parse().expect("a time"))),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn a_lease_is_taken_if_it_is_ours_or_nobodys() {
        let now = Instant::now();
        assert!(may_take(&LeaseSpec::default(), "me", None, now));
        assert!(may_take(&held("me", "2026-01-01T00:00:59Z"), "me", None, now));
        assert!(may_take(&held("", "2026-01-01T00:00:59Z"), "me", None, now));
    }

    #[test]
    fn anothers_lease_runs_out_by_our_own_clock_and_not_by_what_is_written_in_it() {
        let start = Instant::now();
        // Written by a clock that is years behind.
        let first = held("other", "2020-01-01T00:00:00Z");
        assert!(!may_take(&first, "me", None, start));
        let watched = Watched::again(None, &first, start);
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(!may_take(&first, "me", Some(&watched), at(15)));
        assert!(may_take(&first, "me", Some(&watched), at(16)));
        // It was renewed meanwhile.
        let second = held("other", "2020-01-01T00:00:04Z");
        assert!(!may_take(&second, "me", Some(&watched), at(16)));
        let watched = Watched::again(Some(watched), &second, at(16));
        assert!(!may_take(&second, "me", Some(&watched), at(31)));
        assert!(may_take(&second, "me", Some(&watched), at(32)));
    }

    #[test]
    fn whoever_holds_it_stops_before_another_may_begin() {
        // The last request of the one that stops may take as long as this and is still over in time.
        assert!(ACTS + PATIENCE < Duration::from_secs(HOLDS as u64));
        assert!(RENEW + PATIENCE + AGAIN + PATIENCE < ACTS, "one failure alone is no reason to stop");
    }
}
