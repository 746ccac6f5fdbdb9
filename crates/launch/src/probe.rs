//! Which of a host's addresses reach it, found out by trying.
//!
//! Every agent listens ([`Probe`]) and dials the others at every address they have ([`attempt`]). An answer counts only if
//! whoever gives it proves the job's secret *and* the identity of the host that was meant: an address of a container bridge,
//! or a private range that is used twice, may well lead to another agent of the same job, or back to the dialer itself.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ronde_trust::{Role, Secret, in_words, prove_within};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use serde::{Deserialize, Serialize};

use crate::doorway;
use crate::listening::{self, Error, is_link_local};
pub(crate) use crate::listening::{Interface, addresses};
use crate::strangers::{HANDSHAKE_LIMIT, Strangers};

/// How long one attempt may take: the kernel has repeated its first packet by then.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);
/// How many attempts are made at a time.
const AT_ONCE: usize = 64;
/// How many bytes go back and forth; the fastest counts, since the others may have waited for a processor.
const ROUNDS: u8 = 3;
/// How long to wait when connections cannot be accepted, for want of descriptors most likely.
const OUT_OF_DESCRIPTORS: Duration = Duration::from_millis(50);

/// A host to be reached, and where that may be possible.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Target {
    /// Its number in the list of hosts.
    pub(crate) host: usize,
    /// What its agent proves itself by.
    pub(crate) identity: u64,
    /// Where its [`Probe`] may listen.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Where its doorway may be, if it publishes one.
    pub(crate) doors: Vec<SocketAddr>,
}

/// How it went with one address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attempt {
    /// The host that was meant.
    pub(crate) host: usize,
    /// What was dialled.
    pub(crate) address: SocketAddr,
    /// The dialer's interface, by number, where the address means nothing without one; else 0. (It does not travel as part
    /// of the address.)
    pub(crate) scope: u32,
    /// Whether this was the host's doorway.
    pub(crate) door: bool,
    /// How long a byte takes there and back, or why it did not.
    pub(crate) outcome: Result<Duration, String>,
}

/// Answers those who try to reach this host. Dropping it closes the port.
pub(crate) struct Probe {
    port: u16,
    end: Arc<OwnedFd>,
    acceptor: Option<JoinHandle<()>>,
}

impl Probe {
    /// Listens on all addresses, at a port of the range if one is given.
    pub(crate) fn listen(
        secret: Secret,
        identity: u64,
        ports: Option<RangeInclusive<u16>>,
    ) -> Result<Probe, Error> {
        let listener = listening::everywhere(ports)?;
        let failed = Error::system("prepare a port");
        listener.set_nonblocking(true).map_err(&failed)?;
        let port = listener.local_addr().map_err(&failed)?.port();
        let end = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::System { doing: "make an event descriptor", source: error.into() })?;
        let end = Arc::new(end);
        let ended = Arc::clone(&end);
        let acceptor = thread::Builder::new()
            .name("ronde-probe".to_owned())
            .spawn(move || accept_all(&listener, &ended, &secret, identity))
            .map_err(Error::system("start a thread"))?;
        Ok(Probe { port, end, acceptor: Some(acceptor) })
    }

    /// Where it listens.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.end, &1u64.to_ne_bytes());
        if let Some(acceptor) = self.acceptor.take() {
            // A panic over there has been printed already.
            let _ = acceptor.join();
        }
    }
}

