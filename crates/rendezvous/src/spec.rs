//! What a rank knows about its job before it has spoken to anybody: our launcher's variables. Those of other launchers
//! are in `foreign`.

use std::str::FromStr;
use std::time::Duration;

use ronde_trust::Secret;

use crate::Error;

/// The names of the variables that a launcher sets for a rank.
pub mod variable {
    /// This rank, from 0.
    pub const RANK: &str = "HOROVOD_RANK";
    /// How many ranks the job has.
    pub const SIZE: &str = "HOROVOD_SIZE";
    /// This rank among those of its host.
    pub const LOCAL_RANK: &str = "HOROVOD_LOCAL_RANK";
    /// How many ranks this host has.
    pub const LOCAL_SIZE: &str = "HOROVOD_LOCAL_SIZE";
    /// This host among those that have a rank with this local rank.
    pub const CROSS_RANK: &str = "HOROVOD_CROSS_RANK";
    /// How many hosts have a rank with this local rank.
    pub const CROSS_SIZE: &str = "HOROVOD_CROSS_SIZE";
    /// What the launcher calls this host.
    pub const HOSTNAME: &str = "HOROVOD_HOSTNAME";
    /// Where the rendezvous listens: `host:port`, an IPv6 address in brackets.
    pub const RENDEZVOUS: &str = "RONDE_RENDEZVOUS";
    /// The file that holds the job's secret as 64 hexadecimal digits.
    pub const SECRET_FILE: &str = "RONDE_SECRET_FILE";
    /// How many seconds `init()` waits for the other ranks.
    pub const START_TIMEOUT: &str = "RONDE_START_TIMEOUT";
}

const DEFAULT_START_TIMEOUT: Duration = Duration::from_secs(600);

/// Where a rank stands: in the job, on its host, and across hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// This rank, from 0.
    pub rank: usize,
    /// How many ranks the job has.
    pub size: usize,
    /// This rank among those of its host.
    pub local_rank: usize,
    /// How many ranks this host has.
    pub local_size: usize,
    /// This host among those that have a rank with this local rank.
    pub cross_rank: usize,
    /// How many hosts have a rank with this local rank.
    pub cross_size: usize,
}

impl Place {
    /// The only rank of a job of one.
    pub fn alone() -> Place {
        Place { rank: 0, size: 1, local_rank: 0, local_size: 1, cross_rank: 0, cross_size: 1 }
    }
}

/// Everything a rank needs to join its job.
#[derive(Clone, Debug)]
pub struct JobSpec {
    /// Where the rendezvous listens: `host:port`, an IPv6 address in brackets.
    pub server: String,
    /// The job's secret.
    pub secret: Secret,
    /// Where this rank stands.
    pub place: Place,
    /// How long to wait for the other ranks.
    pub start_timeout: Duration,
}

impl JobSpec {
    /// Reads the launcher's variables through `var`; `None` if there are none, which means a job
    /// of one rank.
    ///
    /// The local and cross ranks may be left out by launchers that start one rank a host.
    pub fn from_environment(var: impl Fn(&str) -> Option<String>) -> Result<Option<JobSpec>, Error> {
        use variable::*;
        let needed = [RENDEZVOUS, RANK, SIZE];
        let Some(present) = needed.into_iter().find(|name| var(name).is_some()) else {
            return Ok(None);
        };
        for missing in [RENDEZVOUS, RANK, SIZE, SECRET_FILE] {
            if var(missing).is_none() {
                return Err(Error::Incomplete { present, missing });
            }
        }
        let text = |name| var(name).unwrap_or_default();
        let place = own_place(&var)?;

        let server = text(RENDEZVOUS);
        if server.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
            let problem = "is not host:port (an IPv6 address goes in brackets)".to_owned();
            return Err(Error::Variable { name: RENDEZVOUS, value: server, problem });
        }
        let start_timeout = start_timeout(&var)?;
        Ok(Some(JobSpec {
            server,
            secret: Secret::read_file(text(SECRET_FILE)).map_err(Error::Secret)?,
            place,
            start_timeout,
        }))
    }
}

/// A rank's place, as our own variables have it.
pub(crate) fn own_place(var: impl Fn(&str) -> Option<String>) -> Result<Place, Error> {
    use variable::*;
    let text = |name| var(name).unwrap_or_default();
    let (rank, size) = position((RANK, &text(RANK)), (SIZE, &text(SIZE)))?;
    let pair = |rank_name, size_name, default| match (var(rank_name), var(size_name)) {
        (Some(rank), Some(size)) => position((rank_name, &rank), (size_name, &size)),
        (Some(_), None) => Err(Error::Incomplete { present: rank_name, missing: size_name }),
        (None, Some(_)) => Err(Error::Incomplete { present: size_name, missing: rank_name }),
        (None, None) => Ok(default),
    };
    let (local_rank, local_size) = pair(LOCAL_RANK, LOCAL_SIZE, (0, 1))?;
    let (cross_rank, cross_size) = pair(CROSS_RANK, CROSS_SIZE, (rank, size))?;
    Ok(Place { rank, size, local_rank, local_size, cross_rank, cross_size })
}

/// How long `init()` waits for the other ranks.
pub(crate) fn start_timeout(var: impl Fn(&str) -> Option<String>) -> Result<Duration, Error> {
    match var(variable::START_TIMEOUT) {
        None => Ok(DEFAULT_START_TIMEOUT),
        Some(value) => seconds(variable::START_TIMEOUT, &value),
    }
}

/// A rank and the size it must be below.
pub(crate) fn position(
    rank: (&'static str, &str),
    size: (&'static str, &str),
) -> Result<(usize, usize), Error> {
    let size_value: usize = number(size.0, size.1)?;
    let rank_value: usize = number(rank.0, rank.1)?;
    let wrong =
        |name, value: &str, problem: String| Err(Error::Variable { name, value: value.to_owned(), problem });
    if size_value == 0 {
        return wrong(size.0, size.1, "must be at least 1".to_owned());
    }
    if rank_value >= size_value {
        let problem = format!("must be below {}={size_value}", size.0);
        return wrong(rank.0, rank.1, problem);
    }
    Ok((rank_value, size_value))
}

fn number<T: FromStr>(name: &'static str, value: &str) -> Result<T, Error> {
    value.trim().parse().map_err(|_| Error::Variable {
        name,
        value: value.to_owned(),
        problem: "is not a number".to_owned(),
    })
}

fn seconds(name: &'static str, value: &str) -> Result<Duration, Error> {
    let seconds: f64 = number(name, value)?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err(Error::Variable {
            name,
            value: value.to_owned(),
            problem: "is not a positive number of seconds".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests;
