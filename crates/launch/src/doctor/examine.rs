//! A host examines itself: runs in its agent, and answers the doctor's questions.
//!
//! Nothing is changed on the host, and whatever cannot be found out is left open instead of failing: a machine without
//! Python or without GPUs is a finding too. Other programs (`python`, `nvidia-smi`) get a time limit. Their exit status is
//! not looked at, because the agent collects the ends of all children of its process; what they printed says enough.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::{Resource, getrlimit};

use super::meter;
use super::question::{Answer, Container, Findings, Folder, Gpu, Python, Question, Surroundings};
use crate::program;

/// How long another program may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// The packages whose versions matter, by the names they are installed by, and what they are shown as.
const PACKAGES: [(&str, &str); 9] = [
    ("ronde", "ronde"),
    ("torch", "torch"),
    ("tensorflow", "tensorflow"),
    ("tensorflow-cpu", "tensorflow"),
    ("keras", "keras"),
    ("mxnet", "mxnet"),
    ("jax", "jax"),
    ("numpy", "numpy"),
    ("horovod", "horovod"),
];

/// Prints what it is and the versions of the packages among its arguments, a line each. It imports none of them: that
/// takes a moment where importing takes seconds.
const PROBE: &str = "\
import sys
print('python', sys.executable)
print('version', '.'.join(map(str, sys.version_info[:3])))
from importlib import metadata
for name in sys.argv[1:]:
    try:
        print('package', name, metadata.version(name))
    except metadata.PackageNotFoundError:
        pass
";

/// Answers one question. May take seconds, so it is asked on a thread of its own.
pub(crate) fn examine(question: Question) -> Answer {
    match question {
        Question::Clock => Answer::Clock(clock()),
        Question::Findings(surroundings) => Answer::Findings(Box::new(findings(&surroundings))),
        Question::Serve(service) => match meter::serve(&service) {
            Ok(port) => Answer::Serving(port),
            Err(reason) => Answer::Failed(reason),
        },
        Question::Measure(journey) => match meter::measure(&journey) {
            Ok(measured) => Answer::Measured(measured),
            Err(reason) => Answer::Failed(reason),
        },
    }
}

/// Nanoseconds since 1970.
pub(super) fn clock() -> i128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i128)
}

fn findings(surroundings: &Surroundings) -> Findings {
    let environment = crate::agent::environment(&surroundings.environment);
    let name = rustix::system::uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    // Both wait for other programs.
    let (python, gpus) = thread::scope(|scope| {
        let python = scope.spawn(|| ask_python(&environment));
        let gpus = ask_nvidia();
        (python.join().unwrap_or_default(), gpus)
    });
    Findings {
        hostname: text(name.nodename()),
        system: format!("{} {} {}", text(name.sysname()), text(name.release()), text(name.machine())),
        cores: thread::available_parallelism().map_or(1, usize::from),
        memory: memory(),
        python,
        gpus,
        open_files: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
        locked_memory: getrlimit(Resource::Memlock).current,
        infiniband: fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some()),
        folder: folder(Path::new(OsStr::from_bytes(&surroundings.folder)), surroundings.marker.as_deref()),
        container: container(),
    }
}

fn folder(path: &Path, marker: Option<&str>) -> Folder {
    match marker {
        _ if !path.is_dir() => Folder::Missing,
        None => Folder::Unclear,
        Some(marker) if path.join(marker).exists() => Folder::Shared,
        Some(_) => Folder::Own,
    }
}

/// What this process may use: all of the machine's, or what its control group allows.
fn memory() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_memory(&text));
    let limits = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let limit = limits.iter().find_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok());
    machine.unwrap_or(u64::MAX).min(limit.unwrap_or(u64::MAX))
}

fn total_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes << 10)
}

fn container() -> Option<Container> {
    let kind = if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        "kubernetes"
    } else if Path::new("/.dockerenv").exists() {
        "docker"
    } else if Path::new("/run/.containerenv").exists() {
        "podman"
    } else {
        return None;
    };
    let shared_memory =
        rustix::fs::statvfs("/dev/shm").map_or(0, |disk| disk.f_blocks.saturating_mul(disk.f_frsize));
    Some(Container { kind: kind.to_owned(), shared_memory, own_network: has_own_network() })
}

/// A network of one's own has no real device: only loopback and ends of cables that lead out of it.
fn has_own_network() -> bool {
    let Ok(devices) = fs::read_dir("/sys/class/net") else { return false };
    devices.flatten().all(|device| {
        let read = |file: &str| fs::read_to_string(device.path().join(file)).unwrap_or_default();
        device.file_name() == "lo" || read("ifindex") != read("iflink")
    })
}

fn ask_nvidia() -> Option<Vec<Gpu>> {
    let mut command = Command::new("nvidia-smi");
    command.args(["--query-gpu=name,driver_version", "--format=csv,noheader"]);
    said(&mut command).map(|text| read_gpus(&text))
}

