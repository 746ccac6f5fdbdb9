"""The machine that the test cloud runs on: namespaces of its own over the files of `prepare`, and the processes inside.

Network, files, processes and host name are the machine's own, and what is written stays in memory. All of it hangs on
one holding process, which ends when the pipe from this process closes: nothing is left after `close`, nor when this
process is killed.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

HERE = Path(__file__).resolve().parent
CLONE_NEWNET = 0x40000000

Found = TypeVar("Found")


class CloudError(Exception):
    """The test cloud, or a part of it, does not do what it should; the message says which and what it said."""


def wait_for(what: str, look: Callable[[], Found | None], seconds: float, check: Callable[[], None]) -> Found:
    """Look until there is something to see, and return it. `check` raises when it will never come."""
    end = time.monotonic() + seconds
    while True:
        check()
        found = look()
        if found:
            return found
        if time.monotonic() > end:
            raise CloudError(f"waited {seconds:g} s in vain for {what}")
        time.sleep(0.1)  # sleep: between two looks


class Machine:
    """The machine; its services are started by name, and looked at from outside."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._services: dict[str, subprocess.Popen[bytes]] = {}
        done = subprocess.run([HERE / "prepare"], stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise CloudError("the files of the test cloud could not be made; see above")
        private = ["--net", "--mount", "--uts", "--ipc", "--pid", "--propagation", "private"]
        self._holder = subprocess.Popen(
            ["unshare", *private, "--fork", "--kill-child", "sh", HERE / "init.sh", done.stdout.strip(), "memory"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # A Ctrl-C is for this process, which then closes the pipe.
            start_new_session=True,
        )
        assert self._holder.stdout is not None
        words = self._holder.stdout.readline().split()
        if len(words) != 2:
            self._holder.communicate()
            raise CloudError("the namespaces of the test cloud could not be made; is this root?")
        self.pid = int(words[1])
        self._inside = ThreadPoolExecutor(1, initializer=self._enter_network)

    def _enter_network(self) -> None:
        # Of a thread, not of the process: whatever this one thread opens is in the cloud's network.
        with Path(f"/proc/{self.pid}/ns/net").open("rb") as network:
            if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")

    def call(self, function: Callable[..., Found], *arguments: Any) -> Found:
        """Call a function of this process in the machine's network."""
        return self._inside.submit(function, *arguments).result()

    def network(self) -> list[str]:
        """Return what to put before a command to have it run here, but in the machine's network."""
        return ["nsenter", "--target", str(self.pid), "--net"]

    def _enter(self) -> list[str]:
        return ["nsenter", "--target", str(self.pid), "--net", "--mount", "--uts", "--ipc", "--pid"]

    def run(self, *words: str) -> str:
        """Run a command inside, to its end, and return what it printed."""
        done = subprocess.run([*self._enter(), *words], capture_output=True, text=True, env=_environment(), check=False)
        if done.returncode != 0:
            raise CloudError(f"`{' '.join(words)}` failed with status {done.returncode}: {done.stderr or done.stdout}")
        return done.stdout

    def start(self, name: str, *words: str) -> None:
        """Start a service inside; it writes to a log of its own."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with (self.logs / f"{name}.log").open("wb") as log:
            self._services[name] = subprocess.Popen(
                [*self._enter(), *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(),
                start_new_session=True,
            )

    def check(self) -> None:
        """Raise with the end of its log if a service has ended."""
        for name, service in self._services.items():
            if service.poll() is not None:
                tail = (self.logs / f"{name}.log").read_text(errors="replace")[-3000:]
                raise CloudError(f"{name} ended with status {service.returncode}:\n{tail}")

    def close(self) -> None:
        """End everything inside. Nothing of it is left when this returns."""
        self._inside.shutdown()
        try:
            # Closes the holder's standard input, which is its sign to end.
            self._holder.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self._holder.kill()
            self._holder.communicate()
        for service in self._services.values():
            service.wait()


def _environment() -> dict[str, str]:
    return {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL": "C.UTF-8",
        "HOME": "/root",
        "TERM": os.environ.get("TERM", "dumb"),
    }
