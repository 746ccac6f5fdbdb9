"""Managers that are many, late, killed or told to stop: one job a GPU, and every GPU comes back. Needs root."""

from __future__ import annotations

import re
import signal
from typing import Any

import pytest
from jobs import (
    A_WHILE,
    SLOW_START,
    UNTIL_ENOUGH,
    await_all_free,
    await_job,
    await_left,
    enough,
    remove_job,
    ronde_job,
    status,
)
from laptop import Laptop, through
from pods import FOREVER, await_phase, remove, shell_pod
from testbed import Fault, Faults, wait_for
from witness import Witness


def test_of_two_who_want_the_same_gpus_one_waits(laptop: Laptop) -> None:
    with Witness(laptop.cluster) as witness:
        commands = [laptop.start_run(name, 6, A_WHILE) for name in ("one", "other")]
        assert [command.end() for command in commands] == [0, 0]
        assert sum("waiting for" in command.said() for command in commands) <= 1
        await_left(laptop.cluster)
    # Whoever gave way has pods of a later attempt.
    served = {re.sub(r"-r\d+$", "", name) for name in witness.served}
    assert served == {"one-chief", "one-worker-0", "other-chief", "other-worker-0"}


def test_gpus_that_are_taken_between_plan_and_place_are_planned_around(laptop: Laptop, faults: Faults) -> None:
    cluster = laptop.cluster
    # The scheduler is let at the pods only after a while, in which somebody takes what was planned.
    faults.set(Fault(methods=["PATCH"], path="/pods/late-", times=2, delay=4))
    with Witness(cluster):
        command = laptop.start_run("late", 3, "true", kubeconfig=faults.kubeconfig())
        wait_for("the plan", lambda: any(request.hit for request in faults.requests()))
        cluster.apply(shell_pod("quicker", FOREVER, gpus=3, node="node-2"))
        await_phase(cluster, "quicker", "Running")
        assert command.end() == 0, command
    assert "did not get its place on node-2" in command.said()
    assert "job late · 3 GPUs · node-1: 3" in command.said()
    remove(cluster, "quicker")


def test_a_command_that_is_killed_and_never_started_again_gives_all_gpus_back(laptop: Laptop) -> None:
    cluster = laptop.cluster
    command = laptop.start_run("orphan", 6, UNTIL_ENOUGH, ttl=1)
    command.await_said("✓ started")
    command.kill()
    assert cluster.free_gpus()["node-1"] == 0, "the training goes on"
    enough(cluster, "orphan")
    await_all_free(cluster)
    await_phase(cluster, "orphan-chief", "Succeeded")
    # The next job takes away what is left, since its time is over.
    following = laptop.start_run("following", 1, A_WHILE)
    assert following.end() == 0, following
    await_left(cluster)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_command_that_is_told_to_stop_takes_its_job_along(laptop: Laptop, number: signal.Signals, code: int) -> None:
    command = laptop.start_run("stopped", 6, f"exec {FOREVER}")
    command.await_said("✓ started")
    command.kill(number)
    assert command.end() == code
    assert "job stopped deleted" in command.said()


def test_a_command_whose_terminal_goes_away_goes_on_if_nohup_started_it(laptop: Laptop) -> None:
    # What is ignored here, its children begin with, as those of nohup do.
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        command = laptop.start_run("stays", 6, UNTIL_ENOUGH)
    finally:
        signal.signal(signal.SIGHUP, before)
    command.await_said("✓ started")
    command.tell(signal.SIGHUP)
    enough(laptop.cluster, "stays")
    assert command.end() == 0, command
    assert "done in" in command.said()


def test_a_killed_command_is_gone_on_with_by_another_of_the_same_name(laptop: Laptop) -> None:
    command = laptop.start_run("handed", 6, UNTIL_ENOUGH)
    command.await_said("✓ started")
    command.kill()
    again = laptop.start_run("handed", 6, UNTIL_ENOUGH)
    again.await_said("going on with job handed")
    enough(laptop.cluster, "handed")
    assert again.end() == 0, again
    assert "6 GPUs free again" in again.said()


