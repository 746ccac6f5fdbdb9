//! A communicator whose ranks are all there: checks what is launched, then gives it to the stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ronde_cuda::{Device, Mark, Shared};

use crate::answer::{Failure, INVALID_USAGE, SYSTEM_ERROR};
use crate::call::{Event, Parcels, Request};
use crate::injection::Trouble;
use crate::ledger::{self, Identity, Ledger, Note};
use crate::meeting::Meeting;
use crate::page::Page;
use crate::works::{Parcel, Rounds, Works};

/// Between two looks at a rank that is so far behind that its log is full.
const LOOK: Duration = Duration::from_micros(100);

/// One call of a group.
pub(crate) struct Asked {
    pub(crate) request: Request,
    /// The caller's.
    pub(crate) stream: u64,
    /// What is to go wrong with it on demand.
    pub(crate) trouble: Option<Trouble>,
}

/// See the module's text.
pub(crate) struct Joined {
    id: u64,
    me: usize,
    members: Vec<Identity>,
    /// Launches together with each rank.
    launched: Vec<u64>,
    /// `None` where ranks cannot be told apart.
    ledger: Option<Arc<Ledger>>,
    page: Arc<Page>,
    works: Works,
    /// After all that was given to the stream.
    last: Option<Arc<Mark>>,
}

impl Joined {
    /// Maps what the ranks handed each other, and compares when they began to make this communicator.
    pub(crate) fn new(
        id: u64,
        me: usize,
        device: &Arc<Device>,
        memory: Shared,
        meeting: Meeting,
    ) -> Result<Joined, Failure> {
        let Meeting { members: hellos, memory: descriptors, page } = meeting;
        let members: Vec<Identity> = hellos.iter().map(|hello| hello.identity).collect();
        let mut distinct = members.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let ledger = (distinct.len() == members.len()).then(|| Ledger::of(members[me]));
        if ledger.is_some() {
            for (rank, hello) in hellos.iter().enumerate().filter(|(rank, _)| *rank != me) {
                let mine = ledger::shared_with(&hellos[me].counts, hello.identity);
                let theirs = ledger::shared_with(&hello.counts, members[me]);
                // Both sides find it, so both report it.
                if let Some(text) = ledger::differ_at_creation(id, [me, rank], [&mine, &theirs]) {
                    return Err(Failure::misuse(text));
                }
            }
        }
        let page = Arc::new(page);
        let works = Works::new(device, me, memory, &descriptors, &page)?;
        if let Some(ledger) = &ledger {
            ledger.open(id, members.iter().copied().filter(|&other| other != members[me]));
        }
        Ok(Joined { id, me, launched: vec![0; members.len()], members, ledger, page, works, last: None })
    }

    pub(crate) fn rounds(&self) -> Arc<Rounds> {
        self.works.rounds().clone()
    }

    /// What ranks disagreed about.
    pub(crate) fn verdict(&self) -> Option<Failure> {
        Some(Failure::new(INVALID_USAGE, self.page.verdict()?))
    }

    /// The point after all that was given to the stream.
    pub(crate) fn end(&mut self) -> Result<Arc<Mark>, Failure> {
        let mark = self.works.end()?;
        self.last = Some(mark.clone());
        Ok(mark)
    }

    /// Whether the stream is through. A device that failed does nothing more either.
    ///
    /// This only looks. A thread that frees a communicator repeats it, possibly while the next test already runs. If each look recorded
    /// a new point, that point would hardly ever be reached at once, and a failure that the next test orders could hit this call.
    pub(crate) fn is_idle(&self) -> bool {
        self.last.as_ref().is_none_or(|last| last.reached().unwrap_or(true))
    }

    /// Checks a group against the other ranks and gives it to the stream: collectives in order, then all that is sent.
    ///
    /// # Safety
    /// The memory that the calls name belongs to this rank's device until the streams are past.
    pub(crate) unsafe fn launch(&mut self, asked: &[Asked], given_up: &AtomicBool) -> Result<(), Failure> {
        // SAFETY: as the caller promises.
        let launched = unsafe { self.give(asked, given_up) };
        if launched.is_err() {
            // The last point also has to come after what the call gave to the stream before it failed. If no point can be recorded,
            // freeing the stream waits for it.
            let _ = self.end();
        }
        launched
    }

