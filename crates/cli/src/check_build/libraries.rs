//! Which libraries for GPUs can be opened here: that of CUDA's driver, and NCCL.
//!
//! They are opened where ranks would open them, in a Python, and in a process of its own, so that a library that breaks
//! takes no other answer with it. NCCL is looked for as ranks look for it: where `RONDE_NCCL_LIBRARY` says, else in what
//! came with the framework, else in the system. Nothing is started on a GPU.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{PATIENCE, Unknown, output};

/// Prints a line for each library: its version as a number and its file, or what is in the way.
const PROBE: &str = "\
import ctypes, importlib.util, os, sys
sys.path[:] = [folder for folder in sys.path if folder]

def brought():
    for name in ('nvidia.nccl', 'torch'):
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            continue
        for folder in (spec and spec.submodule_search_locations) or ():
            file = os.path.join(folder, 'lib', 'libnccl.so.2')
            if os.path.exists(file):
                yield file

def file_of(name):
    if '/' in name:
        return name
    start = '/' + name.split('.so')[0] + '.so'
    with open('/proc/self/maps') as maps:
        for line in maps:
            if start in line:
                return line.split(None, 5)[5].strip()
    return name

def tell(what, function, names):
    problems = []
    for name in names:
        try:
            version = ctypes.c_int()
            status = getattr(ctypes.CDLL(name), function)(ctypes.byref(version))
        except (OSError, AttributeError) as problem:
            problems.append(str(problem))
            continue
        if status == 0:
            print(what + '=%d' % version.value, file_of(name))
            return
        problems.append('%s of %s failed with %d' % (function, name, status))
    print('no-' + what + '=' + problems[0])

cuda = os.environ.get('RONDE_CUDA_LIBRARY')
tell('cuda', 'cuDriverGetVersion', [cuda] if cuda else ['libcuda.so.1'])
nccl = os.environ.get('RONDE_NCCL_LIBRARY')
tell('nccl', 'ncclGetVersion', [nccl] if nccl else [*brought(), 'libnccl.so.2', 'libnccl.so'])
";

/// A library that could be opened.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Library {
    /// What it says its version is.
    version: u64,
    /// Where it is.
    file: String,
}

/// What was found, or why not.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Libraries {
    cuda: Result<Library, String>,
    nccl: Result<Library, String>,
}

impl Libraries {
    /// Asks a Python.
    pub(super) fn ask(python: &Path, verbose: bool) -> Result<Libraries, Unknown> {
        let mut command = Command::new(python);
        command.args(["-c", PROBE]).stderr(if verbose { Stdio::inherit() } else { Stdio::null() });
        output(&mut command, PATIENCE).map(|text| Libraries::read(&text))
    }

    fn read(text: &str) -> Libraries {
        let value = |name: &str| {
            text.lines().find_map(|line| line.split_once('=').filter(|(known, _)| *known == name))
        };
        let library = |name: &str| {
            let found = value(name).and_then(|(_, value)| {
                let (version, file) = value.split_once(' ')?;
                Some(Library { version: version.parse().ok()?, file: file.to_owned() })
            });
            found.ok_or_else(|| value(&format!("no-{name}")).map_or("no answer", |(_, why)| why).to_owned())
        };
        Libraries { cuda: library("cuda"), nccl: library("nccl") }
    }

    /// Whether there is an NCCL to use.
    pub(super) fn has_nccl(&self) -> bool {
        self.nccl.is_ok()
    }

    /// A line for each.
    pub(super) fn lines(&self) -> [String; 2] {
        let cuda = match &self.cuda {
            Ok(Library { version, file }) => {
                format!("CUDA: the driver's library is for CUDA {}: {file}", cuda_version(*version))
            }
            Err(why) => format!("CUDA: the driver's library cannot be opened: {why}"),
        };
        let nccl = match &self.nccl {
            Ok(Library { version, file }) => format!("NCCL: {}: {file}", nccl_version(*version)),
            Err(why) => format!("NCCL: it cannot be opened: {why}"),
        };
        [cuda, nccl]
    }
}

/// `13.0` for 13000.
fn cuda_version(number: u64) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

/// `2.28.3` for 22803; up to 2.8 there was one digit less for the minor version.
fn nccl_version(number: u64) -> String {
    let step = if number < 10_000 { 1000 } else { 10_000 };
    format!("{}.{}.{}", number / step, number % step / 100, number % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_shown_with_version_and_file_or_with_what_is_in_the_way() {
        let both =
            Libraries::read("cuda=13000 /lib/libcuda.so.580\nnccl=22803 /site packages/libnccl.so.2\n");
        assert!(both.has_nccl());
        assert_eq!(
            both.lines(),
            [
                "CUDA: the driver's library is for CUDA 13.0: /lib/libcuda.so.580",
                "NCCL: 2.28.3: /site packages/libnccl.so.2"
            ]
        );
        let neither = Libraries::read("no-cuda=libcuda.so.1: no such file\nno-nccl=x = y\n");
        assert!(!neither.has_nccl());
        assert_eq!(
            neither.lines(),
            [
                "CUDA: the driver's library cannot be opened: libcuda.so.1: no such file",
                "NCCL: it cannot be opened: x = y"
            ]
        );
        assert_eq!(Libraries::read("nccl=many /x\n").nccl, Err("no answer".to_owned()));
    }

    #[test]
    fn versions_are_read_as_each_library_counts() {
        assert_eq!([13000, 12080, 11070].map(cuda_version), ["13.0", "12.8", "11.7"]);
        assert_eq!([22803, 21605, 2708].map(nccl_version), ["2.28.3", "2.16.5", "2.7.8"]);
    }
}
