//! The ways between hosts: each tries to reach all others, and then every two measure how much passes.

use std::net::SocketAddr;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use ronde_trust::Secret;

use super::patient::Patient;
use super::question::{Journey, Service};
use super::report::{Pair, Reach};
use super::rounds::rounds;
use super::{Doctor, News};
use crate::probe::{Attempt, Interface, Target};
use crate::wire::Welcome;

/// How long a way is measured in each direction: long enough for TCP to find its speed in a network of one site.
const TIME: Duration = Duration::from_millis(250);
/// How long the doctor may be silent before an agent gives it up.
const LOST_AFTER: Duration = Duration::from_secs(30);

/// A host that can be asked, and where others may reach it.
struct Reachable<'a> {
    name: &'a str,
    patient: &'a Patient,
    interfaces: Vec<Interface>,
    port: u16,
    /// Where it answers those who measure.
    meter: Option<u16>,
}

/// Explores all ways between the hosts that can be asked. One that stops answering meanwhile is left out; that nobody
/// reaches it shows.
pub(super) fn explore(request: &Doctor, patients: &[Option<Patient>], secret: &Secret, news: &Sender<News>) {
    if patients.iter().flatten().count() < 2 {
        return;
    }
    let digits = secret.to_hex().to_string();
    let prepare = |number: usize| {
        let patient = patients[number].as_ref()?;
        let welcome = Welcome {
            secret: digits.clone(),
            identity: number as u64,
            lost_after: LOST_AFTER,
            ports: request.ports.clone(),
            interfaces: request.interfaces.clone(),
            others: true,
        };
        let (interfaces, port) = patient.welcome(welcome).unwrap_or_default();
        let meter = patient.serve(Service { secret: digits.clone(), ports: request.ports.clone() }).ok();
        Some(Reachable { name: &request.hosts[number].name, patient, interfaces, port, meter })
    };
    let hosts: Vec<Option<Reachable<'_>>> = at_once(0..patients.len(), prepare);
    let attempts: Vec<Vec<Attempt>> = at_once(0..hosts.len(), |number| {
        let Some(host) = &hosts[number] else { return Vec::new() };
        host.patient.reach(targets(&hosts, number)).unwrap_or_default()
    });
    let numbers: Vec<usize> = (0..hosts.len()).filter(|&number| hosts[number].is_some()).collect();
    for round in rounds(numbers.len()) {
        let measure = |(one, other): (usize, usize)| {
            let (one, other) = (numbers[one], numbers[other]);
            pair(&hosts, one, other, &attempts, &digits)
        };
        for pair in at_once(round.into_iter(), measure).into_iter().flatten() {
            // Nobody listens only if the doctor has given up.
            let _ = news.send(News::Pair(pair));
        }
    }
}

/// Everybody else, and where they may be reached.
fn targets(hosts: &[Option<Reachable<'_>>], number: usize) -> Vec<Target> {
    let others = hosts.iter().enumerate().filter(|(other, _)| *other != number);
    others
        .filter_map(|(other, host)| {
            let host = host.as_ref()?;
            let addresses = host.interfaces.iter().map(|one| (one.address, host.port).into()).collect();
            Some(Target { host: other, identity: other as u64, addresses, doors: Vec::new() })
        })
        .collect()
}

/// How it is between two hosts; whoever reaches the other measures.
fn pair(
    hosts: &[Option<Reachable<'_>>],
    one: usize,
    other: usize,
    attempts: &[Vec<Attempt>],
    secret: &str,
) -> Option<Pair> {
    let (from, to) = (hosts[one].as_ref()?, hosts[other].as_ref()?);
    let (there, back) = (best(&attempts[one], other), best(&attempts[other], one));
    let measure = |dialler: &Reachable<'_>, way: Option<&Attempt>, meter: Option<u16>| {
        let (way, port) = (way?, meter?);
        let address = SocketAddr::from((way.address.ip(), port));
        let journey = Journey { secret: secret.to_owned(), address, scope: way.scope, time: TIME };
        dialler.patient.measure(journey)
    };
    let forward = measure(from, there, to.meter);
    let bits = forward.or_else(|| measure(to, back, from.meter).map(|(there, back)| (back, there)));
    Some(Pair {
        from: from.name.to_owned(),
        to: to.name.to_owned(),
        forward: reach(&attempts[one], other),
        backward: reach(&attempts[other], one),
        bits_forward: bits.map(|(forward, _)| forward),
        bits_backward: bits.map(|(_, backward)| backward),
    })
}

/// The quickest way to a host.
fn best(attempts: &[Attempt], host: usize) -> Option<&Attempt> {
    let good = attempts.iter().filter(|attempt| attempt.host == host && attempt.outcome.is_ok());
    good.min_by_key(|attempt| attempt.outcome.as_ref().map_or(Duration::MAX, |time| *time))
}

fn reach(attempts: &[Attempt], host: usize) -> Reach {
    if let Some(Attempt { address, outcome: Ok(time), .. }) = best(attempts, host) {
        return Reach { address: Some(address.ip()), round_trip: Some(time.as_secs_f64()), failure: None };
    }
    let tried = attempts.iter().filter(|attempt| attempt.host == host);
    let failures: Vec<String> = tried
        .filter_map(|attempt| Some(format!("{}: {}", attempt.address.ip(), attempt.outcome.as_ref().err()?)))
        .collect();
    let failure = match failures.is_empty() {
        true => "there is no address to try".to_owned(),
        false => failures.join("; "),
    };
    Reach { address: None, round_trip: None, failure: Some(failure) }
}

/// Does something for all at the same time; the results are in order.
fn at_once<T: Send, R: Send>(items: impl Iterator<Item = T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let work = &work;
    thread::scope(|scope| {
        let started: Vec<_> = items.map(|item| scope.spawn(move || work(item))).collect();
        // A panic over there is one here.
        started
            .into_iter()
            .map(|one| one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(host: usize, address: &str, outcome: Result<u64, &str>) -> Attempt {
        let outcome = outcome.map(Duration::from_micros).map_err(str::to_owned);
        Attempt { host, address: address.parse().expect("an address"), scope: 0, door: false, outcome }
    }

    #[test]
    fn the_quickest_way_is_taken_and_every_failure_told() {
        let attempts = [
            attempt(1, "10.0.0.2:400", Ok(90)),
            attempt(1, "10.1.0.2:400", Ok(80)),
            attempt(1, "172.17.0.1:400", Err("another host answers there")),
            attempt(2, "10.0.0.3:400", Err("timed out")),
            attempt(2, "172.17.0.1:400", Err("another host answers there")),
        ];
        let way = reach(&attempts, 1);
        assert_eq!(way.address, Some("10.1.0.2".parse().expect("an address")));
        assert_eq!((way.round_trip, way.failure), (Some(0.000_08), None));
        let failure = reach(&attempts, 2).failure.expect("no way");
        assert_eq!(failure, "10.0.0.3: timed out; 172.17.0.1: another host answers there");
        assert_eq!(reach(&attempts, 3).failure.as_deref(), Some("there is no address to try"));
    }

    #[test]
    fn work_is_done_at_once_and_answers_come_in_order() {
        let barrier = std::sync::Barrier::new(3);
        let answers = at_once(0..3, |number| {
            barrier.wait();
            number * 2
        });
        assert_eq!(answers, [0, 2, 4]);
    }
}
