//! The environment a rank finds: where it stands, where the rendezvous is, and sensible threads.

use std::net::SocketAddr;
use std::time::Duration;

use ronde_rendezvous::variable;

use crate::Seat;

const THREADS: &str = "OMP_NUM_THREADS";
const UNBUFFERED: &str = "PYTHONUNBUFFERED";

/// The variables to set for one rank, besides what it inherits.
pub(crate) fn for_rank(
    seat: &Seat,
    rendezvous: SocketAddr,
    secret_file: &str,
    start_timeout: Option<Duration>,
) -> Vec<(&'static str, String)> {
    let place = seat.place;
    let mut variables = vec![
        (variable::RANK, place.rank.to_string()),
        (variable::SIZE, place.size.to_string()),
        (variable::LOCAL_RANK, place.local_rank.to_string()),
        (variable::LOCAL_SIZE, place.local_size.to_string()),
        (variable::CROSS_RANK, place.cross_rank.to_string()),
        (variable::CROSS_SIZE, place.cross_size.to_string()),
        (variable::HOSTNAME, seat.host.clone()),
        (variable::RENDEZVOUS, rendezvous.to_string()),
        (variable::SECRET_FILE, secret_file.to_owned()),
    ];
    if let Some(timeout) = start_timeout {
        variables.push((variable::START_TIMEOUT, timeout.as_secs_f64().to_string()));
    }
    variables
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
        let address = "[::1]:4000".parse().expect("address");
        let timeout = Some(Duration::from_millis(1500));
        let given = for_rank(&seat, address, &file.path(), timeout);
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
