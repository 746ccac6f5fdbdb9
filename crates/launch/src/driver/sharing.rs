//! Which rank uses which GPU: what hosts are asked, and what follows for their ranks from the answers. The decision itself
//! is in `gpus.rs`.

use super::Driver;
use super::assemble::Stop;
use crate::gpus::{self, Looking, Place, VISIBLE};
use crate::plan::Talk;

impl Driver {
    /// What hosts are asked about their GPUs.
    pub(super) fn looking(&self) -> Looking {
        let set = self.request.variables.iter().find(|(name, _)| name == VISIBLE);
        let mask = set.map(|(_, mask)| mask.clone());
        Looking { mask, by_name: self.request.gpus_per_rank.is_some() }
    }

    /// For every host, the GPUs of each of its ranks; none where ranks are left to choose among all of them.
    pub(super) fn share_gpus(&self) -> Result<Vec<Vec<String>>, Stop> {
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
            return Ok(vec![Vec::new(); self.members.len()]);
        };
        let shares = gpus::hand_out(&places, each).map_err(Stop::Problems)?;
        for (member, shares) in self.members.iter().zip(&shares) {
            for (rank, share) in member.ranks.clone().zip(shares) {
                self.note(Talk::Verbose, || format!("rank {rank} gets {VISIBLE}={share} on {}", member.name));
            }
        }
        Ok(shares)
    }
}
