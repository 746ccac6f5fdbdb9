//! The ranks' output on its way to the user: whole lines, labelled, kept in order.
//!
//! One thread reads all pipes and writes everything, the launcher's own notes included, so lines
//! never mix. It is the only one that may be held up by a slow reader of our output; the ranks are
//! then held up in turn, as in any pipeline, while the agent stays awake to signals and deaths.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

use ronde_settings::timestamp;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::termios::isatty;

use crate::Error;
use crate::label::Stream;
use crate::lines::{End, Lines};

/// How many of a rank's last lines are remembered.
const REMEMBERED: usize = 5;
/// Of a remembered line, so many characters.
const LONGEST_REMEMBERED: usize = 400;

/// One of a rank's two pipes.
pub(crate) struct Source {
    pub(crate) rank: usize,
    pub(crate) stream: Stream,
    pub(crate) pipe: OwnedFd,
    pub(crate) label: String,
    pub(crate) file: Option<File>,
}

/// The last lines of every rank, oldest first.
pub(crate) type Tails = Vec<VecDeque<String>>;

/// The running thread.
pub(crate) struct Output {
    shared: Arc<Shared>,
    wake: OwnedFd,
    closed: OwnedFd,
    thread: JoinHandle<Tails>,
}

#[derive(Default)]
struct Shared {
    notes: Mutex<Vec<String>>,
    stop: AtomicBool,
}

impl Output {
    /// Starts reading.
    pub(crate) fn start(sources: Vec<Source>, ranks: usize, timestamps: bool) -> Result<Output, Error> {
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let (waker, wake) = pipe_with(flags).map_err(Error::system("make a pipe"))?;
        let (closed, tell_closed) = pipe_with(flags).map_err(Error::system("make a pipe"))?;
        let shared = Arc::new(Shared::default());
        let mut pump = Pump {
            sources: sources.into_iter().map(|source| (source, Lines::default())).collect(),
            waker,
            shared: Arc::clone(&shared),
            printer: Printer::new(timestamps, ranks),
            tell_closed: Some(tell_closed),
        };
        let thread = thread::Builder::new()
            .name("ronde-output".to_owned())
            .spawn(move || {
                pump.run();
                pump.printer.tails
            })
            .map_err(Error::system("start a thread"))?;
        Ok(Output { shared, wake, closed, thread })
    }

    /// Shows a line of our own on standard error, in turn with the ranks' lines.
    pub(crate) fn note(&self, text: String) {
        self.shared.notes.lock().unwrap_or_else(PoisonError::into_inner).push(text);
        self.wake();
    }

    /// Becomes readable when nobody reads our standard output any more.
    pub(crate) fn closed(&self) -> BorrowedFd<'_> {
        self.closed.as_fd()
    }

    /// Shows what is still in the pipes and ends; whoever holds them open is not waited for.
    pub(crate) fn finish(self) -> Tails {
        self.shared.stop.store(true, Ordering::Release);
        self.wake();
        self.thread.join().unwrap_or_default()
    }

    fn wake(&self) {
        // A full pipe wakes just as well.
        let _ = rustix::io::write(&self.wake, &[1]);
    }
}

struct Pump {
    sources: Vec<(Source, Lines)>,
    waker: OwnedFd,
    shared: Arc<Shared>,
    printer: Printer,
    tell_closed: Option<OwnedFd>,
}

