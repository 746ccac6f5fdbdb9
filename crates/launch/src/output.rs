//! The ranks' output on its way to the user: whole lines, labelled, kept in order.
//!
//! One thread writes everything, the launcher's own notes included, so lines never mix. It is the only one that may be
//! held up by a slow reader of our output. What it has shown it gives credit for; so the ranks that print are held up
//! in turn, as in any pipeline, while nothing is dropped and never more than a window of every stream is in memory.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

use ronde_settings::timestamp;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::termios::isatty;

use crate::label::{self, Stream};
use crate::lines::{End, Lines};
use crate::plan::RankFiles;
use crate::wire::{Outbox, ToAgent};
use crate::{Error, Labels};

/// How many of a rank's last lines are remembered.
const REMEMBERED: usize = 5;
/// Of a remembered line, so many characters.
const LONGEST_REMEMBERED: usize = 400;
/// How much is gathered before it is written.
const BATCH: usize = 256 << 10;

/// The last lines of every rank, oldest first.
pub(crate) type Tails = Vec<VecDeque<String>>;

/// How output is to look, and where it goes besides the terminal.
pub(crate) struct Style {
    pub(crate) labels: Labels,
    pub(crate) timestamps: bool,
    /// For every rank, if the user wants files.
    pub(crate) files: Vec<RankFiles>,
}

/// The running thread.
pub(crate) struct Output {
    pieces: Sender<Piece>,
    thread: JoinHandle<Tails>,
}

enum Piece {
    Of { rank: usize, stream: Stream, bytes: Vec<u8>, credit: Outbox<ToAgent> },
    Hosts(Vec<String>),
    Note(String),
    Stop,
}

impl Output {
    /// Starts; `closed` is called once when nobody reads our standard output any more.
    pub(crate) fn start(
        ranks: usize,
        style: Style,
        closed: impl FnOnce() + Send + 'static,
    ) -> Result<Output, Error> {
        let (pieces, receiver) = channel();
        let printer = Printer::new(ranks, style);
        let thread = thread::Builder::new()
            .name("ronde-output".to_owned())
            .spawn(move || printer.run(&receiver, closed))
            .map_err(Error::system("start a thread"))?;
        Ok(Output { pieces, thread })
    }

    /// Shows what a rank wrote, and tells its agent when that is done.
    pub(crate) fn show(&self, rank: usize, stream: Stream, bytes: Vec<u8>, credit: Outbox<ToAgent>) {
        // The thread ends only after `finish`, which nobody can call who still has this.
        let _ = self.pieces.send(Piece::Of { rank, stream, bytes, credit });
    }

    /// Tells programs that read us which host each rank is on; people read it in the launcher's notes.
    pub(crate) fn hosts(&self, hosts: Vec<String>) {
        let _ = self.pieces.send(Piece::Hosts(hosts));
    }

    /// Shows a line of our own on standard error, in turn with the ranks' lines.
    pub(crate) fn note(&self, text: String) {
        let _ = self.pieces.send(Piece::Note(text));
    }

    /// Shows everything that has come and ends.
    pub(crate) fn finish(self) -> Tails {
        let _ = self.pieces.send(Piece::Stop);
        self.thread.join().unwrap_or_default()
    }
}

struct Printer {
    style: Style,
    lines: HashMap<(usize, Stream), Lines>,
    stdout: Sink,
    stderr: Sink,
    tails: Tails,
}

impl Printer {
    fn new(ranks: usize, style: Style) -> Printer {
        Printer {
            style,
            lines: HashMap::new(),
            stdout: Sink::new(rustix::stdio::stdout()),
            stderr: Sink::new(rustix::stdio::stderr()),
            tails: vec![VecDeque::new(); ranks],
        }
    }

    fn run(mut self, pieces: &Receiver<Piece>, closed: impl FnOnce()) -> Tails {
        let mut closed = Some(closed);
        let mut stopping = false;
        while !stopping {
            let Ok(first) = pieces.recv() else { break };
            let mut shown = Vec::new();
            stopping = self.take(first, &mut shown);
            while !stopping && self.stdout.pending.len() + self.stderr.pending.len() < BATCH {
                match pieces.try_recv() {
                    Ok(piece) => stopping = self.take(piece, &mut shown),
                    Err(_) => break,
                }
            }
            self.flush();
            for (rank, stream, bytes, credit) in shown {
                credit.send(ToAgent::Credit { rank, stream, bytes });
            }
            if self.stdout.reader_is_gone
                && let Some(closed) = closed.take()
            {
                closed();
            }
        }
        let unfinished: Vec<_> = self.lines.drain().collect();
        for ((rank, stream), mut lines) in unfinished {
            lines.finish(|text, end| self.line(rank, stream, text, end));
        }
        self.flush();
        self.tails
    }

    /// Makes lines of a piece; whether it was the last.
    fn take(&mut self, piece: Piece, shown: &mut Vec<(usize, Stream, usize, Outbox<ToAgent>)>) -> bool {
        match piece {
            Piece::Stop => return true,
            Piece::Note(text) => self.note(&text),
            Piece::Hosts(hosts) => {
                if self.style.labels == Labels::Json {
                    self.object(&label::hosts_object(&hosts));
                }
            }
            Piece::Of { rank, stream, bytes, credit } => {
                self.keep(rank, stream, &bytes);
                let mut lines = self.lines.remove(&(rank, stream)).unwrap_or_default();
                lines.feed(&bytes, |text, end| self.line(rank, stream, text, end));
                self.lines.insert((rank, stream), lines);
                shown.push((rank, stream, bytes.len(), credit));
            }
        }
        false
    }

    /// Writes to a rank's file, while that works.
    fn keep(&mut self, rank: usize, stream: Stream, bytes: &[u8]) {
        let Some(files) = self.style.files.get_mut(rank) else { return };
        let file: &mut Option<File> = match stream {
            Stream::Stdout => &mut files.stdout,
            Stream::Stderr => &mut files.stderr,
        };
        if let Some(Err(error)) = file.as_mut().map(|file| file.write_all(bytes)) {
            *file = None;
            self.note(&format!("warning: rank {rank}'s output is no longer kept in its file: {error}"));
        }
    }

    fn line(&mut self, rank: usize, stream: Stream, text: &[u8], end: End) {
        if self.style.labels == Labels::Json {
            self.object(&label::object(rank, stream, text, end));
        } else {
            self.labelled(rank, stream, text, end);
        }
        if !text.trim_ascii().is_empty() {
            let tail = &mut self.tails[rank];
            if tail.len() == REMEMBERED {
                tail.pop_front();
            }
            let start = &text[..text.len().min(4 * LONGEST_REMEMBERED)];
            let shown: String = String::from_utf8_lossy(start).chars().take(LONGEST_REMEMBERED).collect();
            tail.push_back(format!("{}{shown}", self.style.labels.text(rank, stream)));
        }
    }

    fn object(&mut self, text: &str) {
        self.stdout.pending.extend_from_slice(text.as_bytes());
        self.stdout.pending.push(b'\n');
    }

    /// Shows a line as people read it.
    fn labelled(&mut self, rank: usize, stream: Stream, text: &[u8], end: End) {
        let sink = match stream {
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
        if self.style.timestamps {
            sink.pending.extend_from_slice(timestamp(SystemTime::now()).as_bytes());
            sink.pending.push(b' ');
        }
        sink.pending.extend_from_slice(self.style.labels.text(rank, stream).as_bytes());
        sink.pending.extend_from_slice(text);
        sink.pending.extend_from_slice(ending);
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