/// Reads `NVIDIA H200, 570.86.15` a line; anything else `nvidia-smi` says is that there is none.
fn read_gpus(text: &str) -> Vec<Gpu> {
    let gpu = |line: &str| {
        let (name, driver) = line.rsplit_once(", ")?;
        let is_version = driver.starts_with(|first: char| first.is_ascii_digit());
        is_version.then(|| Gpu { name: name.to_owned(), driver: driver.trim().to_owned() })
    };
    text.lines().filter_map(gpu).collect()
}

fn ask_python(environment: &BTreeMap<OsString, OsString>) -> Option<Python> {
    let search = environment.get(OsStr::new("PATH")).map(OsString::as_os_str);
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    let found = ["python", "python3"].map(|name| program::find(OsStr::new(name), search, &here).ok());
    let mut command = Command::new(found.into_iter().flatten().next()?);
    command.args(["-c", PROBE]).args(PACKAGES.map(|(name, _)| name)).env_clear().envs(environment);
    read_python(&said(&mut command)?)
}

fn read_python(text: &str) -> Option<Python> {
    let mut python = Python::default();
    for line in text.lines() {
        match line.split_once(' ') {
            Some(("python", path)) => path.clone_into(&mut python.path),
            Some(("version", version)) => version.clone_into(&mut python.version),
            Some(("package", package)) => {
                let Some((name, version)) = package.split_once(' ') else { continue };
                let names: HashMap<&str, &str> = PACKAGES.into_iter().collect();
                if let Some(shown) = names.get(name) {
                    python.packages.insert((*shown).to_owned(), version.to_owned());
                }
            }
            _ => {}
        }
    }
    (!python.version.is_empty()).then_some(python)
}

/// What a program prints, if it can be started and ends in time.
fn said(command: &mut Command) -> Option<String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let mut stdout = child.stdout.take()?;
    let (sender, text) = channel();
    // A thread, because a read cannot be given a time limit; it ends when the program's output does.
    thread::spawn(move || {
        let mut text = String::new();
        let _ = sender.send(stdout.read_to_string(&mut text).is_ok().then_some(text));
    });
    let text = text.recv_timeout(PATIENCE).ok().flatten();
    if text.is_none() {
        let _ = child.kill();
    }
    // Somebody else may have collected it.
    let _ = child.wait();
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_python_tells_its_version_and_packages() {
        let text =
            "python /usr/bin/python3\nversion 3.11.4\npackage tensorflow-cpu 2.21.0\npackage numpy 2.1\n";
        let python = read_python(text).expect("a Python");
        assert_eq!((python.path.as_str(), python.version.as_str()), ("/usr/bin/python3", "3.11.4"));
        let packages = [("numpy", "2.1"), ("tensorflow", "2.21.0")];
        assert_eq!(
            python.packages,
            packages.map(|(name, version)| (name.to_owned(), version.to_owned())).into()
        );
        assert_eq!(read_python("pyenv: no such command\n"), None);
    }

    #[test]
    fn gpus_are_told_from_complaints() {
        let gpus = read_gpus("NVIDIA H200, 570.86.15\nNVIDIA A100, 80GB, 570.86.15\n");
        let names: Vec<&str> = gpus.iter().map(|gpu| gpu.name.as_str()).collect();
        assert_eq!(names, ["NVIDIA H200", "NVIDIA A100, 80GB"]);
        assert!(read_gpus("NVIDIA-SMI has failed because it couldn't communicate, sorry\n").is_empty());
        assert!(read_gpus("No devices were found\n").is_empty());
    }

    #[test]
    fn memory_is_read_from_the_kernel() {
        assert_eq!(total_memory("MemTotal:       24689796 kB\nMemFree: 1 kB\n"), Some(24_689_796 << 10));
        assert_eq!(total_memory("something else"), None);
        assert!(memory() > 0);
    }

    #[test]
    fn a_shared_folder_is_known_by_what_was_just_put_there() {
        let here = std::env::temp_dir().join(format!("ronde-examine-{}", std::process::id()));
        fs::create_dir_all(&here).expect("a folder");
        fs::write(here.join("marker"), "").expect("a file");
        assert_eq!(folder(&here, Some("marker")), Folder::Shared);
        assert_eq!(folder(&here, Some("another")), Folder::Own);
        assert_eq!(folder(&here, None), Folder::Unclear);
        fs::remove_dir_all(&here).expect("removed");
        assert_eq!(folder(&here, Some("marker")), Folder::Missing);
    }

    #[test]
    fn a_program_that_is_not_there_says_nothing() {
        assert_eq!(said(&mut Command::new("/no/such/program")), None);
        assert_eq!(said(Command::new("echo").arg("hello")).as_deref(), Some("hello\n"));
    }

    #[test]
    fn a_host_finds_out_what_it_is_like() {
        let folder = std::env::temp_dir().into_os_string().into_encoded_bytes();
        let question = Question::Findings(Surroundings { folder, ..Surroundings::default() });
        let Answer::Findings(found) = examine(question) else { panic!("another answer") };
        assert!(found.cores > 0 && found.open_files > 0 && found.system.starts_with("Linux "), "{found:?}");
        assert_eq!(found.folder, Folder::Unclear);
    }
}
