"""A manager is killed after every single thing that it writes, one run each; what it began comes to a good end.

Nothing is left to luck: the API server does what was asked for, and holds its answer until the manager is killed. The
runs go on until one ends without having written that often. Every point is printed. Needs root.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from jobs import await_all_free, await_job, await_left, left, ronde_job, status
from laptop import Command, Laptop, through
from testbed import Cluster, ClusterError, Fault, Faults, wait_for
from testbed.faults import Request

pytestmark = pytest.mark.slow

WRITES = ("POST", "PUT", "PATCH", "DELETE")
# Whatever a job is made of; the lease is the controller's own affair.
OBJECTS = "/(pods|services|secrets|configmaps|events|rondejobs)"


def test_a_controller_that_is_killed_after_any_write_is_followed_by_another(
    laptop: Laptop, faults: Faults, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = laptop.cluster
    kubeconfig = through(cluster, faults)
    points: list[str] = []
    while True:
        name = f"survivor-{len(points) + 1}"
        hold_write(faults, len(points) + 1)
        controller = laptop.start_controller(kubeconfig=kubeconfig)
        cluster.apply(ronde_job(name, 2, "true", policy="spread"))

        def has_ended(name: str = name) -> bool:
            return status(cluster, name).get("phase") == "Succeeded" and left(cluster) == {f"rondejobs/{name}"}

        point = kill_after_write(faults, controller, has_ended)
        if point:
            points.append(point)
            controller = laptop.start_controller(kubeconfig=kubeconfig)
        try:
            await_job(cluster, name, "Succeeded")
            await_left(cluster, f"rondejobs/{name}")
            await_all_free(cluster)
        except ClusterError as error:
            raise ClusterError(f"killed after write {len(points)}, {point}: {error}\n{controller}") from None
        controller.kill()
        cluster.kubectl("delete", "rondejob", name, "--wait=true")
        if not point:
            break
    tell("controller", points, capsys)
    for kind in ("pods", "services", "secrets", "configmaps", "events", "status"):
        assert any(f"/{kind}" in point for point in points), kind


def test_a_command_that_is_killed_after_any_write_leaves_no_gpu_behind_and_can_be_gone_on_with(
    laptop: Laptop, faults: Faults, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = laptop.cluster
    points: list[str] = []
    flags = ["--policy", "spread", "--start-deadline", 15]
    while True:
        name = f"survivor-{len(points) + 1}"
        hold_write(faults, len(points) + 1)
        # Kept, since the pods alone tell whoever goes on with it how it ended.
        command = laptop.start_run(name, 2, "true", *flags, ttl=1000, kubeconfig=faults.kubeconfig())

        def has_ended(command: Command = command) -> bool:
            return not command.running()

        point = kill_after_write(faults, command, has_ended)
        if not point:
            assert command.end() == 0, command
            remove_command_job(cluster, name)
            break
        points.append(point)
        try:
            # Nobody comes: what was let at GPUs ends by itself.
            await_all_free(cluster)
            again = laptop.start_run(name, 2, "true", *flags, ttl=1000)
            assert again.end() == 0, f"killed after write {len(points)}, {point}: {again}"
            remove_command_job(cluster, name)
        except ClusterError as error:
            raise ClusterError(f"killed after write {len(points)}, {point}: {error}") from None
    tell("command", points, capsys)
    for kind in ("pods", "services", "secrets", "configmaps"):
        assert any(f"/{kind}" in point for point in points), kind


def remove_command_job(cluster: Cluster, name: str) -> None:
    """Delete what owns all that a command has made."""
    cluster.kubectl("delete", "configmap", name)
    await_left(cluster)


def hold_write(faults: Faults, count: int) -> None:
    """Have the answer to this write, counted from 1, not come."""
    faults.set(Fault(methods=WRITES, path=OBJECTS, skip=count - 1, times=1, hold=True))
    faults.forget()


def kill_after_write(faults: Faults, manager: Command, has_ended: Callable[[], bool]) -> str:
    """Kill a manager after the write that is held, and say which it was; nothing if the job ended before."""

    def held() -> Request | None:
        done = (request for request in faults.requests() if request.hit and request.status)
        return next(done, None) if faults.held() else None

    def look() -> Request | bool:
        return held() or has_ended()

    found = wait_for(lambda: f"a write to be held, or the end: {manager}", look)
    if not isinstance(found, Request):
        return ""
    manager.kill()
    faults.set()
    return f"{found.method} {found.path.partition('?')[0]}"


def tell(manager: str, points: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Print the points at which a manager was killed."""
    with capsys.disabled():
        print()
        for count, point in enumerate(points, 1):
            print(f"  {manager} killed after write {count:2}: {point}")
