//! A host examines itself: runs in its agent, and answers the doctor's questions.
//!
//! Nothing is changed on the host, and whatever cannot be found out is left open instead of failing: a machine without
//! Python or without GPUs is a finding too. Other programs (`python`, `nvidia-smi`) get a time limit.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::{Resource, getrlimit};

use super::meter;
use super::question::{Answer, Container, Findings, Folder, Gpu, Python, Question, Surroundings};
use crate::asking::said;
use crate::gpus::{self, Device, Kernel, Looking};
use crate::{container, program};

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

/// Prints what it is, the versions of the packages among its arguments, and which CUDA the driver's library is for, a line
/// each. It imports none of the packages, since that takes seconds, and starts nothing on a GPU.
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
sys.stdout.flush()
try:
    import ctypes, os
    version = ctypes.c_int()
    library = ctypes.CDLL(os.environ.get('RONDE_CUDA_LIBRARY') or 'libcuda.so.1')
    if library.cuDriverGetVersion(ctypes.byref(version)) == 0:
        print('cuda', '%d.%d' % (version.value // 1000, version.value % 1000 // 10))
except (ImportError, OSError, AttributeError):
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
    let (answer, gpus, visible) = thread::scope(|scope| {
        let answer = scope.spawn(|| ask_python(&environment));
        let visible = scope.spawn(|| gpus::look(Looking { by_name: true, ..Looking::default() }));
        let gpus = ask_nvidia();
        (answer.join().unwrap_or_default(), gpus, visible.join().unwrap_or_default())
    });
    let answer = answer.unwrap_or_default();
    Findings {
        hostname: text(name.nodename()),
        system: format!("{} {} {}", text(name.sysname()), text(name.release()), text(name.machine())),
        cores: thread::available_parallelism().map_or(1, usize::from),
        memory: memory(),
        python: read_python(&answer),
        gpus,
        visible_gpus: visible.visible.len(),
        visible_devices: visible.mask,
        cuda: read_cuda(&answer),
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
    let kind = container::kind()?;
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

/// What `nvidia-smi` shows, or, where that is nothing, what the kernel's driver does: a container may lack the program.
fn ask_nvidia() -> Option<Vec<Gpu>> {
    let mut command = Command::new("nvidia-smi");
    command.args(["--query-gpu=name,driver_version", "--format=csv,noheader"]);
    let shown = said(&mut command).map(|text| read_gpus(&text));
    let kernel = Kernel::here();
    let driver = kernel.version().unwrap_or_default();
    let gpu = |device: Device| Gpu { name: device.name, driver: driver.clone() };
    let listed: Vec<Gpu> = kernel.gpus().into_iter().map(gpu).collect();
    match shown {
        Some(shown) if !shown.is_empty() || listed.is_empty() => Some(shown),
        _ => (!listed.is_empty()).then_some(listed),
    }
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

fn ask_python(environment: &BTreeMap<OsString, OsString>) -> Option<String> {
    let search = environment.get(OsStr::new("PATH")).map(OsString::as_os_str);
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    let found = ["python", "python3"].map(|name| program::find(OsStr::new(name), search, &here).ok());
    let mut command = Command::new(found.into_iter().flatten().next()?);
    command.args(["-c", PROBE]).args(PACKAGES.map(|(name, _)| name)).env_clear().envs(environment);
    said(&mut command)
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

fn read_cuda(text: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix("cuda ")).map(str::to_owned)
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
        assert_eq!(
            (read_cuda(text), read_cuda("version 3.11.4\ncuda 13.0\n").as_deref()),
            (None, Some("13.0"))
        );
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
    fn a_host_finds_out_what_it_is_like() {
        let folder = std::env::temp_dir().into_os_string().into_encoded_bytes();
        let question = Question::Findings(Surroundings { folder, ..Surroundings::default() });
        let Answer::Findings(found) = examine(question) else { panic!("another answer") };
        assert!(found.cores > 0 && found.open_files > 0 && found.system.starts_with("Linux "), "{found:?}");
        assert_eq!(found.folder, Folder::Unclear);
    }
}