impl Pump {
    fn run(&mut self) {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let stopping = self.shared.stop.load(Ordering::Acquire);
            let ready = self.wait(stopping);
            let idle = ready.is_empty();
            // Standard output before error: what explains a failure is then the last word.
            let ended: Vec<usize> =
                ready.into_iter().filter(|&index| self.read(index, &mut buffer)).collect();
            for index in ended.into_iter().rev() {
                self.sources.remove(index);
            }
            if stopping && idle {
                for (source, lines) in &mut self.sources {
                    lines.finish(|text, end| self.printer.line(source, text, end));
                }
            }
            self.printer.flush();
            if self.printer.stdout.reader_is_gone {
                // Dropped, the pipe's other end becomes readable.
                self.tell_closed = None;
            }
            if stopping && idle {
                return;
            }
        }
    }

    /// Waits for something to do; returns the sources that can be read, and takes in notes.
    fn wait(&mut self, stopping: bool) -> Vec<usize> {
        let mut waits: Vec<PollFd<'_>> = vec![PollFd::new(&self.waker, PollFlags::IN)];
        let pipes = self.sources.iter().map(|(source, _)| &source.pipe);
        waits.extend(pipes.map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        let at_once = Timespec::default();
        if poll(&mut waits, stopping.then_some(&at_once)).is_err() {
            return Vec::new();
        }
        let ready = waits[1..].iter().enumerate().filter(|(_, wait)| !wait.revents().is_empty());
        let ready = ready.map(|(index, _)| index).collect();
        let _ = rustix::io::read(&self.waker, &mut [0; 64]);
        let mut notes = self.shared.notes.lock().unwrap_or_else(PoisonError::into_inner);
        for note in notes.drain(..) {
            self.printer.note(&note);
        }
        ready
    }

    /// Reads what is there; whether the source has come to its end.
    fn read(&mut self, index: usize, buffer: &mut [u8]) -> bool {
        let (source, lines) = &mut self.sources[index];
        let length = match rustix::io::read(&source.pipe, &mut *buffer) {
            Err(Errno::INTR | Errno::AGAIN) => return false,
            Ok(length @ 1..) => length,
            Ok(0) | Err(_) => {
                lines.finish(|text, end| self.printer.line(source, text, end));
                return true;
            }
        };
        let bytes = &buffer[..length];
        if let Some(Err(error)) = source.file.as_mut().map(|file| file.write_all(bytes)) {
            let rank = source.rank;
            self.printer
                .note(&format!("warning: rank {rank}'s output is no longer kept in its file: {error}"));
            source.file = None;
        }
        lines.feed(bytes, |text, end| self.printer.line(source, text, end));
        false
    }
}

struct Printer {
    timestamps: bool,
    stdout: Sink,
    stderr: Sink,
    tails: Tails,
}

impl Printer {
    fn new(timestamps: bool, ranks: usize) -> Printer {
        Printer {
            timestamps,
            stdout: Sink::new(rustix::stdio::stdout()),
            stderr: Sink::new(rustix::stdio::stderr()),
            tails: vec![VecDeque::new(); ranks],
        }
    }

    fn line(&mut self, source: &Source, text: &[u8], end: End) {
        let sink = match source.stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        // On a terminal a progress bar overwrites itself; in a file each state is a line.
        let ending: &[u8] = match (end, sink.terminal) {
            (End::LateNewline, true) => return sink.pending.push(b'\n'),
            (End::LateNewline, false) => return,
            (End::Return, false) if text.is_empty() => return,
            (End::Return, true) => b"\r",
            _ => b"\n",
        };
        if self.timestamps {
            sink.pending.extend_from_slice(timestamp(SystemTime::now()).as_bytes());
            sink.pending.push(b' ');
        }
        sink.pending.extend_from_slice(source.label.as_bytes());
        sink.pending.extend_from_slice(text);
        sink.pending.extend_from_slice(ending);

        if !text.trim_ascii().is_empty() {
            let tail = &mut self.tails[source.rank];
            if tail.len() == REMEMBERED {
                tail.pop_front();
            }
            let shown: String = String::from_utf8_lossy(text).chars().take(LONGEST_REMEMBERED).collect();
            tail.push_back(format!("{}{shown}", source.label));
        }
    }

    fn note(&mut self, text: &str) {
        self.stderr.pending.extend_from_slice(text.as_bytes());
        self.stderr.pending.push(b'\n');
    }

    fn flush(&mut self) {
        if let Some(error) = self.stdout.flush() {
            let warning = format!("warning: output is lost, standard output fails: {error}");
            self.note(&warning);
        }
        self.stderr.flush();
    }
}

/// One of our own two streams.
struct Sink {
    stream: BorrowedFd<'static>,
    terminal: bool,
    pending: Vec<u8>,
    reader_is_gone: bool,
    failed: bool,
}

impl Sink {
    fn new(stream: BorrowedFd<'static>) -> Sink {
        let terminal = isatty(stream);
        Sink { stream, terminal, pending: Vec::new(), reader_is_gone: false, failed: false }
    }

    /// Writes what is pending; returns an error worth telling, the first time there is one.
    fn flush(&mut self) -> Option<Errno> {
        let mut rest = self.pending.as_slice();
        let mut error = None;
        while !rest.is_empty() && !self.reader_is_gone {
            match rustix::io::write(self.stream, rest) {
                Ok(written) => rest = &rest[written..],
                Err(Errno::INTR) => {}
                // Whoever shares the stream with us made it non-blocking.
                Err(Errno::AGAIN) => {
                    let _ = poll(&mut [PollFd::new(&self.stream, PollFlags::OUT)], None);
                }
                Err(Errno::PIPE) => self.reader_is_gone = true,
                Err(other) => {
                    error = (!std::mem::replace(&mut self.failed, true)).then_some(other);
                    break;
                }
            }
        }
        self.pending.clear();
        error
    }
}
