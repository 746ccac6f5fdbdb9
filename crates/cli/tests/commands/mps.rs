//! `--mps`: a service of NVIDIA's MPS for the time of a job.
//!
//! What is started here is a stand-in for `nvidia-cuda-mps-control`, since the real one needs a GPU: this test binary, which
//! a script of that name calls. It does what the real one was seen to do: with `-f` it stays in the foreground and listens
//! at the socket `control` of its folder, a server is a child of it, and without arguments it passes lines from its input on
//! to the service that it finds in the folder, or says that there is none. What it was given it writes into a record.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use rustix::process::{Pid, Signal, kill_process};

use crate::gpus::{machine, program};
use crate::job::{Folder, Job, await_file, children_of, outcome, ronde, wait_until};

const ONE: &str = "GPU 0: NVIDIA H200 (UUID: GPU-a0)\n";
const PROGRAM: &str = "nvidia-cuda-mps-control";

/// The arguments of the stand-in, which only its script sets.
const ARGUMENTS: &str = "RONDE_TEST_MPS_ARGUMENTS";
/// Whether it works, `refuses` to start, `hangs` at that, or `stays` when asked to quit.
const MANNER: &str = "RONDE_TEST_MPS_MANNER";
/// The file in which it writes what it was given.
const RECORD: &str = "RONDE_TEST_MPS_RECORD";

/// What every rank does: it shows what it was given, has the service start a server, and asks for it.
const CLIENT: &str = r#"
    [ -S "$CUDA_MPS_PIPE_DIRECTORY/control" ] && [ -d "$CUDA_MPS_LOG_DIRECTORY" ] || exit 3
    echo "folder $(stat -c %a "$CUDA_MPS_PIPE_DIRECTORY/..") $CUDA_MPS_PIPE_DIRECTORY"
    echo "queues ${CUDA_DEVICE_MAX_CONNECTIONS-unset}"
    echo "start_server -uid $(id -u)" | nvidia-cuda-mps-control > /dev/null
    echo get_server_list | nvidia-cuda-mps-control | grep '^server'
"#;

/// A machine with one GPU and the stand-in.
struct Machine(Folder);

impl Machine {
    fn new(name: &str) -> Machine {
        let folder = machine(name, ONE);
        let own = std::env::current_exe().expect("this binary");
        let role = "mps::stands_in_for_nvidias_program";
        let script =
            format!("#!/bin/sh\n{ARGUMENTS}=\"$*\" exec {} --exact {role} --nocapture\n", own.display());
        program(&folder, PROGRAM, &script);
        folder.file("record", "");
        Machine(folder)
    }

    /// A command line that runs there.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = ronde(arguments);
        self.on(&mut command);
        command
    }

    fn on(&self, command: &mut Command) {
        let path = std::env::var("PATH").expect("a path");
        command.env("PATH", format!("{}:{path}", self.0.0.display())).env(RECORD, self.0.0.join("record"));
        for name in
            ["CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_DEVICE_MAX_CONNECTIONS", "RONDE_MPS"]
        {
            command.env_remove(name);
        }
    }

    fn record(&self) -> String {
        fs::read_to_string(self.0.0.join("record")).expect("a record")
    }
}

/// What comes after a word in the lines of a job's output.
fn after<'a>(output: &'a str, word: &str) -> Vec<&'a str> {
    output.lines().filter_map(|line| line.split_once(word)).map(|(_, rest)| rest.trim()).collect()
}

/// The folder of a job's service, by what its ranks say.
fn folder(said: &str) -> PathBuf {
    let (mode, pipes) = said.split_once(' ').expect("a mode and a folder");
    assert_eq!(mode, "700", "for this user only");
    Path::new(pipes).parent().expect("a folder").to_owned()
}

