"""An API server that refuses, is slow, forgets to answer or is away: jobs take longer, and nothing else. Needs root."""

from __future__ import annotations

import pytest
from jobs import UNTIL_ENOUGH, await_job, enough, remove_job, ronde_job
from laptop import Command, Laptop, through
from testbed import Fault, Faults

# Every kind of request that a job needs, so that each has its bad day.
READS = [Fault(["GET"], "/api/v1/nodes"), Fault(["GET"], "/api/v1/pods")]
WRITES = [
    Fault(["POST"], "/configmaps"),
    Fault(["POST"], "/pods"),
    Fault(["POST"], "/services"),
    Fault(["POST"], "/secrets"),
    Fault(["PATCH"], "/pods/"),
    Fault(["DELETE"], "/pods/"),
    Fault(["DELETE"], "/configmaps/"),
]
OF_THE_CONTROLLER = [
    Fault(["GET", "PUT", "POST"], "/leases"),
    Fault(["GET"], "/rondejobs"),
    Fault(["PATCH"], "/status"),
    Fault(["POST"], "/events"),
]
WRITES_OF_THE_CONTROLLER = [
    Fault(["PUT", "POST"], "/leases"),
    Fault(["PATCH"], "/status"),
    Fault(["POST"], "/events"),
]


def all_of(kinds: list[Fault], **what: object) -> list[Fault]:
    """Return faults for the first two requests of every kind."""
    return [Fault(kind.methods, kind.path, times=2, **what) for kind in kinds]  # type: ignore[arg-type]


DAYS = {
    "conflict": all_of(WRITES, status=409),
    "too many requests": all_of(READS + WRITES, status=429, retry_after=1),
    "internal error": all_of(READS + WRITES, status=500),
    "unavailable": all_of(READS + WRITES, status=503),
    "lost answers": all_of(READS + WRITES, lose_answer=True),
    "slow": [Fault(delay=0.7)],
}
DAYS_OF_THE_CONTROLLER = {
    "conflict": all_of(WRITES + WRITES_OF_THE_CONTROLLER, status=409),
    "too many requests": all_of(READS + WRITES + OF_THE_CONTROLLER, status=429, retry_after=1),
    "internal error": all_of(READS + WRITES + OF_THE_CONTROLLER, status=500),
    "lost answers": all_of(READS + WRITES + OF_THE_CONTROLLER, lose_answer=True),
    "slow": [Fault(delay=0.7)],
}


@pytest.mark.parametrize("day", DAYS)
def test_the_command_gets_over_it(laptop: Laptop, faults: Faults, day: str) -> None:
    faults.set(*DAYS[day])
    command = laptop.start_run("steady", 6, "true", kubeconfig=faults.kubeconfig())
    assert command.end(180) == 0, command
    assert "6 GPUs free again" in command.said()
    assert any(request.hit for request in faults.requests())


@pytest.mark.parametrize("day", DAYS_OF_THE_CONTROLLER)
def test_the_controller_gets_over_it(laptop: Laptop, faults: Faults, day: str) -> None:
    cluster = laptop.cluster
    faults.set(*DAYS_OF_THE_CONTROLLER[day])
    controller = laptop.start_controller(kubeconfig=through(cluster, faults))
    cluster.apply(ronde_job("steady", 6, "true"))
    await_job(cluster, "steady", "Succeeded", seconds=180)
    assert controller.running(), controller
    assert any(request.hit for request in faults.requests())
    remove_job(cluster, "steady")


def test_the_api_server_is_started_anew_while_a_job_waits_starts_and_runs(laptop: Laptop) -> None:
    cluster = laptop.cluster
    controller = laptop.start_controller()
    waits = laptop.start_run("waits", 6, "true")
    cluster.apply(ronde_job("runs", 6, UNTIL_ENOUGH))

    def check(command: Command) -> None:
        assert command.running(), str(command)

    await_job(cluster, "runs", "Running", seconds=120)
    cluster.restart_api_server(away=2)
    check(controller)
    enough(cluster, "runs")
    await_job(cluster, "runs", "Succeeded", seconds=120)
    assert waits.end(120) == 0, waits
    remove_job(cluster, "runs")


def test_a_login_that_ends_ends_the_command_and_not_the_job(laptop: Laptop, faults: Faults) -> None:
    def start() -> Command:
        return laptop.start_run("outlives", 6, f"{UNTIL_ENOUGH}; echo trained", kubeconfig=faults.kubeconfig())

    command = start()
    command.await_said("✓ started")
    faults.set(Fault(status=401))
    # Connections are checked when they are made.
    laptop.cluster.restart_api_server(away=1)
    assert command.end(120) == 1, command
    assert "error: the cluster does not accept who we are" in command.said()
    assert "note: job outlives goes on; the same command shows it again" in command.said()
    faults.set()
    again = start()
    again.await_said("going on with job outlives")
    enough(laptop.cluster, "outlives")
    assert again.end(180) == 0, again
    assert again.output().count("trained") == 6, again
