"""Runs the two commands of README.md, as they are written there, and tells how long each takes.

python tests/setup/readme_commands.py                    runs them in this checkout
python tests/setup/readme_commands.py SUITE root|user    runs them in a bare system of Debian: sid, trixie, bookworm
                                                         (root; an ordinary user's packages are installed first, with
                                                         the command that `make` prints)

The output of each goes into a file in target/readme-commands.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bare import REPOSITORY, BareSystem

Run = Callable[[str], "subprocess.CompletedProcess[str]"]


def commands() -> list[str]:
    """Return the commands of README.md's section "Two commands"."""
    section = (REPOSITORY / "README.md").read_text().split("\n## Two commands\n")[1].split("\n## ")[0]
    block = re.search(r"^```\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    if block is None:
        raise SystemExit("error: README.md has no commands in its section 'Two commands'")
    return [line.split("#")[0].strip() for line in block[1].splitlines()]


def install_command(refusal: str) -> str:
    """Return the command that a refusal of tools/setup tells root to run."""
    found = re.search(r"as root: (.*?)(?: \(.*\))?$", refusal, re.MULTILINE)
    if found is None:
        raise SystemExit(f"error: no command in {refusal!r}")
    return found[1]


def run_all(run: Run, logs: Path) -> bool:
    """Run the commands one after the other, and return whether all succeeded."""
    logs.mkdir(parents=True, exist_ok=True)
    succeeded = True
    for command in commands():
        started = time.monotonic()
        done = run(command)
        log = logs / f"{command.replace(' ', '-')}.log"
        log.write_text(done.stdout)
        succeeded = succeeded and done.returncode == 0
        print(f"{command:<16} {time.monotonic() - started:6.0f} s   status {done.returncode}   {log}", flush=True)
    return succeeded


def here(command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this checkout."""
    return subprocess.run(
        ["bash", "-c", command],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def main() -> None:
    """Do what the command line says."""
    logs = REPOSITORY / "target" / "readme-commands"
    if len(sys.argv) == 1:
        sys.exit(not run_all(here, logs))
    suite, user = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        system = BareSystem(suite, Path(folder), user)
        if user != "root":
            refusal = system.run("make", "test").stdout
            print(refusal, end="", flush=True)
            system.run("bash", "-c", install_command(refusal), user="root").check_returncode()
        sys.exit(not run_all(lambda command: system.run("bash", "-c", command), logs / f"{suite}-{user}"))


if __name__ == "__main__":
    main()