#[test]
fn ranks_that_share_a_gpu_find_a_service_that_is_gone_after_the_job() {
    let machine = Machine::new("mps-well");
    let outcome = outcome(&mut machine.command(&["run", "-np", "2", "--mps", "sh", "-c", CLIENT]));
    assert_eq!(outcome.code(), Some(0), "{outcome:?}");
    let note = "localhost has 1 GPU for 2 ranks: GPUs will be shared; scripts choose theirs by local_rank() % number of \
                GPUs, side by side by NVIDIA's MPS\n";
    assert!(outcome.stderr.contains(note), "{}", outcome.stderr);
    let folders = after(&outcome.stdout, "folder ");
    assert_eq!((folders.len(), folders[0] == folders[1]), (2, true), "{}", outcome.stdout);
    let folder = folder(folders[0]);
    assert_eq!(after(&outcome.stdout, "queues "), ["unset", "unset"]);
    let servers = after(&outcome.stdout, "server ");
    assert_eq!(
        (servers.len(), servers[0] == servers[1]),
        (2, true),
        "one server for both: {}",
        outcome.stdout
    );
    let record = machine.record();
    let started = format!("-f pipes={0}/pipe logs={0}/log gpus=all\n", folder.display());
    assert!(record.starts_with(&started) && record.ends_with("quit\n"), "{record}");
    assert!(!folder.exists(), "{}", folder.display());
    assert!(!Path::new("/proc").join(servers[0]).exists(), "the server is left");
}

#[test]
fn the_service_gets_the_ranks_choice_by_uuid_and_none_by_number() {
    for (mask, gpus) in [("GPU-a0", "GPU-a0"), ("0", "all")] {
        let machine = Machine::new(&format!("mps-mask-{gpus}"));
        let mut command =
            machine.command(&["run", "-np", "2", "--mps", "sh", "-c", "echo sees $CUDA_VISIBLE_DEVICES"]);
        let outcome = outcome(command.env("CUDA_VISIBLE_DEVICES", mask));
        assert_eq!(after(&outcome.stdout, "sees "), [mask, mask], "{outcome:?}");
        assert!(machine.record().contains(&format!("gpus={gpus}\n")), "{}", machine.record());
    }
}

#[test]
fn whatever_is_killed_nothing_of_the_service_is_left() {
    for (who, whom) in [
        ("agent", Job::agent as fn(&Job) -> Pid),
        ("guardian", Job::guardian),
        ("driver", Job::driver),
        ("launcher", Job::launcher),
    ] {
        let machine = Machine::new(&format!("mps-killed-{who}"));
        let script = format!("{CLIENT}\necho ready; sleep 1000"); // sleep: runs until it is killed
        let mut job = Job::start(&mut machine.command(&["run", "-np", "2", "--mps", "sh", "-c", &script]));
        let mut said = String::new();
        while said.matches("ready").count() < 2 {
            said.push_str(&job.line());
            said.push('\n');
        }
        let folder = folder(after(&said, "folder ")[0]);
        assert!(folder.exists());
        let server = after(&said, "server ")[0].to_owned();
        kill_process(whom(&job), Signal::KILL).expect("it is there");
        job.await_gone();
        wait_until(&format!("the folder is left after the end of the {who}"), || !folder.exists());
        assert!(!Path::new("/proc").join(server).exists(), "the server is left after the end of the {who}");
    }
}

#[test]
fn a_killed_rank_ends_the_job_and_the_service_quits_in_order() {
    let machine = Machine::new("mps-rank");
    let ends = "[ $HOROVOD_RANK = 1 ] && kill -KILL $$; sleep 1000"; // sleep: the other runs until it is stopped
    let script = format!("{CLIENT}\n{ends}");
    let outcome = outcome(&mut machine.command(&["run", "-np", "2", "--mps", "sh", "-c", &script]));
    assert_eq!(outcome.code(), Some(137), "{outcome:?}");
    assert!(outcome.stderr.contains("rank 1"), "{}", outcome.stderr);
    assert!(machine.record().ends_with("quit\n"), "{}", machine.record());
    assert!(!folder(after(&outcome.stdout, "folder ")[0]).exists());
}

#[test]
fn the_end_of_the_service_is_noticed() {
    let machine = Machine::new("mps-ends");
    let script = format!("{CLIENT}\necho ready\n{}", await_file(&machine.0.0.join("go")));
    let mut job = Job::start(&mut machine.command(&["run", "-np", "2", "--mps", "sh", "-c", &script]));
    job.await_words("ready", 2);
    let is_service = |pid: &Pid| {
        let words = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())).unwrap_or_default();
        words.split(|byte| *byte == 0).any(|word| word == format!("{ARGUMENTS}=-f").as_bytes())
    };
    let service = children_of(job.agent()).into_iter().find(is_service).expect("a service");
    kill_process(service, Signal::KILL).expect("it is there");
    let left = format!("/proc/{}", service.as_raw_nonzero());
    wait_until("its end was not noticed", || !Path::new(&left).exists());
    machine.0.file("go", "");
    let outcome = job.end();
    assert_eq!(outcome.code(), Some(0), "{outcome:?}");
    let warning = "localhost: warning: NVIDIA's MPS has ended (killed by signal 9 (SIGKILL))";
    assert!(outcome.stderr.contains(warning), "{}", outcome.stderr);
}

