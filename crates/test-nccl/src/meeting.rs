//! How the ranks of a new communicator find each other.
//!
//! Rank 0 listens on an abstract unix socket whose name is in the unique id. The others connect, say who they are and
//! hand over the descriptor of their device memory. When all are there, rank 0 gives everybody's to everybody, with the
//! page they share. All waits end when the communicator is given up.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::ledger::{Counts, Identity};
use crate::page::Page;

/// Ranks of a communicator, at most: a fold of our kernels takes as many sources.
pub(crate) const MOST_RANKS: usize = ronde_cuda::kernel::MOST_SOURCES;

/// Descriptors of one message, at most: everybody's memory and the page.
const DESCRIPTORS: usize = MOST_RANKS + 1;
/// Longest message.
const LONGEST: u64 = 1 << 20;
/// Between two looks at whether the communicator was given up.
const LOOK: Duration = Duration::from_millis(5);

/// What a rank says about itself.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) identity: Identity,
    /// Its launches when it began to make this communicator.
    pub(crate) counts: Counts,
}

/// Everybody who came, in the order of ranks.
pub(crate) struct Meeting {
    pub(crate) members: Vec<Hello>,
    pub(crate) memory: Vec<OwnedFd>,
    pub(crate) page: Page,
}

/// Why ranks did not come together.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// This rank gave up.
    #[error("the communicator was aborted")]
    GivenUp,
    /// Ranks do not fit together.
    #[error("{0}")]
    Disagreement(String),
    /// The system, or the end of another rank.
    #[error("ranks did not come together: {0}")]
    System(#[from] io::Error),
}

impl From<rustix::io::Errno> for Failure {
    fn from(error: rustix::io::Errno) -> Failure {
        Failure::System(error.into())
    }
}

/// Meets the others. `name` comes from the unique id.
pub(crate) fn meet(
    name: &[u8],
    me: Hello,
    memory: BorrowedFd<'_>,
    given_up: &AtomicBool,
) -> Result<Meeting, Failure> {
    let address = SocketAddr::from_abstract_name(name)?;
    if me.rank == 0 { host(&address, me, memory, given_up) } else { visit(&address, &me, memory, given_up) }
}

fn host(
    address: &SocketAddr,
    me: Hello,
    memory: BorrowedFd<'_>,
    given_up: &AtomicBool,
) -> Result<Meeting, Failure> {
    let size = me.size;
    let listener = UnixListener::bind_addr(address).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => Failure::Disagreement("a unique id is used twice".into()),
        _ => Failure::System(error),
    })?;
    listener.set_nonblocking(true)?;
    let page = Page::create(size)?;
    let mut seats: Vec<Option<(Hello, OwnedFd, Option<UnixStream>)>> = (0..size).map(|_| None).collect();
    seats[0] = Some((me, memory.try_clone_to_owned()?, None));
    while seats.iter().any(Option::is_none) {
        let link = patiently(given_up, || listener.accept())?.0;
        link.set_read_timeout(Some(LOOK))?;
        let (hello, mut descriptors): (Hello, _) = receive(&link, given_up)?;
        if hello.size != size {
            return Err(Failure::Disagreement(format!(
                "rank 0 makes a communicator of {size} ranks, rank {} one of {}",
                hello.rank, hello.size
            )));
        }
        let (Some(seat), Some(memory)) = (seats.get_mut(hello.rank), descriptors.pop()) else {
            return Err(Failure::Disagreement(format!("rank {} of {size} came without memory", hello.rank)));
        };
        if seat.is_some() {
            return Err(Failure::Disagreement(format!("rank {} came twice", hello.rank)));
        }
        *seat = Some((hello, memory, Some(link)));
    }
    let (mut members, mut all, mut links) = (Vec::new(), Vec::new(), Vec::new());
    for (hello, memory, link) in seats.into_iter().flatten() {
        members.push(hello);
        all.push(memory);
        links.extend(link);
    }
    let mut descriptors: Vec<BorrowedFd<'_>> = all.iter().map(OwnedFd::as_fd).collect();
    descriptors.push(page.descriptor());
    for link in &links {
        send(link, &members, &descriptors)?;
    }
    Ok(Meeting { members, memory: all, page })
}

fn visit(
    address: &SocketAddr,
    me: &Hello,
    memory: BorrowedFd<'_>,
    given_up: &AtomicBool,
) -> Result<Meeting, Failure> {
    let link = patiently(given_up, || match UnixStream::connect_addr(address) {
        // Rank 0 does not listen yet.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Err(io::ErrorKind::WouldBlock.into())
        }
        other => other,
    })?;
    link.set_read_timeout(Some(LOOK))?;
    send(&link, me, &[memory])?;
    let (members, mut memory): (Vec<Hello>, _) = receive(&link, given_up)?;
    let page = memory.pop().ok_or_else(|| Failure::Disagreement("rank 0 sent no page".into()))?;
    if members.len() != me.size || memory.len() != me.size {
        return Err(Failure::Disagreement(format!(
            "rank 0 knows of {} ranks, not {}",
            members.len(),
            me.size
        )));
    }
    Ok(Meeting { members, memory, page: Page::adopt(page, me.size)? })
}

/// Tries until it works, fails for good, or the communicator is given up.
fn patiently<T>(given_up: &AtomicBool, mut attempt: impl FnMut() -> io::Result<T>) -> Result<T, Failure> {
    loop {
        if given_up.load(Ordering::Acquire) {
            return Err(Failure::GivenUp);
        }
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                std::thread::sleep(LOOK / 5); // sleep: between two looks
            }
            other => return Ok(other?),
        }
    }
}

/// A message is its length, with descriptors, and then its bytes.
fn send<T: Serialize>(
    mut link: &UnixStream,
    message: &T,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Failure> {
    let bytes = postcard::to_stdvec(message).map_err(io::Error::other)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    let len = (bytes.len() as u64).to_le_bytes();
    rustix::net::sendmsg(link, &[IoSlice::new(&len)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(link.write_all(&bytes)?)
}

fn receive<T: DeserializeOwned>(
    mut link: &UnixStream,
    given_up: &AtomicBool,
) -> Result<(T, Vec<OwnedFd>), Failure> {
    let mut len = [0; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let got = patiently(given_up, || {
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
        Ok(rustix::net::recvmsg(link, &mut [IoSliceMut::new(&mut len)], &mut ancillary, flags)?)
    })?;
    let len = u64::from_le_bytes(len);
    if got.bytes != size_of_val(&len) || len > LONGEST {
        return Err(Failure::System(io::ErrorKind::UnexpectedEof.into()));
    }
    let descriptors = ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    let mut bytes = vec![0; usize::try_from(len).map_err(io::Error::other)?];
    let mut filled = 0;
    while filled < bytes.len() {
        match patiently(given_up, || link.read(&mut bytes[filled..]))? {
            0 => return Err(Failure::System(io::ErrorKind::UnexpectedEof.into())),
            more => filled += more,
        }
    }
    Ok((postcard::from_bytes(&bytes).map_err(io::Error::other)?, descriptors))
}
