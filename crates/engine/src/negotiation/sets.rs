//! The numbers of process sets, which the leader of the global set gives out.
//!
//! 0 is the global set. Others get numbers from 1 on; a number that was freed is used again, the one freed first first.

use std::collections::VecDeque;

use ronde_rendezvous::Ranks;

/// The sets there are.
#[derive(Debug)]
pub(super) struct Sets {
    everybody: Vec<u32>,
    known: Vec<(u32, Vec<u32>)>,
    freed: VecDeque<u32>,
    next: u32,
}

impl Sets {
    pub(super) fn new(members: &[usize]) -> Sets {
        let everybody = members.iter().map(|&rank| rank as u32).collect();
        Sets { everybody, known: Vec::new(), freed: VecDeque::new(), next: 1 }
    }

    /// Registers a set of ranks, ascending. The text says why not.
    pub(super) fn add(&mut self, ranks: &[u32]) -> Result<u32, String> {
        let named = || Ranks::new(ranks.iter().map(|&rank| rank as usize));
        if ranks.is_empty() {
            return Err("a process set needs at least one rank".to_owned());
        }
        if let Some(twice) = ranks.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("rank {} is in the process set more than once", twice[0]));
        }
        if let Some(stranger) = ranks.iter().find(|rank| self.everybody.binary_search(rank).is_err()) {
            return Err(format!("rank {stranger} is not in this job of {} ranks", self.everybody.len()));
        }
        if *ranks == *self.everybody {
            return Err(format!("a process set of {} already exists: the global one", named()));
        }
        if let Some((id, _)) = self.known.iter().find(|(_, known)| known == ranks) {
            return Err(format!("a process set of {} already exists: number {id}", named()));
        }
        let id = self.freed.pop_front().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        self.known.push((id, ranks.to_vec()));
        Ok(id)
    }

    /// Forgets a set. The text says why not.
    pub(super) fn remove(&mut self, ranks: &[u32]) -> Result<u32, String> {
        if *ranks == *self.everybody {
            return Err("the global process set cannot be removed".to_owned());
        }
        let at = self.known.iter().position(|(_, known)| known == ranks);
        let Some(at) = at else {
            let named = Ranks::new(ranks.iter().map(|&rank| rank as usize));
            return Err(format!("there is no process set of {named}"));
        };
        let (id, _) = self.known.remove(at);
        self.freed.push_back(id);
        Ok(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_start_at_one_and_are_used_again_in_the_order_they_were_freed() {
        let mut sets = Sets::new(&[0, 1, 2, 3]);
        for (id, rank) in (1..).zip(0..4) {
            assert_eq!(sets.add(&[rank]), Ok(id));
        }
        assert_eq!(sets.remove(&[2]), Ok(3));
        assert_eq!(sets.remove(&[0]), Ok(1));
        assert_eq!([&[0, 1][..], &[0, 2], &[0, 3]].map(|ranks| sets.add(ranks)), [Ok(3), Ok(1), Ok(5)]);
    }

    #[test]
    fn sets_that_make_no_sense_are_refused_with_the_reason() {
        let mut sets = Sets::new(&[0, 1, 2]);
        sets.add(&[0, 1]).expect("a proper set");
        for (ranks, reason) in [
            (&[][..], "at least one rank"),
            (&[1, 1], "rank 1 is in the process set more than once"),
            (&[0, 3], "rank 3 is not in this job of 3 ranks"),
            (&[0, 1, 2], "already exists: the global one"),
            (&[0, 1], "ranks 0 and 1 already exists: number 1"),
        ] {
            let refusal = sets.add(ranks).expect_err("refused");
            assert!(refusal.contains(reason), "{refusal}");
        }
        assert!(sets.remove(&[0, 1, 2]).is_err());
        assert!(sets.remove(&[2]).is_err());
    }
}
