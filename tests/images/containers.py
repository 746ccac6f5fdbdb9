"""How tests start containers and know that these are ready; what users type is written here as they type it."""

from __future__ import annotations

import time
from collections.abc import Callable

from daemon import Daemon

SSHD_AS_USERS_START_IT = ["bash", "-c", "/usr/sbin/sshd -p 12345; sleep infinity"]


def eventually(check: Callable[[], bool], seconds: float = 20) -> bool:
    """Ask again until the answer is yes or the time is up."""
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def await_server(machine: Daemon, container: str) -> None:
    """Wait until the container's ssh server answers, as the health check sees it."""

    def answers() -> bool:
        listening = "ls /run/ronde/sshd.*.listen && /usr/lib/ronde/healthcheck"
        return machine.result("exec", container, "sh", "-c", listening).returncode == 0

    assert eventually(answers), machine.docker("logs", container)


def await_line(machine: Daemon, container: str, text: str) -> None:
    """Wait until the container has printed a text."""

    def printed() -> bool:
        done = machine.result("logs", container)
        return text in done.stdout + done.stderr

    assert eventually(printed), machine.result("logs", container)
