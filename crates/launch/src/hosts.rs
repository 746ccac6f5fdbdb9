//! Which ranks run where: reading `-H`, and giving every rank its place.
//!
//! Hosts are filled in the order in which they are written, so rank 0 is on the first. The cross
//! rank of a rank counts the hosts before its own that have a rank with the same local rank, which
//! for unequal hosts (5 + 1) is not the same as counting hosts. How one host is written is decided
//! here for files of hosts as well (hostfile.rs).

use std::net::Ipv6Addr;

use ronde_rendezvous::Place;

use crate::Error;

/// A host and how many ranks it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its name or address, without brackets.
    pub name: String,
    /// How many ranks it takes at most.
    pub slots: usize,
}

/// Where one rank runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The host, as the user named it.
    pub host: String,
    /// The rank's place in the job.
    pub place: Place,
}

/// Reads `localhost:2,h2:4,[fe80::1]:2`; a host without a number has one slot.
pub fn parse_hosts(list: &str) -> Result<Vec<Host>, Error> {
    let mut hosts: Vec<Host> = Vec::new();
    for entry in list.split(',') {
        let bad =
            |problem: String| Error::BadHost { entry: entry.to_owned(), list: list.to_owned(), problem };
        let (name, slots) = parse_host(entry.trim()).map_err(bad)?;
        if hosts.iter().any(|other| other.name == name) {
            return Err(bad("it is listed twice; add its slots up in one entry".to_owned()));
        }
        hosts.push(Host { name, slots: slots.unwrap_or(1) });
    }
    Ok(hosts)
}

/// One host, and its slots if they are written after a colon: `gpu1`, `gpu1:4`, `[fe80::1%eth0]:2`.
pub(crate) fn parse_host(entry: &str) -> Result<(String, Option<usize>), String> {
    let (name, slots) = if let Some(rest) = entry.strip_prefix('[') {
        let (address, after) = rest.split_once(']').ok_or("the bracket of its address is not closed")?;
        // A link-local address may say by which interface it is reached: fe80::1%eth0.
        let number = address.split_once('%').map_or(address, |(number, _)| number);
        if number.parse::<Ipv6Addr>().is_err() {
            return Err("what stands in brackets is not an IPv6 address".to_owned());
        }
        match after {
            "" => (address, None),
            _ => {
                let slots = after.strip_prefix(':').ok_or("a colon should follow the bracket")?;
                (address, Some(slots))
            }
        }
    } else if entry.parse::<Ipv6Addr>().is_ok() {
        return Err(format!("an IPv6 address goes in brackets: [{entry}]:1"));
    } else {
        let (name, slots) = match entry.split_once(':') {
            Some((name, slots)) => (name, Some(slots)),
            None => (entry, None),
        };
        check_name(name)?;
        (name, slots)
    };
    Ok((name.to_owned(), slots.map(parse_slots).transpose()?))
}

/// A name that ssh, variables and messages can all carry.
fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("it has no name".to_owned());
    }
    if name.starts_with('-') {
        return Err("a name does not begin with a dash".to_owned());
    }
    let fits = |letter: &char| letter.is_alphanumeric() || matches!(letter, '.' | '-' | '_' | '@');
    match name.chars().find(|letter| !fits(letter)) {
        Some(letter) => Err(format!("{letter:?} cannot be part of a name")),
        None => Ok(()),
    }
}

/// A number of ranks that a host takes.
pub(crate) fn parse_slots(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("it has 0 slots".to_owned()),
        Ok(slots) => Ok(slots),
        Err(_) => Err(format!("{text:?} is not a number of slots")),
    }
}

/// Gives `np` ranks their places, filling the hosts in order.
pub fn assign(hosts: &[Host], np: usize) -> Result<Vec<Seat>, Error> {
    if np == 0 {
        return Err(Error::NoRanks);
    }
    let mut left = np;
    let mut taken = Vec::with_capacity(hosts.len());
    for host in hosts {
        let here = host.slots.min(left);
        left -= here;
        taken.push(here);
    }
    if left > 0 {
        return Err(Error::TooFewSlots { np, arithmetic: arithmetic(hosts) });
    }
    let mut seats = Vec::with_capacity(np);
    for (index, host) in hosts.iter().enumerate() {
        for local_rank in 0..taken[index] {
            let has_one = |ranks: &&usize| **ranks > local_rank;
            let place = Place {
                rank: seats.len(),
                size: np,
                local_rank,
                local_size: taken[index],
                cross_rank: taken[..index].iter().filter(has_one).count(),
                cross_size: taken.iter().filter(has_one).count(),
            };
            seats.push(Seat { host: host.name.clone(), place });
        }
    }
    Ok(seats)
}

