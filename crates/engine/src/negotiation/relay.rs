//! The way up: a member's requests reach its relay, and what a whole host asks for reaches the leader.
//!
//! A relay says a name once, when every member of its host has asked for it or has joined. That a host's report says
//! whether somebody is missing from it (`partial`) makes its order against joins simple: reports that a join completes
//! go up before the join itself, and the leader never sees a host ask after it has joined as a whole.

use std::sync::Arc;

use super::Negotiator;
use super::ledger::TallyId;
use super::messages::{Held, Run, Up, Variant};
use super::request::Facts;

impl Negotiator {
    /// This rank asks for what a slot remembers.
    pub(super) fn ask_slot(&mut self, slot: u32) -> Result<(), &'static str> {
        if self.host.is_none() {
            self.up.hit(self.cache.version(), slot, false);
            return Ok(());
        }
        let place = self.seat.place();
        self.catch_up(place)?;
        self.member_hit(place, slot)
    }

    /// This rank asks for something in its own words.
    pub(super) fn ask(&mut self, facts: Arc<Facts>) -> Result<(), &'static str> {
        let variant = Variant { facts, holders: Run::of([self.seat.me]) };
        let held = Held { variants: vec![variant], partial: false };
        if self.host.is_none() {
            self.up.say(self.cache.version(), &Up::Held(held));
            return Ok(());
        }
        let place = self.seat.place();
        self.catch_up(place)?;
        self.member_held(place, held)
    }

    /// This rank joins.
    pub(super) fn join(&mut self) -> Result<(), &'static str> {
        if self.host.is_none() {
            self.up.say(self.cache.version(), &Up::Joined(self.seat.me as u32));
            return Ok(());
        }
        self.member_joined(self.seat.place())
    }

    /// A message from a member of this relay's host.
    pub(super) fn member_says(&mut self, place: usize, message: Up) -> Result<(), &'static str> {
        let position = self.seat.hosts[self.seat.host()][place];
        match message {
            Up::Seen(version) => match &mut self.host {
                Some(host) => host.see(place, version, self.cache.version()),
                None => Err("it came to one who is no relay"),
            },
            Up::Hits { whole, partial } if partial.is_empty() => {
                for run in whole {
                    let slots = run
                        .below(self.cache.capacity())
                        .ok_or("it names a slot past the end of the cache")?;
                    for slot in slots {
                        self.member_hit(place, slot)?;
                    }
                }
                Ok(())
            }
            Up::Held(held) if !held.partial => match held.variants.as_slice() {
                [only] if only.holders == Run::of([position]) => self.member_held(place, held),
                _ => Err("it speaks for others"),
            },
            Up::Joined(who) if who as usize == position => self.member_joined(place),
            Up::Answer { position: who, .. } if who as usize == position => self.report(message),
            Up::Turn { .. } => self.report(message),
            _ => Err("it speaks for others"),
        }
    }

    /// Tells the leader something about this host.
    pub(super) fn report(&mut self, message: Up) -> Result<(), &'static str> {
        if self.leader.is_some() {
            return self.relay_says(self.seat.host(), message);
        }
        if matches!(message, Up::Turn { .. }) {
            // Others wait for it while this set may have nothing pending at all, and sleep.
            self.up.urge();
        }
        self.up.say(self.cache.version(), &message);
        Ok(())
    }

    /// A relay's own slot numbers are always of its newest version.
    fn catch_up(&mut self, place: usize) -> Result<(), &'static str> {
        let newest = self.cache.version();
        self.host.as_mut().map_or(Ok(()), |host| host.see(place, newest, newest))
    }

    fn member_hit(&mut self, place: usize, slot: u32) -> Result<(), &'static str> {
        let Some(host) = &mut self.host else { return Err("it came to one who is no relay") };
        match host.hit(&self.cache, place, slot, false)? {
            Some(complete) => self.report_complete(complete),
            None => Ok(()),
        }
    }

    fn member_held(&mut self, place: usize, held: Held) -> Result<(), &'static str> {
        let Some(host) = &mut self.host else { return Err("it came to one who is no relay") };
        match host.held(&self.cache, place, held)? {
            Some(complete) => self.report_complete(complete),
            None => Ok(()),
        }
    }

    fn member_joined(&mut self, place: usize) -> Result<(), &'static str> {
        let Some(host) = &mut self.host else { return Err("it came to one who is no relay") };
        for complete in host.leave(place)? {
            self.report_complete(complete)?;
        }
        let position = self.seat.hosts[self.seat.host()][place];
        self.report(Up::Joined(position as u32))
    }

    /// Everybody on this host has asked for a name or has joined.
    fn report_complete(&mut self, complete: TallyId) -> Result<(), &'static str> {
        let Some(host) = &mut self.host else { return Ok(()) };
        let partial = host.is_partial(complete);
        if let Some(slot) = host.pure_hit(complete) {
            host.close(complete);
            return match self.leader {
                Some(_) => self.host_hit(self.seat.host(), slot, partial),
                None => {
                    self.up.hit(self.cache.version(), slot, partial);
                    Ok(())
                }
            };
        }
        let variants = host.variants(&self.cache, complete);
        host.close(complete);
        self.report(Up::Held(Held { variants, partial }))
    }
}
