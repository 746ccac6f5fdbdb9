//! Which rank uses which GPU, and how those that share one get along: what hosts are asked, what some have to start, and
//! what follows for their ranks from the answers. The decisions themselves are in `gpus.rs` and `gpus/mps.rs`.

use super::Driver;
use super::assemble::Stop;
use super::member::Mps;
use crate::Error;
use crate::gpus::mps::{Company, PIPES, company, notes};
use crate::gpus::{self, Looking, Place, QUEUES, VISIBLE};
use crate::plan::Talk;
use crate::wire::ToAgent;

/// What the ranks of a host are told about GPUs.
pub(super) struct Told {
    /// The GPUs of each; none where ranks are left to choose among all of them.
    masks: Vec<String>,
    /// Whether to have one queue of work each, since they take turns on GPUs.
    one_queue: bool,
    /// The host whose service of NVIDIA's MPS they use, where the job starts one.
    served_by: Option<usize>,
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
        let set = |wanted: &str| {
            self.request.variables.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone())
        };
        let by_name = self.request.gpus_per_rank.is_some() || self.request.mps;
        Looking { mask: set(VISIBLE), pipes: set(PIPES), by_name }
    }

    /// For every host, what its ranks are told about GPUs. Hosts that have to start something for that are told to.
    pub(super) fn share_gpus(&mut self) -> Result<Vec<Told>, Stop> {
        let known = self.members.iter().filter_map(|member| Some((member, member.gpus.as_ref()?)));
        let places: Vec<Place<'_>> = known
            .map(|(member, gpus)| Place {
                host: &member.name,
                ranks: member.ranks.len(),
                here: !member.is_remote,
                gpus,
            })
            .collect();
        if let Some(each) = self.request.gpus_per_rank {
            let shares = gpus::hand_out(&places, each).map_err(Stop::Problems)?;
            for (member, shares) in self.members.iter().zip(&shares) {
                for (rank, share) in member.ranks.clone().zip(shares) {
                    self.note(Talk::Verbose, || {
                        format!("rank {rank} gets {VISIBLE}={share} on {}", member.name)
                    });
                }
            }
            if self.request.mps {
                self.note(Talk::Normal, || {
                    "note: --mps does nothing here: with --gpus-per-rank no ranks share a GPU".to_owned()
                });
            }
            let told = |masks| Told { masks, one_queue: false, served_by: None };
            return Ok(shares.into_iter().map(told).collect());
        }
        for line in notes(&places, self.request.mps) {
            self.note(Talk::Normal, || line);
        }
        let company = company(&places, self.request.mps);
        let set = |name: &str| {
            std::env::var_os(name).is_some() || self.request.variables.iter().any(|(given, _)| given == name)
        };
        let queues_are_set = set(QUEUES);
        let mut told = Vec::new();
        for (host, company) in company.into_iter().enumerate() {
            let served_by = match &company {
                Company::Starts(_) => Some(host),
                Company::Shares(other) => Some(*other),
                Company::Apart | Company::InTurns | Company::Running => None,
            };
            let one_queue = company == Company::InTurns && !queues_are_set;
            if let Company::Starts(service) = company {
                let folder = (!self.members[host].is_remote).then(|| self.mps_folder.clone());
                self.ask_for_service(host, ToAgent::StartMps { service, folder });
            }
            told.push(Told { masks: Vec::new(), one_queue, served_by });
        }
        Ok(told)
    }

    fn ask_for_service(&mut self, host: usize, request: ToAgent) {
        let member = &mut self.members[host];
        member.mps = Mps::Asked;
        member.doing.set("NVIDIA's MPS is being started there");
        if let Some(outbox) = &member.outbox {
            outbox.send(request);
        }
    }

    /// Whether everything that hosts had to start for their ranks is there. If something is not to be had, that is said of
    /// all hosts at once.
    pub(super) fn are_served(&self) -> Result<bool, Stop> {
        if self.members.iter().any(|member| matches!(member.mps, Mps::Asked)) {
            return Ok(false);
        }
        let failed = |member: &super::Member| match &member.mps {
            Mps::Failed(problem) => {
                Some(Error::NoMps { text: problem.text(&member.name), hint: problem.hint() })
            }
            _ => None,
        };
        let problems: Vec<Error> = self.members.iter().filter_map(failed).collect();
        if problems.is_empty() { Ok(true) } else { Err(Stop::Problems(problems)) }
    }

    /// The variables by which ranks find the service that was started for them, if one was.
    pub(super) fn service_for(&self, told: &Told) -> Vec<(String, String)> {
        match told.served_by.map(|host| &self.members[host].mps) {
            Some(Mps::Ready(variables)) => variables.clone(),
            _ => Vec::new(),
        }
    }
}
