"""Of several controllers one acts, and another follows it when it ends, is killed or sleeps. Needs root."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator

import pytest
from jobs import await_definitions
from laptop import RONDE
from testbed import Cluster, wait_for


class Manager:
    """A controller as a process, and what it says of itself."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        command = [RONDE, "kube", "manager", "--listen", f"127.0.0.1:{self.port}", "--namespace", "default"]
        environment = {**os.environ, **cluster.environment(), "POD_NAME": name}
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    def leads(self) -> bool:
        """Return whether it acts, by its own account."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as answer:
                return "\nronde_leader 1\n" in answer.read().decode()
        except OSError:
            return False

    def end(self, number: signal.Signals) -> tuple[int, str]:
        """Send it a signal, and return its exit status and last words."""
        self.process.send_signal(number)
        words = self.process.communicate(timeout=60)[1]
        return self.process.returncode, words


@pytest.fixture(scope="module", autouse=True)
def definition(cluster: Cluster) -> Iterator[None]:
    printed = subprocess.run(
        [RONDE, "kube", "install", "--print"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    (definition,) = (part for part in printed.split("---\n") if "\nkind: CustomResourceDefinition\n" in part)
    cluster.kubectl("apply", "--filename=-", input=definition)
    await_definitions(cluster)
    yield
    cluster.kubectl("delete", "--filename=-", input=definition)
    cluster.kubectl("delete", "lease", "ronde-manager", "--ignore-not-found")


@contextlib.contextmanager
def two_managers(cluster: Cluster) -> Iterator[tuple[Manager, Manager]]:
    first = Manager(cluster, "first")
    managers = [first]
    try:
        wait_for("the first to lead", first.leads)
        managers.append(Manager(cluster, "second"))
        yield managers[0], managers[1]
    finally:
        for manager in managers:
            manager.process.kill()
            manager.process.communicate()


def test_one_that_ends_in_order_is_followed_at_once(cluster: Cluster) -> None:
    with two_managers(cluster) as (first, second):
        assert first.end(signal.SIGTERM) == (0, "")
        lease = cluster.get("/apis/coordination.k8s.io/v1/namespaces/default/leases/ronde-manager")
        assert lease["spec"].get("holderIdentity") != "first", "the second would have to wait until it runs out"
        wait_for("the second to lead", second.leads)


def test_one_that_sleeps_is_followed_and_does_nothing_more_when_it_wakes_up(cluster: Cluster) -> None:
    with two_managers(cluster) as (first, second):
        first.process.send_signal(signal.SIGSTOP)
        wait_for("the second to lead", second.leads)
        status, words = first.end(signal.SIGCONT)
        assert status == 1
        assert "second has taken over" in words or "the lease could not be renewed" in words
        assert second.leads()
