//! Opening the dialer's end of a wire.
//!
//! Whether this rank dials or waits is the same on both ends of a pair: it comes from the routes that the launcher gave both
//! hosts, or, without any, from who is the higher rank. Dialling never waits for what the peer is doing, because the peer's
//! attendant lets wires in, so wires may be opened in any order without a deadlock.

use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use ronde_trust::{Role, in_words, prove_within};

use super::{HELLO, PURPOSE};
use crate::error::{Error, Result};
use crate::fabric::{Route, Shared};

/// How long one attempt to connect may take: the kernel has repeated its first packet twice by then.
const CONNECT: Duration = Duration::from_secs(3);
/// How long to wait before the next attempt after one that failed at once.
const PAUSE: Duration = Duration::from_millis(100);
/// What is said at a door before the handshake: this, and the rank that is meant.
const MEANT_FOR: &[u8; 8] = b"ronde to";

/// Where to dial a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dial {
    pub(super) address: SocketAddr,
    /// The address is a door, which must be told who is meant.
    pub(super) door: bool,
}

/// How one attempt failed.
struct Failure {
    reason: String,
    /// Trying again cannot help.
    last: bool,
}

/// Where this rank dials `peer`; `None` if the peer dials.
pub(super) fn direction(shared: &Shared, peer: usize) -> Result<Option<Dial>> {
    let card = &shared.cards[peer];
    let straight = |address| Some(Dial { address, door: false });
    match shared.routes.to(&card.host) {
        Some(Route::Await) => Ok(None),
        Some(Route::Via(address)) => Ok(Some(Dial { address, door: true })),
        Some(Route::Address(mut address)) => {
            address.set_port(card.tcp.port());
            Ok(straight(address))
        }
        None if shared.rank < peer => Ok(None),
        None if !card.tcp.ip().is_unspecified() => Ok(straight(card.tcp)),
        // It listens on all addresses, and on one's own host loopback is one of them.
        None if card.host == shared.cards[shared.rank].host => {
            let own =
                if card.tcp.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
            Ok(straight(SocketAddr::new(own, card.tcp.port())))
        }
        None => {
            let reason = "it listens on all its addresses, and RONDE_ROUTES does not say which to dial";
            Err(shared.unreachable(peer, card.tcp, reason.to_owned()))
        }
    }
}

/// Dials until the peer answers or the job's patience is spent, and greets it.
pub(super) fn dial(shared: &Shared, group: u64, peer: usize, number: u32, to: Dial) -> Result<TcpStream> {
    let deadline = Instant::now() + shared.patience;
    let mut stream = loop {
        let began = Instant::now();
        match attempt(shared, peer, to, deadline) {
            Ok(stream) => break stream,
            Err(failure) if failure.last || Instant::now() >= deadline => {
                return Err(shared.unreachable(peer, to.address, failure.reason));
            }
            // The peer listens already, so this is about a route that is lost for a while, not about waiting for it.
            Err(_) => shared.pause(PAUSE.saturating_sub(began.elapsed()))?,
        }
    };
    let mut hello = [0; HELLO];
    hello[..8].copy_from_slice(&group.to_le_bytes());
    hello[8..12].copy_from_slice(&(shared.rank as u32).to_le_bytes());
    hello[12..].copy_from_slice(&number.to_le_bytes());
    stream.write_all(&hello).map_err(Error::system(format!("greeting rank {peer}")))?;
    Ok(stream)
}

fn attempt(
    shared: &Shared,
    peer: usize,
    to: Dial,
    deadline: Instant,
) -> std::result::Result<TcpStream, Failure> {
    // A time of 0 would be an error of its own.
    let left = || deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let passing = |error: io::Error| Failure { reason: in_words(&error), last: false };
    let mut stream = TcpStream::connect_timeout(&to.address, CONNECT.min(left())).map_err(passing)?;
    if to.door {
        let mut meant = [0; 16];
        meant[..8].copy_from_slice(MEANT_FOR);
        meant[8..].copy_from_slice(&(peer as u64).to_le_bytes());
        stream.write_all(&meant).map_err(passing)?;
    }
    use ronde_trust::Error as Trust;
    prove_within(&stream, &shared.secret, Role::Dialer, PURPOSE, left()).map_err(|error| match error {
        Trust::Io(error) => passing(error),
        Trust::TimedOut => Failure { reason: "it took the connection and did not answer".into(), last: true },
        // A door may close connections when too many come at once.
        error => Failure { reason: error.to_string(), last: !matches!(error, Trust::Truncated { .. }) },
    })?;
    Ok(stream)
}
