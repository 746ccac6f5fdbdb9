//! The tree that small control messages climb and come down: rank → relay → leader and back.
//!
//! On each host the lowest member of a set is the *relay*; the lowest member of all is the *leader*. Inside a host
//! frames go through rings in shared memory ([`ring`], [`desk`]), without a system call while both ends are awake; a
//! rank that wants to sleep says so with a [`mark`], and whoever writes to it next rings its [`bell`]. Between hosts
//! there is one TCP wire for each relay to the leader. What the frames say is the caller's business.
//!
//! Nothing here blocks but [`Sleeper::sleep`]: what a [`pipe`] does not take at once is kept ([`frame`]) and goes out
//! with later calls. One thread uses the [`Tree`] at a time; while it sleeps it need not hold it. The order is always:
//!
//! ```text
//! tree.attend(true);
//! if !tree.has_news() { sleeper.sleep(limit)? }      // the tree may be lent to others meanwhile
//! tree.attend(false);
//! tree.pump(take)?;
//! ```

mod bell;
mod desk;
mod frame;
mod mark;
mod pipe;
mod ring;

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, Timespec, poll};

pub(crate) use bell::Watch;
pub use bell::{Bell, Sleeper};
use desk::{Desks, Direction, Lane};
use frame::LONGEST;
use pipe::{Far, Near, Pipe, WireEnd};
use ring::{Reader, Writer};

use crate::error::{Error, Result};
use crate::fabric::{Seating, Shared};
use crate::net::Wires;

/// Sets a tree's memory and wires apart from those of the group with the same number.
const CONTROL: u64 = 1 << 63;
/// How often [`Tree::has_news`] asks the kernel about wires: rarely enough to cost a spinning rank little, often enough
/// not to add much to the time a message takes between hosts.
const WIRE_LOOK: Duration = Duration::from_micros(20);
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// This rank's place in the tree, and its pipes. Members are known by their position in the list the tree was formed
/// of.
pub struct Tree {
    shared: Arc<Shared>,
    members: Vec<usize>,
    hosts: Vec<Vec<usize>>,
    parent: Option<usize>,
    children: Vec<usize>,
    near: Vec<Pipe<Near>>,
    far: Vec<Pipe<Far>>,
    /// The pipe to each member.
    routes: Vec<Route>,
    /// The memory shared with others on this host, if there are any, and this rank's position on the host.
    desks: Option<Arc<Desks>>,
    local: usize,
    watch: Arc<Watch>,
    wires: Wires,
    /// When the wires were last looked at.
    looked: Cell<Option<Instant>>,
}

#[derive(Clone, Copy)]
enum Route {
    None,
    Near(usize),
    Far(usize),
}

impl Tree {
    pub(crate) fn form(
        shared: &Arc<Shared>,
        job_hosts: &[Vec<usize>],
        id: u64,
        members: &[usize],
    ) -> Result<(Tree, Sleeper, Bell)> {
        if id & CONTROL != 0 {
            return Err(Error::Invalid(format!("{id} is too large a number for a control tree")));
        }
        let Seating { me, hosts, my_host, local } =
            Seating::of("a control tree", shared.rank, job_hosts, members)?;
        let key = id | CONTROL;
        let leader = hosts[0][0];
        let host = &hosts[my_host];
        let mut children = Vec::new();
        if local == 0 {
            children.extend(&host[1..]);
        }
        let relays: Vec<usize> = hosts[1..].iter().map(|host| host[0]).collect();
        let (parent, by_wire) = if me == leader {
            children.extend(&relays);
            (None, relays)
        } else if local == 0 {
            (Some(leader), vec![leader])
        } else {
            (Some(host[0]), Vec::new())
        };

        let HostPart { bell, desks, near } = HostPart::join(shared, key, members, host, local)?;
        let watch = Arc::new(Watch::new(bell.clone()));
        shared.watch(members.to_vec(), Arc::downgrade(&watch))?;
        let mut wires = Wires::new(key, shared.clone());
        let mut far = Vec::new();
        let mut ends = Vec::new();
        for &position in &by_wire {
            let end = Arc::new(WireEnd::new(wires.get(members[position], 0)?));
            ends.push(end.clone());
            far.push(Pipe::new(position, members[position], Far { end, own_bell: bell.clone() }));
        }

        let mut routes = vec![Route::None; members.len()];
        for (index, pipe) in near.iter().enumerate() {
            routes[pipe.position()] = Route::Near(index);
        }
        for (index, pipe) in far.iter().enumerate() {
            routes[pipe.position()] = Route::Far(index);
        }
        let tree = Tree {
            shared: shared.clone(),
            members: members.to_vec(),
            hosts,
            parent,
            children,
            near,
            far,
            routes,
            desks,
            local,
            watch,
            wires,
            looked: Cell::new(None),
        };
        Ok((tree, Sleeper::new(bell.clone(), ends, shared.clone()), bell))
    }

