//! Starting `ronde` and looking at it from outside.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
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

/// The same with a grace and a heartbeat timeout that are longer than [`PATIENCE`]: waiting for either fails the test.
pub(crate) fn patient_script(np: usize, script: &str) -> Command {
    let long = (10 * PATIENCE).as_secs().to_string();
    let limits = ["--grace", &long, "--heartbeat-timeout", &long];
    ronde(&[&["run", "-np", &np.to_string()], &limits[..], &["sh", "-c", script]].concat())
}

/// Looks again and again whether something is so; fails with `complaint` if it does not come to be.
pub(crate) fn wait_until(complaint: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "{complaint}");
        thread::sleep(Duration::from_millis(5)); // sleep: between two looks
    }
}

/// A line of shell that waits for a file.
pub(crate) fn await_file(file: &Path) -> String {
    format!("until [ -e '{}' ]; do sleep 0.01; done\n", file.display()) // sleep: between two looks
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
    said: Arc<Mutex<Vec<u8>>>,
    stderr: Option<JoinHandle<()>>,
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
        let said = Arc::new(Mutex::new(Vec::new()));
        let stderr = child.stderr.take().map(|stderr| {
            let said = Arc::clone(&said);
            thread::spawn(move || keep_all_of(stderr, &said))
        });
        Job { child, mark, stdout, said, stderr }
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

    /// Waits until it has said something on its standard error.
    pub(crate) fn await_said(&self, words: &str) {
        wait_until(&format!("it does not say {words:?}"), || self.said().contains(words));
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&self.said.lock().expect("no panic")).into_owned()
    }

    /// Waits until nothing more fits into its standard output, which has no reader.
    pub(crate) fn await_full_stdout(&self) {
        let pipe = self.stdout.as_ref().expect("not closed").get_ref().as_raw_fd();
        let other_end = File::options().write(true).open(format!("/proc/self/fd/{pipe}")).expect("a pipe");
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        wait_until("its output does not fill up", || {
            let room = poll(&mut [PollFd::new(&other_end, PollFlags::OUT)], Some(&at_once));
            room.expect("polled") == 0
        });
    }

    /// Closes our end of its standard output.
    pub(crate) fn close_stdout(&mut self) {
        self.stdout = None;
    }

    /// Waits for the end and returns what was not yet read.
    pub(crate) fn end(mut self) -> Outcome {
        let reading = self.stdout.take().map(|stdout| thread::spawn(move || all_of(stdout)));
        let status = self.status();
        let stdout = reading.map(|thread| thread.join().expect("reader")).unwrap_or_default();
        if let Some(thread) = self.stderr.take() {
            thread.join().expect("reader");
        }
        Outcome { status, stdout, stderr: self.said() }
    }

    /// Waits for the launcher's end.
    pub(crate) fn status(&mut self) -> ExitStatus {
        wait_until("ronde does not end", || self.child.try_wait().expect("wait").is_some());
        self.child.wait().expect("it has ended")
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

    /// Waits until nothing of the job is left.
    pub(crate) fn await_gone(&self) {
        wait_until("something of the job is left", || self.processes().is_empty());
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
            thread::sleep(Duration::from_millis(5)); // sleep: between two looks
        }
    }
}

fn keep_all_of(mut stream: impl Read, kept: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        kept.lock().expect("no panic").extend_from_slice(&buffer[..length]);
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
