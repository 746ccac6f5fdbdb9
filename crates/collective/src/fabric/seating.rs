//! Where the members of a set of ranks sit: which of them share a host, and where this rank is among them. Pure, and
//! equal on every rank but for the question of who asks.

use crate::error::{Error, Result};

/// Speaks of positions in the list of members throughout.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seating {
    /// This rank.
    pub(crate) me: usize,
    /// Members by host, hosts ordered by their first member.
    pub(crate) hosts: Vec<Vec<usize>>,
    /// This rank's host, and its position in it.
    pub(crate) my_host: usize,
    pub(crate) local: usize,
}

impl Seating {
    /// Seats `members` (ranks of the job) by the job's hosts. `what` they are to become is for the message if they cannot.
    pub(crate) fn of(
        what: &str,
        rank: usize,
        job_hosts: &[Vec<usize>],
        members: &[usize],
    ) -> Result<Seating> {
        let position = |rank: &usize| members.binary_search(rank).ok();
        let mut hosts: Vec<Vec<usize>> = Vec::new();
        if members.windows(2).all(|pair| pair[0] < pair[1]) {
            hosts.extend(job_hosts.iter().map(|host| host.iter().filter_map(position).collect::<Vec<_>>()));
            hosts.retain(|host| !host.is_empty());
            hosts.sort_unstable_by_key(|host| host[0]);
        }
        let complete = hosts.iter().map(Vec::len).sum::<usize>() == members.len();
        let seat = |me: usize| {
            let find = |host: &Vec<usize>| host.iter().position(|&member| member == me);
            hosts.iter().enumerate().find_map(|(index, host)| Some((me, index, find(host)?)))
        };
        match position(&rank).and_then(seat).filter(|_| complete) {
            Some((me, my_host, local)) => Ok(Seating { me, hosts, my_host, local }),
            None => Err(Error::Invalid(format!(
                "{what} needs ascending ranks of the job with rank {rank} among them, not {members:?}"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Vec<Vec<usize>> {
        vec![vec![0, 1, 3, 5], vec![2, 4]]
    }

    #[test]
    fn members_are_seated_by_host_and_hosts_by_their_first_member() {
        let seating = Seating::of("a set", 5, &job(), &[2, 3, 4, 5]).expect("members of the job");
        assert_eq!(seating, Seating { me: 3, hosts: vec![vec![0, 2], vec![1, 3]], my_host: 1, local: 1 });
    }

    #[test]
    fn lists_that_are_no_set_of_the_job_with_this_rank_are_refused() {
        for members in [&[][..], &[1, 0], &[0, 0], &[0, 9], &[2, 3]] {
            assert!(
                matches!(Seating::of("a set", 0, &job(), members), Err(Error::Invalid(_))),
                "{members:?}"
            );
        }
    }
}
