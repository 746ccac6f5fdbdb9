//! The ranks' output on its way to the driver.
//!
//! One thread reads all pipes, each only as far as the driver has given credit for it. So a user whose terminal does not
//! read holds up the ranks that print, as in any pipeline, and neither other ranks nor control messages; and nothing is
//! held in memory meanwhile.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::Error;
use crate::label::Stream;
use crate::wire::{FromAgent, Outbox, WINDOW};

/// The most that is read at a time.
const PIECE: usize = 32 << 10;

/// One of a rank's two pipes.
pub(super) struct Source {
    pub(super) rank: usize,
    pub(super) stream: Stream,
    pub(super) pipe: OwnedFd,
}

/// The running thread, which ends when it is told to finish and all is read.
pub(super) struct Pump {
    shared: Arc<Mutex<Shared>>,
    wake: OwnedFd,
}

#[derive(Default)]
struct Shared {
    credit: Vec<(usize, Stream, usize)>,
    finishing: bool,
}

impl Pump {
    /// Starts reading; `drained` is called at the end, with every byte handed to the outbox.
    pub(super) fn start(
        sources: Vec<Source>,
        outbox: Outbox<FromAgent>,
        drained: impl FnOnce() + Send + 'static,
    ) -> Result<Pump, Error> {
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let (waker, wake) = pipe_with(flags).map_err(Error::system("make a pipe"))?;
        let shared = Arc::new(Mutex::new(Shared::default()));
        let mut reading = Reading {
            sources: sources.into_iter().map(|source| (source, WINDOW)).collect(),
            waker,
            shared: Arc::clone(&shared),
            outbox,
            finishing: false,
        };
        thread::Builder::new()
            .name("ronde-pump".to_owned())
            .spawn(move || {
                reading.run();
                drained();
            })
            .map_err(Error::system("start a thread"))?;
        Ok(Pump { shared, wake })
    }

    /// So many more bytes of a stream may be sent.
    pub(super) fn credit(&self, rank: usize, stream: Stream, bytes: usize) {
        self.tell(|shared| shared.credit.push((rank, stream, bytes)));
    }

    /// Every process that could write is gone: read what is there, and end.
    pub(super) fn finish(&self) {
        self.tell(|shared| shared.finishing = true);
    }

    fn tell(&self, change: impl FnOnce(&mut Shared)) {
        change(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner));
        // A full pipe wakes just as well.
        let _ = rustix::io::write(&self.wake, &[1]);
    }
}

struct Reading {
    /// Each pipe, and how much more may be sent of it.
    sources: Vec<(Source, usize)>,
    waker: OwnedFd,
    shared: Arc<Mutex<Shared>>,
    outbox: Outbox<FromAgent>,
    finishing: bool,
}

impl Reading {
    fn run(&mut self) {
        let mut buffer = vec![0; PIECE];
        loop {
            let (ready, all_were_asked) = self.wait();
            // Whoever still holds a pipe open at the end is not waited for; what waits for credit is.
            let idle = ready.is_empty() && all_were_asked;
            let mut ended = Vec::new();
            // Standard output before error: what explains a failure is then the last word.
            for index in ready {
                match self.pass_on(index, &mut buffer) {
                    Some(true) => {}
                    Some(false) => ended.push(index),
                    // The driver is gone.
                    None => return,
                }
            }
            for index in ended.into_iter().rev() {
                self.sources.remove(index);
            }
            if idle || (self.finishing && self.sources.is_empty()) {
                return;
            }
        }
    }

    /// Waits for something to do; returns the pipes that can be read and sent, and whether at the end every pipe was asked.
    fn wait(&mut self) -> (Vec<usize>, bool) {
        let mut waits: Vec<PollFd<'_>> = vec![PollFd::new(&self.waker, PollFlags::IN)];
        let able: Vec<usize> = (0..self.sources.len()).filter(|index| self.sources[*index].1 > 0).collect();
        waits.extend(able.iter().map(|index| PollFd::new(&self.sources[*index].0.pipe, PollFlags::IN)));
        let all_are_asked = self.finishing && able.len() == self.sources.len();
        let at_once = Timespec::default();
        let limit = all_are_asked.then_some(&at_once);
        let mut ready = Vec::new();
        if poll(&mut waits, limit).is_ok() {
            let readable = waits[1..].iter().zip(&able).filter(|(wait, _)| !wait.revents().is_empty());
            ready.extend(readable.map(|(_, index)| *index));
        }
        let _ = rustix::io::read(&self.waker, &mut [0; 64]);
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        for (rank, stream, bytes) in shared.credit.drain(..) {
            let of_it = |(source, _): &&mut (Source, usize)| source.rank == rank && source.stream == stream;
            if let Some((_, credit)) = self.sources.iter_mut().find(of_it) {
                *credit = credit.saturating_add(bytes);
            }
        }
        self.finishing = shared.finishing;
        (ready, all_are_asked)
    }

    /// Reads and sends what is there: whether more may come; `None` if nobody takes it.
    fn pass_on(&mut self, index: usize, buffer: &mut [u8]) -> Option<bool> {
        let (source, credit) = &mut self.sources[index];
        let most = buffer.len().min(*credit);
        let length = match rustix::io::read(&source.pipe, &mut buffer[..most]) {
            Err(Errno::INTR | Errno::AGAIN) => return Some(true),
            Ok(length @ 1..) => length,
            Ok(0) | Err(_) => return Some(false),
        };
        *credit -= length;
        let bytes = buffer[..length].to_vec();
        let sent =
            self.outbox.send_output(FromAgent::Output { rank: source.rank, stream: source.stream, bytes });
        sent.then_some(true)
    }
}