    /// The member to which this one reports; `None` for the leader.
    pub fn parent(&self) -> Option<usize> {
        self.parent
    }

    /// Members that report to this one. A relay's are the others on its host; the leader's are those and the other
    /// relays.
    pub fn children(&self) -> &[usize] {
        &self.children
    }

    /// Members by host, hosts ordered by their first member.
    pub fn hosts(&self) -> &[Vec<usize>] {
        &self.hosts
    }

    /// Sends a frame (at most 64 MiB) to the parent or a child. Never waits: what the pipe does not take now goes out
    /// with later calls of this or [`Tree::pump`].
    pub fn send(&mut self, to: usize, frame: &[u8]) -> Result<()> {
        self.shared.check_loss()?;
        if frame.len() > LONGEST {
            return Err(Error::Invalid(format!("a control message of {} bytes is too long", frame.len())));
        }
        match self.routes.get(to) {
            Some(&Route::Near(index)) => self.near[index].send(&self.shared, frame),
            Some(&Route::Far(index)) => self.far[index].send(&self.shared, frame),
            Some(Route::None) | None => {
                Err(Error::Invalid(format!("member {to} is neither parent nor child in the control tree")))
            }
        }
    }

    /// Wakes a member that was sent something, even if it has not asked to be rung. Wires wake by themselves.
    pub fn wake(&self, to: usize) {
        if let Some(&Route::Near(index)) = self.routes.get(to) {
            self.near[index].wake();
        }
    }

    /// Sends what was kept, as far as that goes without waiting, and hands what has come to `take(from, frame)`, in
    /// order for each sender. Whether anything came, if only a part of a frame. A connection that was closed, a peer
    /// that sends nonsense, and any loss in the job are errors.
    pub fn pump(&mut self, mut take: impl FnMut(usize, &[u8])) -> Result<bool> {
        self.shared.check_loss()?;
        let mut came = false;
        for pipe in &mut self.near {
            pipe.flush(&self.shared)?;
            came |= pipe.receive(&self.shared, &mut take)?;
        }
        let ready = self.look_at_wires();
        for (pipe, _) in self.far.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
            pipe.flush(&self.shared)?;
            came |= pipe.receive(&self.shared, &mut take)?;
            if pipe.has_ended() {
                self.watch.departed(pipe.rank());
            }
        }
        Ok(came)
    }

    /// Whether frames were sent that pipes have not taken yet: then [`Tree::pump`] must go on being called for them to
    /// arrive.
    pub fn keeps_output(&self) -> bool {
        self.near.iter().any(Pipe::keeps_output) || self.far.iter().any(Pipe::keeps_output)
    }

    /// Whether frames for children are among them. Whoever does not come back to the tree until its children have acted on
    /// what it sent must not begin before this is over.
    pub fn owes_children(&self) -> bool {
        let owes = |position: usize, keeps: bool| keeps && Some(position) != self.parent;
        self.near.iter().any(|pipe| owes(pipe.position(), pipe.keeps_output()))
            || self.far.iter().any(|pipe| owes(pipe.position(), pipe.keeps_output()))
    }

    /// Sends what was kept, as far as that goes without waiting, and leaves what has come where it is.
    pub fn push(&mut self) -> Result<()> {
        self.shared.check_loss()?;
        for pipe in &mut self.near {
            pipe.flush(&self.shared)?;
        }
        for pipe in &mut self.far {
            pipe.flush(&self.shared)?;
        }
        Ok(())
    }

    /// Whether [`Tree::pump`] would get somewhere. Looks at memory only, but for wires, about which it asks the kernel
    /// now and then. True for good once any rank is lost: then `pump` says which.
    pub fn has_news(&self) -> bool {
        if self.shared.is_lost() || self.near.iter().any(Pipe::has_news) {
            return true;
        }
        let due = || self.looked.get().is_none_or(|looked| looked.elapsed() >= WIRE_LOOK);
        !self.far.is_empty() && due() && self.look_at_wires().contains(&true)
    }

    /// Which wires have bytes, or take bytes that wait.
    fn look_at_wires(&self) -> Vec<bool> {
        if self.far.is_empty() {
            return Vec::new();
        }
        self.looked.set(Some(Instant::now()));
        let mut fds: Vec<PollFd<'_>> = self.far.iter().map(Pipe::poll_fd).collect();
        match poll(&mut fds, Some(&AT_ONCE)) {
            // A wire whose peer has said goodbye stays readable, and has nothing.
            Ok(_) => {
                let ready = fds.iter().zip(&self.far);
                ready.map(|(fd, pipe)| !fd.revents().is_empty() && !pipe.has_ended()).collect()
            }
            // Interrupted: the wires themselves will say.
            Err(_) => vec![true; self.far.len()],
        }
    }

    /// Whether others ring this rank's bell when they write to it in the host (`true`: somebody is about to sleep), or
    /// leave it alone (`false`: somebody looks by itself). After `attend(true)`, either [`Tree::has_news`] sees a
    /// frame or its sender rings. The first ring uses the wish up: say it again before each sleep.
    pub fn attend(&self, ring_me: bool) {
        let Some(desks) = &self.desks else { return };
        let mark = desks.ring_me(self.local);
        if ring_me { mark.set() } else { mark.clear() }
    }

    /// A member of this set that has left the job in order, as far as that is known here: at once for ranks of this
    /// host, and for those that this one has a wire to once [`Tree::pump`] has read their goodbye. Cheap.
    pub fn left(&self) -> Option<usize> {
        let rank = self.watch.left()?;
        self.members.binary_search(&rank).ok()
    }
}

