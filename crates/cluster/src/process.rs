//! Running a program and watching what it writes.
//!
//! What it writes goes to a file, which is read as it grows. With a pipe, Terraform would be killed by its next line if
//! this program were killed, in the middle of writing its state. Ctrl-C reaches only this program, since the other has a
//! process group of its own, and is passed on once: a second interrupt makes Terraform give up its state. Whatever it
//! has started and left behind is killed when it has ended.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use ronde_launch::{Signals, adopt_orphans, kill_all};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use rustix::termios::isatty;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};

use crate::error::Error;

/// How long nothing may happen before the terminal is drawn anew.
const PULSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// What [`Watcher::run`] tells.
pub(crate) enum News<'a> {
    /// It wrote a line.
    Line(&'a str),
    /// Time has passed.
    Pulse,
    /// It is told to stop, or has been before.
    Stop { again: bool },
}

/// How it ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// The signal that ended it early.
    pub(crate) signal: Option<i32>,
}

/// Listens to signals and runs programs meanwhile, one at a time.
pub(crate) struct Watcher(Signals);

impl Watcher {
    /// Starts to listen: from now on signals no longer end this program.
    pub(crate) fn new() -> Result<Watcher, Error> {
        adopt_orphans()?;
        Ok(Watcher(Signals::listen(&[SIGINT, SIGTERM, SIGHUP, SIGCHLD])?))
    }

    /// Runs a program until it ends, keeps what it writes in `log`, and tells about it.
    pub(crate) fn run(
        &self,
        command: &mut Command,
        log: &Path,
        mut tell: impl FnMut(News<'_>),
    ) -> Result<Ended, Error> {
        // A new file, since the one before may be an unfinished run's.
        let _ = fs::remove_file(log);
        let written = OpenOptions::new().create(true).append(true).mode(0o600).open(log);
        let written = written.map_err(Error::file("write", log))?;
        let errors = written.try_clone().map_err(Error::file("write", log))?;
        let mut read = Follow { file: File::open(log).map_err(Error::file("read", log))?, rest: Vec::new() };
        command.stdin(Stdio::null()).stdout(written).stderr(errors).process_group(0);
        stop_with_us(command);
        let mut child =
            command.spawn().map_err(|source| Error::System { doing: "start a program", source })?;
        let mut signal = None;
        loop {
            let ended =
                child.try_wait().map_err(|source| Error::System { doing: "wait for a program", source })?;
            read.lines(ended.is_some(), |line| tell(News::Line(line)));
            if let Some(status) = ended {
                kill_all(&HashSet::new(), |_, _| {});
                return Ok(Ended { status, signal });
            }
            tell(News::Pulse);
            if let Some(came) = self.wait(Some(&PULSE)) {
                tell(News::Stop { again: signal.is_some() });
                if signal.replace(came).is_none() {
                    interrupt(&child);
                }
            }
        }
    }

    /// Runs a program that writes for itself and reads the names of the signals that come; returns its status.
    pub(crate) fn converse(&self, command: &mut Command) -> Result<u8, Error> {
        command.stdin(Stdio::piped()).process_group(0);
        let mut child =
            command.spawn().map_err(|source| Error::System { doing: "start a program", source })?;
        let mut line = child.stdin.take();
        loop {
            let ended =
                child.try_wait().map_err(|source| Error::System { doing: "wait for a program", source })?;
            if let Some(status) = ended {
                let killed = || status.signal().and_then(|signal| u8::try_from(128 + signal).ok());
                return Ok(status
                    .code()
                    .and_then(|code| u8::try_from(code).ok())
                    .or_else(killed)
                    .unwrap_or(1));
            }
            let Some(signal) = self.wait(None) else { continue };
            let name = match signal {
                SIGINT => "INT",
                SIGHUP => "HUP",
                _ => "TERM",
            };
            // If nobody reads it any more, it has ended.
            let _ = line.as_mut().map(|line| line.write_all(format!("{name}\n").as_bytes()));
        }
    }

    /// Asks something on the terminal and waits for a line; `None` if there is nobody to answer.
    pub(crate) fn ask(&self, question: &str) -> Result<Option<String>, Error> {
        let input = std::io::stdin();
        if !isatty(&input) {
            return Ok(None);
        }
        let failed = |source| Error::System { doing: "ask", source };
        std::io::stderr().write_all(question.as_bytes()).map_err(failed)?;
        loop {
            let mut ready: Vec<PollFd<'_>> = self.0.poll_fds().collect();
            ready.push(PollFd::new(&input, PollFlags::IN));
            let _ = poll(&mut ready, None);
            let is_answered = ready.last().is_some_and(|input| !input.revents().is_empty());
            if let Some(signal) = self.came() {
                return Err(Error::Interrupted { signal, after: "nothing was changed".to_owned() });
            }
            if is_answered {
                let mut line = String::new();
                input.read_line(&mut line).map_err(failed)?;
                return Ok(Some(line.trim().to_owned()));
            }
        }
    }

    /// Waits until something happens; returns the signal that came.
    fn wait(&self, at_most: Option<&Timespec>) -> Option<i32> {
        let mut ready: Vec<PollFd<'_>> = self.0.poll_fds().collect();
        let _ = poll(&mut ready, at_most);
        self.came()
    }

    /// The signal that came, other than the news of a child's end.
    fn came(&self) -> Option<i32> {
        self.0.take().into_iter().find(|&came| came != SIGCHLD)
    }
}

/// If this program is killed, the other stops as if interrupted, and writes its state.
pub(crate) fn stop_with_us(command: &mut Command) {
    let prepare = || Ok(set_parent_process_death_signal(Some(Signal::INT))?);
    // SAFETY: between fork and exec only a system call is made; nothing is allocated and no lock is taken.
    unsafe { command.pre_exec(prepare) };
}

fn interrupt(child: &Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::INT);
    }
}

/// A file that grows, line by line.
struct Follow {
    file: File,
    rest: Vec<u8>,
}

impl Follow {
    /// Gives every line that is complete, and at the end also the last one.
    fn lines(&mut self, is_end: bool, mut line: impl FnMut(&str)) {
        // What cannot be read now can be the next time.
        let _ = self.file.read_to_end(&mut self.rest);
        let complete = match is_end {
            true => self.rest.len(),
            false => self.rest.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1),
        };
        let lines: Vec<u8> = self.rest.drain(..complete).collect();
        for text in String::from_utf8_lossy(&lines).lines() {
            line(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_told_when_it_is_complete() {
        let path = std::env::temp_dir().join(format!("ronde-follow-{}", std::process::id()));
        let mut written = File::create(&path).expect("a file");
        let mut read = Follow { file: File::open(&path).expect("the file"), rest: Vec::new() };
        let mut told = Vec::new();
        for (text, is_end) in [("one\ntw", false), ("o\nthr", false), ("ee", false), ("", true)] {
            written.write_all(text.as_bytes()).expect("written");
            read.lines(is_end, |line| told.push(line.to_owned()));
            told.push("|".to_owned());
        }
        fs::remove_file(path).expect("removed");
        assert_eq!(told, ["one", "|", "two", "|", "|", "three", "|"]);
    }
}
