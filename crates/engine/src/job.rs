//! How a process becomes part of a job: rendezvous, then links to the other ranks.

use ronde_collective::{Card, Fabric, Interrupt};
use ronde_rendezvous::{Client, JobSpec, Place};
use ronde_settings::{Level, Settings};

use crate::error::Error;
use crate::network::Network;

type Result<T> = std::result::Result<T, Error>;

/// This process's place in a job and the links to the others: what the engine runs on.
pub(crate) struct Job {
    place: Place,
    // Dropped in this order: links say goodbye before the rendezvous is left.
    pub(crate) fabric: Fabric,
    pub(crate) membership: Membership,
}

/// The connection to the rendezvous, if there is one. A job that is dropped leaves in order, so that ranks which end because
/// another one was lost are not taken for lost themselves.
pub(crate) struct Membership(Option<Client>);

impl Membership {
    /// Tells everybody that this rank is about to end, and why.
    pub(crate) fn fail(&self, reason: &str) {
        if let Some(client) = &self.0 {
            client.fail(reason);
        }
    }

    pub(crate) fn descriptors(&self) -> Vec<std::os::fd::RawFd> {
        let own = self.0.iter().flat_map(Client::descriptors);
        own.chain(ronde_rendezvous::hosted_descriptors()).collect()
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if let Some(client) = self.0.take() {
            client.leave();
        }
    }
}

impl Job {
    /// Joins the job that the environment describes; without one, a job of size 1. Waits until all ranks have joined;
    /// `interrupted` is asked now and then whether to give up.
    pub(crate) fn start(settings: &Settings, interrupted: Interrupt) -> Result<Job> {
        let var = |name: &str| std::env::var(name).ok();
        let tell = |text: &str| ronde_settings::log(Level::Warning, text);
        match ronde_rendezvous::meet(&var, &|| interrupted(), &tell)? {
            Some(meeting) => {
                let network = Network::from_environment(var)?;
                let job = Job::join(meeting.spec(), &network, settings, interrupted)?;
                meeting.joined();
                Ok(job)
            }
            None => Ok(Job {
                place: Place::alone(),
                fabric: Fabric::alone(interrupted)?,
                membership: Membership(None),
            }),
        }
    }

    /// Joins the job that `spec` describes, with links as `network` says.
    pub(crate) fn join(
        spec: &JobSpec,
        network: &Network,
        settings: &Settings,
        interrupted: Interrupt,
    ) -> Result<Job> {
        let gave_up = || interrupted();
        let mut listening = None;
        let joined = Client::join(
            spec,
            |address| {
                listening = Some(network.listen(settings, address.ip()));
                match &listening {
                    Some(Ok(listening)) => postcard::to_stdvec(listening.card()).unwrap_or_default(),
                    _ => Vec::new(),
                }
            },
            &gave_up,
        );
        let listening = listening.transpose()?;
        let (client, cards) = joined?;
        let listening = listening.ok_or_else(|| Error::Invalid("the rendezvous asked for no card".into()))?;
        let cards = cards
            .iter()
            .enumerate()
            .map(|(rank, card)| {
                postcard::from_bytes(card)
                    .map_err(|_| Error::Invalid(format!("rank {rank} runs another version of Ronde")))
            })
            .collect::<Result<Vec<Card>>>()?;
        let rank = spec.place.rank;
        let mut failed = None;
        let fabric = listening.connect(rank, cards, spec.secret.clone(), interrupted.clone(), |links| {
            client.exchange("links", links, &gave_up).map_err(|error| {
                let text = error.to_string();
                failed = Some(Error::from(error));
                ronde_collective::Error::RendezvousLost(text)
            })
        });
        let fabric = match (fabric, failed) {
            (_, Some(error)) => return Err(error),
            (fabric, None) => fabric?,
        };
        let report = fabric.reporter();
        client.on_loss(move |loss| report(loss.rank, &loss.host, &loss.reason));
        Ok(Job { place: spec.place, fabric, membership: Membership(Some(client)) })
    }

    /// Where this process stands in the job.
    pub(crate) fn place(&self) -> Place {
        self.place
    }

    pub(crate) fn into_parts(self) -> (Place, Fabric, Membership) {
        (self.place, self.fabric, self.membership)
    }
}
