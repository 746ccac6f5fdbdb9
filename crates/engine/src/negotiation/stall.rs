//! Who is waited for, when something has waited for long.
//!
//! While all goes well only the completion of names climbs the tree, so nobody knows who is missing. Once a name has
//! waited for the warning time at a relay, the relay tells the leader who of its host holds it; and before the leader
//! reports, it asks: one inquiry goes down to everybody. Relays answer with who holds what, and every rank that lacks
//! one of the names finds a [`Decision::Inquire`] and may say what it is doing instead. The leader waits [`PATIENCE`]
//! for that.
//!
//! An idle relay or leader is not woken by its children, so it looks a few times per warning time what has arrived.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::ledger::{Ledger, TallyId};
use super::messages::{Down, Presence, Run, Up};
use super::parts::Parts;
use super::report::{Missing, StallReport, Wait};
use super::request::Kind;
use super::{Decision, Negotiator};

/// How long the leader waits for answers to an inquiry.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// An idle node looks this many times per warning time whether something has arrived.
const LOOKS: u32 = 4;

/// Names that one report covers at most; those that have waited longest.
const NAMES: usize = 100;

/// A node's clockwork.
#[derive(Debug)]
pub(super) struct Watch {
    warning: Option<Duration>,
    shutdown: Option<Duration>,
    now: Duration,
    check_at: Option<Duration>,
    /// An inquiry that this relay has yet to answer.
    to_count: Option<(u64, Vec<Arc<str>>)>,
    /// Until then answers of this relay's members may come.
    listen_until: Duration,
    /// The inquiry that this rank was last asked to answer.
    asked: Option<u64>,
}

impl Watch {
    pub(super) fn new(warning: Option<Duration>, shutdown: Option<Duration>) -> Watch {
        Watch {
            warning,
            shutdown,
            now: Duration::ZERO,
            check_at: None,
            to_count: None,
            listen_until: Duration::ZERO,
            asked: None,
        }
    }

    /// Whether answers of members may be on their way.
    pub(super) fn is_listening(&self) -> bool {
        self.now < self.listen_until
    }
}

/// What the leader knows about waits beyond its ledger.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    /// Names that relays told of.
    rumours: HashMap<Arc<str>, Rumour>,
    inquiries: u64,
    asked_at: Option<Duration>,
    inquiry: Option<Inquiry>,
}

#[derive(Debug)]
struct Rumour {
    kind: Kind,
    /// How long the name had waited when the relay told.
    waited: Duration,
    /// When that was; none until the clock is looked at.
    told: Option<Duration>,
}

#[derive(Debug)]
struct Inquiry {
    number: u64,
    deadline: Duration,
    /// What is asked about, and the positions that hold it according to relays.
    names: Vec<(Waiting, Parts)>,
    /// Hosts that have said all.
    counted: Parts,
    answers: BTreeMap<usize, String>,
    /// Whether something came in since it was last looked at.
    is_new: bool,
}

#[derive(Clone, Debug)]
struct Waiting {
    name: Arc<str>,
    kind: Kind,
    since: Duration,
}

impl Stalls {
    /// A relay says who holds a name.
    pub(super) fn note(&mut self, presence: Presence, members: usize) {
        let Presence { name, kind, waited_ms, holders } = presence;
        if let Some(inquiry) = &mut self.inquiry
            && let Some((_, known)) = inquiry.names.iter_mut().find(|(waiting, _)| waiting.name == name)
        {
            for position in Run::all_below(&holders, members).unwrap_or_default() {
                known.insert(position);
            }
        }
        let waited = Duration::from_millis(waited_ms);
        self.rumours.entry(name).or_insert(Rumour { kind, waited, told: None });
    }

    /// A name is decided, so nobody waits for it.
    pub(super) fn decided(&mut self, name: &str) {
        if !self.rumours.is_empty() {
            self.rumours.remove(name);
        }
    }

    pub(super) fn counted(&mut self, number: u64, host: usize) {
        if let Some(inquiry) = self.inquiry.as_mut().filter(|inquiry| inquiry.number == number) {
            inquiry.counted.insert(host);
            inquiry.is_new = true;
        }
    }

