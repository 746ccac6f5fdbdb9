//! What time it is in the cluster.
//!
//! Deadlines and claims are counted from what the cluster writes down, and a laptop's clock may be minutes off. So the
//! time in the API server's answers counts where the two differ.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use http::HeaderMap;
use http::header::DATE;
use k8s_openapi::jiff::fmt::rfc2822::DateTimeParser;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// Answers are dated in whole seconds and take time to arrive: less than this is no difference.
const NOISE: SignedDuration = SignedDuration::from_secs(5);

/// The cluster's clock, as far as it is known. Clones tell the same time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    /// By how many seconds this machine's is behind.
    behind: Arc<AtomicI64>,
}

impl Clock {
    /// The time in the cluster.
    pub(crate) fn now(&self) -> Timestamp {
        let now = Timestamp::now();
        now.checked_add(self.behind()).unwrap_or(now)
    }

    /// By how much this machine's clock is behind the cluster's; negative if it is ahead.
    pub(crate) fn behind(&self) -> SignedDuration {
        SignedDuration::from_secs(self.behind.load(Ordering::Relaxed))
    }

    /// Reads the time off an answer.
    pub(crate) fn hear(&self, headers: &HeaderMap, here: Timestamp) {
        static PARSER: DateTimeParser = DateTimeParser::new();
        let date = headers.get(DATE).and_then(|date| date.to_str().ok());
        let Some(there) = date.and_then(|date| PARSER.parse_timestamp(date).ok()) else { return };
        let behind = there.duration_since(here);
        let seconds = if behind.abs() < NOISE { 0 } else { behind.as_secs() };
        self.behind.store(seconds, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(date: &str) -> i64 {
        let clock = Clock::default();
        let mut headers = HeaderMap::new();
        headers.insert(DATE, date.parse().expect("a header"));
        clock.hear(&headers, "2026-01-01T00:00:00Z".parse().expect("a time"));
        clock.behind().as_secs()
    }

    #[test]
    fn only_a_difference_that_matters_counts() {
        assert_eq!(heard("Thu, 01 Jan 2026 00:03:00 GMT"), 180);
        assert_eq!(heard("Wed, 31 Dec 2025 23:50:00 GMT"), -600);
        assert_eq!(heard("Thu, 01 Jan 2026 00:00:03 GMT"), 0);
        assert_eq!(heard("yesterday"), 0);
    }

    #[test]
    fn clones_tell_the_same_time() {
        let clock = Clock::default();
        let clone = clock.clone();
        clock.behind.store(3600, Ordering::Relaxed);
        assert!(clone.now().duration_since(Timestamp::now()) > SignedDuration::from_secs(3500));
    }
}
