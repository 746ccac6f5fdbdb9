//! Which ranks form one host, decided from who could reach whom. Pure, and equal on every rank.

use crate::error::{Error, Result};

/// Who shares memory with whom.
pub(crate) struct Links(Vec<Vec<u8>>);

impl Links {
    /// From every rank's list of the lower ranks it reached (one byte each, 0 or 1).
    pub(crate) fn from_answers(answers: &[Vec<u8>]) -> Result<Links> {
        match answers.iter().position(|answer| answer.len() != answers.len()) {
            Some(rank) => Err(Error::Invalid(format!("rank {rank} described its links in an unknown way"))),
            None => Ok(Links(answers.to_vec())),
        }
    }

    pub(crate) fn linked(&self, a: usize, b: usize) -> bool {
        self.0[a.max(b)][a.min(b)] == 1
    }
}

/// Splits ranks `0..size` into hosts: sets whose members are all linked with each other. Each rank joins
/// the first host it fits, so hosts are ordered by their lowest rank and members ascend.
pub fn partition(size: usize, linked: impl Fn(usize, usize) -> bool) -> Vec<Vec<usize>> {
    let mut hosts: Vec<Vec<usize>> = Vec::new();
    for rank in 0..size {
        match hosts.iter_mut().find(|host| host.iter().all(|&member| linked(member, rank))) {
            Some(host) => host.push(rank),
            None => hosts.push(vec![rank]),
        }
    }
    hosts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_all_reach_each_other_form_one_host() {
        assert_eq!(partition(4, |_, _| true), [vec![0, 1, 2, 3]]);
        assert_eq!(partition(3, |_, _| false), [vec![0], vec![1], vec![2]]);
    }

    #[test]
    fn unequal_and_interleaved_hosts_are_found() {
        let host = [0, 0, 1, 0, 1, 0];
        assert_eq!(partition(6, |a, b| host[a] == host[b]), [vec![0, 1, 3, 5], vec![2, 4]]);
    }

    #[test]
    fn a_rank_that_reaches_only_some_of_a_host_stays_apart() {
        let broken = [(0, 2)];
        let hosts = partition(3, |a, b| !broken.contains(&(a.min(b), a.max(b))));
        assert_eq!(hosts, [vec![0, 1], vec![2]]);
    }

    #[test]
    fn answers_of_the_wrong_length_are_refused() {
        assert!(Links::from_answers(&[vec![0, 0], vec![1]]).is_err());
    }

    #[test]
    fn two_ranks_are_linked_if_the_higher_one_reached_the_lower_one() {
        let answers = [vec![0, 0, 0], vec![1, 0, 0], vec![0, 1, 0]];
        let links = Links::from_answers(&answers).expect("well formed");
        for (a, b, linked) in [(0, 1, true), (1, 2, true), (0, 2, false)] {
            assert_eq!((links.linked(a, b), links.linked(b, a)), (linked, linked), "{a} and {b}");
        }
    }
}
