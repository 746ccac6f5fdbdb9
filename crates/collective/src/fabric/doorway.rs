//! The rank's side of its host's doorway.
//!
//! Where ranks cannot be dialled directly (containers with one published port, or a relay), connections for all ranks of a
//! host come in at one place, the doorway, and are handed on to the rank that they are for. A rank says who it is once; from
//! then on every message is one byte that carries one descriptor, a TCP connection that is treated like one accepted at the
//! rank's own listener. A doorway that closes is no failure: nothing new comes through it any more, and that is all.

use std::io::{IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};

use ronde_trust::{Role, Secret, prove};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use super::HANDSHAKE;
use crate::error::{Error, Result};

const PURPOSE: &[u8] = b"ronde doorway 1";

/// The connection over which this host's doorway hands over what is for this rank.
pub(super) struct Doorway(pub(super) UnixStream);

/// What came through the doorway.
pub(super) enum Arrival {
    /// A connection for this rank.
    Wire(TcpStream),
    /// A message that carried no connection, or none at all.
    Nothing,
    /// The doorway is closed.
    Closed,
}

impl Doorway {
    /// Goes to the doorway of this name (an abstract unix socket) and says which rank this is.
    pub(super) fn enter(name: &str, secret: &Secret, rank: usize) -> Result<Doorway> {
        let failed = |source| Error::system(format!("reaching this host's doorway {name:?}"))(source);
        let address = SocketAddr::from_abstract_name(name).map_err(failed)?;
        let mut link = UnixStream::connect_addr(&address).map_err(failed)?;
        link.set_read_timeout(Some(HANDSHAKE)).map_err(failed)?;
        link.set_write_timeout(Some(HANDSHAKE)).map_err(failed)?;
        prove(&mut link, secret, Role::Dialer, PURPOSE)
            .map_err(|error| failed(std::io::Error::other(error)))?;
        link.write_all(&(rank as u64).to_le_bytes()).map_err(failed)?;
        link.set_nonblocking(true).map_err(failed)?;
        Ok(Doorway(link))
    }

    /// Takes one message, if there is one.
    pub(super) fn take(&self) -> Arrival {
        let mut byte = [0];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let parts = &mut [IoSliceMut::new(&mut byte)];
        let got = rustix::net::recvmsg(&self.0, parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC);
        let descriptor: Option<OwnedFd> = ancillary
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            })
            .flatten()
            .next();
        match got {
            Ok(got) if got.bytes == 0 => Arrival::Closed,
            Ok(_) => descriptor.map_or(Arrival::Nothing, |descriptor| Arrival::Wire(descriptor.into())),
            Err(Errno::AGAIN | Errno::INTR) => Arrival::Nothing,
            Err(_) => Arrival::Closed,
        }
    }
}
