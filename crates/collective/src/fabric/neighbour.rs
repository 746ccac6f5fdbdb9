//! The unix-socket link between two ranks of one host.
//!
//! It decides that they *are* on one host (by passing memory and reading it back through a mapping, not
//! by comparing names), carries shared memory for groups, and its end is how death is noticed at once.
//! Messages are 16 bytes: kind, then the group's number; memory, and the bells of a control tree with it, ride
//! along as descriptors. Only a rank that is about to end because of an error says more: the
//! number of bytes that follow, and why.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use ronde_trust::{Role, prove};
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use super::{HANDSHAKE, Shared};
use crate::error::{Error, Result};

const PURPOSE: &[u8] = b"ronde neighbour 1";
const MESSAGE: usize = 16;
const HELLO: u64 = 1;
const MEMORY: u64 = 2;
const GOODBYE: u64 = 3;
const FAILING: u64 = 4;
/// Longest reason that is read.
const LONGEST_REASON: usize = 16 << 10;
/// Most descriptors that ride along with one message.
const DESCRIPTORS: usize = 3;

/// What a neighbour said.
pub(super) enum Word {
    /// Shared memory for a group, and what belongs to it.
    Memory(u64, Vec<OwnedFd>),
    /// It leaves in order.
    Goodbye,
    /// It is about to end, because of this.
    Failing(String),
    /// Its end is closed, or it speaks nonsense.
    Gone,
}

/// An unguessable name for an abstract socket.
pub(super) fn name() -> Result<[u8; 24]> {
    let mut name = *b"ronde/..................";
    fill_random(&mut name[6..])?;
    Ok(name)
}

pub(super) fn fill_random(bytes: &mut [u8]) -> Result<()> {
    std::fs::File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(bytes))
        .map_err(Error::system("reading random bytes"))
}

/// Tries to become a neighbour of a lower rank. `false`: it is not on this host.
pub(super) fn try_dial(shared: &Shared, peer: usize) -> Result<bool> {
    let card = &shared.cards[peer];
    if card.kernel != shared.cards[shared.rank].kernel {
        return Ok(false);
    }
    let address = SocketAddr::from_abstract_name(card.unix).map_err(Error::system("naming a unix socket"))?;
    // Refused means that the name does not exist here: another network namespace, so another host.
    let Ok(mut link) = UnixStream::connect_addr(&address) else {
        return Ok(false);
    };
    let failed = || Error::system(format!("connecting to rank {peer} on this host"));
    set_limit(&link, Some(HANDSHAKE)).map_err(failed())?;
    if !same_user(&link) || prove(&mut link, &shared.secret, Role::Dialer, PURPOSE).is_err() {
        return Ok(false);
    }
    let mut nonce = [0; 16];
    fill_random(&mut nonce)?;
    let memory = rustix::fs::memfd_create("ronde-probe", MemfdFlags::CLOEXEC)
        .map_err(Error::errno("making shared memory (memfd_create)"))?;
    rustix::io::write(&memory, &nonce).map_err(Error::errno("writing shared memory"))?;
    send(&link, [HELLO, shared.rank as u64], &[memory.as_fd()])?;
    let mut echo = [0; 16];
    if link.read_exact(&mut echo).is_err() || echo != nonce {
        return Ok(false);
    }
    set_limit(&link, None).map_err(failed())?;
    shared.add_neighbour(peer, Arc::new(link));
    Ok(true)
}

/// The other side of [`try_dial`]. Strangers are dropped without a word.
pub(super) fn welcome(shared: &Shared, mut link: UnixStream) -> Option<()> {
    set_limit(&link, Some(HANDSHAKE)).ok()?;
    if !same_user(&link) {
        return None;
    }
    prove(&mut link, &shared.secret, Role::Listener, PURPOSE).ok()?;
    let ([HELLO, peer], mut descriptors) = receive(&link)? else {
        return None;
    };
    let memory = descriptors.pop()?;
    let peer = usize::try_from(peer).ok().filter(|&peer| peer > shared.rank && peer < shared.cards.len())?;
    let nonce = read_mapped(&memory)?;
    set_limit(&link, None).ok()?;
    let link = Arc::new(link);
    shared.add_neighbour(peer, link.clone());
    (&*link).write_all(&nonce).ok()
}

