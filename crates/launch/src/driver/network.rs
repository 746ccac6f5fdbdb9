//! Who reaches whom how: what hosts are asked to try, and what follows for their ranks from how it went. The decision
//! itself is in `routes.rs`.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use super::member::Member;
use crate::Error;
use crate::probe::Target;
use crate::report::counted;
use crate::routes::{self, Apart};
use crate::variables::{DATA_ADDRESS, ROUTES};

/// What was found out.
pub(super) struct Choice {
    /// For every host, the variables that its ranks get.
    pub(super) variables: Vec<Vec<(String, String)>>,
    /// What was chosen, and why.
    pub(super) reasons: Vec<String>,
    /// What the user should know in any case.
    pub(super) warnings: Vec<String>,
}

/// Whom a host should try to reach, and where.
pub(super) fn targets(members: &[Member], host: usize) -> Vec<Target> {
    let others = members.iter().enumerate().filter(|(other, _)| *other != host);
    others
        .map(|(other, member)| {
            let reachable = member.reachable.iter();
            let addresses = reachable
                .flat_map(|reachable| {
                    reachable.interfaces.iter().map(|one| (one.address, reachable.port).into())
                })
                .collect();
            let advertised = member.hello.as_ref().and_then(|hello| hello.advertise.as_deref());
            let doors = advertised.map(addresses_of).unwrap_or_default();
            Target { host: other, identity: other as u64, addresses, doors }
        })
        .collect()
}

/// The addresses of a published `host:port`; none if the name does not resolve, which shows when nobody gets there.
fn addresses_of(published: &str) -> Vec<SocketAddr> {
    published.to_socket_addrs().map(Iterator::collect).unwrap_or_default()
}

/// Decides how hosts reach each other. A host alone needs nothing.
pub(super) fn choose(members: &[Member]) -> Result<Choice, Error> {
    if members.len() < 2 {
        return Ok(Choice {
            variables: vec![Vec::new(); members.len()],
            reasons: Vec::new(),
            warnings: Vec::new(),
        });
    }
    let hosts: Vec<routes::Reachable> = members
        .iter()
        .map(|member| routes::Reachable {
            name: member.name.clone(),
            interfaces: member.reachable.iter().flat_map(|one| one.interfaces.clone()).collect(),
            relay: member.reachable.as_ref().and_then(|one| one.relay),
        })
        .collect();
    let attempts: Vec<_> = members.iter().map(|member| member.attempts.clone().unwrap_or_default()).collect();
    let choice = routes::choose(&hosts, &attempts)
        .map_err(|apart| Error::Refused { text: apart.to_string(), hint: Some(Apart::HINT.to_owned()) })?;
    let variables = choice
        .hosts
        .iter()
        .map(|ways| {
            vec![(DATA_ADDRESS.to_owned(), ways.listen.to_string()), (ROUTES.to_owned(), ways.text())]
        })
        .collect();
    let relayed = choice.relayed.iter().map(|(from, to)| {
        let (one, other) = (&members[*from].name, &members[*to].name);
        format!(
            "warning: {one} and {other} do not reach each other; what their ranks say goes through this machine, which is slow"
        )
    });
    Ok(Choice { variables, reasons: choice.lines, warnings: relayed.collect() })
}

/// The hosts, their ranks, their addresses, and how far they are from the first.
pub(super) fn table(members: &[Member], choice: &Choice) -> Vec<String> {
    let name_width = members.iter().map(|member| member.name.chars().count()).max().unwrap_or(0);
    let first = members.first().map(|member| member.name.as_str()).unwrap_or_default();
    members
        .iter()
        .enumerate()
        .map(|(host, member)| {
            let ranks = counted(member.ranks.len(), "rank");
            let listen = choice.variables[host].first().map(|(_, value)| value.as_str()).unwrap_or_default();
            let interfaces = member.reachable.iter().flat_map(|reachable| &reachable.interfaces);
            let mut interfaces = interfaces.collect::<Vec<_>>().into_iter();
            // A host that nobody dials listens on none of its addresses, but has some.
            let first_of_all = interfaces.clone().next();
            let interface = interfaces.find(|one| one.address.to_string() == listen).or(first_of_all);
            let (interface, listen) =
                interface.map_or(("", listen.to_owned()), |one| (one.name.as_str(), one.address.to_string()));
            let about = match member.ranks.len() {
                1 => String::new(),
                _ => "shared memory inside".to_owned(),
            };
            let distance = best_round_trip(member).filter(|_| host > 0);
            let distance = distance.map(|time| format!("{:.2} ms to {first}", time.as_secs_f64() * 1e3));
            let about = [about, distance.unwrap_or_default()].into_iter().filter(|text| !text.is_empty());
            let about = about.collect::<Vec<_>>().join(", ");
            let line =
                format!("  {:name_width$}  {ranks:8}  {interface:6} {listen:15}  {about}", member.name);
            line.trim_end().to_owned()
        })
        .collect()
}

/// How long the way to the first host and back takes.
fn best_round_trip(member: &Member) -> Option<Duration> {
    let attempts = member.attempts.iter().flatten().filter(|attempt| attempt.host == 0);
    attempts.filter_map(|attempt| attempt.outcome.as_ref().ok().copied()).min()
}
