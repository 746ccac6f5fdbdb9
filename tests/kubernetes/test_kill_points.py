"""A manager is killed after every single thing that it writes, one run each; what it began comes to a good end.

Nothing is left to luck: the API server does what was asked for, and holds its answer until the manager is killed. A run
without any such thing tells what is written; since some of it is under way at the same time, a write is known by its
kind, and by how many of that kind came before. Every point is printed. Needs root.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from jobs import await_all_free, await_job, await_left, left, ronde_job, status
from laptop import Command, Laptop, through
from testbed import Cluster, ClusterError, Fault, Faults, wait_for
from testbed.faults import Request

WRITES = ("POST", "PUT", "PATCH", "DELETE")
# Whatever a job is made of; the lease is the controller's own affair.
OBJECTS = re.compile("/(pods|services|secrets|configmaps|events|rondejobs)")


@dataclass(frozen=True)
class Point:
    """A write: what is done with which objects, and how many times it was done before."""

    method: str
    objects: str
    before: int

    def hold(self, faults: Faults) -> None:
        """Have the answer to this write not come."""
        path = f"/{self.objects}"
        faults.set(Fault(methods=(self.method,), path=path, skip=self.before, times=1, hold=True))


def points(faults: Faults) -> list[Point]:
    """Return all writes since what was written was last forgotten."""
    counts: Counter[tuple[str, str]] = Counter()
    found = []
    for request in faults.requests():
        if request.method in WRITES and (objects := OBJECTS.search(request.path)):
            kind = (request.method, objects[1])
            found.append(Point(*kind, counts[kind]))
            counts[kind] += 1
    return found


def assert_killed_at_all(kinds: set[str], killed: list[tuple[Point, str]]) -> None:
    """Assert that no kind was missed; how often one is written may depend on who is faster."""
    assert {point.objects for point, _ in killed if point.before == 0} == kinds


def test_a_controller_that_is_killed_after_any_write_is_followed_by_another(
    laptop: Laptop, faults: Faults, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = laptop.cluster
    kubeconfig = through(cluster, faults)

    def run(name: str, point: Point | None) -> str:
        if point:
            point.hold(faults)
        faults.forget()
        controller = laptop.start_controller(kubeconfig=kubeconfig)
        cluster.apply(ronde_job(name, 2, "true", policy="spread"))

        def has_ended() -> bool:
            return status(cluster, name).get("phase") == "Succeeded" and left(cluster) == {f"rondejobs/{name}"}

        what = kill_after_write(faults, controller, has_ended)
        if what:
            controller = laptop.start_controller(kubeconfig=kubeconfig)
        try:
            await_job(cluster, name, "Succeeded")
            await_left(cluster, f"rondejobs/{name}")
            await_all_free(cluster)
        except ClusterError as error:
            raise ClusterError(f"killed after {what}: {error}\n{controller}") from None
        controller.kill()
        cluster.kubectl("delete", "rondejob", name, "--wait=true")
        return what

    assert run("undisturbed", None) == ""
    killed = []
    for number, point in enumerate(points(faults), 1):
        if what := run(f"survivor-{number}", point):
            killed.append((point, what))
    tell("controller", killed, capsys)
    assert_killed_at_all({"pods", "services", "secrets", "configmaps", "events", "rondejobs"}, killed)


def test_a_command_that_is_killed_after_any_write_leaves_no_gpu_behind_and_can_be_gone_on_with(
    laptop: Laptop, faults: Faults, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = laptop.cluster
    flags = ["--policy", "spread", "--start-deadline", 15]

    def start(name: str) -> Command:
        # Kept, since the pods alone tell whoever goes on with it how it ended.
        return laptop.start_run(name, 2, "true", *flags, ttl=1000, kubeconfig=faults.kubeconfig())

    faults.forget()
    command = start("undisturbed")
    assert command.end() == 0, command
    written = points(faults)
    remove_command_job(cluster, "undisturbed")
    killed = []
    for number, point in enumerate(written, 1):
        name = f"survivor-{number}"
        point.hold(faults)
        faults.forget()
        command = start(name)

        def has_ended(command: Command = command) -> bool:
            return not command.running()

        what = kill_after_write(faults, command, has_ended)
        if not what:
            assert command.end() == 0, command
            remove_command_job(cluster, name)
            continue
        killed.append((point, what))
        try:
            # Nobody comes: what was let at GPUs ends by itself.
            await_all_free(cluster)
            again = laptop.start_run(name, 2, "true", *flags, ttl=1000)
            assert again.end() == 0, f"killed after {what}: {again}"
            remove_command_job(cluster, name)
        except ClusterError as error:
            raise ClusterError(f"killed after {what}: {error}") from None
    tell("command", killed, capsys)
    assert_killed_at_all({"pods", "services", "secrets", "configmaps"}, killed)


def remove_command_job(cluster: Cluster, name: str) -> None:
    """Delete what owns all that a command has made."""
    cluster.kubectl("delete", "configmap", name)
    await_left(cluster)


def kill_after_write(faults: Faults, manager: Command, has_ended: Callable[[], bool]) -> str:
    """Kill a manager after the write that is held, and say which it was; nothing if the job ended before."""

    def held() -> Request | None:
        done = (request for request in faults.requests() if request.hit and request.status)
        return next(done, None) if faults.held() else None

    def look() -> Request | bool:
        return held() or has_ended()

    found = wait_for(lambda: f"a write to be held, or the end: {manager}", look)
    what = ""
    if isinstance(found, Request):
        manager.kill()
        what = f"{found.method} {found.path.partition('?')[0]}"
    faults.set()
    return what


def tell(manager: str, killed: list[tuple[Point, str]], capsys: pytest.CaptureFixture[str]) -> None:
    """Print the points at which a manager was killed."""
    with capsys.disabled():
        print()
        for count, (point, what) in enumerate(killed, 1):
            print(f"  {manager} killed after write {count:2}: {what}, {point.before} such before")
