//! The numbers of process sets, which the leader of the global set gives out, and how many turns each has taken.
//!
//! 0 is the global set. Others get numbers from 1 on; a number that was freed is used again, the one freed first first.

use std::collections::VecDeque;

use ronde_rendezvous::Ranks;

/// The sets there are.
#[derive(Debug)]
pub(super) struct Sets {
    everybody: Vec<u32>,
    known: Vec<Known>,
    freed: VecDeque<u32>,
    next: u32,
}

#[derive(Debug)]
struct Known {
    id: u32,
    ranks: Vec<u32>,
    /// How many turns it has taken.
    turns: u64,
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
        if let Some(Known { id, .. }) = self.known.iter().find(|known| known.ranks == ranks) {
            return Err(format!("a process set of {} already exists: number {id}", named()));
        }
        let id = self.freed.pop_front().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        self.known.push(Known { id, ranks: ranks.to_vec(), turns: 0 });
        Ok(id)
    }

    /// Forgets a set. The text says why not.
    pub(super) fn remove(&mut self, ranks: &[u32]) -> Result<u32, String> {
        if *ranks == *self.everybody {
            return Err("the global process set cannot be removed".to_owned());
        }
        let at = self.known.iter().position(|known| known.ranks == ranks);
        let Some(at) = at else {
            let named = Ranks::new(ranks.iter().map(|&rank| rank as usize));
            return Err(format!("there is no process set of {named}"));
        };
        let Known { id, .. } = self.known.remove(at);
        self.freed.push_back(id);
        Ok(id)
    }

    /// The rank that leads a set: its lowest.
    pub(super) fn leader_of(&self, id: u32) -> Option<usize> {
        let known = self.known.iter().find(|known| known.id == id)?;
        known.ranks.first().map(|&rank| rank as usize)
    }

    /// A set takes its turn of this number, which must be its next.
    pub(super) fn take_turn(&mut self, id: u32, number: u64) -> Result<(), &'static str> {
        match self.known.iter_mut().find(|known| known.id == id) {
            Some(known) if known.turns == number => {
                known.turns += 1;
                Ok(())
            }
            _ => Err("it asks for a turn that is not the next one of its process set"),
        }
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
    fn turns_are_taken_one_after_the_other_and_a_set_of_the_same_number_begins_anew() {
        let mut sets = Sets::new(&[0, 1, 2]);
        assert_eq!(sets.add(&[1, 2]), Ok(1));
        assert_eq!((sets.leader_of(1), sets.leader_of(2)), (Some(1), None));
        assert_eq!([0, 1].map(|number| sets.take_turn(1, number)), [Ok(()), Ok(())]);
        assert!([0, 1, 3].into_iter().all(|number| sets.take_turn(1, number).is_err()));
        assert!(sets.take_turn(2, 0).is_err());
        assert_eq!(sets.remove(&[1, 2]), Ok(1));
        assert!(sets.take_turn(1, 2).is_err());
        assert_eq!(sets.add(&[0, 1]), Ok(1));
        assert_eq!(sets.take_turn(1, 0), Ok(()));
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
