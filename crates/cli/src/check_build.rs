//! `ronde run --check-build`: what can be used here, in the layout that scripts know from Horovod and search.
//!
//! Nothing is compiled for a framework, so a framework is available if Python finds both it and our front for it. The
//! Python asked is the one beside this program, where a wheel puts both; otherwise the first on PATH. It only looks for the
//! modules and does not import them: that takes a moment where importing takes seconds. The libraries for GPUs are opened
//! by the same Python (`check_build/libraries.rs`).

mod libraries;

use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use crate::status::Status;
use libraries::Libraries;

/// The Horovod whose interface is served, as `horovod.__version__` says it.
const HOROVOD_VERSION: &str = "0.28.1";

/// How long Python may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// What `--check-build` calls a framework, its module, and our front for it.
const FRAMEWORKS: [(&str, &str, &str); 3] = [
    ("TensorFlow", "tensorflow", "horovod.tensorflow"),
    ("PyTorch", "torch", "horovod.torch"),
    ("MXNet", "mxnet", "horovod.mxnet"),
];

/// Prints which Python it is, and the names among its arguments that can be imported. The current folder does not count:
/// a script sees its own folder there, and not this one.
const PROBE: &str = "\
import importlib.util, sys
print('python=' + sys.executable)
sys.path[:] = [folder for folder in sys.path if folder]
for name in sys.argv[1:]:
    try:
        found = importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        found = False
    if found:
        print(name)
";

/// Why nothing is known about frameworks.
#[derive(Debug, thiserror::Error)]
enum Unknown {
    #[error("no Python was found, neither beside this program nor on PATH")]
    NoPython,
    #[error("{0} did not answer within {1:?}")]
    NoAnswer(String, Duration),
    #[error("{0} failed when asked; --verbose shows what it says")]
    Failed(String),
}

/// A Python, and which of the modules it finds.
struct Answer {
    /// What it calls itself.
    python: String,
    modules: Vec<String>,
    /// The libraries for GPUs that it can open.
    libraries: Result<Libraries, Unknown>,
}

/// Shows what can be used. The status is always 0: that something is not there is an answer.
pub(crate) fn check_build(verbose: bool) -> Status {
    let report = report(&ask_python(verbose));
    // Whoever closed our output early does not want the rest.
    let _ = std::io::stdout().write_all(report.as_bytes());
    Status::Success
}

fn report(answer: &Result<Answer, Unknown>) -> String {
    let found = |name: &str| match answer {
        Ok(answer) => answer.modules.iter().any(|module| module == name),
        Err(_) => false,
    };
    let frameworks = FRAMEWORKS.map(|(title, module, front)| (title, found(module) && found(front)));
    let mut text = format!("Horovod v{HOROVOD_VERSION}:\n");
    section(&mut text, "Frameworks", &frameworks);
    section(&mut text, "Controllers", &[("MPI", false), ("Gloo", true)]);
    let libraries = answer.as_ref().ok().and_then(|answer| answer.libraries.as_ref().ok());
    let operations = [
        ("NCCL", libraries.is_some_and(Libraries::has_nccl)),
        ("DDL", false),
        ("CCL", false),
        ("MPI", false),
        ("Gloo", true),
    ];
    section(&mut text, "Tensor Operations", &operations);
    let looked = match answer {
        Ok(answer) => format!("Frameworks were looked for with {}.", answer.python),
        Err(unknown) => format!("Nothing is known about frameworks: {unknown}."),
    };
    let _ = write!(
        text,
        "\nRonde v{}\n    Its own controller and tensor operations stand in for Gloo's: shared memory inside a host, \
         TCP between hosts.\n    {looked}\n",
        env!("CARGO_PKG_VERSION")
    );
    if let Ok(answer) = answer {
        let lines = match &answer.libraries {
            Ok(libraries) => libraries.lines().to_vec(),
            Err(unknown) => vec![format!("Nothing is known about libraries for GPUs: {unknown}.")],
        };
        for line in lines {
            let _ = writeln!(text, "    {line}");
        }
    }
    text
}

