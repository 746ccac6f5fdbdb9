//! A service of NVIDIA's MPS for the ranks of this host, in a folder of the job's own: started before them, asked to quit
//! after them, killed with everything else.
//!
//! The program stays in the foreground, so it is a child of ours whose end is noticed, and the server that it starts when
//! the first rank asks for one is a child of it: whatever ends all processes below an agent ends both. Nobody waits for it
//! in the agent's loop. That it answers is found out by a thread, and its end comes as every child's does.

use std::collections::VecDeque;
use std::fs::DirBuilder;
use std::io::{self, BufRead, BufReader, PipeReader, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::gpus::VISIBLE;
use crate::gpus::mps::{LOGS, PIPES, PROGRAM, Problem, Service, answers};
use crate::program;

/// How long it may take until the service answers; usually that is some milliseconds.
const START: Duration = Duration::from_secs(10);
/// How often to knock until then.
const KNOCK: Duration = Duration::from_millis(10);
/// How long it has to end by itself.
const QUIT: Duration = Duration::from_secs(4);
/// How long its last words may take once it has ended.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How many of its last lines are kept, to be shown if it fails.
const KEPT: usize = 3;

/// The running service.
pub(super) struct Mps {
    program: PathBuf,
    pid: Pid,
    folders: [(&'static str, PathBuf); 2],
    stage: Stage,
    said: Arc<Mutex<VecDeque<String>>>,
    /// Says nothing, and is closed when all was read that the service had to say.
    all_said: Receiver<()>,
}

/// How far a service is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It has not answered yet.
    Starting,
    /// Ranks may use it.
    Ready,
    /// It was asked to quit, and is killed at this time.
    Quitting(Instant),
}

impl Mps {
    /// Starts a service, which keeps its sockets and logs in `folder`. `heard` gets every line that it says, `answered`
    /// whether it answers in time. Must be called by the agent's main thread: the service ends with the thread.
    pub(super) fn start(
        service: &Service,
        folder: &Path,
        heard: impl Fn(String) + Send + 'static,
        answered: impl FnOnce(bool) + Send + 'static,
    ) -> Result<Mps, Problem> {
        let path = std::env::var_os("PATH");
        let program = program::find(PROGRAM.as_ref(), path.as_deref(), Path::new("/"))
            .map_err(|_| Problem::NoProgram)?;
        let refused = |doing: &str| {
            let doing = doing.to_owned();
            move |error: io::Error| Problem::Refused(format!("cannot {doing}: {error}"))
        };
        let folders = [(PIPES, folder.join("pipe")), (LOGS, folder.join("log"))];
        for made in [folder, &folders[0].1, &folders[1].1] {
            let make = DirBuilder::new().mode(0o700).create(made);
            make.map_err(refused(&format!("make the folder {}", made.display())))?;
        }
        let (output, end) = io::pipe().map_err(refused("make a pipe"))?;
        let again = end.try_clone().map_err(refused("make a pipe"))?;
        let mut command = command(&program, &folders);
        command.arg("-f").stdin(Stdio::null()).stdout(end).stderr(again).env_remove(VISIBLE);
        if let Some(mask) = &service.mask {
            command.env(VISIBLE, mask);
        }
        let child = command.spawn().map_err(refused(&format!("run {}", program.display())))?;
        // It holds our ends of the pipe, which would otherwise never be closed.
        drop(command);
        let (said, all_said) = listen(output, heard);
        let pipes = folders[0].1.clone();
        thread::spawn(move || answered(knock(&pipes)));
        Ok(Mps { program, pid: Pid::from_child(&child), folders, stage: Stage::Starting, said, all_said })
    }

    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    pub(super) fn stage(&self) -> Stage {
        self.stage
    }

    /// It has answered, and so is ready: what ranks need in order to find it.
    pub(super) fn ready(&mut self) -> Vec<(String, String)> {
        self.stage = Stage::Ready;
        let variable = |(name, folder): &(&str, PathBuf)| {
            // Made of the folder for temporary files, whose name was given as text, and of our own letters.
            ((*name).to_owned(), folder.to_string_lossy().into_owned())
        };
        self.folders.iter().map(variable).collect()
    }

    /// Why it does not answer.
    pub(super) fn silent(&self) -> Problem {
        Problem::Silent(START.as_secs(), self.last_lines())
    }

    /// What it said last, after its end.
    pub(super) fn last_words(&self) -> Vec<String> {
        // Closed as soon as everything is read, unless a server lives on and holds the pipe.
        let _ = self.all_said.recv_timeout(LAST_WORDS);
        self.last_lines()
    }

    /// Asks it to quit; whether it was heard asking.
    pub(super) fn quit(&mut self) -> bool {
        let mut command = command(&self.program, &self.folders);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let asked = command.spawn().and_then(|child| match child.stdin {
            Some(mut stdin) => stdin.write_all(b"quit\n"),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        });
        self.stage = Stage::Quitting(Instant::now() + QUIT);
        asked.is_ok()
    }

    /// How long it may still take to quit, if it was asked to.
    pub(super) fn patience(&self) -> Option<Duration> {
        match self.stage {
            Stage::Quitting(by) => Some(by.saturating_duration_since(Instant::now())),
            Stage::Starting | Stage::Ready => None,
        }
    }

    fn last_lines(&self) -> Vec<String> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// The program, which finds the service's folders and does not outlive the agent.
fn command(program: &Path, folders: &[(&'static str, PathBuf)]) -> Command {
    let mut command = Command::new(program);
    command.envs(folders.iter().map(|(name, folder)| (name, folder))).process_group(0);
    // SAFETY: between fork and exec only one system call is made, which allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(|| Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?));
    }
    command
}

/// Reads what the service says, on a thread.
fn listen(
    output: PipeReader,
    heard: impl Fn(String) + Send + 'static,
) -> (Arc<Mutex<VecDeque<String>>>, Receiver<()>) {
    let said = Arc::new(Mutex::new(VecDeque::new()));
    let (open, all_said) = channel();
    let kept = Arc::clone(&said);
    thread::spawn(move || {
        let _open = open;
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            if line.is_empty() {
                continue;
            }
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.len() == KEPT {
                kept.pop_front();
            }
            kept.push_back(line.clone());
            drop(kept);
            heard(line);
        }
    });
    (said, all_said)
}

/// Knocks until the service answers; whether it did in time.
fn knock(pipes: &Path) -> bool {
    let deadline = Instant::now() + START;
    while !answers(pipes) {
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(KNOCK);
    }
    true
}
