//! Starting `ronde` and looking at it from outside.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Long enough for a busy machine, short enough that a hang fails the test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The variable by which every process of a test's job is known.
const MARK: &str = "RONDE_TEST_JOB";

/// How a command line ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }
}

/// The binary with these arguments.
pub(crate) fn ronde(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ronde"));
    command.args(arguments);
    command
}

/// `ronde run -np NP sh -c SCRIPT`.
pub(crate) fn run_script(np: usize, script: &str) -> Command {
    ronde(&["run", "-np", &np.to_string(), "sh", "-c", script])
}

/// A grace that no test waits out: what takes less was not waited for.
pub(crate) const GRACE: Duration = Duration::from_secs(50);

/// The same with that grace.
pub(crate) fn patient_script(np: usize, script: &str) -> Command {
    let grace = GRACE.as_secs().to_string();
    ronde(&["run", "-np", &np.to_string(), "--grace", &grace, "sh", "-c", script])
}

/// Runs a command to its end.
pub(crate) fn outcome(command: &mut Command) -> Outcome {
    Job::start(command).end()
}

/// A running `ronde`, whose processes are known by a mark in their environment. Whatever happens,
/// dropping it leaves none of them.
pub(crate) struct Job {
    child: Child,
    mark: String,
    stdout: Option<BufReader<ChildStdout>>,
    stderr: Option<JoinHandle<String>>,
}

fn only_child(parent: Pid) -> Pid {
    *children_of(parent).first().expect("it has a child")
}

impl Job {
    pub(crate) fn start(command: &mut Command) -> Job {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let mark = format!("{}-{number}", std::process::id());
        let mut child = command
            .env(MARK, &mark)
            .env("LC_ALL", "C.UTF-8")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let stdout = child.stdout.take().map(BufReader::new);
        let stderr = child.stderr.take().map(|stderr| thread::spawn(move || all_of(stderr)));
        Job { child, mark, stdout, stderr }
    }

    /// The process that the user started.
    pub(crate) fn launcher(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Its child, which holds the connections to the hosts.
    pub(crate) fn driver(&self) -> Pid {
        only_child(self.launcher())
    }

    /// The child of that, which guards this machine's agent.
    pub(crate) fn guardian(&self) -> Pid {
        only_child(self.driver())
    }

    /// The agent, which is the parent of the ranks.
    pub(crate) fn agent(&self) -> Pid {
        only_child(self.guardian())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.launcher(), signal).expect("the launcher is there");
    }

    /// The next line of standard output.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.as_mut().expect("not closed").read_line(&mut line).expect("readable");
        line.trim_end().to_owned()
    }

    /// Reads standard output until so many lines have ended with this word.
    pub(crate) fn await_words(&mut self, word: &str, times: usize) {
        for _ in 0..times {
            loop {
                let line = self.line();
                assert!(!line.is_empty(), "output ended before {word:?}");
                if line.ends_with(word) {
                    break;
                }
            }
        }
    }

    /// Closes our end of its standard output.
    pub(crate) fn close_stdout(&mut self) {
        self.stdout = None;
    }

    /// Waits for the end and returns what was not yet read.
    pub(crate) fn end(mut self) -> Outcome {
        let reading = self.stdout.take().map(|stdout| thread::spawn(move || all_of(stdout)));
        let status = self.status();
        let text = |thread: Option<JoinHandle<String>>| {
            thread.map(|thread| thread.join().expect("reader")).unwrap_or_default()
        };
        Outcome { status, stdout: text(reading), stderr: text(self.stderr.take()) }
    }

    /// Waits for the launcher's end.
    pub(crate) fn status(&mut self) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status;
            }
            assert!(started.elapsed() < PATIENCE, "ronde does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Every living process that carries this job's mark.
    pub(crate) fn processes(&self) -> Vec<Pid> {
        let wanted = format!("{MARK}={}", self.mark);
        let carries = |pid: &Pid| {
            let file = format!("/proc/{}/environ", pid.as_raw_nonzero());
            let environment = fs::read(file).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes())
        };
        all_processes().into_iter().filter(carries).collect()
    }

    /// Waits until nothing of the job is left; says how long that took.
    pub(crate) fn gone_after(&self) -> Duration {
        let started = Instant::now();
        loop {
            let left = self.processes();
            if left.is_empty() {
                return started.elapsed();
            }
            assert!(started.elapsed() < PATIENCE, "{left:?} are left");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // The launcher's death ends the job; should that fail, nothing may outlive the test all the same.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let started = Instant::now();
        loop {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            if started.elapsed() > Duration::from_secs(5) {
                for pid in left {
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

fn all_of(mut stream: impl Read) -> String {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("readable");
    String::from_utf8(bytes).expect("whole characters")
}

pub(crate) fn all_processes() -> Vec<Pid> {
    let entries = fs::read_dir("/proc").expect("proc").flatten();
    let number = |name: String| name.parse().ok().and_then(Pid::from_raw);
    entries.filter_map(|entry| number(entry.file_name().to_string_lossy().into_owned())).collect()
}

/// The direct children of a process.
pub(crate) fn children_of(parent: Pid) -> Vec<Pid> {
    let own_parent = |pid: &Pid| {
        let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        Pid::from_raw(line.trim().parse().ok()?)
    };
    all_processes().into_iter().filter(|pid| own_parent(pid) == Some(parent)).collect()
}

/// A folder that is gone after the test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("ronde-cli-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("folder");
        Folder(path)
    }

    pub(crate) fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, content).expect("write");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The signal that ended a process, if one did.
pub(crate) fn killed_by(status: ExitStatus) -> Option<i32> {
    status.signal()
}
