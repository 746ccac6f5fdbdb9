//! Which address reaches whom, decided from what all hosts have tried. Pure: attempts in, routes and reasons out.
//!
//! Between two hosts connections are made in one direction only, so it is enough that one works. The host that comes later in
//! the list dials, unless only the other can. In this order of preference:
//!
//! 1. straight to an address of the other host,
//! 2. through the doorway that the other host publishes,
//! 3. through the launcher, by the relay door of the dialing host; which is slow, and said.
//!
//! A host that all its dialers reach at one address listens there and nowhere else. Where several addresses do, the round
//! trip decides, but only roughly (a busy machine is no slow network), and then the order of the interfaces.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use crate::listening::{Interface, is_link_local};
use crate::probe::Attempt;

/// How many pairs an error describes; what is wrong with the others is most likely the same.
const MOST_PAIRS: usize = 6;
/// How many hosts a line names.
const MOST_NAMES: usize = 4;

/// A host, as far as its network matters.
#[derive(Clone, Debug)]
pub(crate) struct Reachable {
    /// What the launcher calls it.
    pub(crate) name: String,
    /// Its addresses, the preferred ones first.
    pub(crate) interfaces: Vec<Interface>,
    /// Where its own ranks find a door to the launcher's relay, if there is one.
    pub(crate) relay: Option<SocketAddr>,
}

/// How the ranks of one host reach those of another. Its text is what ranks read in `RONDE_ROUTES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Dial this address; the number of the dialer's interface where it needs one, else 0.
    Address(IpAddr, u32),
    /// Wait to be dialled.
    Await,
    /// Dial this door and say which rank is meant.
    Via(SocketAddr),
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Route::Address(IpAddr::V4(address), _) => write!(f, "{address}"),
            Route::Address(IpAddr::V6(address), 0) => write!(f, "[{address}]"),
            Route::Address(IpAddr::V6(address), scope) => write!(f, "[{address}%{scope}]"),
            Route::Await => f.write_str("await"),
            Route::Via(door) => write!(f, "via:{door}"),
        }
    }
}

/// What the ranks of one host are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ways {
    /// Where they listen: `RONDE_DATA_ADDRESS`.
    pub(crate) listen: IpAddr,
    /// How they reach the ranks of every other host, by its name.
    pub(crate) routes: Vec<(String, Route)>,
}

impl Ways {
    /// The value of `RONDE_ROUTES`.
    pub(crate) fn text(&self) -> String {
        let entries = self.routes.iter().map(|(host, route)| format!("{host}={route}"));
        entries.collect::<Vec<_>>().join(";")
    }
}

/// What was decided for all hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// By host.
    pub(crate) hosts: Vec<Ways>,
    /// Pairs of hosts whose connections go through the launcher, the dialing one first.
    pub(crate) relayed: Vec<(usize, usize)>,
    /// What was chosen and why, for people.
    pub(crate) lines: Vec<String>,
}

/// Hosts that cannot be connected in any way.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.lines().join("\n"))]
pub(crate) struct Apart {
    /// The names of both, and what each tried to reach the other.
    pairs: Vec<[(String, String); 2]>,
}

impl Apart {
    /// What may help.
    pub(crate) const HINT: &str = "name the interfaces that connect the hosts with --network-interfaces, or let some ports \
                                   pass between them and name those with --port-range";

    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for [(one, one_tried), (other, other_tried)] in self.pairs.iter().take(MOST_PAIRS) {
            lines.push(format!("{one} and {other} cannot reach each other"));
            lines.push(format!("  {other} -> {one}: {other_tried}"));
            lines.push(format!("  {one} -> {other}: {one_tried}"));
        }
        match self.pairs.len().saturating_sub(MOST_PAIRS) {
            0 => {}
            1 => lines.push("and 1 more pair".to_owned()),
            more => lines.push(format!("and {more} more pairs")),
        }
        lines
    }
}