    pub(super) fn answered(&mut self, number: u64, position: usize, text: String) {
        if let Some(inquiry) = self.inquiry.as_mut().filter(|inquiry| inquiry.number == number) {
            inquiry.answers.insert(position, text);
            inquiry.is_new = true;
        }
    }

    /// Whether the open inquiry has got answers that have not been looked at.
    fn has_news(&self) -> bool {
        self.inquiry.as_ref().is_some_and(|inquiry| inquiry.is_new)
    }

    pub(super) fn is_asking(&self) -> bool {
        self.inquiry.is_some()
    }
}

impl Negotiator {
    /// When [`Negotiator::advance`] wants to be called at the latest.
    pub fn next_tick(&self) -> Option<Duration> {
        let warning = self.watch.warning.filter(|_| !self.ended && !self.seat.children.is_empty())?;
        let deadline = self.leader.as_ref().and_then(|leader| Some(leader.stalls.inquiry.as_ref()?.deadline));
        let look = (!self.wants_children()).then(|| self.watch.now.saturating_add(warning / LOOKS));
        [self.watch.check_at, deadline, look].into_iter().flatten().min()
    }

    /// Whether [`Negotiator::advance`] has something to decide or to look at, or [`Negotiator::next`] something to give.
    pub fn is_due(&self, now: Duration) -> bool {
        self.has_decided()
            || self.watch.to_count.is_some()
            || self.leader.as_ref().is_some_and(|leader| leader.has_work() || leader.stalls.has_news())
            || self.next_tick().is_some_and(|tick| tick <= now)
    }

    /// Answers the last [`Decision::Inquire`].
    pub fn answer(&mut self, now: Duration, text: String) {
        self.clock(now);
        let Some(inquiry) = self.watch.asked.take() else { return };
        let message = Up::Answer { inquiry, position: self.seat.me as u32, text };
        let told = self.report(message);
        debug_assert_eq!(told, Ok(()), "a rank may speak for itself");
    }

    /// Takes note of the time: what came in since the last call came in now.
    pub(super) fn clock(&mut self, now: Duration) {
        self.watch.now = self.watch.now.max(now);
        if let Some(host) = &mut self.host {
            host.stamp(now);
        }
        if let Some(leader) = &mut self.leader {
            leader.hosts.stamp(now);
            for rumour in leader.stalls.rumours.values_mut() {
                rumour.told.get_or_insert(now);
            }
        }
    }

    /// The part of advancing that depends on time.
    pub(super) fn look_for_stalls(&mut self, now: Duration) {
        if self.watch.warning.is_none() || self.seat.children.is_empty() || self.ended {
            return;
        }
        let is_due = self.watch.check_at.is_some_and(|at| now >= at);
        if is_due || (self.watch.check_at.is_none() && self.somebody_waits()) {
            self.watch.check_at = self.check(now);
        }
        self.count_for_inquiry(now);
        self.conclude(now);
    }

    /// An inquiry came down the log.
    pub(super) fn inquired(&mut self, inquiry: u64, names: &[Arc<str>]) {
        if self.host.is_some() {
            self.watch.to_count = Some((inquiry, names.to_vec()));
            self.watch.listen_until = self.watch.now.saturating_add(PATIENCE);
        }
        let lacks = |name: &Arc<str>| !self.own.holds(name, self.cache.slot_of(name));
        if self.own.joined.is_none() && names.iter().any(lacks) {
            self.watch.asked = Some(inquiry);
            self.decisions.push_back(Decision::Inquire);
        }
    }

    fn somebody_waits(&self) -> bool {
        self.host.as_ref().is_some_and(Ledger::has_open)
            || self
                .leader
                .as_ref()
                .is_some_and(|leader| leader.hosts.has_open() || !leader.stalls.rumours.is_empty())
    }

