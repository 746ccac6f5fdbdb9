"""One machine of the cluster as far as the kernel goes: namespaces of its own, and the processes inside them.

Network, mounts, processes, host name and shared memory are the machine's own; file systems are this machine's, except
for the places that `init.sh` names. All of it hangs on one holding process, which ends when the pipe from this process
closes: so nothing is left after `close`, nor when this process is killed. Processes are started through `nsenter`,
not `ip netns exec`, which would hide the control groups.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from .errors import ClusterError, run, wait_for

INIT = Path(__file__).resolve().with_name("init.sh")


class Process:
    """A process inside, known by its number outside. It dies with the one that started it."""

    def __init__(self, name: str, log: Path, outer: subprocess.Popen[Any]) -> None:
        self.name = name
        self.log = log
        # The shell whose child it is; it ends as its child ends.
        self._outer = outer
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        self.pid = wait_for(f"{name} to start", lambda: _first(children), 10, self.check)

    def running(self) -> bool:
        """Tell whether it has not ended."""
        return self._outer.poll() is None

    def check(self) -> None:
        """Raise with the end of its log if it has ended."""
        if not self.running():
            raise ClusterError(f"{self.name} ended with status {self._outer.returncode}:\n{self.log_tail()}")

    def log_tail(self, characters: int = 3000) -> str:
        """Return the end of what it has written."""
        return self.log.read_text(errors="replace")[-characters:] if self.log.exists() else ""

    def send(self, number: signal.Signals) -> None:
        """Send it a signal; one that has ended has no use for it."""
        with contextlib.suppress(ProcessLookupError):
            if self.running():
                os.kill(self.pid, number)

    def bury(self) -> None:
        """Take note of the end of one whose namespaces are gone."""
        self._outer.wait()

    def end(self, number: signal.Signals = signal.SIGKILL, seconds: float = 10.0) -> None:
        """End it with a signal, or by force when that takes too long, and wait until it has ended."""
        self.send(number)
        try:
            self._outer.wait(seconds)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            self._outer.wait()


def _first(children: Path) -> int | None:
    with contextlib.suppress(OSError):
        return next((int(child) for child in children.read_text().split()), None)
    return None


class Namespaces:
    """The namespaces of one machine of the cluster.

    `environment` is what all its processes get to know. It seems to have `cores`, to those who count them by what the
    machine says; how many can be used at once is another matter.
    """

    def __init__(self, name: str, logs: Path, environment: Mapping[str, str], cores: int = 1) -> None:
        self.name = name
        self.logs = logs
        self._environment = {**os.environ, **environment}
        private = ["--net", "--mount", "--uts", "--ipc", "--pid", "--propagation", "private"]
        self._holder = subprocess.Popen(
            ["unshare", *private, "--fork", "--kill-child", "sh", str(INIT), name, str(cores)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environment,
            # A Ctrl-C is for this process, which then closes the pipe.
            start_new_session=True,
        )
        assert self._holder.stdout is not None
        words = self._holder.stdout.readline().split()
        if len(words) != 2 or words[0] != "ready":
            raise ClusterError(f"{name} did not start: {self._holder.communicate()[1].strip() or 'it said nothing'}")
        self.pid = int(words[1])
        self._started: list[Process] = []

    def enter(self, *namespaces: str) -> list[str]:
        """Return what to put before a command to run it inside, or only inside some of the namespaces (`net`)."""
        inside = namespaces or ("net", "mount", "uts", "ipc", "pid")
        return ["nsenter", "--target", str(self.pid), *(f"--{kind}" for kind in inside)]

    def run(self, *words: object) -> str:
        """Run a command of this machine in the network of that one, to its end."""
        return run([*self.enter("net"), *words])

    def run_inside(self, *words: object) -> str:
        """Run a command in that machine's network and mounts, to its end."""
        return run([*self.enter("net", "mount"), *words], env=self._environment)

    def start(self, name: str, *command: object, stdin: IO[bytes] | int = subprocess.DEVNULL) -> Process:
        """Start a process inside that writes to a log of its own."""
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / f"{name}.log"
        # Only children are in another process namespace. `nsenter` would make one itself, but stops when that is
        # stopped: nobody would then bury it, and without that a process namespace does not end.
        shell = ["--no-fork", "sh", "-c", '"$@"; exit $?', "sh", "setpriv", "--pdeathsig", "KILL"]
        words = [*self.enter(), *shell, *(str(word) for word in command)]
        with log.open("ab") as output:
            outer = subprocess.Popen(
                words, stdin=stdin, stdout=output, stderr=output, env=self._environment, start_new_session=True
            )
        process = Process(f"{name} of {self.name}", log, outer)
        self._started.append(process)
        return process

    def close(self) -> None:
        """End everything inside. Nothing of it is left when this returns."""
        try:
            # Closes the holder's standard input, which is its sign to end.
            self._holder.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self._holder.kill()
            self._holder.communicate()
        for process in self._started:
            process.bury()