/// How one host dials another.
#[derive(Clone, Copy)]
enum Dialling<'a> {
    Straight(&'a Attempt),
    Door(&'a Attempt),
    Relay(SocketAddr),
}

/// Decides for all hosts. `attempts` has, for every host, what it tried.
pub(crate) fn choose(hosts: &[Reachable], attempts: &[Vec<Attempt>]) -> Result<Choice, Apart> {
    let tried = Tried { hosts, attempts };
    let mut dialled: Vec<Vec<(usize, Dialling)>> = vec![Vec::new(); hosts.len()];
    let mut apart = Vec::new();
    for low in 0..hosts.len() {
        for high in low + 1..hosts.len() {
            match tried.direction(low, high) {
                Some((from, to, how)) => dialled[to].push((from, how)),
                None => apart.push(
                    [(low, high), (high, low)]
                        .map(|(from, to)| (hosts[from].name.clone(), tried.failures(from, to, ": "))),
                ),
            }
        }
    }
    if !apart.is_empty() {
        return Err(Apart { pairs: apart });
    }

    let mut routes: Vec<Vec<(usize, Route)>> = vec![Vec::new(); hosts.len()];
    let (mut listen, mut relayed, mut lines) = (Vec::new(), Vec::new(), Vec::new());
    for (to, dialers) in dialled.iter_mut().enumerate() {
        tried.settle(to, dialers);
        listen.push(tried.listen(to, dialers));
        let mut said: Vec<Line> = Vec::new();
        for &mut (from, how) in dialers {
            let (route, line) = tried.describe(from, to, how);
            routes[from].push((to, route));
            routes[to].push((from, Route::Await));
            if let Dialling::Relay(_) = how {
                relayed.push((from, to));
            }
            match said.iter_mut().find(|one| one.is_like(&line)) {
                Some(one) => one.join(line),
                None => said.push(line),
            }
        }
        lines.extend(said.iter().map(|line| line.text(hosts)));
    }
    let named = |(listen, mut routes): (IpAddr, Vec<(usize, Route)>)| {
        routes.sort_by_key(|&(other, _)| other);
        Ways {
            listen,
            routes: routes.into_iter().map(|(other, route)| (hosts[other].name.clone(), route)).collect(),
        }
    };
    Ok(Choice { hosts: listen.into_iter().zip(routes).map(named).collect(), relayed, lines })
}

/// All that was tried, and by whom.
struct Tried<'a> {
    hosts: &'a [Reachable],
    attempts: &'a [Vec<Attempt>],
}

impl<'a> Tried<'a> {
    fn between(&self, from: usize, to: usize) -> impl Iterator<Item = &'a Attempt> + use<'a> {
        self.attempts.get(from).into_iter().flatten().filter(move |one| one.host == to)
    }

    /// What worked, straight or at a door.
    fn worked(
        &self,
        from: usize,
        to: usize,
        door: bool,
    ) -> impl Iterator<Item = (&'a Attempt, Duration)> + use<'a> {
        let time = |one: &'a Attempt| Some((one, *one.outcome.as_ref().ok()?));
        self.between(from, to).filter(move |one| one.door == door).filter_map(time)
    }

    /// The best of what worked for one dialer.
    fn best(&self, from: usize, to: usize, door: bool) -> Option<&'a Attempt> {
        let worked = self.worked(from, to, door);
        let best = worked.min_by_key(|(one, time)| (class(*time), self.order(to, one.address.ip())));
        best.map(|(one, _)| one)
    }

