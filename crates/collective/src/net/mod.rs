//! TCP wires between ranks of different hosts.
//!
//! A wire is one TCP connection that belongs to one group, so groups never wait behind each other's bytes:
//! the kernel's flow control keeps them apart. Wires open when an algorithm first needs them
//! (`dial.rs` says who dials), prove the job secret both ways, name their group, and then carry nothing but payload.
//! What is sent and received over them, and in which order, is a [`Flow`].

mod dial;
mod flow;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt;

pub(crate) use flow::{Flow, Landing, Span};

use crate::error::{Error, Result};
use crate::fabric::Shared;

pub(crate) const PURPOSE: &[u8] = b"ronde wire 1";
/// Length of the first message of a wire: group, rank of the dialer, number.
pub(crate) const HELLO: usize = 16;

/// Variable that names the congestion control of wires (default: the system's, or `reno` where that is `bbr`).
const CONGESTION: &str = "RONDE_TCP_CONGESTION";

/// What [`HELLO`] bytes say, as the key under which the wire is asked for.
pub(crate) fn parse_hello(bytes: &[u8; HELLO]) -> (u64, usize, u32) {
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let group = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    (group, number(8) as usize, number(12))
}

/// One open connection. Non-blocking.
pub(crate) struct Wire {
    pub(crate) peer: usize,
    pub(crate) stream: TcpStream,
}

/// The open wires of a group.
pub(crate) struct Wires {
    group: u64,
    shared: Arc<Shared>,
    open: HashMap<(usize, u32), Arc<Wire>>,
}

impl Wires {
    pub(crate) fn new(group: u64, shared: Arc<Shared>) -> Wires {
        Wires { group, shared, open: HashMap::new() }
    }

    /// The wire with this number to a rank. Both ends must ask for it.
    pub(crate) fn get(&mut self, peer: usize, number: u32) -> Result<Arc<Wire>> {
        match self.open.entry((peer, number)) {
            Entry::Occupied(open) => Ok(open.get().clone()),
            Entry::Vacant(slot) => {
                let stream = match dial::direction(&self.shared, peer)? {
                    Some(to) => dial::dial(&self.shared, self.group, peer, number, to)?,
                    None => self.shared.await_wire((self.group, peer, number))?,
                };
                prepare(&stream, self.shared.patience)
                    .map_err(Error::system(format!("preparing the connection to rank {peer}")))?;
                let wire = Arc::new(Wire { peer, stream });
                self.shared.remember_wire(&wire);
                Ok(slot.insert(wire).clone())
            }
        }
    }

    /// Closes all wires, which tells the peers that nothing more will come.
    pub(crate) fn close(&mut self) {
        for wire in self.open.values() {
            let _ = wire.stream.shutdown(std::net::Shutdown::Both);
        }
        self.open.clear();
    }
}

fn prepare(stream: &TcpStream, patience: Duration) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    // A peer whose machine is gone is given up after this long without an answer to our data.
    sockopt::set_tcp_user_timeout(stream, u32::try_from(patience.as_millis()).unwrap_or(u32::MAX))?;
    match std::env::var(CONGESTION) {
        Ok(wanted) => sockopt::set_tcp_congestion(stream, &wanted)
            .map_err(|error| std::io::Error::other(format!("{CONGESTION}={wanted}: {error}")))?,
        Err(_) => {
            // Pacing by a model of the path, made for long transfers over the internet, costs a third of the throughput of
            // collectives between fast hosts (`bench/README.md`). Reno is always allowed.
            if sockopt::tcp_congestion(stream).is_ok_and(|default| default == "bbr") {
                sockopt::set_tcp_congestion(stream, "reno")?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_names_group_rank_and_number() {
        let mut bytes = [0; HELLO];
        bytes[0] = 9;
        bytes[8] = 3;
        bytes[12] = 1;
        assert_eq!(parse_hello(&bytes), (9, 3, 1));
    }
}