def test_a_job_that_is_made_again_under_the_same_name_starts_at_once(laptop: Laptop) -> None:
    # DNS servers remember for half a minute where the first one's chief was.
    for _ in range(2):
        command = laptop.start_run("again", 6, "true", "--start-deadline", 20)
        assert command.end() == 0, command
        await_left(laptop.cluster)


def test_another_controller_takes_over_when_the_first_is_killed(laptop: Laptop) -> None:
    cluster = laptop.cluster
    first = laptop.start_controller("first")
    cluster.apply(ronde_job("inherited", 6, UNTIL_ENOUGH))
    await_job(cluster, "inherited", "Running")
    laptop.start_controller("second")
    first.kill()
    enough(cluster, "inherited")
    ended = await_job(cluster, "inherited", "Succeeded")
    assert ended["nodes"] == "node-1: 5, node-3: 1"
    remove_job(cluster, "inherited")


# How a job gets into a phase and stays there for as long as a test needs: what it runs, what else is asked for, and
# what is slow meanwhile. A job whose pods start at once is not told to be Scheduled.
PHASES: dict[str, tuple[str, dict[str, Any], list[Fault]]] = {
    "Placing": ("true", {}, [Fault(methods=["PATCH"], path="/pods/deleted-", delay=2)]),
    "Scheduled": ("true", {"template": SLOW_START}, []),
    "Running": (f"exec {FOREVER}", {}, []),
    "Succeeded": ("true", {}, []),
    "Failed": ("exit 1", {}, []),
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_job_that_is_deleted_leaves_nothing(laptop: Laptop, faults: Faults, phase: str) -> None:
    cluster = laptop.cluster
    script, spec, slow = PHASES[phase]
    faults.set(*slow)
    laptop.start_controller(kubeconfig=through(cluster, faults))
    cluster.apply(ronde_job("deleted", 6, script, ttlSecondsAfterFinished=1000, **spec))
    await_job(cluster, "deleted", phase)
    remove_job(cluster, "deleted")
    await_all_free(cluster)


def test_a_job_that_is_deleted_while_it_claims_gpus_leaves_nothing(laptop: Laptop, faults: Faults) -> None:
    """Nobody is told of the claim, which takes moments: the first pod is made, and its manager waits for the answer."""
    cluster = laptop.cluster
    faults.set(Fault(methods=["POST"], path=r"/pods(\?|$)", times=1, hold=True))
    laptop.start_controller(kubeconfig=through(cluster, faults))
    cluster.apply(ronde_job("deleted", 6, "true"))
    wait_for("the answer to be held", lambda: faults.held() == 1)
    cluster.kubectl("delete", "rondejob", "deleted", "--wait=true", "--timeout=60s")
    faults.release()
    await_left(cluster)
    await_all_free(cluster)


@pytest.mark.parametrize("reason", ["NotEnoughGpus", "Retrying", "Suspended"])
def test_a_job_that_is_deleted_while_it_waits_leaves_nothing(laptop: Laptop, reason: str) -> None:
    cluster = laptop.cluster
    laptop.start_controller()
    if reason == "NotEnoughGpus":
        cluster.apply(shell_pod("theirs", FOREVER, gpus=5, node="node-1"))
        await_phase(cluster, "theirs", "Running")
    is_suspended, retries = reason == "Suspended", 3 if reason == "Retrying" else 0
    cluster.apply(ronde_job("deleted", 6, "exit 1", suspend=is_suspended, retries=retries))
    wait_for(
        lambda: f"the job to wait: {status(cluster, 'deleted')}",
        lambda: status(cluster, "deleted").get("reason") == reason,
    )
    cluster.kubectl("delete", "rondejob", "deleted", "--wait=true", "--timeout=60s")
    if reason == "NotEnoughGpus":
        remove(cluster, "theirs")
    await_left(cluster)