    /// Who dials whom, and how.
    fn direction(&self, low: usize, high: usize) -> Option<(usize, usize, Dialling<'a>)> {
        let found = |way: &dyn Fn(usize, usize) -> Option<Dialling<'a>>| {
            [(high, low), (low, high)].into_iter().find_map(|(from, to)| Some((from, to, way(from, to)?)))
        };
        found(&|from, to| self.best(from, to, false).map(Dialling::Straight))
            .or_else(|| found(&|from, to| self.best(from, to, true).map(Dialling::Door)))
            .or_else(|| found(&|from, _| self.hosts[from].relay.map(Dialling::Relay)))
    }

    /// Has all who dial a host straight use the same address, if there is one that works for all.
    fn settle(&self, to: usize, dialers: &mut [(usize, Dialling<'a>)]) {
        let straight: Vec<usize> = dialers
            .iter()
            .filter(|(_, how)| matches!(how, Dialling::Straight(_)))
            .map(|&(from, _)| from)
            .collect();
        let at = |from, address| self.worked(from, to, false).find(|(one, _)| one.address.ip() == address);
        let slowest = |address| {
            let times = straight.iter().map(|&from| at(from, address).map(|(_, time)| time));
            times.collect::<Option<Vec<_>>>()?.into_iter().max()
        };
        let Some(&first) = straight.first() else { return };
        let common = self
            .worked(first, to, false)
            .map(|(one, _)| one.address.ip())
            .filter_map(|address| Some((address, slowest(address)?)))
            .min_by_key(|&(address, time)| (class(time), self.order(to, address)));
        let Some((address, _)) = common else { return };
        for (from, how) in dialers {
            if let Dialling::Straight(chosen) = how
                && let Some((one, _)) = at(*from, address)
            {
                *chosen = one;
            }
        }
    }

    /// Where a host listens that is dialled in these ways.
    fn listen(&self, to: usize, dialers: &[(usize, Dialling)]) -> IpAddr {
        let straight = |(_, how): &(usize, Dialling)| match how {
            Dialling::Straight(one) => Some(one.address.ip()),
            Dialling::Door(_) | Dialling::Relay(_) => None,
        };
        let mut addresses: Vec<IpAddr> = dialers.iter().filter_map(straight).collect();
        addresses.dedup();
        match addresses[..] {
            [] => IpAddr::V4(Ipv4Addr::LOCALHOST),
            // One that is translated on the way is none to listen at, and one of a link needs more than itself.
            [only] if self.interface(to, only).is_some() && !is_link_local(only) => only,
            _ if addresses.iter().all(IpAddr::is_ipv4) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            _ => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        }
    }

    fn interface(&self, host: usize, address: IpAddr) -> Option<&'a str> {
        let mut interfaces = self.hosts[host].interfaces.iter();
        interfaces.find(|one| one.address == address).map(|one| one.name.as_str())
    }

    fn order(&self, host: usize, address: IpAddr) -> usize {
        let interfaces = &self.hosts[host].interfaces;
        interfaces.iter().position(|one| one.address == address).unwrap_or(interfaces.len())
    }

    /// An address with the interface it belongs to.
    fn named(&self, host: usize, attempt: &Attempt) -> String {
        match self.interface(host, attempt.address.ip()) {
            _ if attempt.door => format!("its door {}", attempt.address),
            Some(interface) => format!("{} ({interface})", attempt.address.ip()),
            None => attempt.address.ip().to_string(),
        }
    }

    /// What did not work, and why.
    fn failures(&self, from: usize, to: usize, because: &str) -> String {
        let mut failures: Vec<String> = Vec::new();
        for one in self.between(from, to) {
            let Err(why) = &one.outcome else { continue };
            // An address of a link is tried on every interface, and works on one.
            if self.worked(from, to, one.door).any(|(other, _)| other.address == one.address) {
                continue;
            }
            let own = !one.door && self.interface(from, one.address.ip()).is_some();
            let why = if own { "the dialing host has that address too" } else { why };
            let text = format!("{}{because}{why}", self.named(to, one));
            if !failures.contains(&text) {
                failures.push(text);
            }
        }
        if self.between(from, to).next().is_none() {
            failures.push("it has no address to dial".to_owned());
        }
        failures.join("; ")
    }

    /// The dialer's route, and what is said about it.
    fn describe(&self, from: usize, to: usize, how: Dialling) -> (Route, Line) {
        let (route, chosen) = match how {
            Dialling::Straight(one) => (Route::Address(one.address.ip(), one.scope), self.named(to, one)),
            Dialling::Door(one) => (Route::Via(one.address), format!("through {}", self.named(to, one))),
            Dialling::Relay(relay) => {
                (Route::Via(relay), "relayed through the launcher, which is slow".to_owned())
            }
        };
        let times = match how {
            Dialling::Straight(one) | Dialling::Door(one) => one.outcome.iter().copied().collect(),
            Dialling::Relay(_) => Vec::new(),
        };
        let mut because = self.failures(from, to, " ruled out: ");
        let reversed = from < to;
        if reversed || matches!(how, Dialling::Relay(_)) {
            let (here, there) = (&self.hosts[from].name, &self.hosts[to].name);
            let separator = if because.is_empty() { "" } else { "; " };
            because =
                format!("{because}{separator}{there} cannot dial {here}: {}", self.failures(to, from, ": "));
        }
        (route, Line { from: vec![from], to, chosen, times, because })
    }
}

/// Round trips of one class are as good as each other.
fn class(time: Duration) -> u32 {
    let limits = [2, 20, 200];
    limits.into_iter().filter(|&limit| time >= Duration::from_millis(limit)).count() as u32
}

/// One line for people: hosts that reach another in the same way, for the same reasons.
struct Line {
    from: Vec<usize>,
    to: usize,
    chosen: String,
    times: Vec<Duration>,
    because: String,
}

impl Line {
    fn is_like(&self, other: &Line) -> bool {
        self.chosen == other.chosen && self.because == other.because
    }

    fn join(&mut self, other: Line) {
        self.from.extend(other.from);
        self.times.extend(other.times);
    }

    fn text(&self, hosts: &[Reachable]) -> String {
        let mut names: Vec<&str> = self.from.iter().map(|&host| hosts[host].name.as_str()).collect();
        let more = match names.len() {
            0..=MOST_NAMES => String::new(),
            all => {
                names.truncate(MOST_NAMES - 1);
                format!(" and {} more", all - names.len())
            }
        };
        let mut text = format!("{}{more} -> {}: {}", names.join(", "), hosts[self.to].name, self.chosen);
        if let (Some(&fastest), Some(&slowest)) = (self.times.iter().min(), self.times.iter().max()) {
            let (fastest, slowest) = (milliseconds(fastest), milliseconds(slowest));
            text.push_str(&match fastest == slowest {
                true => format!(", {fastest} ms"),
                false => format!(", {fastest} to {slowest} ms"),
            });
        }
        if !self.because.is_empty() {
            text.push_str("; ");
            text.push_str(&self.because);
        }
        text
    }
}

/// As many digits as mean something.
fn milliseconds(time: Duration) -> String {
    let milliseconds = time.as_secs_f64() * 1000.0;
    match milliseconds {
        1.0.. => format!("{milliseconds:.0}"),
        0.1.. => format!("{milliseconds:.1}"),
        _ => format!("{milliseconds:.2}"),
    }
}

#[cfg(test)]
mod tests;
