"""Starts `ronde run` on a test host and watches it: what it says, which processes make up the job, what it leaves.

The launcher runs on host 1 as a person would start it there: in an environment of its own, with the installed wheel
on the path. What it prints is read all the time, so that a test can wait for a line.

    with start(hosts, "-np", 2, "-H", "h1,h2", "hostname") as job:
        job.wait_for_lines("[1] h2")
        assert job.end().status == 0
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from hosts import Hosts
from processes import Process, processes_of
from sshd import HOME, PORT
from waiting import PATIENCE, eventually

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
BIN = Path(sys.executable).parent
ENVIRONMENT = {
    "HOME": HOME,
    "PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
    "LANG": "C.UTF-8",
    "PYTHONUNBUFFERED": "1",
}
# A heartbeat timeout longer than PATIENCE: a loss that is reported within PATIENCE was noticed by an event.
LATE_HEARTBEAT = ("--heartbeat-timeout", 10 * PATIENCE)


class Finished(NamedTuple):
    """A launcher that has ended."""

    status: int
    output: str
    errors: str
    seconds: float

    def lines_of(self, rank: int) -> list[str]:
        """Return what a rank printed on its standard output, without the launcher's label."""
        prefix = f"[{rank}] "
        return [line[len(prefix) :] for line in self.output.splitlines() if line.startswith(prefix)]

    def told(self) -> str:
        """Return what the launcher itself said, with placeholders for what is different every time."""
        return plain("".join(line for line in self.errors.splitlines(True) if not re.match(r"\[\d+\]", line)))

    def complaint(self) -> str:
        """Return the error that the launcher ended with, from its first word to its last."""
        told = self.told()
        start = re.search("^error: ", told, re.MULTILINE)
        return told[start.start() :] if start else ""

    def __str__(self) -> str:
        texts = f"--- output\n{self.output[-2000:]}\n--- errors\n{self.errors[-4000:]}"
        return f"status {self.status} after {self.seconds:.1f} s\n{texts}"

    # What a failed assertion shows.
    __repr__ = __str__


def plain(text: str) -> str:
    """Put placeholders for fingerprints, job names, times and process numbers."""
    for pattern, placeholder in (
        (r"SHA256:[A-Za-z0-9+/]{43}", "SHA256:<fingerprint>"),
        (r"\bjob [0-9a-f]{4}\b", "job <id>"),
        (r"\b\d+(\.\d+)? m?s\b", "<time>"),
        (r"\b(process|pid) \d+", r"\1 <pid>"),
    ):
        text = re.sub(pattern, placeholder, text)
    return text


class Job:
    """A launcher that runs on host 1, and the processes it has started everywhere."""

    def __init__(self, hosts: Hosts, process: subprocess.Popen[bytes], begin: float) -> None:
        self.hosts = hosts
        self.process = process
        self._begin = begin
        self._changed = threading.Condition()
        self._texts = {"output": bytearray(), "errors": bytearray()}
        self._readers = [
            threading.Thread(target=self._read, args=(name, stream), daemon=True)
            for name, stream in (("output", process.stdout), ("errors", process.stderr))
            if stream is not None
        ]
        # How many of its outputs are still open.
        self._reading = len(self._readers)
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def _read(self, name: str, stream: IO[bytes]) -> None:
        # `read1` gives what is there without waiting for more.
        while block := stream.read1(1 << 16):  # type: ignore[attr-defined]
            with self._changed:
                self._texts[name] += block
                self._changed.notify_all()
        with self._changed:
            self._reading -= 1
            self._changed.notify_all()

    def text(self, name: str = "output") -> str:
        """Return what was printed so far."""
        with self._changed:
            return self._texts[name].decode(errors="replace")

    def wait_for_lines(self, *wanted: str, name: str = "output", seconds: float = PATIENCE) -> None:
        """Wait until each of these has been printed as a whole line."""

        def missing() -> set[str]:
            return set(wanted).difference(self._texts[name].decode(errors="replace").splitlines())

        with self._changed:
            self._changed.wait_for(lambda: not missing() or self._reading == 0, seconds)
            assert not missing(), f"{missing()} did not show; so far: {self._last_words()}"

    def _last_words(self) -> str:
        return "".join(f"\n--- {name}\n{text[-2000:].decode(errors='replace')}" for name, text in self._texts.items())

    def wait_until_up(self, ranks: int) -> None:
        """Wait until every rank has printed "up"."""
        self.wait_for_lines(*(f"[{rank}] up" for rank in range(ranks)))

    def end(self, seconds: float = PATIENCE) -> Finished:
        """Wait for the launcher's end and return all it said."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the launcher still runs after {seconds:.0f} s: {self._last_words()}") from None
        took = time.monotonic() - self._begin
        for reader in self._readers:
            reader.join(PATIENCE)
            assert not reader.is_alive(), "somebody still holds the launcher's output"
        return Finished(status, self.text("output"), self.text("errors"), took)

    def processes(self, role: str) -> list[Process]:
        """Return the job's processes that play this role; see `roles`."""
        return [process for found, process in roles(self.hosts) if found == role]

    def wait_for(self, role: str, seconds: float = PATIENCE) -> Process:
        """Wait until somebody plays this role, and return who."""
        return eventually(lambda: next(iter(self.processes(role)), None), f"a {role}", seconds)


