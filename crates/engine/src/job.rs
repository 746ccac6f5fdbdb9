//! How a process becomes part of a job: rendezvous, then links to the other ranks.

use std::net::IpAddr;

use ronde_collective::{Card, Fabric, Interrupt, Listening};
use ronde_rendezvous::{Client, JobSpec, Place};
use ronde_settings::Settings;

use crate::error::Error;

type Result<T> = std::result::Result<T, Error>;

/// Variable that keeps ranks on one machine from sharing memory: only those with the same value do (default: all).
pub const MEMORY_DOMAIN: &str = "RONDE_MEMORY_DOMAIN";

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
        self.0.iter().flat_map(Client::descriptors).collect()
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
        match JobSpec::from_environment(|name| std::env::var(name).ok())? {
            Some(spec) => {
                let domain = std::env::var(MEMORY_DOMAIN).unwrap_or_default();
                Job::join(&spec, &domain, settings, interrupted)
            }

            None => Ok(Job {
                place: Place::alone(),
                fabric: Fabric::alone(interrupted)?,
                membership: Membership(None),
            }),
        }
    }

    /// Joins the job that `spec` describes, sharing memory with ranks of the same `domain` only.
    pub(crate) fn join(
        spec: &JobSpec,
        domain: &str,
        settings: &Settings,
        interrupted: Interrupt,
    ) -> Result<Job> {
        let gave_up = || interrupted();
        let mut listening = None;
        let joined = Client::join(
            spec,
            |address| {
                let opened =
                    data_address(settings, address.ip()).and_then(|address| Ok(Listening::open(address)?));
                listening = Some(opened.map(|open| open.apart(domain).patient(settings.peer_timeout)));
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

/// Where this rank takes connections of other ranks: where it reaches the rendezvous from, unless an interface is named.
fn data_address(settings: &Settings, from_rendezvous: IpAddr) -> Result<IpAddr> {
    let Some(wanted) = &settings.interface else { return Ok(from_rendezvous) };
    let all = if_addrs::get_if_addrs()
        .map_err(|error| Error::Invalid(format!("the network interfaces cannot be listed: {error}")))?;
    let mut found: Vec<IpAddr> =
        all.iter().filter(|one| one.name == *wanted).map(if_addrs::Interface::ip).collect();
    found.sort_by_key(|address| address.is_ipv4() != from_rendezvous.is_ipv4());
    found.first().copied().ok_or_else(|| {
        let mut names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
        names.dedup();
        Error::Invalid(format!(
            "HOROVOD_GLOO_IFACE={wanted}: there is no such network interface with an address here; there are {}",
            names.join(", ")
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(interface: Option<&str>) -> Result<IpAddr> {
        let interface = interface.map(str::to_owned);
        let settings = Settings { interface, ..Settings::from_environment(|_| None).0 };
        data_address(&settings, IpAddr::from([192, 0, 2, 1]))
    }

    #[test]
    fn ranks_listen_where_they_reach_the_rendezvous_from_or_on_the_interface_that_is_named() {
        assert_eq!(on(None).expect("an address"), IpAddr::from([192, 0, 2, 1]));
        assert_eq!(on(Some("lo")).expect("loopback"), IpAddr::from([127, 0, 0, 1]));
        let error = on(Some("nosuch0")).expect_err("no such interface").to_string();
        assert!(error.contains("nosuch0") && error.contains("lo"), "{error}");
    }
}
