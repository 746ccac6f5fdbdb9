//! TCP connections carried between agents and the driver: of ranks to the rendezvous, and, where two hosts cannot reach
//! each other, between ranks.
//!
//! A carried connection is read and written at each end like any other. Each direction has a window: so many bytes may be
//! on their way, and whoever has written some at the far end says so. Nobody but the two ends of a connection ever waits
//! for it.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use serde::{Deserialize, Serialize};

use super::Outbox;

/// How many bytes of one direction may be on their way.
const WINDOW: usize = 1 << 20;
/// The most that is read at a time.
const PIECE: usize = 64 << 10;

/// What is said about carried connections.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Carried {
    /// There is a new one.
    Open { id: u32, to: Destination },
    /// Bytes of it.
    Bytes { id: u32, bytes: Vec<u8> },
    /// So many bytes have been written; as many more may be sent.
    Written { id: u32, bytes: usize },
    /// No more bytes come in this direction.
    End { id: u32 },
}

/// Where a carried connection leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Destination {
    Rendezvous,
    Rank(usize),
}

/// One end of all connections that are carried over one link. Copies are the same end.
pub(crate) struct Carrier<T> {
    outbox: Outbox<T>,
    open: Arc<Mutex<HashMap<u32, Open>>>,
}

/// Forgotten once both directions have ended.
struct Open {
    /// Takes bytes for our side; gone once the other side has ended.
    writer: Option<Sender<Vec<u8>>>,
    credit: Arc<Credit>,
    /// Whether our own side has ended.
    read_out: bool,
}

#[derive(Default)]
struct Credit {
    left: Mutex<usize>,
    changed: Condvar,
}

impl<T> Clone for Carrier<T> {
    fn clone(&self) -> Carrier<T> {
        Carrier { outbox: self.outbox.clone(), open: Arc::clone(&self.open) }
    }
}

impl<T: From<Carried> + Serialize + Send + 'static> Carrier<T> {
    pub(crate) fn new(outbox: Outbox<T>) -> Carrier<T> {
        Carrier { outbox, open: Arc::default() }
    }

    /// Says that there is a new connection, and carries it.
    pub(crate) fn open(&self, id: u32, to: Destination, stream: &TcpStream) -> std::io::Result<()> {
        self.outbox.send_bulk(Carried::Open { id, to }.into());
        self.carry(id, stream)
    }

    /// Carries a connection that the other end has told of.
    pub(crate) fn carry(&self, id: u32, stream: &TcpStream) -> std::io::Result<()> {
        let carried = self.try_carry(id, stream);
        if carried.is_err() {
            lock(&self.open).remove(&id);
            self.outbox.send_bulk(Carried::End { id }.into());
        }
        carried
    }

    fn try_carry(&self, id: u32, stream: &TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let (reading, writing) = (stream.try_clone()?, stream.try_clone()?);
        let (sender, receiver) = channel();
        let credit = Arc::new(Credit { left: Mutex::new(WINDOW), changed: Condvar::new() });
        lock(&self.open)
            .insert(id, Open { writer: Some(sender), credit: Arc::clone(&credit), read_out: false });
        let outbox = self.outbox.clone();
        let written = move |bytes| outbox.send(Carried::Written { id, bytes }.into());
        thread::Builder::new()
            .name("ronde-carry-in".to_owned())
            .spawn(move || write_all(writing, &receiver, written))?;
        let carrier = self.clone();
        thread::Builder::new()
            .name("ronde-carry-out".to_owned())
            .spawn(move || carrier.read_all(id, reading, &credit))?;
        Ok(())
    }

    /// Takes in what the other end says; gives back what it says about a new connection.
    pub(crate) fn take(&self, carried: Carried) -> Option<(u32, Destination)> {
        let mut open = lock(&self.open);
        match carried {
            Carried::Open { id, to } => return Some((id, to)),
            Carried::Bytes { id, bytes } => {
                if let Some(writer) = open.get(&id).and_then(|one| one.writer.as_ref()) {
                    let _ = writer.send(bytes);
                }
            }
            Carried::Written { id, bytes } => {
                if let Some(one) = open.get(&id) {
                    one.credit.give(bytes);
                }
            }
            Carried::End { id } => {
                if let Some(one) = open.get_mut(&id) {
                    one.writer = None;
                }
                open.retain(|other, one| *other != id || !one.read_out);
            }
        }
        None
    }

    /// Sends what can be read, as far as the window reaches.
    fn read_all(&self, id: u32, mut stream: TcpStream, credit: &Credit) {
        let mut buffer = vec![0; PIECE];
        loop {
            let most = credit.wait(PIECE);
            let length = match stream.read(&mut buffer[..most]) {
                Ok(length) => length,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(_) => 0,
            };
            if length == 0 {
                break;
            }
            credit.take(length);
            if !self.outbox.send_output(Carried::Bytes { id, bytes: buffer[..length].to_vec() }.into()) {
                break;
            }
        }
        self.outbox.send_output(Carried::End { id }.into());
        let mut open = lock(&self.open);
        if let Some(one) = open.get_mut(&id) {
            one.read_out = true;
        }
        open.retain(|other, one| *other != id || one.writer.is_some());
    }
}

impl Credit {
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something may be sent; how much, at most `most`.
    fn wait(&self, most: usize) -> usize {
        let left = self.changed.wait_while(self.lock(), |left| *left == 0);
        (*left.unwrap_or_else(PoisonError::into_inner)).min(most)
    }

    fn take(&self, bytes: usize) {
        let mut left = self.lock();
        *left = left.saturating_sub(bytes);
    }

    fn give(&self, bytes: usize) {
        let mut left = self.lock();
        *left = left.saturating_add(bytes).min(WINDOW);
        self.changed.notify_all();
    }
}

/// Writes what comes from the other end. If our side is gone it is still taken in, so that the other end can finish.
fn write_all(mut stream: TcpStream, bytes: &Receiver<Vec<u8>>, written: impl Fn(usize)) {
    let mut works = true;
    while let Ok(piece) = bytes.recv() {
        works = works && stream.write_all(&piece).is_ok();
        written(piece.len());
    }
    let _ = stream.shutdown(Shutdown::Write);
}

fn lock<K>(open: &Mutex<K>) -> MutexGuard<'_, K> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}