def start(hosts: Hosts, *words: object, port: int = PORT, **options: Any) -> Job:
    """Start `ronde run` with these words on host 1; the options are those of `start_command`."""
    return start_command(hosts, ["ronde", "run", "-p", port, *words], **options)


def start_command(
    hosts: Hosts,
    command: Sequence[object],
    env: Mapping[str, str] | None = None,
    folder: str = HOME,
    **options: Any,
) -> Job:
    """Start any command on host 1, with these variables besides the usual ones, in that folder of the host."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    begin = time.monotonic()
    process = subprocess.Popen(
        [*hosts.enter(1), "env", "-C", folder, *(str(word) for word in command)],
        env={**ENVIRONMENT, **(env or {})},
        **{**pipes, **options},
    )
    return Job(hosts, process, begin)


def run(hosts: Hosts, *words: object, seconds: float = PATIENCE, **options: Any) -> Finished:
    """Run `ronde run` on host 1 to its end."""
    with start(hosts, *words, **options) as job:
        return job.end(seconds)


def roles(hosts: Hosts) -> list[tuple[str, Process]]:
    """Return all processes of jobs on all hosts with the part that each plays.

    On host 1 "launcher" is what the user started and "driver" its child, "ssh" each connection. Every host has a
    "guardian" and below it an "agent". A "rank" is what the agent started, a "child" what ranks started, at any
    remove. "sshd" is the server's side of a login, and everything else, such as the shell that becomes a guardian,
    is "other".
    """
    found = []
    for host in hosts.numbers():
        everybody = {process.pid: process for process in processes_of(hosts, host)}
        parts = ((_role(process, everybody), process) for process in everybody.values())
        found += [(part, process) for part, process in parts if part != "system"]
    return found


def _role(process: Process, everybody: Mapping[int, Process]) -> str:
    def parent() -> str:
        above = everybody.get(process.parent)
        return "system" if above is None else _role(above, everybody)

    if process.name == "sshd" and "[listener]" in process.words[0]:
        return "system"
    if "HOROVOD_RANK=" in process.environment():
        # Orphans become children of the agent, too, but have left its session, or are about to.
        is_orphan = process.session == process.pid or process.name == "setsid"
        return "rank" if parent() == "agent" and not is_orphan else "child"
    if process.words[1:2] == ("run",) and Path(process.words[0]).name in ("ronde", "horovodrun"):
        return "driver" if parent() == "launcher" else "launcher"
    # By what it does, not by its name: one that was sent to a host is called by its hash.
    if process.words[1:3] == ("agent", "--stdio"):
        return "agent" if parent() == "guardian" else "guardian"
    # While nobody is logged in yet, the server's processes are called otherwise.
    if process.name == "sshd" and process.words[0].endswith("@notty"):
        return "sshd"
    return "ssh" if process.name == "ssh" else "other"