    /// Does what is due about waits; says when to look again.
    fn check(&mut self, now: Duration) -> Option<Duration> {
        let warning = self.watch.warning?;
        self.tell_of_waits(now, warning);
        self.clock(now);
        if !self.somebody_waits() {
            return None;
        }
        let mut next = now.saturating_add(warning);
        if let Some(host) = &self.host {
            let untold = host.open_tallies().map(|id| host.tally(id)).filter(|tally| !tally.told);
            next = untold
                .filter_map(|tally| Some(tally.since?.saturating_add(warning)))
                .fold(next, Duration::min);
        }
        let waiting = self.waiting();
        let (Some(oldest), Some(leader)) = (waiting.first(), &mut self.leader) else { return Some(next) };
        // One report a period, however many names begin to wait in it.
        let asked_at = leader.stalls.asked_at.unwrap_or(Duration::ZERO);
        let warn_at = oldest.since.max(asked_at).saturating_add(warning);
        let end_at =
            self.watch.shutdown.map_or(Duration::MAX, |shutdown| oldest.since.saturating_add(shutdown));
        let due = warn_at.min(end_at);
        if now < due || leader.stalls.is_asking() {
            // An inquiry that is open looks again when it is concluded.
            return Some(if now < due { next.min(due) } else { next });
        }
        self.inquire(
            now,
            waiting.into_iter().filter(|waiting| waiting.since.saturating_add(warning) <= now).collect(),
        );
        Some(next)
    }

    /// A relay tells the leader, once for each, of names that have waited for the warning time on its host.
    fn tell_of_waits(&mut self, now: Duration, warning: Duration) {
        let Some(host) = &mut self.host else { return };
        let late = |&id: &TallyId| {
            let tally = host.tally(id);
            !tally.told && tally.since.is_some_and(|since| now >= since.saturating_add(warning))
        };
        let late: Vec<TallyId> = host.open_tallies().filter(late).collect();
        for id in late {
            self.tell_of(now, id);
        }
    }

    fn tell_of(&mut self, now: Duration, id: TallyId) {
        let Some(host) = &mut self.host else { return };
        host.mark_told(id);
        let Some((name, kind)) = host.subject(&self.cache, id) else { return };
        let waited = now.saturating_sub(host.tally(id).since.unwrap_or(now));
        let mut holders = host.holders(id);
        Run::tidy(&mut holders);
        let presence =
            Presence { name: Arc::clone(name), kind, waited_ms: waited.as_millis() as u64, holders };
        let told = self.report(Up::Presence(presence));
        debug_assert_eq!(told, Ok(()), "a relay may speak for its host");
    }

    /// What is incomplete at the leader, the oldest first.
    fn waiting(&self) -> Vec<Waiting> {
        let Some(leader) = &self.leader else { return Vec::new() };
        let mut waiting: HashMap<Arc<str>, Waiting> = HashMap::new();
        for id in leader.hosts.open_tallies().filter(|&id| !leader.hosts.tally(id).is_complete()) {
            if let Some((name, kind)) = leader.hosts.subject(&self.cache, id) {
                let since = leader.hosts.tally(id).since.unwrap_or(self.watch.now);
                waiting.insert(Arc::clone(name), Waiting { name: Arc::clone(name), kind, since });
            }
        }
        for (name, &Rumour { kind, waited, told }) in &leader.stalls.rumours {
            let since = told.unwrap_or(self.watch.now).saturating_sub(waited);
            let known = waiting.entry(Arc::clone(name));
            let entry = known.or_insert(Waiting { name: Arc::clone(name), kind, since });
            entry.since = entry.since.min(since);
        }
        let mut waiting: Vec<Waiting> = waiting.into_values().collect();
        waiting.sort_by(|one, other| (one.since, &one.name).cmp(&(other.since, &other.name)));
        waiting
    }

    /// Asks everybody about names that have waited for the warning time.
    fn inquire(&mut self, now: Duration, mut waiting: Vec<Waiting>) {
        let (members, hosts) = (self.seat.members.len(), self.seat.hosts.len());
        let Some(leader) = &mut self.leader else { return };
        waiting.truncate(NAMES);
        leader.stalls.inquiries += 1;
        leader.stalls.asked_at = Some(now);
        let (number, names) =
            (leader.stalls.inquiries, waiting.iter().map(|waiting| Arc::clone(&waiting.name)).collect());
        leader.stalls.inquiry = Some(Inquiry {
            number,
            deadline: now.saturating_add(PATIENCE),
            names: waiting.into_iter().map(|waiting| (waiting, Parts::new(members))).collect(),
            counted: Parts::new(hosts),
            answers: BTreeMap::new(),
            is_new: true,
        });
        self.log(&Down::Inquire { inquiry: number, names });
    }

