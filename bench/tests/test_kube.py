"""What decides about the figures on Kubernetes: which requests count, which lines, and what jobs are asked for."""

# The names of tests say what docstrings would.
# ruff: noqa: D103

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kube  # noqa: F401 - lets the test cluster be imported
from harness.jobs import JobError
from harness.report import Row
from kube.aims import LIMIT, MEMORY_LIMIT, memory_aim, queue_aims
from kube.managers import SUCCEEDED, MpiOperator, Ronde, Work
from kube.requests import requests_since
from kube.start import last_sum
from kube.watch import DELETED, Watch, pod_states

OURS = "system:serviceaccount:ronde-system:ronde-manager"


def request(who: str, verb: str, resource: str, subresource: str = "") -> str:
    about = {"resource": resource, **({"subresource": subresource} if subresource else {})}
    return json.dumps({"user": {"username": who}, "verb": verb, "objectRef": about}) + "\n"


def test_requests_count_from_an_offset_on_and_by_who_made_them(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    log.write_text(request(OURS, "create", "pods"))
    offset = log.stat().st_size
    later = [
        request(OURS, "create", "pods"),
        request(OURS, "patch", "rondejobs", "status"),
        request("system:kube-scheduler", "create", "pods", "binding"),
    ]
    with log.open("a") as content:
        content.writelines(later)
    made = requests_since(log, offset, OURS)
    assert made.own == {"create pods": 1, "patch rondejobs/status": 1}
    assert made.all == {**made.own, "create pods/binding": 1}


def test_what_comes_by_the_clock_or_from_us_is_not_counted_nor_half_a_line(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    no_object = json.dumps({"user": {"username": OURS}, "verb": "get"}) + "\n"
    lines = [request(OURS, "update", "leases"), request("admin", "create", "rondejobs"), no_object]
    log.write_text("".join(lines) + request(OURS, "create", "pods").strip())
    assert requests_since(log, 0, OURS).all.total() == 0


def line(rank: int, total: int, second: int = 1) -> str:
    return f"2026-01-01T00:00:{second:02}.123456789Z [{rank}] first allreduce: rank {rank} of 2, sum {total}\n"


def test_the_last_ranks_line_counts_by_the_nodes_clock() -> None:
    log = "2026-01-01T00:00:09.5Z Warning: noise\n" + line(1, 3, 4) + line(0, 3, 2)
    assert last_sum(log, 2) == pytest.approx(1767225604.123456)


def test_a_wrong_sum_or_a_missing_rank_is_an_error() -> None:
    with pytest.raises(JobError, match="a wrong sum"):
        last_sum(line(0, 3) + line(1, 2), 2)
    with pytest.raises(JobError, match="1 of 2 ranks"):
        last_sum(line(0, 3), 2)


class Told:
    """An API server that tells these events and then nothing more."""

    def __init__(self, *events: tuple[str, str, str]) -> None:
        self._events = events

    def follow(self, path: str, _seconds: float) -> Iterator[dict[str, Any]]:
        """Yield them."""
        assert path == "/pods"
        for kind, name, phase in self._events:
            about = {"name": name, "labels": {"job": name.partition("-")[0]}}
            yield {"type": kind, "object": {"metadata": about, "status": {"phase": phase}}}


def test_a_watch_keeps_when_a_state_was_seen_first() -> None:
    told = Told(("ADDED", "a-0", "Pending"), ("MODIFIED", "a-0", "Running"), ("ADDED", "b-0", "Running"))
    deleted = Told(*told._events, ("MODIFIED", "a-0", "Running"), ("DELETED", "a-0", "Running"))
    watch = Watch(deleted, "/pods", pod_states)  # type: ignore[arg-type]
    watch.wait("the end", lambda seen: DELETED in seen.get("a-0", {}), 10)
    (states,) = watch.seen("job", "a").values()
    assert list(states) == ["Pending", "Running", DELETED]
    assert states["Pending"] <= states["Running"] <= states[DELETED]
    assert set(watch.all()) == {"a-0", "b-0"}


def test_a_watch_that_ends_or_a_manager_that_dies_is_an_error_and_not_a_long_wait() -> None:
    with pytest.raises(JobError, match="a pod: the watch has ended"):
        Watch(Told(), "/pods", pod_states).wait("a pod", lambda seen: bool(seen), 60)  # type: ignore[arg-type]

    def dead() -> None:
        raise JobError("it is dead")

    class Silent:
        def follow(self, _path: str, _seconds: float) -> Iterator[dict[str, Any]]:
            threading.Event().wait()  # sleep: it stays silent, in a thread that is never joined
            yield {}

    with pytest.raises(JobError, match="it is dead"):
        Watch(Silent(), "/pods", pod_states).wait("a pod", lambda seen: bool(seen), 60, dead)  # type: ignore[arg-type]


def test_both_managers_are_asked_for_the_same_gpus() -> None:
    work = Work("same", 5, 8, "image", ["python3", "first.py"])
    ours, theirs = Ronde(Path("/nowhere")).job(work), MpiOperator("operator").job(work)
    assert ours["spec"]["gpus"] == 40
    worker = theirs["spec"]["mpiReplicaSpecs"]["Worker"]
    (container,) = worker["template"]["spec"]["containers"]
    assert worker["replicas"] * container["resources"]["limits"]["nvidia.com/gpu"] == 40
    assert theirs["spec"]["slotsPerWorker"] == 8


def test_only_pods_with_gpus_are_waited_for() -> None:
    pods: dict[str, dict[str, float]] = {"first-1-launcher-x7k2p": {}, "first-1-worker-0": {}, "first-1-worker-11": {}}
    assert set(MpiOperator("operator").trains(pods)) == {"first-1-worker-0", "first-1-worker-11"}
    assert Ronde(Path("/nowhere")).trains(pods) == pods


def test_a_job_has_succeeded_when_its_manager_says_so() -> None:
    assert Ronde(Path("/nowhere")).states({"status": {"phase": "Succeeded"}}) == [SUCCEEDED]
    assert SUCCEEDED not in Ronde(Path("/nowhere")).states({})
    conditions = [{"type": "Running", "status": "False"}, {"type": "Succeeded", "status": "True"}]
    assert MpiOperator("operator").states({"status": {"conditions": conditions}}) == [SUCCEEDED]


def test_more_requests_or_memory_than_the_aim_is_not_met() -> None:
    requests = next(aim for aim in queue_aims(100, 500) if "requests a job, everybody" in aim.section)
    assert [Row.judge(requests, 0, ours, 40).met for ours in (39, 41)] == [True, False]
    assert Row.judge(requests, 0, 39, 40).cells()[3:] == [
        "39.0", "MPI Operator", "40.0", "0.975x the requests", "at most 1x", "met",
    ]  # fmt: skip
    memory = memory_aim(1000, 5000)
    assert memory.theirs == LIMIT
    assert Row.judge(memory, 0, MEMORY_LIMIT + 1, MEMORY_LIMIT).met is False
