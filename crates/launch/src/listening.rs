//! Listening where other hosts can reach this one: on all addresses of both kinds, at a port of a range if one is given. And
//! the addresses themselves, as the interfaces of this machine have them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with, sockopt};
use serde::{Deserialize, Serialize};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// Why this host cannot be reached by others.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// An interface was named that is not there.
    #[error("there is no network interface {wanted} with an address here; there are {there}")]
    NoInterface { wanted: String, there: String },
    /// Other programs listen at every port that was allowed.
    #[error("no port is free in the range {}-{}", range.start(), range.end())]
    NoPort { range: RangeInclusive<u16> },
    /// A port cannot be listened at.
    #[error("cannot listen at port {port}: {source}")]
    Listen { port: u16, source: io::Error },
    /// The system refused something.
    #[error("cannot {doing}: {source}")]
    System { doing: &'static str, source: io::Error },
}

impl Error {
    /// Says what was being done when the system refused.
    pub(crate) fn system(doing: &'static str) -> impl Fn(io::Error) -> Error {
        move |source| Error::System { doing, source }
    }
}

/// One address of one network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) address: IpAddr,
}

/// The addresses at which other hosts might reach this one, in the order of the system; only those of the named interfaces,
/// if any are named.
pub(crate) fn addresses(named: &[String]) -> Result<Vec<Interface>, Error> {
    let all = if_addrs::get_if_addrs().map_err(Error::system("list the network interfaces"))?;
    let all: Vec<Candidate> = all
        .into_iter()
        .map(|one| Candidate { up: one.is_oper_up(), address: one.ip(), name: one.name })
        .collect();
    choose(&all, named)
}

struct Candidate {
    name: String,
    address: IpAddr,
    up: bool,
}

fn choose(all: &[Candidate], named: &[String]) -> Result<Vec<Interface>, Error> {
    // Hosts call theirs by different names, so one that is here is enough.
    if !named.is_empty() && !all.iter().any(|one| named.contains(&one.name)) {
        let mut there: Vec<&str> = Vec::new();
        for one in all {
            if !there.contains(&one.name.as_str()) {
                there.push(&one.name);
            }
        }
        return Err(Error::NoInterface { wanted: named.join(" or "), there: there.join(", ") });
    }
    // Whoever names an interface wants it, even if it looks useless from here.
    let wanted = |one: &&Candidate| match named {
        [] => one.up && !one.address.is_loopback(),
        named => named.contains(&one.name),
    };
    let interface = |one: &Candidate| Interface { name: one.name.clone(), address: one.address };
    let (local, wide): (Vec<_>, Vec<_>) =
        all.iter().filter(wanted).map(interface).partition(|one| is_link_local(one.address));
    Ok(if wide.is_empty() { local } else { wide })
}

/// Whether an address means something only together with an interface.
pub(crate) fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Listens on all addresses, of both kinds where the system has both, at a port of the range or any free one.
pub(crate) fn everywhere(range: Option<RangeInclusive<u16>>) -> Result<TcpListener, Error> {
    let Some(range) = range else {
        return at(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)));
    };
    for port in range.clone() {
        match at(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))) {
            Err(Error::Listen { source, .. }) if source.kind() == io::ErrorKind::AddrInUse => {}
            other => return other,
        }
    }
    Err(Error::NoPort { range })
}

/// Listens at one address; `::` means all addresses of both kinds, and those of IPv4 where there is no other.
pub(crate) fn at(address: SocketAddr) -> Result<TcpListener, Error> {
    let failed = |source| Error::Listen { port: address.port(), source };
    if address.ip() != IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        return TcpListener::bind(address).map_err(failed);
    }
    match both_kinds(address) {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(failed(error)),
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).map_err(failed),
    }
}

/// Whether `::` includes IPv4 is a setting of the system, unless one says so.
fn both_kinds(address: SocketAddr) -> io::Result<TcpListener> {
    let socket =
        socket_with(AddressFamily::INET6, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP))?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_ipv6_v6only(&socket, false)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    fn candidates() -> Vec<Candidate> {
        let table = [
            ("lo", "127.0.0.1", true),
            ("lo", "::1", true),
            ("eth0", "10.0.0.2", true),
            ("docker0", "172.17.0.1", false),
            ("eth0", "fd00::2", true),
            ("eth0", "fe80::2", true),
        ];
        table
            .into_iter()
            .map(|(name, address, up)| Candidate {
                name: name.to_owned(),
                address: address.parse().expect("an address"),
                up,
            })
            .collect()
    }

    fn chosen(all: &[Candidate], named: &[&str]) -> Vec<String> {
        let named: Vec<String> = named.iter().map(|&name| name.to_owned()).collect();
        let found = choose(all, &named).expect("interfaces");
        found.iter().map(|one| format!("{} {}", one.name, one.address)).collect()
    }

    #[test]
    fn addresses_that_lead_nowhere_are_left_out_unless_their_interface_is_named() {
        let all = candidates();
        assert_eq!(chosen(&all, &[]), ["eth0 10.0.0.2", "eth0 fd00::2"]);
        assert_eq!(chosen(&all, &["lo", "docker0"]), ["lo 127.0.0.1", "lo ::1", "docker0 172.17.0.1"]);
        let lonely = &all[5..];
        assert_eq!(chosen(lonely, &[]), ["eth0 fe80::2"]);
        assert!(chosen(&all[..2], &[]).is_empty());
    }

    #[test]
    fn an_interface_that_is_not_there_is_named_with_those_that_are() {
        let named = ["ens3".to_owned(), "ib0".to_owned()];
        let error = choose(&candidates(), &named).expect_err("no such interface").to_string();
        assert_eq!(
            error,
            "there is no network interface ens3 or ib0 with an address here; there are lo, eth0, docker0"
        );
        assert_eq!(chosen(&candidates(), &["ib0", "docker0"]), ["docker0 172.17.0.1"]);
        assert!(addresses(&["lo".to_owned()]).expect("loopback").iter().any(|one| one.address.is_loopback()));
    }

    #[test]
    fn a_range_is_used_up_to_its_last_port_and_then_named() {
        let first = everywhere(None).expect("any port").local_addr().expect("its address").port();
        let range = first - 2..=first;
        let mut taken = Vec::new();
        let error = loop {
            match everywhere(Some(range.clone())) {
                Ok(listener) => taken.push(listener),
                Err(error) => break error,
            }
        };
        assert!((1..=3).contains(&taken.len()), "{}", taken.len());
        assert_eq!(error.to_string(), format!("no port is free in the range {}-{first}", first - 2));
    }

    #[test]
    fn everywhere_means_both_kinds_of_addresses() {
        let listener = everywhere(None).expect("any port");
        let port = listener.local_addr().expect("its address").port();
        TcpStream::connect((Ipv4Addr::new(127, 0, 0, 5), port)).expect("IPv4");
        if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            TcpStream::connect((Ipv6Addr::LOCALHOST, port)).expect("IPv6");
        }
    }
}