fn section(text: &mut String, title: &str, items: &[(&str, bool)]) {
    // Writing to a string cannot fail.
    let _ = write!(text, "\nAvailable {title}:\n");
    for (name, there) in items {
        let mark = if *there { 'X' } else { ' ' };
        let _ = writeln!(text, "    [{mark}] {name}");
    }
}

/// Asks the first Python that can be started.
fn ask_python(verbose: bool) -> Result<Answer, Unknown> {
    let beside = std::env::current_exe().ok().map(|program| program.with_file_name("python"));
    let candidates = beside.into_iter().chain(["python3", "python"].map(PathBuf::from));
    for python in candidates {
        match ask(&python, verbose) {
            Err(Unknown::NoPython) => {}
            answer => return answer,
        }
    }
    Err(Unknown::NoPython)
}

fn ask(python: &Path, verbose: bool) -> Result<Answer, Unknown> {
    let names = FRAMEWORKS.iter().flat_map(|(_, module, front)| [module, front]);
    let mut command = Command::new(python);
    command.args(["-c", PROBE]).args(names);
    command.stderr(if verbose { Stdio::inherit() } else { Stdio::null() });
    let text = output(&mut command, PATIENCE)?;
    let itself = text.lines().find_map(|line| line.strip_prefix("python="));
    Ok(Answer {
        python: itself.map_or_else(|| python.display().to_string(), str::to_owned),
        modules: text.lines().map(str::to_owned).collect(),
        libraries: Libraries::ask(python, verbose),
    })
}

/// What a Python prints, if it ends well and in time.
fn output(command: &mut Command, patience: Duration) -> Result<String, Unknown> {
    let name = command.get_program().display().to_string();
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|_| Unknown::NoPython)?;
    let (answered, answer) = channel();
    let stdout = child.stdout.take();
    // A thread, because a read cannot be given a time limit; it ends when the child's output does.
    thread::spawn(move || {
        let mut text = String::new();
        let read = stdout.map(|mut stdout| stdout.read_to_string(&mut text));
        let _ = answered.send(matches!(read, Some(Ok(_))).then_some(text));
    });
    let answer = answer.recv_timeout(patience);
    if answer.is_err() {
        // It may have ended this very moment, which is as good.
        let _ = child.kill();
    }
    let ended_well = child.wait().is_ok_and(|status| status.success());
    match answer {
        Err(_) => Err(Unknown::NoAnswer(name, patience)),
        Ok(Some(text)) if ended_well => Ok(text),
        Ok(_) => Err(Unknown::Failed(name)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn the_version_is_that_of_the_python_package() {
        let package = include_str!("../../../python/horovod/__init__.py");
        assert!(package.contains(&format!("\n__version__ = \"{HOROVOD_VERSION}\"\n")), "{package}");
    }

    #[test]
    fn a_framework_counts_only_together_with_its_front() {
        let modules = ["torch", "horovod.torch", "tensorflow", "horovod.mxnet"].map(str::to_owned).to_vec();
        let text =
            report(&Ok(Answer { python: "python".to_owned(), modules, libraries: Err(Unknown::NoPython) }));
        for line in [
            "    [X] PyTorch\n",
            "    [ ] TensorFlow\n",
            "    [ ] MXNet\n",
            "    [ ] NCCL\n",
            "looked for with python.",
        ] {
            assert!(text.contains(line), "{line:?} not in {text}");
        }
    }

    #[test]
    fn a_python_that_does_not_answer_or_fails_is_told_apart_from_one_that_is_not_there() {
        let within = |program: &str, argument: &str, patience| {
            output(Command::new(program).arg(argument).stderr(Stdio::null()), patience)
        };
        let asked = Instant::now();
        let answer = within("sleep", "1000", Duration::from_millis(50)); // sleep: it does not answer
        assert!(matches!(answer, Err(Unknown::NoAnswer(..))), "{answer:?}");
        assert!(asked.elapsed() < Duration::from_secs(100), "it was waited for");
        let answer = within("cat", "/no/such/file", PATIENCE);
        assert!(matches!(answer, Err(Unknown::Failed(_))), "{answer:?}");
        let answer = within("/no/such/python", "", PATIENCE);
        assert!(matches!(answer, Err(Unknown::NoPython)), "{answer:?}");
        assert_eq!(within("echo", "torch", PATIENCE).expect("an answer"), "torch\n");
    }
}
