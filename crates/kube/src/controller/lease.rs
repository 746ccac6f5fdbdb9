//! Leader election: of several controllers the one that holds the lease acts.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease as LeaseObject, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Api;
use kube::api::PostParams;

use crate::act::patiently;
use crate::{Connection, Error};

/// What the lease is called.
const NAME: &str = "ronde-manager";
/// How long a lease holds without being renewed, and how often it is.
const HOLDS: i32 = 15;
const RENEW: Duration = Duration::from_secs(4);
const RETRY: Duration = Duration::from_secs(2);

pub(super) struct Lease {
    leases: Api<LeaseObject>,
    identity: String,
}

impl Lease {
    pub(super) fn new(connection: &Connection, identity: &str) -> Lease {
        let leases = Api::namespaced(connection.client.clone(), connection.namespace());
        Lease { leases, identity: identity.to_owned() }
    }

    /// Waits until the lease is ours.
    pub(super) async fn take(&self) -> Result<(), Error> {
        loop {
            match self.renew().await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) if error.is_passing() => {}
                Err(error) => return Err(error),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Renews it until that is not possible any more.
    pub(super) async fn keep(&self) -> Error {
        let mut renewed = tokio::time::Instant::now();
        // Before the lease is over, so that two never act at a time.
        let limit = Duration::from_secs(HOLDS as u64) - RENEW;
        loop {
            tokio::time::sleep(RENEW).await;
            match tokio::time::timeout(RENEW, self.renew()).await {
                Ok(Ok(true)) => renewed = tokio::time::Instant::now(),
                Ok(Ok(false)) => return lost("another manager has taken over"),
                Ok(Err(_)) | Err(_) if renewed.elapsed() >= limit => {
                    return lost("the lease could not be renewed");
                }
                Ok(Err(_)) | Err(_) => {}
            }
        }
    }

    /// Takes or renews the lease; false if another holds it.
    async fn renew(&self) -> Result<bool, Error> {
        let now = Timestamp::now();
        let found = patiently("read the lease", || self.leases.get_opt(NAME)).await?;
        let params = PostParams::default();
        let Some(mut lease) = found else {
            let mut lease = LeaseObject::default();
            lease.metadata.name = Some(NAME.to_owned());
            lease.spec = Some(self.spec(now, None));
            return match patiently("take the lease", || self.leases.create(&params, &lease)).await {
                Err(Error::Exists { .. }) => Ok(false),
                other => other.map(|_| true),
            };
        };
        let held = lease.spec.clone().unwrap_or_default();
        if !may_take(&held, &self.identity, now) {
            return Ok(false);
        }
        lease.spec = Some(self.spec(now, Some(&held)));
        // The version that was read goes along, so of two who try at a time one is refused.
        match self.leases.replace(NAME, &params, &lease).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(Error::met("renew the lease", error)),
        }
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

/// Whether a lease is ours, nobody's, or over.
fn may_take(held: &LeaseSpec, identity: &str, now: Timestamp) -> bool {
    let holder = held.holder_identity.as_deref().unwrap_or_default();
    let holds = SignedDuration::from_secs(i64::from(held.lease_duration_seconds.unwrap_or(HOLDS)));
    let is_over = held.renew_time.as_ref().is_none_or(|time| now.duration_since(time.0) > holds);
    holder.is_empty() || holder == identity || is_over
}

fn lost(why: &str) -> Error {
    Error::Passing { doing: "go on".to_owned(), message: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_taken_if_it_is_ours_or_nobodys_or_over() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().expect("a time");
        let held = |holder: &str, renewed: &str| LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            renew_time: Some(MicroTime(renewed.parse().expect("a time"))),
            ..LeaseSpec::default()
        };
        assert!(may_take(&LeaseSpec::default(), "me", now));
        assert!(may_take(&held("me", "2026-01-01T00:00:59Z"), "me", now));
        assert!(!may_take(&held("other", "2026-01-01T00:00:50Z"), "me", now));
        assert!(may_take(&held("other", "2026-01-01T00:00:44Z"), "me", now));
        assert!(may_take(&held("", "2026-01-01T00:00:59Z"), "me", now));
    }
}