    /// A relay answers an inquiry for its host.
    fn count_for_inquiry(&mut self, now: Duration) {
        let Some((inquiry, names)) = self.watch.to_count.take() else { return };
        for name in names {
            let found = self.host.as_ref().and_then(|host| host.find(&self.cache, &name));
            if let Some(id) = found {
                self.tell_of(now, id);
            }
        }
        let told = self.report(Up::Counted(inquiry));
        debug_assert_eq!(told, Ok(()), "a relay may speak for its host");
    }

    /// Reports once all have answered an inquiry, or had the time to.
    fn conclude(&mut self, now: Duration) {
        let stalls = self.leader.as_mut().map(|leader| &mut leader.stalls);
        let Some(inquiry) = stalls.and_then(|stalls| stalls.inquiry.as_mut()) else { return };
        let is_late = now >= inquiry.deadline;
        if !std::mem::take(&mut inquiry.is_new) && !is_late {
            return;
        }
        let all_counted = inquiry.counted.count() == self.seat.hosts.len();
        let Some(report) = self.stall_report(now) else { return };
        let all_answered = report.missing.iter().all(|missing| missing.answer.is_some());
        let is_over = is_late || (all_counted && all_answered);
        if !is_over {
            return;
        }
        if let Some(leader) = &mut self.leader {
            leader.stalls.inquiry = None;
        }
        if !report.waits.is_empty() {
            let longest = report.waits.iter().map(|wait| wait.waited).max().unwrap_or_default();
            let end = self.watch.shutdown.filter(|&shutdown| longest >= shutdown);
            let text = end.map(|shutdown| {
                let seconds = shutdown.as_secs();
                format!("the job ends because ranks have been waiting for others for more than {seconds} s\n{report}")
            });
            self.decisions.push_back(Decision::Stalled(report));
            if let Some(text) = text {
                self.log(&Down::End { text });
                return;
            }
        }
        self.watch.check_at = self.check(now);
    }

    /// What the open inquiry has brought to light so far.
    fn stall_report(&self, now: Duration) -> Option<StallReport> {
        let leader = self.leader.as_ref()?;
        let inquiry = leader.stalls.inquiry.as_ref()?;
        let members = self.seat.members.len();
        let mut waits = Vec::new();
        let mut lacking = Parts::new(members);
        for (Waiting { name, kind, since }, known) in &inquiry.names {
            let mut held = known.clone();
            match leader.hosts.find(&self.cache, name) {
                Some(id) if leader.hosts.tally(id).is_complete() => continue,
                Some(id) => {
                    let positions = Run::all_below(&leader.hosts.holders(id), members).unwrap_or_default();
                    positions.into_iter().for_each(|position| {
                        held.insert(position);
                    });
                }
                // Everybody has it by now.
                None if !leader.stalls.rumours.contains_key(name) => continue,
                None => {}
            }
            let missing: Vec<usize> = (0..members)
                .filter(|&position| !held.contains(position) && !leader.joined.contains(position))
                .collect();
            if missing.is_empty() {
                continue;
            }
            for &position in &missing {
                lacking.insert(position);
            }
            let missing = missing.into_iter().map(|position| self.seat.members[position]).collect();
            waits.push(Wait {
                name: Arc::clone(name),
                kind: *kind,
                waited: now.saturating_sub(*since),
                missing,
            });
        }
        let missing = lacking.iter().map(|position| Missing {
            rank: self.seat.members[position],
            host: self.seat.host_names.get(position).cloned().unwrap_or_default(),
            answer: inquiry.answers.get(&position).cloned(),
        });
        Some(StallReport { missing: missing.collect(), waits })
    }
}
