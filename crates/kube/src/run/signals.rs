//! The signals that end a job.

use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::Error;

/// Those that are listened to, with their numbers.
pub(super) struct Signals(Vec<(i32, Signal)>);

impl Signals {
    /// Listens to what people end programs with. What whoever started us wants ignored stays so: that is how `nohup` keeps a
    /// job running when its terminal goes away.
    pub(super) fn listen() -> Result<Signals, Error> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        Signals::to(kinds.into_iter().filter(|kind| !is_ignored(&status, kind.as_raw_value())))
    }

    /// Listens to these.
    pub(super) fn to(kinds: impl IntoIterator<Item = SignalKind>) -> Result<Signals, Error> {
        let on = |kind: SignalKind| {
            let signal =
                signal(kind).map_err(|source| Error::System { doing: "wait for signals", source })?;
            Ok((kind.as_raw_value(), signal))
        };
        kinds.into_iter().map(on).collect::<Result<_, _>>().map(Signals)
    }

    /// The number of the next one.
    pub(super) async fn next(&mut self) -> i32 {
        std::future::poll_fn(|context| {
            let mut came = self.0.iter_mut().filter_map(|(number, signal)| match signal.poll_recv(context) {
                Poll::Ready(_) => Some(*number),
                Poll::Pending => None,
            });
            came.next().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// Whether a process ignores a signal, by its `/proc` status.
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_signal_is_recognised() {
        let status = "Name:\tronde\nSigIgn:\t0000000000000001\nSigCgt:\t0000000000000002\n";
        assert!(is_ignored(status, SignalKind::hangup().as_raw_value()));
        assert!(!is_ignored(status, SignalKind::interrupt().as_raw_value()));
        assert!(!is_ignored("", SignalKind::hangup().as_raw_value()));
    }
}
