//! Which rank uses which GPU: what hosts are asked, and what follows for their ranks from the answers. The decision itself
//! is in `gpus.rs`.

use super::Driver;
use super::assemble::Stop;
use crate::gpus::{self, Looking, Place, QUEUES, VISIBLE};
use crate::plan::Talk;

/// What the ranks of a host are told about GPUs.
pub(super) struct Told {
    /// The GPUs of each; none where ranks are left to choose among all of them.
    masks: Vec<String>,
    /// Whether to have one queue of work each, since they take turns on GPUs.
    one_queue: bool,
}

impl Told {
    /// Variables for one of them.
    pub(super) fn variables(&self, index: usize) -> impl Iterator<Item = (String, String)> + use<> {
        let mask = self.masks.get(index).map(|mask| (VISIBLE.to_owned(), mask.clone()));
        let queue = self.one_queue.then(|| (QUEUES.to_owned(), "1".to_owned()));
        mask.into_iter().chain(queue)
    }
}

impl Driver {
    /// What hosts are asked about their GPUs.
    pub(super) fn looking(&self) -> Looking {
        let set = self.request.variables.iter().find(|(name, _)| name == VISIBLE);
        let mask = set.map(|(_, mask)| mask.clone());
        Looking { mask, by_name: self.request.gpus_per_rank.is_some() }
    }

    /// For every host, what its ranks are told about GPUs.
    pub(super) fn share_gpus(&self) -> Result<Vec<Told>, Stop> {
        let known = self.members.iter().filter_map(|member| Some((member, member.gpus.as_ref()?)));
        let places: Vec<Place<'_>> = known
            .map(|(member, gpus)| Place {
                host: &member.name,
                ranks: member.ranks.len(),
                here: !member.is_remote,
                gpus,
            })
            .collect();
        let Some(each) = self.request.gpus_per_rank else {
            if let Some(line) = gpus::crowding(&places) {
                self.note(Talk::Normal, || line);
            }
            let set = |name: &str| {
                std::env::var_os(name).is_some()
                    || self.request.variables.iter().any(|(given, _)| given == name)
            };
            let told = |turns| Told { masks: Vec::new(), one_queue: turns && !set(QUEUES) };
            return Ok(gpus::taking_turns(&places).into_iter().map(told).collect());
        };
        let shares = gpus::hand_out(&places, each).map_err(Stop::Problems)?;
        for (member, shares) in self.members.iter().zip(&shares) {
            for (rank, share) in member.ranks.clone().zip(shares) {
                self.note(Talk::Verbose, || format!("rank {rank} gets {VISIBLE}={share} on {}", member.name));
            }
        }
        Ok(shares.into_iter().map(|masks| Told { masks, one_queue: false }).collect())
    }
}