#[test]
fn a_service_that_does_not_quit_is_killed_after_a_moment() {
    let machine = Machine::new("mps-stays");
    let outcome =
        outcome(machine.command(&["run", "-np", "2", "--mps", "sh", "-c", CLIENT]).env(MANNER, "stays"));
    assert_eq!(outcome.code(), Some(0), "{outcome:?}");
    assert!(machine.record().ends_with("stays\n"), "{}", machine.record());
    assert!(!folder(after(&outcome.stdout, "folder ")[0]).exists());
    assert!(!Path::new("/proc").join(after(&outcome.stdout, "server ")[0]).exists(), "the server is left");
}

/// Runs a job that must not come to be; returns what is said.
fn refused(command: &mut Command) -> String {
    let outcome = outcome(command);
    assert_eq!((outcome.code(), outcome.stdout.as_str()), (Some(1), ""), "{outcome:?}");
    outcome.stderr
}

const HERE: [&str; 7] = ["run", "-np", "2", "--mps", "sh", "-c", "echo here"];

#[test]
fn a_service_that_fails_is_an_error_before_any_rank_runs() {
    let machine = Machine::new("mps-fails");
    let said = refused(machine.command(&HERE).env(MANNER, "refuses"));
    let error = "error: NVIDIA's MPS ended on localhost before it was ready (exit status 1); it said: ";
    assert!(said.contains(error) && said.contains("cannot open the device\nhint: "), "{said}");
    assert!(said.ends_with("or leave --mps out: ranks that share a GPU then take turns\n"), "{said}");
}

#[test]
fn a_service_that_does_not_answer_is_waited_for_in_vain_for_ten_seconds_only() {
    let machine = Machine::new("mps-hangs");
    let said = refused(machine.command(&HERE).env(MANNER, "hangs"));
    assert!(said.contains("error: NVIDIA's MPS did not answer on localhost within 10 s; it said"), "{said}");
}

#[test]
fn a_host_without_the_program_is_named() {
    let machine = machine("mps-missing", ONE);
    // Only what it has itself: machines with a GPU have the real one in the usual places.
    let said = refused(ronde(&HERE).env("PATH", &machine.0).env_remove("CUDA_MPS_PIPE_DIRECTORY"));
    assert!(said.contains("error: localhost has no nvidia-cuda-mps-control, which --mps starts\n"), "{said}");
    assert!(said.contains("hint: it comes with NVIDIA's driver (package nvidia-compute-utils-"), "{said}");
}

#[test]
fn nothing_is_started_where_no_gpu_is_shared() {
    let machine = Machine::new("mps-alone");
    let alone = ["run", "-np", "1", "--mps", "echo", "here"];
    let outcome_alone = outcome(&mut machine.command(&alone));
    let note = "note: --mps does nothing on localhost: no ranks share a GPU there\n";
    assert!(outcome_alone.stderr.contains(note), "{outcome_alone:?}");
    let own = ["run", "-np", "1", "--gpus-per-rank", "1", "--mps", "echo", "here"];
    let outcome_own = outcome(&mut machine.command(&own));
    let note = "note: --mps does nothing here: with --gpus-per-rank no ranks share a GPU\n";
    assert!(outcome_own.stderr.contains(note), "{outcome_own:?}");
    assert_eq!(machine.record(), "");
}

