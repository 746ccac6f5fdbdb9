"""What `tools/sleeps` takes for a sleep in a test, for a reason, and for a test."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "tools" / "sleeps"
# Never written out with what follows it, or this file would need reasons itself.
NAME = "sleep"
WAITS = f"thread::{NAME}(PAUSE);"

Check = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Give a function that runs the program on a project of these files."""
    (tmp_path / "tools").mkdir()
    copy = shutil.copy(PROGRAM, tmp_path / "tools")

    def run(files: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return subprocess.run([sys.executable, copy, *words], capture_output=True, text=True, check=False)

    return run


def found(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the places that were complained about."""
    return [line.rpartition(": ")[0].partition(": ")[0] for line in done.stderr.splitlines()[1:-1]]


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("crates/a/tests/a.rs", f"    std::thread::{NAME}(Duration::from_secs(1));"),
        ("crates/a/tests/a.rs", f"    tokio::time::{NAME}(PAUSE).await;"),
        ("crates/a/tests/a.rs", f"    {NAME}_until(deadline).await;"),
        ("crates/a/tests/a.rs", "    thread::park_" + "timeout(LIMIT);"),
        ("crates/a/tests/deep/mod.rs", f'    Command::new("{NAME}").arg("1")'),
        ("crates/a/tests/a.rs", f'    let script = "echo ready\\n{NAME} 1000";'),
        ("crates/a/tests/a.rs", f'    let script = format!("echo ready; {NAME} {{seconds}}");'),
        ("crates/test-nccl/src/a.rs", f"    {WAITS}"),
        ("tests/a/test_a.py", f"    time.{NAME}(0.5)"),
        ("tests/a/test_a.py", f"    {NAME}(0.5)"),
        ("tests/a/test_a.py", f"    await asyncio.{NAME}(0.5)"),
        ("tests/a/test_a.py", f"    torch.cuda._{NAME}(1000)"),
        ("tests/a/test_a.py", "    threading.Event()." + "wait(0.5)"),
        ("tests/a/test_a.py", f'    Popen(["{NAME}", "1000"])'),
        ("tests/a/test_a.py", f'    script = f"trap true INT; {NAME} {{number}} & wait"'),
        ("bench/tests/test_a.py", f'    script = "import time; time.{NAME}(1000)"'),
        ("tests/a/init.sh", f'{NAME} "$1"'),
        ("tests/a/prepare", f"while :; do {NAME} .5; done"),
        ("tests/a/pod.yml", f"command: [{NAME}, '3600']"),
        ("tests/a/main.go", "\ttime.Sle" + "ep(time.Second)"),
    ],
)
def test_a_sleep_needs_a_reason_on_its_line(check: Check, file: str, line: str) -> None:
    mark = "//" if file.endswith((".rs", ".go")) else "#"
    before = f"{mark} {NAME}: of another line\n"
    refused = check({file: f"{before}{line}\n"})
    assert refused.returncode == 1
    assert found(refused) == [f"{file}:2"], refused.stderr
    assert refused.stderr.endswith("the reason: `// sleep: why` or `# sleep: why`\n")
    without_words = check({file: f"{before}{line} {mark} {NAME}: \n"})
    assert found(without_words) == [f"{file}:2"]

    allowed = check({file: f"{before}{line} {mark} {NAME}: between two looks\n"})
    assert (allowed.returncode, allowed.stdout, allowed.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("crates/a/src/a.rs", WAITS),
        ("bench/harness/printing.py", f"time.{NAME}(1)"),
        ("tools/wait", f"{NAME} 1"),
        ("crates/a/tests/a.rs", f"bell.{NAME}(limit);"),
        ("crates/a/tests/a.rs", f"fn {NAME}(limit: Duration) {{"),
        ("crates/a/tests/a.rs", f"/// It may {NAME} until it is woken."),
        ("tests/a/test_a.py", f"def {NAME}(limit: float) -> None:"),
        ("tests/a/test_a.py", f'assert found.name == "{NAME}"'),
    ],
)
def test_what_is_no_test_or_no_sleep_is_left_alone(check: Check, file: str, line: str) -> None:
    done = check({file: f"{line}\n"})
    assert (done.returncode, done.stderr) == (0, "")


def test_of_other_sources_what_is_compiled_for_tests_only_counts(check: Check) -> None:
    library = f"""\
//! Not a test: {NAME} is called below.
#[cfg(not(test))]
fn product() {{
    {WAITS}
}}

#[cfg(test)]
mod tests {{
    const BRACKETS: (&str, char, &str) = ("}}", '}}', r#"}}"#); // }}

    #[test]
    fn waits<'a>() {{
        {WAITS}
    }}
}}

fn more_of_the_product() {{
    {WAITS}
}}

#[cfg(all(test, not(loom)))]
pub(crate) mod simulation;

#[cfg(test)]
use crate::tests::{{one, other}};

fn still_the_product() {{
    {WAITS}
}}
"""
    files = {
        "crates/a/src/lib.rs": library,
        "crates/a/src/simulation/mod.rs": f"mod world;\n{WAITS}\n",
        "crates/a/src/simulation/world.rs": f"{WAITS}\n",
        "crates/a/src/run.rs": "#[cfg(test)]\nmod tests;\n",
        "crates/a/src/run/tests.rs": f"{WAITS}\n",
        "crates/a/src/run/other.rs": f"{WAITS}\n",
        "crates/a/src/all.rs": f"#![cfg(test)]\n{WAITS}\n",
    }
    assert found(check(files)) == [
        "crates/a/src/all.rs:2",
        "crates/a/src/lib.rs:13",
        "crates/a/src/run/tests.rs:1",
        "crates/a/src/simulation/mod.rs:2",
        "crates/a/src/simulation/world.rs:1",
    ]


def test_the_list_has_all_with_their_reasons(check: Check) -> None:
    lines = [f"time.{NAME}(1)  # {NAME}: between two looks", f"time.{NAME}(2)"]
    done = check({"tests/test_a.py": "\n".join(lines)}, "--list")
    assert done.returncode == 0
    assert done.stdout == "".join(f"tests/test_a.py:{number}: {line}\n" for number, line in enumerate(lines, 1))