    /// Launches, and may fail half-way.
    ///
    /// # Safety
    /// As for [`launch`](Joined::launch).
    unsafe fn give(&mut self, asked: &[Asked], given_up: &AtomicBool) -> Result<(), Failure> {
        let (mut sends, mut recvs) =
            (vec![Vec::new(); self.members.len()], vec![Vec::new(); self.members.len()]);
        for asked in asked {
            match asked.request {
                Request::Collective { what, .. } => {
                    let event = Event::Collective(what);
                    let others = (0..self.members.len()).filter(|&rank| rank != self.me);
                    self.agree(&others.map(|rank| (rank, event)).collect::<Vec<_>>(), given_up)?;
                }
                Request::Send { src, bytes, peer } => sends[peer].push(Parcel { address: src, bytes }),
                Request::Recv { dst, bytes, peer } => recvs[peer].push(Parcel { address: dst, bytes }),
            }
        }
        self.agree(&self.exchanges(&sends, &recvs)?, given_up)?;
        let device = self.works.stream().device().clone();
        let _entered = device.enter()?;
        let mut streams: Vec<u64> = asked.iter().map(|asked| asked.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        for &stream in &streams {
            self.works.follow(stream)?;
        }
        for asked in asked {
            if asked.trouble == Some(Trouble::Hang) {
                self.works.hang()?;
            }
            if let Request::Collective { what, src, dst } = &asked.request {
                // SAFETY: as the caller promises.
                unsafe { self.works.collective(what, *src, *dst) }?;
            }
        }
        // SAFETY: as the caller promises.
        unsafe { self.works.exchange(&sends, &recvs) }?;
        let mark = self.end()?;
        for stream in streams {
            mark.order(stream)?;
        }
        Ok(())
    }

    /// The exchanges of a group, one for each rank that takes part.
    fn exchanges(
        &self,
        sends: &[Vec<Parcel>],
        recvs: &[Vec<Parcel>],
    ) -> Result<Vec<(usize, Event)>, Failure> {
        let parcels = |list: &[Parcel]| {
            let mut parcels = Parcels::default();
            list.iter().for_each(|parcel| parcels.add(parcel.bytes));
            parcels
        };
        let mut events = Vec::new();
        for rank in 0..self.members.len() {
            let (sent, received) = (parcels(&sends[rank]), parcels(&recvs[rank]));
            if rank == self.me && sent != received {
                return Err(Failure::misuse(format!("rank {rank} does not receive what it sends to itself")));
            }
            if rank != self.me && !(sends[rank].is_empty() && recvs[rank].is_empty()) {
                events.push((rank, Event::Exchange { sent, received }));
            }
        }
        Ok(events)
    }

    /// Tells ranks what is launched, and compares with those who have told theirs.
    fn agree(&mut self, events: &[(usize, Event)], given_up: &AtomicBool) -> Result<(), Failure> {
        let named: Vec<(Identity, Event)> =
            events.iter().map(|&(rank, event)| (self.members[rank], event)).collect();
        let notes = match &self.ledger {
            Some(ledger) => ledger.note(self.id, &named),
            None => named.iter().map(|&(_, event)| Note { event, shared: Vec::new() }).collect(),
        };
        for (&(rank, _), note) in events.iter().zip(&notes) {
            let number = self.launched[rank];
            self.launched[rank] += 1;
            while !ledger::write(&self.page, self.me, rank, number, note) {
                if given_up.load(Ordering::SeqCst) {
                    return Err(Failure::new(SYSTEM_ERROR, "the communicator was aborted"));
                }
                std::thread::sleep(LOOK); // sleep: between two looks
            }
            let Some(theirs) = ledger::read(&self.page, self.me, rank, number) else { continue };
            if let Some(text) = ledger::differ(self.id, number + 1, [self.me, rank], [note, &theirs]) {
                self.page.pass_verdict(&text);
                return Err(Failure::misuse(text));
            }
        }
        Ok(())
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if let Some(ledger) = &self.ledger {
            ledger.close(self.id);
        }
    }
}
