"""Twenty managers at once, for the same few GPUs: never two jobs on one, and all of them get theirs. Needs root."""

from __future__ import annotations

from jobs import await_left
from laptop import Laptop
from witness import Witness

# Of 5, 3 and 2 free GPUs: alone on a node or on several, side by side or in each other's way.
SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 10, 2, 3, 4, 5, 6, 1, 2, 3, 4, 9, 5]


def test_twenty_managers_share_ten_gpus(laptop: Laptop) -> None:
    with Witness(laptop.cluster) as witness:
        commands = [laptop.start_run(f"job-{index}", gpus, "true") for index, gpus in enumerate(SIZES)]
        for index, command in enumerate(commands):
            assert command.end(400) == 0, f"{index}: {command}"
        await_left(laptop.cluster)
    chiefs = {name for name in witness.served if "-chief" in name}
    assert len(chiefs) == len(SIZES)
