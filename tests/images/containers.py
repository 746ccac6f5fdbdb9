"""How tests start containers and know that these are ready; what users type is written here as they type it."""

from __future__ import annotations

from daemon import Daemon

from waiting import eventually

SSHD_AS_USERS_START_IT = ["bash", "-c", "/usr/sbin/sshd -p 12345; sleep infinity"]  # sleep: as in docs/containers.md

# How a container ends that has not ended when it was told to: as `docker stop` kills it in the end.
KILLED = "137"


def await_server(machine: Daemon, container: str) -> None:
    """Wait until the container's ssh server answers, as the health check sees it."""

    def answers() -> bool:
        listening = "ls /run/ronde/sshd.*.listen && /usr/lib/ronde/healthcheck"
        return machine.result("exec", container, "sh", "-c", listening).returncode == 0

    eventually(answers, lambda: machine.docker("logs", container))


def await_line(machine: Daemon, container: str, text: str) -> None:
    """Wait until the container has printed a text."""

    def printed() -> bool:
        done = machine.result("logs", container)
        return text in done.stdout + done.stderr

    eventually(printed, lambda: str(machine.result("logs", container)))


def exit_status(machine: Daemon, container: str) -> str:
    """Return the status that a container has ended with."""
    return machine.docker("inspect", "--format={{.State.ExitCode}}", container).strip()