/// A service that somebody else started; dropping it ends it.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_service_that_runs_already_is_used_as_it_is() {
    let machine = Machine::new("mps-running");
    let pipes = machine.0.0.join("p");
    fs::create_dir(&pipes).expect("a folder");
    let mut command = Command::new(machine.0.0.join(PROGRAM));
    machine.on(&mut command);
    command.arg("-f").env("CUDA_MPS_PIPE_DIRECTORY", &pipes).env("CUDA_MPS_LOG_DIRECTORY", &pipes);
    let _other = Other(command.stdout(Stdio::null()).spawn().expect("it starts"));
    wait_until("it does not listen", || connected_to(&pipes.join("control")).is_ok());
    let script = "echo finds $CUDA_MPS_PIPE_DIRECTORY ${CUDA_DEVICE_MAX_CONNECTIONS-unset}";
    let mut command = machine.command(&["run", "-np", "2", "--mps", "sh", "-c", script]);
    let outcome = outcome(command.env("CUDA_MPS_PIPE_DIRECTORY", &pipes));
    let expected = format!("{} unset", pipes.display());
    assert_eq!(after(&outcome.stdout, "finds "), [&expected; 2], "{outcome:?}");
    let note = "note: NVIDIA's MPS runs on localhost already, and is used as it is\n";
    assert_eq!(outcome.stderr.matches(note).count(), 1, "{}", outcome.stderr);
    assert_eq!(machine.record().lines().count(), 1, "neither a second one nor an end: {}", machine.record());
}

/// Not a test of its own: `nvidia-cuda-mps-control`, as far as the launcher and these tests use it.
#[test]
fn stands_in_for_nvidias_program() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else {
        return;
    };
    let pipes = PathBuf::from(std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").expect("a folder"));
    std::process::exit(if arguments == "-f" { be_the_service(&pipes) } else { pass_on(&pipes) });
}

fn note(line: &str) {
    let path = std::env::var_os(RECORD).expect("a record");
    let mut record = File::options().append(true).open(path).expect("a record");
    writeln!(record, "{line}").expect("written");
}

fn be_the_service(pipes: &Path) -> i32 {
    let var = |name: &str| std::env::var(name).unwrap_or_else(|_| "all".to_owned());
    let (logs, gpus) = (var("CUDA_MPS_LOG_DIRECTORY"), var("CUDA_VISIBLE_DEVICES"));
    note(&format!("-f pipes={} logs={logs} gpus={gpus}", pipes.display()));
    match std::env::var(MANNER).as_deref() {
        Ok("refuses") => {
            eprintln!("cannot open the device");
            return 1;
        }
        Ok("hangs") => loop {
            std::thread::park();
        },
        _ => {}
    }
    let listener = listening_at(&pipes.join("control"));
    let mut server: Option<Child> = None;
    for stream in listener.incoming() {
        let mut stream = stream.expect("a connection");
        let mut line = String::new();
        let _ = BufReader::new(&stream).read_line(&mut line);
        // Whoever only knocks says nothing.
        match line.split_whitespace().next() {
            Some("start_server") => {
                // In a session of its own: it must be found all the same.
                server.get_or_insert_with(|| {
                    let stays = ["sleep", "1000"]; // sleep: is there until it is killed
                    Command::new("setsid").args(stays).spawn().expect("a server")
                });
            }
            Some("get_server_list") => {
                let pid = server.as_ref().map(|server| format!("server {}\n", server.id()));
                let _ = stream.write_all(pid.unwrap_or_default().as_bytes());
            }
            Some("quit") if std::env::var(MANNER).as_deref() == Ok("stays") => note("stays"),
            Some("quit") => {
                if let Some(mut server) = server {
                    server.kill().and_then(|()| server.wait()).expect("it ends");
                }
                note("quit");
                return 0;
            }
            _ => {}
        }
    }
    0
}

/// A socket of the kind that the real one has: packets, so that nobody who expects a stream gets through.
fn packets(name: &Path) -> (OwnedFd, SocketAddrUnix) {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
    (socket, SocketAddrUnix::new(name).expect("an address"))
}

fn listening_at(name: &Path) -> UnixListener {
    let (socket, address) = packets(name);
    rustix::net::bind(&socket, &address).and_then(|()| rustix::net::listen(&socket, 64)).expect("it listens");
    socket.into()
}

fn connected_to(name: &Path) -> Result<UnixStream, Errno> {
    let (socket, address) = packets(name);
    rustix::net::connect(&socket, &address)?;
    Ok(socket.into())
}

fn pass_on(pipes: &Path) -> i32 {
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        let Ok(mut stream) = connected_to(&pipes.join("control")) else {
            println!("Cannot find MPS control daemon process");
            return 1;
        };
        writeln!(stream, "{line}").expect("sent");
        let mut answer = String::new();
        let _ = std::io::Read::read_to_string(&mut stream, &mut answer);
        print!("{answer}");
    }
    0
}
