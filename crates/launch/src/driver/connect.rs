//! From a host's name to a connection with its agent: the agent of this machine, one started by ssh, or one that
//! dialled in.
//!
//! Every host has a thread, which first does this and then reads what the agent says for as long as it lives.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::bootstrap;
use super::tail::Tail;
use crate::ssh;
use crate::wire::{Incoming, Outgoing, Preamble, await_preamble};
use crate::{Error, Ssh, package};

/// How many logins may be under way at a time: servers, and jump hosts before them, drop more.
const AT_ONCE: usize = 32;
/// How often a login that was dropped is tried again.
const ATTEMPTS: u32 = 4;
/// How long to wait before that, at first.
const PAUSE: Duration = Duration::from_millis(200);
/// How long the last words of an ended ssh are waited for.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What takes time when a host lacks our program.
pub(crate) const SENDING: &str = "the program is being sent to it";

/// A connection with an agent.
pub(crate) struct Connection {
    pub(crate) incoming: Incoming,
    pub(crate) outgoing: Outgoing,
    pub(crate) line: Line,
}

/// What carries the connection, to be asked when it ends.
pub(crate) enum Line {
    /// A child process: the agent of this machine, or ssh.
    Process { child: Child, said: Tail },
    /// A TCP connection of the agent's making.
    Dialled,
}

impl Line {
    /// Why the connection has ended, as far as whoever carried it knows.
    pub(crate) fn why_it_ended(&mut self, noticed: &str) -> String {
        let Line::Process { child, said } = self else { return noticed.to_owned() };
        // Its output has ended, so the process is about to.
        let status = wait_within(child, LAST_WORDS);
        let said = said.text(LAST_WORDS);
        let last = said.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
        match (last, status) {
            ("", Some(status)) => match crate::ending::Ending::from_exit(status) {
                Some(ending) => format!("{noticed} ({ending})"),
                None => noticed.to_owned(),
            },
            ("", None) => noticed.to_owned(),
            (last, _) => last.trim_start_matches("error: ").to_owned(),
        }
    }
}

/// This program, as it is sent to other hosts.
pub(crate) struct Program {
    path: PathBuf,
    size: u64,
    hash: String,
    machine: String,
}

impl Program {
    pub(crate) fn own() -> Result<Program, Error> {
        let problem = Error::system("read this program, to send it to other hosts");
        let read = || -> std::io::Result<Program> {
            let name = rustix::system::uname();
            Ok(Program {
                path: std::env::current_exe()?,
                size: File::open("/proc/self/exe")?.metadata()?.len(),
                hash: package::fingerprint()?,
                machine: format!("{} {}", name.sysname().to_string_lossy(), name.machine().to_string_lossy()),
            })
        };
        read().map_err(problem)
    }
}

/// Starts the agent of this machine.
pub(crate) fn local() -> Result<Connection, Error> {
    let program = std::env::current_exe().map_err(Error::system("find this program"))?;
    let mut command = Command::new(program);
    command.arg0("ronde").args(["agent", "--stdio"]).process_group(0);
    let mut child = start(&mut command).map_err(Error::system("start the agent of this machine"))?;
    let (mut incoming, outgoing, said) =
        streams(&mut child).map_err(Error::system("speak with the agent"))?;
    match await_preamble(&mut incoming).map_err(Error::system("speak with the agent"))? {
        Preamble::Ready => Ok(Connection {
            incoming: Incoming::Pipe(incoming),
            outgoing: Outgoing::Pipe(outgoing),
            line: Line::Process { child, said },
        }),
        _ => {
            let why = said.text(LAST_WORDS);
            Err(Error::system("start the agent of this machine")(std::io::Error::other(
                why.trim().to_owned(),
            )))
        }
    }
}

