//! The one background thread of a fabric: lets peers in and notices when neighbours go.
//!
//! Handshakes run in short-lived threads of their own (bounded in number and time), so that a stranger who
//! connects and stays silent delays nobody. Wires come in at the listener, and through the host's doorway if it
//! has one. A neighbour's death shows twice, by the end of its socket and by its process descriptor: a forked
//! child may keep the socket open, nothing keeps the process alive.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;

use ronde_trust::{Role, prove_within};
use rustix::event::{PollFd, PollFlags, poll};

use super::doorway::{Arrival, Doorway};
use super::neighbour::{self, Word};
use super::{HANDSHAKE, Shared};
use crate::error::{Error, Result};
use crate::net;

/// Connections that may be in their handshake at once; further ones wait in the listen queue.
const UNPROVEN: usize = 64;

pub(super) fn start(
    shared: Arc<Shared>,
    tcp: TcpListener,
    unix: UnixListener,
    doorway: Option<Doorway>,
) -> Result<JoinHandle<()>> {
    tcp.set_nonblocking(true).map_err(Error::system("preparing a listener"))?;
    unix.set_nonblocking(true).map_err(Error::system("preparing a listener"))?;
    std::thread::Builder::new()
        .name("ronde-attendant".into())
        .spawn(move || attend(&shared, &tcp, &unix, doorway.as_ref()))
        .map_err(Error::system("starting a thread"))
}

struct Watched {
    rank: usize,
    link: Arc<UnixStream>,
    process: Option<OwnedFd>,
}

fn attend(shared: &Arc<Shared>, tcp: &TcpListener, unix: &UnixListener, mut doorway: Option<&Doorway>) {
    let unproven = Arc::new(AtomicUsize::new(0));
    while let Some(neighbours) = shared.neighbours() {
        let watched: Vec<Watched> = neighbours
            .into_iter()
            .map(|(rank, link)| Watched { rank, process: neighbour::process(&link), link })
            .collect();
        let mut changed = false;
        while !changed {
            let welcome = if unproven.load(SeqCst) < UNPROVEN { PollFlags::IN } else { PollFlags::empty() };
            let mut fds = vec![
                PollFd::new(&shared.nudge, PollFlags::IN),
                PollFd::new(tcp, welcome),
                PollFd::new(unix, welcome),
                // Without a doorway nothing is asked about the nudge a second time.
                match doorway {
                    Some(doorway) => PollFd::new(&doorway.0, welcome),
                    None => PollFd::new(&shared.nudge, PollFlags::empty()),
                },
            ];
            for one in &watched {
                // The kernel looks in this order: if it finds the process ended, a goodbye lies in the socket by then.
                let process = one.process.as_ref().map_or(one.link.as_fd(), AsFd::as_fd);
                fds.push(PollFd::from_borrowed_fd(process, PollFlags::IN));
                fds.push(PollFd::new(&*one.link, PollFlags::IN));
            }
            if poll(&mut fds, None).is_err() {
                continue;
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            if ready[0] {
                let _ = rustix::io::read(&shared.nudge, &mut [0; 8]);
                changed = true;
            }
            if ready[1]
                && let Ok((stream, _)) = tcp.accept()
            {
                shake_hands(shared, &unproven, move |shared| welcome_wire(shared, stream));
            }
            if ready[2]
                && let Ok((link, _)) = unix.accept()
            {
                shake_hands(shared, &unproven, move |shared| neighbour::welcome(shared, link));
            }
            if ready[3]
                && let Some(open) = doorway
            {
                match open.take() {
                    Arrival::Wire(stream) => {
                        shake_hands(shared, &unproven, move |shared| welcome_wire(shared, stream));
                    }
                    Arrival::Nothing => {}
                    // No longer asked, but kept by the caller: a forked child closes the numbers of all sockets there were,
                    // and this one must not belong to something else by then.
                    Arrival::Closed => doorway = None,
                }
            }
            for (one, signs) in watched.iter().zip(ready[4..].chunks(2)) {
                // The socket first: a goodbye may lie in it when the process has ended since.
                let word = if signs[1] {
                    neighbour::listen(&one.link)
                } else if signs[0] {
                    Word::Gone
                } else {
                    continue;
                };
                let gone = matches!(word, Word::Goodbye | Word::Gone);
                match word {
                    Word::Memory(group, descriptors) => shared.deliver_memory(group, descriptors),
                    Word::Failing(reason) => shared.neighbour_failing(one.rank, reason),
                    Word::Goodbye => shared.neighbour_gone(one.rank, true),
                    Word::Gone => shared.neighbour_gone(one.rank, false),
                }
                changed |= gone;
            }
        }
    }
}

fn shake_hands(
    shared: &Arc<Shared>,
    unproven: &Arc<AtomicUsize>,
    handshake: impl FnOnce(&Shared) -> Option<()> + Send + 'static,
) {
    unproven.fetch_add(1, SeqCst);
    let (shared, counted) = (Arc::downgrade(shared), unproven.clone());
    let spawned = std::thread::Builder::new().name("ronde-handshake".into()).spawn(move || {
        if let Some(shared) = shared.upgrade() {
            // A stranger is dropped; nobody waits for it.
            let _ = handshake(&shared);
            counted.fetch_sub(1, SeqCst);
            shared.nudge();
        }
    });
    if spawned.is_err() {
        unproven.fetch_sub(1, SeqCst);
    }
}

fn welcome_wire(shared: &Shared, mut stream: TcpStream) -> Option<()> {
    stream.set_nonblocking(false).ok()?;
    prove_within(&stream, &shared.secret, Role::Listener, net::PURPOSE, HANDSHAKE).ok()?;
    stream.set_read_timeout(Some(HANDSHAKE)).ok()?;
    let mut hello = [0; net::HELLO];
    stream.read_exact(&mut hello).ok()?;
    stream.set_read_timeout(None).ok()?;
    shared.deliver_wire(net::parse_hello(&hello), stream);
    Some(())
}
