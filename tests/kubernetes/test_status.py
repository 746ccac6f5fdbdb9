"""What is told of a RondeJob while it waits, runs and ends: its conditions, and its events. Needs root."""

from __future__ import annotations

from typing import Any

from jobs import API, UNTIL_ENOUGH, await_job, enough, remove_job, ronde_job, status
from laptop import Laptop
from pods import FOREVER, await_phase, remove, shell_pod
from testbed import Cluster, wait_for


def conditions(told: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the conditions of a status by what they are about; there are always the same five."""
    found = {one["type"]: one for one in told["conditions"]}
    assert list(found) == ["Claimed", "Scheduled", "Running", "Succeeded", "Failed"]
    return found


def holding(told: dict[str, Any]) -> list[str]:
    """Return what holds of a job."""
    return [kind for kind, one in conditions(told).items() if one["status"] == "True"]


def events(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    """Return what was told of a job, in order, and not of an earlier one of its name."""
    uid = cluster.get(f"{API}/namespaces/default/rondejobs/{name}")["metadata"]["uid"]
    found = cluster.get(f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.uid={uid}")["items"]
    return sorted(found, key=lambda event: int(event["metadata"]["resourceVersion"]))


def await_event(cluster: Cluster, name: str, reason: str) -> list[dict[str, Any]]:
    """Wait until something was told of a job, a moment after its status says so, and return all that was."""
    wait_for(
        lambda: f"an event {reason} of {name}: {events(cluster, name)}",
        lambda: any(event["reason"] == reason for event in events(cluster, name)),
    )
    return events(cluster, name)


def test_conditions_say_what_has_come_about_and_since_when_and_events_how_it_came_to_that(laptop: Laptop) -> None:
    cluster = laptop.cluster
    laptop.start_controller()
    cluster.apply(shell_pod("theirs", FOREVER, gpus=5, node="node-1"))
    await_phase(cluster, "theirs", "Running")
    cluster.apply(ronde_job("told", 6, UNTIL_ENOUGH))
    waits = await_job(cluster, "told", "Pending", "NotEnoughGpus")
    assert holding(waits) == []
    remove(cluster, "theirs")
    runs = await_job(cluster, "told", "Running")
    assert holding(runs) == ["Claimed", "Scheduled", "Running"]
    # They hold of what is asked for now, also of a job that was changed: others do not count.
    cluster.kubectl("patch", "rondejob", "told", "--type=merge", "--patch", '{"spec": {"priority": 3}}')
    cluster.kubectl("wait", "--for=condition=Running", "rondejob/told", "--timeout=60s")
    runs = status(cluster, "told")
    enough(cluster, "told")
    # What conditions are for.
    cluster.kubectl("wait", "--for=condition=Succeeded", "rondejob/told", "--timeout=60s")
    ended = status(cluster, "told")
    assert holding(ended) == ["Claimed", "Scheduled", "Succeeded"]
    first, then, last = conditions(waits), conditions(runs), conditions(ended)
    assert (last["Succeeded"]["reason"], last["Succeeded"]["message"]) == ("Succeeded", "the training ended well")
    # What has not changed says why and when it came about.
    assert (last["Claimed"], last["Scheduled"]) == (then["Claimed"], then["Scheduled"])
    assert {**last["Failed"], "observedGeneration": 1} == first["Failed"]
    since = [last[kind]["lastTransitionTime"] for kind in ("Failed", "Claimed", "Scheduled", "Running")]
    assert since == sorted(since)
    assert since[-1] == last["Succeeded"]["lastTransitionTime"], "it ran until then"

    told = await_event(cluster, "told", "Succeeded")
    # That pods start is told only where they take long.
    assert [event["reason"] for event in told if event["reason"] != "Starting"] == [
        "NotEnoughGpus",
        "Placing",
        "Running",
        "Succeeded",
    ]
    assert {(event["type"], event["source"]["component"]) for event in told} == {("Normal", "ronde-manager")}
    messages = {event["reason"]: event["message"] for event in told}
    assert messages["NotEnoughGpus"].startswith("waiting for 1 more GPU: node-1 is full (pod default/theirs, ")
    assert messages["Running"] == "running on node-1: 5, node-3: 1"
    # Where people look for them.
    _, _, shown = cluster.kubectl("describe", "rondejob", "told").partition("\nEvents:")
    assert [event["message"] for event in told if event["message"] not in shown] == [], shown
    remove_job(cluster, "told")


def test_a_job_that_failed_says_so_in_a_condition_and_each_attempt_that_failed_in_a_warning(laptop: Laptop) -> None:
    cluster = laptop.cluster
    laptop.start_controller()
    cluster.apply(ronde_job("luckless", 1, "exit 3", retries=1))
    assert holding(await_job(cluster, "luckless", "Pending", "Retrying")) == [], "what it had is given back"
    failed = await_job(cluster, "luckless", "Failed")
    assert holding(failed) == ["Failed"]
    how = "luckless-chief-r1 on node-3 ended with status 3"
    assert conditions(failed)["Failed"]["message"].startswith(how)
    told = await_event(cluster, "luckless", conditions(failed)["Failed"]["reason"])
    again, end = (event["message"] for event in told if event["type"] == "Warning")
    assert again.startswith("attempt 1 of 2 failed: luckless-chief on node-3 ended with status 3")
    assert end.startswith(how)
    remove_job(cluster, "luckless")
