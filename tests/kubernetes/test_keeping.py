"""Finished jobs are kept for their logs until their time to live is over, and then nothing is left. Needs root."""

from __future__ import annotations

import itertools
import time
from datetime import datetime

from jobs import ALL_FREE, await_job, await_left, left, remove_job, ronde_job, status
from laptop import Laptop
from pods import await_only_pods, log, pod
from testbed import wait_for

# Long enough to look at what is kept meanwhile.
TTL = 10


def seconds(moment: str) -> float:
    """Return a moment that the cluster wrote down as this machine counts time."""
    return datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp()


def test_of_a_finished_rondejob_the_chief_stays_for_its_time_and_then_the_record_alone(laptop: Laptop) -> None:
    cluster = laptop.cluster
    laptop.start_controller()
    cluster.apply(ronde_job("kept", 6, "echo trained", ttlSecondsAfterFinished=TTL))
    ended = await_job(cluster, "kept", "Succeeded")
    await_only_pods(cluster, "kept-chief")
    assert log(cluster, "kept-chief").count("trained") == 6
    assert cluster.free_gpus() == ALL_FREE
    await_left(cluster, "rondejobs/kept")
    assert time.time() >= seconds(ended["finished"]) + TTL
    record = status(cluster, "kept")
    assert (record["phase"], record["nodes"], record["exitCode"]) == ("Succeeded", "node-1: 5, node-3: 1", 0)
    remove_job(cluster, "kept")


def test_of_a_finished_command_the_chief_stays_for_its_time_and_a_later_command_takes_it_away(laptop: Laptop) -> None:
    cluster = laptop.cluster
    command = laptop.start_run("kept", 6, "echo trained", ttl=TTL)
    assert command.end() == 0, command
    assert f"kubectl logs kept-chief (kept {TTL} s)" in command.said()
    await_only_pods(cluster, "kept-chief")
    assert log(cluster, "kept-chief").count("trained") == 6
    (train,) = pod(cluster, "kept-chief")["status"]["containerStatuses"]
    numbers = itertools.count()

    def is_gone_after_another() -> bool:
        another = laptop.start_run(f"later-{next(numbers)}", 1, "true")
        assert another.end() == 0, another
        return "configmaps/kept" not in left(cluster)

    wait_for("a later command to take it away", is_gone_after_another)
    assert time.time() >= seconds(train["state"]["terminated"]["finishedAt"]) + TTL
    await_left(cluster)
