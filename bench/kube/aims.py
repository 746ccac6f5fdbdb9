"""What we want to reach on Kubernetes, in the terms of harness/aims.py."""

from __future__ import annotations

from harness.aims import MIB, RONDE, Aim, Measure

# What `--only` takes.
PARTS = ("start", "shares", "queue", "memory")

OPERATOR = "MPI Operator"
OPERATOR_WAITS = "MPI Operator, launcher last"
OPERATOR_UNBOUND = "MPI Operator, no limits"
LIMIT = "limit"

RUNNING = "5 x 8 GPUs, submitted to running"
FIRST = "5 x 8 GPUs, submitted to first allreduce"
WHOLE = "5 x 8 GPUs, submitted to end"
START_AIMS = (
    Aim(RUNNING, (0,), RONDE, OPERATOR, Measure.FASTER, 1),
    Aim(RUNNING, (0,), RONDE, OPERATOR_WAITS, Measure.FASTER),
    Aim(FIRST, (0,), RONDE, OPERATOR, Measure.FASTER, 2),
    Aim(FIRST, (0,), RONDE, OPERATOR_WAITS, Measure.FASTER, 2),
    Aim(WHOLE, (0,), RONDE, OPERATOR, Measure.FASTER),
    Aim(WHOLE, (0,), RONDE, OPERATOR_WAITS, Measure.FASTER),
)

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
        Aim(f"{work}, requests a job, everybody", size, RONDE, OPERATOR, Measure.REQUESTS),
        Aim(f"{work}, requests a job, everybody", size, RONDE, OPERATOR_UNBOUND, Measure.REQUESTS),
        Aim(f"{work}, manager's processor time", size, RONDE, OPERATOR, Measure.WITHIN),
        Aim(f"{work}, manager's peak memory", size, RONDE, OPERATOR, Measure.MEMORY),
    ]


def memory_aim(jobs: int, nodes: int) -> Aim:
    """Return the aim for the manager's memory with so many jobs and nodes."""
    return Aim(f"{jobs:,} jobs on {nodes:,} nodes, manager's memory", (0,), RONDE, LIMIT, Measure.MEMORY, 1)