impl Drop for Tree {
    /// Peers on other hosts learn at once, even while a sleeper still knows the wires.
    fn drop(&mut self) {
        for pipe in &mut self.far {
            pipe.say_goodbye();
        }
        self.wires.close();
    }
}

/// What a tree consists of inside this rank's host.
struct HostPart {
    bell: Bell,
    desks: Option<Arc<Desks>>,
    near: Vec<Pipe<Near>>,
}

impl HostPart {
    /// The relay makes memory and bells and hands them out: to each member the memory, its own bell and the relay's.
    fn join(shared: &Shared, key: u64, members: &[usize], host: &[usize], local: usize) -> Result<HostPart> {
        let pipe = |desks: &Arc<Desks>, member: usize, bell: &Bell| {
            let up = Lane { member: member.max(local), direction: Direction::Up };
            let down = Lane { direction: Direction::Down, ..up };
            let (out, back) = if local == 0 { (down, up) } else { (up, down) };
            let link = Near {
                desks: desks.clone(),
                peer: member,
                bell: bell.clone(),
                writer: Writer::new(desks.clone(), out),
                reader: Reader::new(desks.clone(), back),
            };
            Pipe::new(host[member], members[host[member]], link)
        };
        if host.len() == 1 {
            return Ok(HostPart { bell: Bell::new()?, desks: None, near: Vec::new() });
        }
        if local == 0 {
            let desks = Arc::new(Desks::create(host.len())?);
            let bell = Bell::new()?;
            let mut near = Vec::new();
            for (member, &position) in host.iter().enumerate().skip(1) {
                let theirs = Bell::new()?;
                shared.give_descriptors(members[position], key, &[desks.fd(), theirs.fd(), bell.fd()])?;
                near.push(pipe(&desks, member, &theirs));
            }
            Ok(HostPart { bell, desks: Some(desks), near })
        } else {
            let [memory, own, relays] = shared.await_descriptors(key, members[host[0]])?;
            let desks = Arc::new(Desks::adopt(memory, host.len())?);
            let near = vec![pipe(&desks, 0, &Bell::from(relays))];
            Ok(HostPart { bell: Bell::from(own), desks: Some(desks), near })
        }
    }
}
