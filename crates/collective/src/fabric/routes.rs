//! How the ranks of this host reach those of others, as whoever started them found out.
//!
//! Where no launcher says anything, the higher rank dials the address on the other's card. A launcher knows more: which of a
//! host's addresses work from here, and which direction does not work at all. It tells every host so in one line of text:
//!
//! ```text
//! h2=10.0.0.2;h3=await;h4=via:203.0.113.7:9000
//! ```
//!
//! The two ends of a pair must agree about who dials; whoever writes the routes of all hosts sees to that.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

/// How to reach the ranks of one other host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Dial this address, at the port that the rank's card names; the port given here means nothing. It is a socket address
    /// because a link-local one also needs the interface it is on.
    Address(SocketAddr),
    /// Do not dial: the others will.
    Await,
    /// Dial this address and say first which rank is meant: a door through which all ranks of that host are reached.
    Via(SocketAddr),
}

/// The routes to all hosts that have one, by the names that stand on cards.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Routes(HashMap<String, Route>);

impl Routes {
    /// Reads the text form. The error says which part of it makes no sense.
    pub fn parse(text: &str) -> Result<Routes, String> {
        let entries = text.split(';').map(str::trim).filter(|entry| !entry.is_empty());
        let mut routes = HashMap::new();
        for entry in entries {
            let (host, way) = entry
                .split_once('=')
                .filter(|(host, _)| !host.is_empty())
                .ok_or_else(|| format!("{entry:?} is not HOST=WAY"))?;
            let route = parse_way(way).ok_or_else(|| {
                format!("{way:?} is no way to {host}: it must be an address, await, or via:ADDRESS:PORT")
            })?;
            if routes.insert(host.to_owned(), route).is_some() {
                return Err(format!("{host} stands in it twice"));
            }
        }
        Ok(Routes(routes))
    }

    /// The route to a host, if one was given.
    pub fn to(&self, host: &str) -> Option<Route> {
        self.0.get(host).copied()
    }
}

fn parse_way(way: &str) -> Option<Route> {
    if way == "await" {
        return Some(Route::Await);
    }
    if let Some(door) = way.strip_prefix("via:") {
        return door.parse().ok().map(Route::Via);
    }
    if let Ok(address) = way.parse::<IpAddr>() {
        return Some(Route::Address(SocketAddr::new(address, 0)));
    }
    // The standard library reads brackets and the number of an interface only together with a port.
    let bracketed = way.starts_with('[').then(|| format!("{way}:0").parse::<SocketAddrV6>().ok())??;
    Some(Route::Address(bracketed.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn every_way_to_a_host_is_read() {
        let text =
            "h2=10.0.0.2;h3=await; h4=via:203.0.113.7:9000 ;h5=[fe80::1%3];h6=2001:db8::6;fd00::7=[fd00::7];";
        let routes = Routes::parse(text).expect("routes");
        assert_eq!(routes.to("h2"), Some(Route::Address(socket("10.0.0.2:0"))));
        assert_eq!(routes.to("h3"), Some(Route::Await));
        assert_eq!(routes.to("h4"), Some(Route::Via(socket("203.0.113.7:9000"))));
        assert_eq!(routes.to("h5"), Some(Route::Address(socket("[fe80::1%3]:0"))));
        assert_eq!(routes.to("h6"), Some(Route::Address(socket("[2001:db8::6]:0"))));
        assert_eq!(routes.to("fd00::7"), Some(Route::Address(socket("[fd00::7]:0"))));
        assert_eq!(routes.to("h1"), None);
        assert_eq!(Routes::parse("").expect("no routes"), Routes::default());
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let cases = [
            ("h2", "\"h2\" is not HOST=WAY"),
            ("h2=10.0.0.2;=await", "\"=await\" is not HOST=WAY"),
            ("h2=10.0.0.256", "\"10.0.0.256\" is no way to h2"),
            ("h2=via:10.0.0.2", "\"via:10.0.0.2\" is no way to h2"),
            ("h2=[10.0.0.2]", "\"[10.0.0.2]\" is no way to h2"),
            ("h2=await;h2=10.0.0.2", "h2 stands in it twice"),
        ];
        for (text, complaint) in cases {
            let error = Routes::parse(text).expect_err(text);
            assert!(error.starts_with(complaint), "{text}: {error}");
        }
    }
}