/// Reads through a mapping, because mapping is what matters: a sandbox may pass descriptors and forbid it.
fn read_mapped(memory: &OwnedFd) -> Option<[u8; 16]> {
    const PAGE: usize = 4096;
    if rustix::fs::fstat(memory).ok()?.st_size < 16 {
        return None;
    }
    // SAFETY: a fresh read-only mapping of a peer's memory file that holds at least 16 bytes; it is
    // copied out and unmapped at once, and nothing in Rust refers to it.
    unsafe {
        let at = rustix::mm::mmap(std::ptr::null_mut(), PAGE, ProtFlags::READ, MapFlags::SHARED, memory, 0)
            .ok()?;
        let nonce = at.cast::<[u8; 16]>().read_volatile();
        rustix::mm::munmap(at, PAGE).ok()?;
        Some(nonce)
    }
}

pub(super) fn send_memory(link: &UnixStream, group: u64, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
    send(link, [MEMORY, group], descriptors)
}

pub(super) fn send_goodbye(link: &UnixStream) {
    // If the neighbour is gone already it needs no goodbye.
    let _ = send(link, [GOODBYE, 0], &[]);
}

/// Says why this rank is about to end.
pub(super) fn send_failing(link: &UnixStream, reason: &str) {
    let reason = &reason.as_bytes()[..reason.len().min(LONGEST_REASON)];
    // If the neighbour is gone already it need not know. One call, so that nothing another thread sends comes in between.
    let _ = send_with(link, [FAILING, reason.len() as u64], &[], reason);
}

/// Reads one message; the caller knows that one is there.
pub(super) fn listen(link: &UnixStream) -> Word {
    match receive(link) {
        Some(([MEMORY, group], descriptors)) if !descriptors.is_empty() => Word::Memory(group, descriptors),
        Some(([GOODBYE, _], _)) => Word::Goodbye,
        Some(([FAILING, len], _)) => reason(link, len).map_or(Word::Gone, Word::Failing),
        _ => Word::Gone,
    }
}

fn reason(mut link: &UnixStream, len: u64) -> Option<String> {
    let mut bytes = vec![0; usize::try_from(len).ok().filter(|&len| len <= LONGEST_REASON)?];
    link.read_exact(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn send(link: &UnixStream, words: [u64; 2], descriptors: &[BorrowedFd<'_>]) -> Result<()> {
    send_with(link, words, descriptors, &[])
}

/// The same, with bytes that follow the message.
fn send_with(
    link: &UnixStream,
    words: [u64; 2],
    descriptors: &[BorrowedFd<'_>],
    following: &[u8],
) -> Result<()> {
    debug_assert!(descriptors.len() <= DESCRIPTORS);
    let mut bytes = [0; MESSAGE];
    bytes[..8].copy_from_slice(&words[0].to_le_bytes());
    bytes[8..].copy_from_slice(&words[1].to_le_bytes());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let parts = [IoSlice::new(&bytes), IoSlice::new(following)];
    rustix::net::sendmsg(link, &parts, &mut ancillary, SendFlags::NOSIGNAL)
        .map_err(Error::errno("speaking to a rank on this host"))?;
    Ok(())
}

fn receive(link: &UnixStream) -> Option<([u64; 2], Vec<OwnedFd>)> {
    let mut bytes = [0; MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let got = rustix::net::recvmsg(
        link,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL,
    )
    .ok()?;
    let descriptors = ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    (got.bytes == MESSAGE).then(|| ([word(0), word(8)], descriptors))
}

fn same_user(link: &UnixStream) -> bool {
    credentials(link).is_some_and(|peer| peer.uid == rustix::process::getuid().as_raw())
}

/// A descriptor of the process at the other end, readable once it has ended. `None` where it cannot be
/// seen from here (another process namespace): then the end of the socket must do.
pub(super) fn process(link: &UnixStream) -> Option<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(credentials(link)?.pid)?;
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
}

/// Who is at the other end. Asked directly, because the process number is 0 across process namespaces.
fn credentials(link: &UnixStream) -> Option<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the option writes at most `len` bytes, the size of the structure given.
    let rc = unsafe {
        libc::getsockopt(
            link.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    (rc == 0 && len as usize == size_of::<libc::ucred>()).then_some(peer)
}

fn set_limit(link: &UnixStream, limit: Option<Duration>) -> std::io::Result<()> {
    link.set_read_timeout(limit)?;
    link.set_write_timeout(limit)
}
