//! The environment a rank finds: where it stands, and sensible threads.

use std::time::Duration;

use ronde_rendezvous::variable;

use crate::Seat;

/// Where a rank finds its host's doorway.
pub(crate) const DOORWAY: &str = "RONDE_DOORWAY";
/// Where a rank listens for other ranks.
pub(crate) const DATA_ADDRESS: &str = "RONDE_DATA_ADDRESS";
/// How a host's ranks reach those of other hosts.
pub(crate) const ROUTES: &str = "RONDE_ROUTES";
/// The ports a rank may listen at.
pub(crate) const PORT_RANGE: &str = "RONDE_PORT_RANGE";
/// A folder of Python's that was brought to a pod.
pub(crate) const PYTHON_PATH: &str = "RONDE_PYTHON_PATH";
/// The call a rank makes, as a file.
pub(crate) const TASK_PAYLOAD: &str = "RONDE_TASK_PAYLOAD";
/// Where its result goes.
pub(crate) const TASK_RESULT: &str = "RONDE_TASK_RESULT";

/// What only an agent of the same job may have set: in a job started by a rank of another job it would mislead.
pub(crate) const FROM_OUR_AGENT: [&str; 6] =
    [DOORWAY, DATA_ADDRESS, ROUTES, PORT_RANGE, TASK_PAYLOAD, TASK_RESULT];

const THREADS: &str = "OMP_NUM_THREADS";
const UNBUFFERED: &str = "PYTHONUNBUFFERED";

/// The variables to set for one rank, besides what it inherits.
pub(crate) fn for_rank(seat: &Seat, start_timeout: Option<Duration>) -> Vec<(String, String)> {
    let place = seat.place;
    let mut variables = vec![
        (variable::RANK, place.rank.to_string()),
        (variable::SIZE, place.size.to_string()),
        (variable::LOCAL_RANK, place.local_rank.to_string()),
        (variable::LOCAL_SIZE, place.local_size.to_string()),
        (variable::CROSS_RANK, place.cross_rank.to_string()),
        (variable::CROSS_SIZE, place.cross_size.to_string()),
        (variable::HOSTNAME, seat.host.clone()),
    ];
    if let Some(timeout) = start_timeout {
        variables.push((variable::START_TIMEOUT, timeout.as_secs_f64().to_string()));
    }
    variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Defaults for what the user has not set: threads shared fairly among the ranks of a machine,
/// and Python's output as it is written, since a pipe would otherwise hold it back.
pub(crate) fn defaults(
    is_set: impl Fn(&str) -> bool,
    cores: usize,
    local_ranks: usize,
) -> Vec<(&'static str, String)> {
    let threads = (cores / local_ranks.max(1)).max(1).to_string();
    let defaults = [(THREADS, threads), (UNBUFFERED, "1".to_owned())];
    defaults.into_iter().filter(|(name, _)| !is_set(name)).collect()
}

#[cfg(test)]
mod tests {
    use ronde_rendezvous::{JobSpec, Place};

    use super::*;

    #[test]
    fn what_a_rank_is_given_is_what_the_rendezvous_reads() {
        let secret = ronde_trust::Secret::random().expect("randomness");
        let file = crate::secret_file::SecretFile::hold(&secret).expect("memory file");
        let place = Place { rank: 5, size: 6, local_rank: 0, local_size: 1, cross_rank: 1, cross_size: 2 };
        let seat = Seat { host: "gpu2".to_owned(), place };
        let timeout = Some(Duration::from_millis(1500));
        let mut given = for_rank(&seat, timeout);
        given.push((variable::RENDEZVOUS.to_owned(), "[::1]:4000".to_owned()));
        given.push((variable::SECRET_FILE.to_owned(), file.path()));
        let read =
            |name: &str| given.iter().find(|(given, _)| *given == name).map(|(_, value)| value.clone());
        let spec = JobSpec::from_environment(read).expect("valid").expect("a job");
        assert_eq!(spec.place, place);
        assert_eq!(spec.server, "[::1]:4000");
        assert_eq!(spec.start_timeout, Duration::from_millis(1500));
        assert_eq!(*spec.secret.to_hex(), *secret.to_hex());
    }

    #[test]
    fn threads_are_shared_among_local_ranks_unless_the_user_decided() {
        let nothing_set = |_: &str| false;
        for (cores, ranks, threads) in [(16, 4, "4"), (2, 4, "1"), (7, 2, "3"), (8, 1, "8")] {
            let given = defaults(nothing_set, cores, ranks);
            assert!(given.contains(&(THREADS, threads.to_owned())), "{cores} / {ranks}");
        }
        let given = defaults(|name| name == THREADS, 16, 4);
        assert_eq!(given, [(UNBUFFERED, "1".to_owned())]);
    }
}
