//! Which names mean the machine this runs on, so that its ranks need no ssh.
//!
//! A machine goes by its own name, by `localhost`, and by any name or address that leads to one of
//! its network interfaces. Names are looked up and interfaces listed here at the rim; the decision
//! itself is made of values.

use std::net::{IpAddr, ToSocketAddrs};
use std::thread;

use crate::Host;

/// What tells this machine from others.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    name: String,
    addresses: Vec<IpAddr>,
}

impl Machine {
    /// The machine this runs on.
    pub(crate) fn here() -> Machine {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        // Without a list of interfaces the machine still goes by its name and by loopback addresses.
        let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
        Machine { name, addresses: interfaces.iter().map(if_addrs::Interface::ip).collect() }
    }

    /// For each host, whether it is this machine. Names are looked up at the same time, because a
    /// resolver that does not answer takes seconds to give up.
    pub(crate) fn among(&self, hosts: &[Host]) -> Vec<bool> {
        thread::scope(|scope| {
            let ask = |host| scope.spawn(move || self.is_called(host, look_up));
            let asked: Vec<_> = hosts.iter().map(|host| ask(&host.name)).collect();
            asked.into_iter().map(|answer| answer.join().unwrap_or(false)).collect()
        })
    }

    /// Whether a name means this machine. `look_up` gives the addresses of a name and is asked only
    /// if the name itself does not settle it.
    fn is_called(&self, name: &str, look_up: impl FnOnce(&str) -> Vec<IpAddr>) -> bool {
        let ours = |address: &IpAddr| address.is_loopback() || self.addresses.contains(address);
        // The user of `anna@gpu1`, and the interface of `fe80::1%eth0`, say nothing about the machine.
        let name = name.rsplit_once('@').map_or(name, |(_, host)| host);
        let number = name.split_once('%').map_or(name, |(number, _)| number);
        if let Ok(address) = number.parse() {
            return ours(&address);
        }
        let short = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
        name.eq_ignore_ascii_case("localhost")
            || name.eq_ignore_ascii_case(&self.name)
            || (!name.contains('.') && short(name) == short(&self.name))
            || look_up(name).iter().any(ours)
    }
}

/// The addresses of a name; none if it has none.
fn look_up(name: &str) -> Vec<IpAddr> {
    let found = (name, 0).to_socket_addrs();
    found.map(|addresses| addresses.map(|address| address.ip()).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu1() -> Machine {
        let addresses = ["10.0.0.1", "fe80::1"].map(|address| address.parse().expect("address")).to_vec();
        Machine { name: "gpu1.lab".to_owned(), addresses }
    }

    /// What the lab's name server knows.
    fn known(name: &str) -> Vec<IpAddr> {
        let addresses: &[&str] = match name {
            "gpu1-ib.lab" => &["192.168.7.1", "10.0.0.1"],
            "gpu2" | "gpu2.lab" => &["10.0.0.2"],
            "gpu1.elsewhere" => &["10.1.0.1"],
            "here.lab" => &["127.0.1.1"],
            _ => &[],
        };
        addresses.iter().map(|address| address.parse().expect("address")).collect()
    }

    #[test]
    fn this_machine_goes_by_several_names() {
        let names = [
            "localhost",
            "LOCALHOST",
            "127.0.0.1",
            "127.3.2.1",
            "::1",
            "gpu1",
            "GPU1.lab",
            "anna@gpu1",
            "10.0.0.1",
            "fe80::1%eth0",
            "gpu1-ib.lab",
            "here.lab",
        ];
        for name in names {
            assert!(gpu1().is_called(name, known), "{name}");
        }
    }

    #[test]
    fn others_are_not_taken_for_it() {
        for name in ["gpu2", "gpu2.lab", "10.0.0.2", "fe80::2", "gpu1.elsewhere", "nobody", ""] {
            assert!(!gpu1().is_called(name, known), "{name}");
        }
    }

    #[test]
    fn nothing_is_looked_up_that_the_name_itself_settles() {
        let never = |name: &str| -> Vec<IpAddr> { panic!("{name} was looked up") };
        for name in ["localhost", "gpu1", "10.0.0.1", "10.0.0.2", "fe80::2%eth0"] {
            gpu1().is_called(name, never);
        }
    }

    #[test]
    fn hosts_are_told_apart_in_their_order() {
        let hosts = ["203.0.113.1", "localhost", "::1"].map(|name| Host { name: name.to_owned(), slots: 1 });
        assert_eq!(Machine::here().among(&hosts), [false, true, true]);
    }
}
