//! What a rank is told about the network: where to listen, how to reach the ranks of other hosts, and with whom to share
//! memory. A launcher finds these out before it starts ranks and passes them as variables; without one, a rank listens
//! where it reaches the rendezvous from, and others dial it there.
//!
//! Unlike what steers the engine ([`Settings`]), a value that cannot be read is an error: with a guess in its place
//! the ranks would wait for each other in vain.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ronde_collective::{Listening, Routes};
use ronde_rendezvous::variable::HOSTNAME;
use ronde_settings::Settings;

use crate::error::Error;

type Result<T> = std::result::Result<T, Error>;

/// Variable that keeps ranks on one machine from sharing memory: only those with the same value do (default: all).
pub const MEMORY_DOMAIN: &str = "RONDE_MEMORY_DOMAIN";
const DATA_ADDRESS: &str = "RONDE_DATA_ADDRESS";
const PORT_RANGE: &str = "RONDE_PORT_RANGE";
const ROUTES: &str = "RONDE_ROUTES";
const DOORWAY: &str = "RONDE_DOORWAY";

/// How this rank is attached to the network. The default is that of a rank whom nobody told anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Memory is shared with ranks of the same domain only.
    pub domain: String,
    /// What the launcher calls this host; `None`: as the system does.
    pub host: Option<String>,
    /// Where to listen for other ranks; `None`: on the interface that the settings name, or where the rendezvous is reached
    /// from.
    pub address: Option<IpAddr>,
    /// The ports to listen at; `None`: any.
    pub ports: Option<RangeInclusive<u16>>,
    /// How the ranks of other hosts are reached.
    pub routes: Routes,
    /// The name of the host's doorway, where connections for this rank come in too.
    pub doorway: Option<String>,
}

impl Network {
    /// Reads the launcher's variables through `var`. An empty value counts as not set.
    pub fn from_environment(var: impl Fn(&str) -> Option<String>) -> Result<Network> {
        let text = |name| var(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let wrong =
            |name: &str, text: &str, problem: &str| Error::Invalid(format!("{name}={text}: {problem}"));
        let address = text(DATA_ADDRESS)
            .map(|text| text.parse().map_err(|_| wrong(DATA_ADDRESS, &text, "this is not an IP address")))
            .transpose()?;
        let ports = text(PORT_RANGE)
            .map(|text| {
                port_range(&text).ok_or_else(|| {
                    wrong(PORT_RANGE, &text, "this is not a range of ports such as 20000-20999")
                })
            })
            .transpose()?;
        let routes = text(ROUTES)
            .map(|text| Routes::parse(&text).map_err(|problem| wrong(ROUTES, &text, &problem)))
            .transpose()?;
        Ok(Network {
            domain: var(MEMORY_DOMAIN).unwrap_or_default(),
            host: text(HOSTNAME),
            address,
            ports,
            routes: routes.unwrap_or_default(),
            doorway: text(DOORWAY),
        })
    }

    /// Opens this rank's doors. `from_rendezvous` is the address from which it reaches the rendezvous.
    pub(crate) fn listen(&self, settings: &Settings, from_rendezvous: IpAddr) -> Result<Listening> {
        let address = match self.address {
            Some(address) => address,
            None => default_address(settings, from_rendezvous)?,
        };
        let mut listening = Listening::open(address, self.ports.clone())?
            .apart(&self.domain)
            .patient(settings.peer_timeout)
            .routed(self.routes.clone());
        if let Some(host) = &self.host {
            listening = listening.named(host.clone());
        }
        if let Some(doorway) = &self.doorway {
            listening = listening.at_doorway(doorway.clone());
        }
        Ok(listening)
    }
}

/// Two ports with a dash between them, or one. Port 0 is none that others could be told.
fn port_range(text: &str) -> Option<RangeInclusive<u16>> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let (low, high): (u16, u16) = (low.trim().parse().ok()?, high.trim().parse().ok()?);
    (0 < low && low <= high).then_some(low..=high)
}

/// Where this rank listens if no launcher says so: where it reaches the rendezvous from, unless an interface is named.
fn default_address(settings: &Settings, from_rendezvous: IpAddr) -> Result<IpAddr> {
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
        default_address(&settings, IpAddr::from([192, 0, 2, 1]))
    }

    #[test]
    fn ranks_listen_where_they_reach_the_rendezvous_from_or_on_the_interface_that_is_named() {
        assert_eq!(on(None).expect("an address"), IpAddr::from([192, 0, 2, 1]));
        assert_eq!(on(Some("lo")).expect("loopback"), IpAddr::from([127, 0, 0, 1]));
        let error = on(Some("nosuch0")).expect_err("no such interface").to_string();
        assert!(error.contains("nosuch0") && error.contains("lo"), "{error}");
    }

    #[test]
    fn the_launcher_decides_where_a_rank_listens_and_what_its_host_is_called() {
        let given = |name: &str| {
            let value = match name {
                HOSTNAME => "h1",
                MEMORY_DOMAIN => " as it is ",
                DATA_ADDRESS => "127.0.0.3",
                ROUTES => "h2=await",
                DOORWAY => "door",
                _ => return None,
            };
            Some(value.to_owned())
        };
        let network = Network::from_environment(given).expect("readable");
        let expected = Network {
            domain: " as it is ".into(),
            host: Some("h1".into()),
            address: Some(IpAddr::from([127, 0, 0, 3])),
            ports: None,
            routes: Routes::parse("h2=await").expect("routes"),
            doorway: Some("door".into()),
        };
        assert_eq!(network, expected);
        // The interface of the settings does not exist, which nobody asks once an address is given.
        let settings = Settings { interface: Some("nosuch0".into()), ..Settings::default() };
        let listening = network.listen(&settings, IpAddr::from([192, 0, 2, 1])).expect("listening");
        assert_eq!(listening.card().host, "h1");
        assert_eq!(Network::from_environment(|_| Some(String::new())).expect("empty"), Network::default());
    }

    #[test]
    fn ranges_are_two_ports_or_one() {
        for (text, range) in [("4000-4002", 4000..=4002), ("4000", 4000..=4000), (" 1 - 65535 ", 1..=65535)] {
            assert_eq!(port_range(text), Some(range), "{text}");
        }
        for wrong in ["", "0-10", "4002-4000", "4000-70000", "4000:4002", "-", "a-b"] {
            assert_eq!(port_range(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_value_that_cannot_be_read_is_an_error_that_quotes_it() {
        for (name, value) in [(DATA_ADDRESS, "eth0"), (PORT_RANGE, "many"), (ROUTES, "h2=nowhere")] {
            let given = |asked: &str| (asked == name).then(|| value.to_owned());
            let error = Network::from_environment(given).expect_err("unreadable").to_string();
            assert!(error.starts_with(&format!("{name}={value}: ")), "{error}");
        }
    }
}