/// `the hosts have gpu1 2 + gpu2 1 = 3 slots`.
fn arithmetic(hosts: &[Host]) -> String {
    let slots = |count: usize| if count == 1 { "slot" } else { "slots" };
    match hosts {
        [only] => format!("{} has {} {}", only.name, only.slots, slots(only.slots)),
        _ => {
            let total = hosts.iter().fold(0, |sum: usize, host| sum.saturating_add(host.slots));
            let each: Vec<String> =
                hosts.iter().map(|host| format!("{} {}", host.name, host.slots)).collect();
            format!("the hosts have {} = {total} {}", each.join(" + "), slots(total))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, slots: usize) -> Host {
        Host { name: name.to_owned(), slots }
    }

    #[test]
    fn lists_of_hosts_are_read_as_people_write_them() {
        for (list, hosts) in [
            ("localhost", vec![host("localhost", 1)]),
            ("localhost:2,h2:4", vec![host("localhost", 2), host("h2", 4)]),
            ("a:1, b", vec![host("a", 1), host("b", 1)]),
            ("10.0.0.1:8", vec![host("10.0.0.1", 8)]),
            ("[::1]:3,[fe80::2]", vec![host("::1", 3), host("fe80::2", 1)]),
            ("[fe80::2%eth0]:2,anna@gpu_1", vec![host("fe80::2%eth0", 2), host("anna@gpu_1", 1)]),
        ] {
            assert_eq!(parse_hosts(list).expect(list), hosts, "{list}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_quoted_with_the_reason() {
        for (list, problem) in [
            ("", "no name"),
            ("a,,b", "no name"),
            (":2", "no name"),
            ("a:", "not a number"),
            ("a:two", "\"two\" is not a number"),
            ("a:-1", "not a number"),
            ("a:0", "0 slots"),
            ("a:2:3", "not a number"),
            ("a:1,a:2", "twice"),
            ("::1", "[::1]:1"),
            ("[::1", "not closed"),
            ("[::1]2", "colon"),
            ("[gpu1]:2", "not an IPv6 address"),
            ("gpu1 gpu2:2", "' ' cannot be part"),
            ("gpu1;gpu2", "';' cannot be part"),
            ("-oProxyCommand=x", "dash"),
        ] {
            let error = parse_hosts(list).expect_err(list).to_string();
            assert!(error.contains(problem), "{list:?}: {error}");
        }
    }

    #[test]
    fn hosts_are_filled_in_order_and_unequal_ones_have_the_right_cross_ranks() {
        let seats = assign(&[host("a", 5), host("b", 3)], 6).expect("fits");
        let told: Vec<_> = seats
            .iter()
            .map(|seat| {
                let p = seat.place;
                (seat.host.as_str(), p.rank, p.local_rank, p.local_size, p.cross_rank, p.cross_size)
            })
            .collect();
        assert_eq!(
            told,
            [
                ("a", 0, 0, 5, 0, 2),
                ("a", 1, 1, 5, 0, 1),
                ("a", 2, 2, 5, 0, 1),
                ("a", 3, 3, 5, 0, 1),
                ("a", 4, 4, 5, 0, 1),
                ("b", 5, 0, 1, 1, 2),
            ]
        );
        assert!(seats.iter().all(|seat| seat.place.size == 6));
    }

    #[test]
    fn too_few_slots_show_the_arithmetic() {
        let error = assign(&[host("a", 2), host("b", 1)], 4).expect_err("4 > 3").to_string();
        assert_eq!(error, "4 ranks do not fit: the hosts have a 2 + b 1 = 3 slots");
        let error = assign(&[host("a", 1)], 2).expect_err("2 > 1").to_string();
        assert_eq!(error, "2 ranks do not fit: a has 1 slot");
        assert!(matches!(assign(&[host("a", 1)], 0), Err(Error::NoRanks)));
    }
}
