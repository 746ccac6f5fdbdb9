//! The connections of ranks that agents carry here: those to the rendezvous end here, those between ranks are passed on
//! to the agent of the other.

use std::collections::HashMap;
use std::net::TcpStream;

use super::Driver;
use crate::wire::{Carried, Carrier, Destination, ToAgent};

/// Connections that we open with an agent have this bit in their number, its own do not.
const OURS: u32 = 1 << 31;

/// Where carried connections go.
#[derive(Default)]
pub(super) struct Exchange {
    /// For every host, the connections that end here.
    ends: HashMap<usize, Carrier<ToAgent>>,
    /// For those between ranks, the other side of each.
    across: HashMap<(usize, u32), (usize, u32)>,
    opened: u32,
}

impl Driver {
    /// Takes in what a host's agent says about carried connections.
    pub(super) fn carry(&mut self, host: usize, carried: Carried) {
        let (id, open) = match &carried {
            Carried::Open { id, to } => (*id, Some(*to)),
            Carried::Bytes { id, .. } | Carried::Written { id, .. } | Carried::End { id } => (*id, None),
        };
        match open {
            Some(Destination::Rendezvous) => self.join(host, id),
            Some(Destination::Rank(rank)) => self.connect_across(host, id, rank),
            None => match self.exchange.across.get(&(host, id)) {
                Some(&(other, other_id)) => self.pass_on(other, other_id, carried),
                None => {
                    if let Some(carrier) = self.exchange.ends.get(&host) {
                        carrier.take(carried);
                    }
                }
            },
        }
    }

    /// A rank behind an agent connects to the rendezvous.
    fn join(&mut self, host: usize, id: u32) {
        let Some(outbox) = self.members[host].outbox.clone() else { return };
        let carrier = self.exchange.ends.entry(host).or_insert_with(|| Carrier::new(outbox.clone()));
        let carried = TcpStream::connect(self.server.addr()).and_then(|stream| carrier.carry(id, &stream));
        if carried.is_err() {
            outbox.send_bulk(ToAgent::Carried(Carried::End { id }));
        }
    }

    /// A rank connects to one that its host cannot reach.
    fn connect_across(&mut self, host: usize, id: u32, rank: usize) {
        if rank >= self.np() {
            return self.pass_on(host, id, Carried::End { id });
        }
        let other = self.plan.host_of(rank);
        let other_id = OURS | self.exchange.opened;
        self.exchange.opened = (self.exchange.opened + 1) & !OURS;
        self.exchange.across.insert((host, id), (other, other_id));
        self.exchange.across.insert((other, other_id), (host, id));
        let open = Carried::Open { id: other_id, to: Destination::Rank(rank) };
        self.pass_on(other, other_id, open);
    }

    /// Passes something on to another host, where the connection has another number.
    fn pass_on(&self, host: usize, id: u32, carried: Carried) {
        let Some(outbox) = &self.members[host].outbox else { return };
        match carried {
            Carried::Open { to, .. } => outbox.send_bulk(Carried::Open { id, to }.into()),
            Carried::Bytes { bytes, .. } => outbox.send_bulk(Carried::Bytes { id, bytes }.into()),
            Carried::End { .. } => outbox.send_bulk(Carried::End { id }.into()),
            Carried::Written { bytes, .. } => outbox.send(Carried::Written { id, bytes }.into()),
        }
    }
}
