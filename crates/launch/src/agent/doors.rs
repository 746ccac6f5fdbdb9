//! The doors that this host's ranks leave through where they do not dial others themselves: to the rendezvous, and to
//! ranks on hosts that cannot be reached. Both are on loopback, and what enters is carried to the driver.
//!
//! No address of the launcher's machine has to be found, opened in a firewall or translated. What passes is sealed or
//! proven between those who talk; here it is only bytes.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use crate::Error;
use crate::doorway;
use crate::wire::{Carrier, Destination, FromAgent};

/// How long whoever enters may take to say where to.
const PATIENCE: Duration = Duration::from_secs(10);

/// Numbers for connections; those that the driver opens have the highest bit set.
#[derive(Clone, Debug, Default)]
pub(super) struct Numbers(Arc<AtomicU32>);

impl Numbers {
    fn next(&self) -> u32 {
        self.0.fetch_add(1, Ordering::Relaxed) & (u32::MAX >> 1)
    }
}

/// Opens the door to the rendezvous; returns where it is.
pub(super) fn to_rendezvous(carrier: Carrier<FromAgent>, numbers: Numbers) -> Result<SocketAddr, Error> {
    let enter = move |stream: TcpStream| {
        // What cannot be carried is closed, which the rank sees and tries again.
        let _ = carrier.open(numbers.next(), Destination::Rendezvous, &stream);
    };
    listen("ronde-door", enter)
}

/// Opens the door to ranks elsewhere; returns where it is.
pub(super) fn to_others(carrier: Carrier<FromAgent>, numbers: Numbers) -> Result<SocketAddr, Error> {
    let enter = move |mut stream: TcpStream| {
        let (carrier, numbers) = (carrier.clone(), numbers.clone());
        // Reading whom it is for may take a moment, in which others may enter.
        thread::spawn(move || {
            let mut header = [0; 16];
            let limited =
                stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.read_exact(&mut header));
            let Some(rank) = limited.ok().and_then(|()| doorway::meant(&header)) else { return };
            let Ok(rank) = usize::try_from(rank) else { return };
            if stream.set_read_timeout(None).is_ok() {
                let _ = carrier.open(numbers.next(), Destination::Rank(rank), &stream);
            }
        });
    };
    listen("ronde-relay", enter)
}

/// A connection of which we have both ends: one to carry, one to hand to a rank.
pub(super) fn pair() -> std::io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let one = TcpStream::connect(listener.local_addr()?)?;
    loop {
        let (other, from) = listener.accept()?;
        // Anybody on this machine may dial in this moment; only ours counts.
        if from == one.local_addr()? {
            return Ok((one, other));
        }
    }
}

fn listen(name: &str, enter: impl Fn(TcpStream) + Send + 'static) -> Result<SocketAddr, Error> {
    let problem = Error::system("listen on loopback");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let (listener, address) = listener
        .and_then(|listener| listener.local_addr().map(|address| (listener, address)))
        .map_err(problem)?;
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || listener.incoming().flatten().for_each(enter))
        .map_err(Error::system("start a thread"))?;
    Ok(address)
}
