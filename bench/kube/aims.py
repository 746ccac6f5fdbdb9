"""What we want to reach on Kubernetes, in the terms of harness/aims.py."""

from __future__ import annotations

from harness.aims import MIB, RONDE, Aim, Measure

# What `--only` takes.
PARTS = ("start", "shares", "queue", "memory")

# Jobs whose image has Ronde in it, as the operator's has what starts its ranks.
RONDE_INSIDE = "ronde, in the image"
OPERATOR = "MPI Operator"
OPERATOR_WAITS = "MPI Operator, launcher last"
OPERATOR_UNBOUND = "MPI Operator, no limits"
LIMIT = "limit"

# A job takes so many real nodes, and so many GPUs of each. Where ranks are many, their own start is most of the time
# on a machine with few cores, whoever starts them; so jobs with one rank a node are measured too, without a verdict.
START_NODES = 5
START_GPUS = (8, 1)
RUNNING, FIRST, WHOLE = "submitted to running", "submitted to first allreduce", "submitted to end"


def start_aims(gpus: int) -> list[Aim]:
    """Return the aims of starting a job with so many GPUs of each node."""
    work, size, is_judged = f"{START_NODES} x {gpus} GPUs", (0,), gpus == max(START_GPUS)
    slower, twice = (1, 2) if is_judged else (None, None)
    limits = {RUNNING: slower, FIRST: twice, WHOLE: None}
    return [
        Aim(f"{work}, {end}", size, ours, theirs, Measure.FASTER, limit)
        for end, limit in limits.items()
        for ours in (RONDE, RONDE_INSIDE)
        for theirs in (OPERATOR, OPERATOR_WAITS)
    ]


MEMORY_LIMIT = 200 * MIB


def queue_aims(jobs: int, nodes: int) -> list[Aim]:
    """Return the aims of a queue of so many jobs on so many nodes."""
    work, size = f"{jobs} jobs on {nodes} nodes", (0,)
    return [
        Aim(f"{work}, until all have ended", size, RONDE, OPERATOR, Measure.FASTER, 1),
        Aim(f"{work}, until all have ended", size, RONDE, OPERATOR_UNBOUND, Measure.FASTER),
        Aim(f"{work}, until GPUs are free", size, RONDE, OPERATOR, Measure.FASTER),
        Aim(f"{work}, until GPUs are free", size, RONDE, OPERATOR_UNBOUND, Measure.FASTER),
        Aim(f"{work}, requests a job, manager", size, RONDE, OPERATOR, Measure.REQUESTS, 1),
        Aim(f"{work}, requests a job, manager", size, RONDE, OPERATOR_UNBOUND, Measure.REQUESTS),
        Aim(f"{work}, requests a job, everybody", size, RONDE, OPERATOR, Measure.REQUESTS, 1),
        Aim(f"{work}, requests a job, everybody", size, RONDE, OPERATOR_UNBOUND, Measure.REQUESTS),
        Aim(f"{work}, manager's processor time", size, RONDE, OPERATOR, Measure.WITHIN),
        Aim(f"{work}, manager's peak memory", size, RONDE, OPERATOR, Measure.MEMORY),
    ]


def memory_aim(jobs: int, nodes: int) -> Aim:
    """Return the aim for the manager's memory with so many jobs and nodes."""
    return Aim(f"{jobs:,} jobs on {nodes:,} nodes, manager's memory", (0,), RONDE, LIMIT, Measure.MEMORY, 1)