fn accept_all(listener: &TcpListener, end: &OwnedFd, secret: &Secret, identity: u64) {
    let mut strangers = Strangers::new();
    loop {
        let next = strangers.expire();
        let mut fds = [PollFd::new(end, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
        let waited = poll(&mut fds, timeout(next).as_ref());
        if waited.is_ok() && !fds[0].revents().is_empty() {
            return;
        }
        match listener.accept() {
            Ok((stream, _)) => {
                let secret = secret.clone();
                strangers.receive(stream, move |stream| answer(&stream, &secret, identity));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => thread::sleep(OUT_OF_DESCRIPTORS),
        }
    }
}

/// The time until a moment, for `poll`.
pub(crate) fn timeout(moment: Option<Instant>) -> Option<Timespec> {
    // A little more, so that it has passed when poll returns.
    let left = moment?.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
    Timespec::try_from(left).ok()
}

/// Proves to a dialer that this is the host with that identity, and sends back what it sends then. A dialer that proves
/// nothing gets no explanation beyond what the handshake itself says.
pub(crate) fn answer(mut stream: &TcpStream, secret: &Secret, identity: u64) {
    let proven = stream.set_nonblocking(false).is_ok_and(|()| {
        prove_within(stream, secret, Role::Listener, &purpose(identity), HANDSHAKE_LIMIT).is_ok()
    });
    let mut byte = [0];
    while proven && stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
}

/// Names the listener, so that a proof for one host is none for another.
fn purpose(identity: u64) -> Vec<u8> {
    [b"ronde probe ".as_slice(), &identity.to_le_bytes()].concat()
}

/// Dials every address of every target, many at a time, each within `limit`.
pub(crate) fn attempt(secret: &Secret, targets: &[Target], limit: Duration) -> Vec<Attempt> {
    let attempts = attempts(targets, &own_scopes());
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(vec![None; attempts.len()]));
    let work = || {
        while let Some((identity, one)) = attempts.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = reach(secret, *identity, one, limit);
            let mut outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
            outcomes[one.place] = Some(Attempt {
                host: one.host,
                address: one.address,
                scope: one.scope,
                door: one.door,
                outcome,
            });
        }
    };
    thread::scope(|scope| {
        for _ in 1..AT_ONCE.min(attempts.len()) {
            // With fewer threads it takes longer, and this one is always there.
            let _ = thread::Builder::new().name("ronde-reach".to_owned()).spawn_scoped(scope, work);
        }
        work();
    });
    outcomes.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten().collect()
}

/// An address to be dialled.
struct Dial {
    place: usize,
    host: usize,
    address: SocketAddr,
    scope: u32,
    door: bool,
}

/// What is to be dialled: every address once, those that need an interface once for each.
fn attempts(targets: &[Target], scopes: &[u32]) -> Vec<(u64, Dial)> {
    let mut attempts = Vec::new();
    for target in targets {
        let straight = target.addresses.iter().map(|address| (address, false));
        for (&address, door) in straight.chain(target.doors.iter().map(|address| (address, true))) {
            let scopes = if is_link_local(address.ip()) { scopes } else { &[0] };
            for &scope in scopes {
                let dial = Dial { place: attempts.len(), host: target.host, address, scope, door };
                attempts.push((target.identity, dial));
            }
        }
    }
    attempts
}

/// The numbers of this machine's interfaces that have link-local addresses.
fn own_scopes() -> Vec<u32> {
    let all = if_addrs::get_if_addrs().unwrap_or_default();
    all.iter().filter(|one| is_link_local(one.ip())).filter_map(|one| one.index).collect()
}

fn reach(secret: &Secret, identity: u64, dial: &Dial, limit: Duration) -> Result<Duration, String> {
    let deadline = Instant::now() + limit;
    // A time of 0 would be an error of its own.
    let left = || deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let system = |error: io::Error| in_words(&error);
    let mut address = dial.address;
    if let SocketAddr::V6(address) = &mut address {
        address.set_scope_id(dial.scope);
    }
    let mut stream = TcpStream::connect_timeout(&address, left()).map_err(system)?;
    stream.set_nodelay(true).map_err(system)?;
    if dial.door {
        stream.write_all(&doorway::header(doorway::PROBE)).map_err(system)?;
    }
    use ronde_trust::Error as Trust;
    prove_within(&stream, secret, Role::Dialer, &purpose(identity), left()).map_err(|error| match error {
        Trust::Rejected | Trust::Unproven => "another host answers there".to_owned(),
        Trust::NotOurs => "something other than Ronde answers there".to_owned(),
        Trust::Truncated { .. } | Trust::Closed => "the connection was closed at once".to_owned(),
        Trust::TimedOut => "the connection was taken, but nobody answers".to_owned(),
        Trust::Io(error) => in_words(&error),
        other => other.to_string(),
    })?;
    let mut fastest = Duration::MAX;
    for round in 0..ROUNDS {
        let began = Instant::now();
        stream.set_read_timeout(Some(left())).map_err(system)?;
        stream.write_all(&[round]).and_then(|()| stream.read_exact(&mut [0])).map_err(system)?;
        fastest = fastest.min(began.elapsed());
    }
    Ok(fastest)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use super::*;

    /// For peers that answer, even on a busy machine.
    const LIMIT: Duration = Duration::from_secs(60);
    /// For peers that never answer.
    const SILENCE: Duration = Duration::from_millis(300);

    fn at(last: u8, port: u16) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), port))
    }

    fn secret() -> Secret {
        Secret::random().expect("random bytes")
    }

    fn target(host: usize, addresses: Vec<SocketAddr>) -> Target {
        Target { host, identity: 100 + host as u64, addresses, doors: Vec::new() }
    }

    #[test]
    fn a_host_is_reached_at_every_address_it_listens_on() {
        let secret = secret();
        let probe = Probe::listen(secret.clone(), 101, None).expect("a port");
        let mut addresses = vec![at(2, probe.port()), at(3, probe.port())];
        if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            addresses.push((IpAddr::from(Ipv6Addr::LOCALHOST), probe.port()).into());
        }
        let attempts = attempt(&secret, &[target(1, addresses.clone())], LIMIT);
        let dialled: Vec<SocketAddr> = attempts.iter().map(|one| one.address).collect();
        assert_eq!(dialled, addresses);
        assert!(attempts.iter().all(|one| one.host == 1 && one.outcome.is_ok()), "{attempts:?}");
    }

    #[test]
    fn whoever_else_answers_is_not_the_host_that_was_meant() {
        let secret = secret();
        let other_host = Probe::listen(secret.clone(), 100, None).expect("a port");
        let other_job = Probe::listen(self::secret(), 101, None).expect("a port");
        let silent = TcpListener::bind(at(4, 0)).expect("loopback");
        let gone = TcpListener::bind(at(5, 0)).expect("loopback").local_addr().expect("its address");
        let chatty = TcpListener::bind(at(6, 0)).expect("loopback");
        let chat = chatty.local_addr().expect("its address");
        let talking = thread::spawn(move || {
            let (mut stream, _) = chatty.accept().expect("the dialer");
            stream.write_all(b"SSH-2.0-OpenSSH\r\n").expect("a banner");
            // Closing with something unread would be a reset, which may overtake the banner.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let addresses = vec![at(2, other_host.port()), at(3, other_job.port()), gone, chat];
        let mut attempts = attempt(&secret, &[target(1, addresses)], LIMIT);
        let silent = vec![silent.local_addr().expect("its address")];
        attempts.extend(attempt(&secret, &[target(1, silent)], SILENCE));
        let words: Vec<&str> =
            attempts.iter().map(|one| one.outcome.as_ref().expect_err("not reached").as_str()).collect();
        let expected = [
            "another host answers there",
            "another host answers there",
            "connection refused",
            "something other than Ronde answers there",
            "the connection was taken, but nobody answers",
        ];
        assert_eq!(words, expected);
        talking.join().expect("no panic");
    }

    #[test]
    fn many_addresses_are_tried_at_a_time_and_each_has_its_limit() {
        let silent = TcpListener::bind(at(7, 0)).expect("loopback");
        let address = silent.local_addr().expect("its address");
        let began = Instant::now();
        let attempts = attempt(&secret(), &[target(1, vec![address; 2 * AT_ONCE])], SILENCE);
        assert_eq!(attempts.iter().filter(|one| one.outcome.is_err()).count(), 2 * AT_ONCE);
        // Two rounds of silence, and not as many as there are addresses, nor even half of them.
        assert!(began.elapsed() < SILENCE * AT_ONCE as u32, "{:?}", began.elapsed());
    }

    #[test]
    fn an_address_of_a_link_is_tried_on_every_interface() {
        let link: SocketAddr = "[fe80::1]:9".parse().expect("an address");
        let wide = at(2, 9);
        let dialled: Vec<(SocketAddr, u32)> = attempts(&[target(1, vec![link, wide])], &[2, 5])
            .iter()
            .map(|(_, one)| (one.address, one.scope))
            .collect();
        assert_eq!(dialled, [(link, 2), (link, 5), (wide, 0)]);
    }

    #[test]
    fn the_port_is_closed_when_the_probe_is_dropped() {
        let secret = secret();
        let probe = Probe::listen(secret.clone(), 101, None).expect("a port");
        let address = at(2, probe.port());
        // One that never says a word does not keep it open.
        let silent = TcpStream::connect(address).expect("listening");
        drop(probe);
        drop(silent);
        let attempts = attempt(&secret, &[target(1, vec![address])], LIMIT);
        assert_eq!(attempts[0].outcome, Err("connection refused".to_owned()));
    }
}