/// Logs in to a host and starts its agent, sending the program if it is not there. `doing` is told what takes time.
pub(crate) fn by_ssh(
    options: &Ssh,
    host: &str,
    program: &Program,
    gate: &Gate,
    doing: impl Fn(&'static str),
) -> Result<Connection, Error> {
    let remote = bootstrap::command(&program.hash, program.size, &program.path);
    let mut pause = PAUSE;
    let mut attempt = 1;
    loop {
        let turn = gate.enter();
        doing("ssh is connecting");
        let outcome = log_in(options, host, program, &remote, &doing);
        drop(turn);
        match outcome {
            Err(Error::Ssh(refusal)) if refusal.kind.is_retryable() && attempt < ATTEMPTS => {
                doing("its ssh server dropped us; trying again");
                thread::sleep(pause);
                pause *= 2;
                attempt += 1;
            }
            outcome => return outcome,
        }
    }
}

fn log_in(
    options: &Ssh,
    host: &str,
    program: &Program,
    remote: &str,
    doing: &impl Fn(&'static str),
) -> Result<Connection, Error> {
    let mut child = match start(&mut ssh::command(options, host, remote)) {
        Ok(child) => child,
        Err(error) => return Err(Error::Ssh(Box::new(ssh::explain_start(&error)))),
    };
    let broken = || Error::system("speak with ssh");
    let (mut incoming, mut outgoing, said) = streams(&mut child).map_err(broken())?;
    loop {
        match await_preamble(&mut incoming).map_err(broken())? {
            Preamble::Ready => {
                return Ok(Connection {
                    incoming: Incoming::Pipe(incoming),
                    outgoing: Outgoing::Pipe(outgoing),
                    line: Line::Process { child, said },
                });
            }
            Preamble::Needed(machine) if machine == program.machine => {
                doing(SENDING);
                // If it cannot be stored there, the next word says so.
                let _ = send_program(&mut outgoing);
            }
            Preamble::Needed(machine) => {
                let _ = child.kill();
                let (host, own) = (host.to_owned(), program.machine.clone());
                return Err(Error::OtherMachine { host, machine, own });
            }
            Preamble::Failed => {
                wait_within(&mut child, LAST_WORDS);
                let said = said.text(LAST_WORDS);
                let last = said.lines().map(str::trim).rfind(|line| !line.is_empty());
                let reason = last.unwrap_or("it did not say why").to_owned();
                return Err(Error::CannotSend { host: host.to_owned(), reason });
            }
            Preamble::Ended(printed) => {
                let status = wait_within(&mut child, Duration::from_secs(5)).and_then(|status| status.code());
                let said = said.text(LAST_WORDS);
                let text = if said.trim().is_empty() { printed } else { said };
                return Err(Error::Ssh(Box::new(ssh::explain(options, host, &text, status))));
            }
        }
    }
}

fn start(command: &mut Command) -> std::io::Result<Child> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
}

/// The child's streams: what it says, what it hears, and what it complains about.
fn streams(child: &mut Child) -> std::io::Result<(File, File, Tail)> {
    let missing = || std::io::Error::other("a stream is missing");
    let incoming = std::os::fd::OwnedFd::from(child.stdout.take().ok_or_else(missing)?);
    let outgoing = std::os::fd::OwnedFd::from(child.stdin.take().ok_or_else(missing)?);
    let said = Tail::of(child.stderr.take().ok_or_else(missing)?)?;
    Ok((File::from(incoming), File::from(outgoing), said))
}

fn send_program(outgoing: &mut File) -> std::io::Result<()> {
    let mut program = File::open("/proc/self/exe")?;
    let mut buffer = vec![0; 256 << 10];
    loop {
        match program.read(&mut buffer)? {
            0 => return outgoing.flush(),
            length => outgoing.write_all(&buffer[..length])?,
        }
    }
}

/// How a process ended, if it does within this time.
fn wait_within(child: &mut Child, limit: Duration) -> Option<std::process::ExitStatus> {
    let deadline = std::time::Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if std::time::Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
            _ => return None,
        }
    }
}

/// Lets so many in at a time.
pub(crate) struct Gate {
    inside: Mutex<usize>,
    changed: Condvar,
}

impl Gate {
    pub(crate) fn new() -> Arc<Gate> {
        Arc::new(Gate { inside: Mutex::new(0), changed: Condvar::new() })
    }

    fn enter(&self) -> Turn<'_> {
        let full = |inside: &mut usize| *inside >= AT_ONCE;
        let inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        let mut inside = self.changed.wait_while(inside, full).unwrap_or_else(PoisonError::into_inner);
        *inside += 1;
        Turn(self)
    }
}

struct Turn<'a>(&'a Gate);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.inside.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.changed.notify_one();
    }
}
