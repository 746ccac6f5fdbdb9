"""The programs of the benchmark on a GPU do what they should, as far as that can be seen on the CPU."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
import torch
from torch import nn

from gpu import bursts, steps
from gpu.packing import NotPackedError, microseconds, pieces
from gpu.suite import gloo_variables
from ranks import REPOSITORY, Finished, on_ranks

CPU = torch.device("cpu")
RANKS = 2
# PyTorch computes in bfloat16 by AMX where the processor says that it has it, and some virtual machines say so and have
# it not: they end the program.
WITHOUT_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
PYTHONPATH = os.pathsep.join(str(REPOSITORY / folder) for folder in ("bench", "tests/examples", "tests/python"))


def time_bursts(library: bursts.Library) -> None:
    bursts.BURST_SECONDS = 0.002
    bursts.main(library, CPU, ["--rounds", "3", "float32:4", "float16:4096"])


def time_ours() -> None:
    from gpu.ours import Ours, hvd

    time_bursts(Ours())
    hvd.shutdown()


def time_gloo() -> None:
    from gpu.gloo import Gloo

    library = Gloo(CPU)
    time_bursts(library)
    library.leave()


def compare_steps() -> None:
    steps.hvd.init()

    def network() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))

    for half in (False, True):
        plain, ours = steps.trainings(network, steps.Case(4, half), CPU, image=8, classes=10)
        print(json.dumps({"work": "step", **steps.compare(plain, ours, rounds=2, block=2, device=CPU)}), flush=True)
    steps.hvd.shutdown()


def results(done: Finished, rank: int) -> list[dict[str, Any]]:
    assert done.status == 0, done.output
    return [json.loads(line) for line in done.lines_of(rank) if line.startswith('{"work"')]


@pytest.mark.parametrize("program", [time_ours, time_gloo])
def test_bursts_are_checked_and_each_rank_prints_what_they_took(program: Any) -> None:
    done = on_ranks(RANKS, program, timeout=240.0, PYTHONPATH=PYTHONPATH, **gloo_variables())
    for rank in range(RANKS):
        lines = results(done, rank)
        assert [(line["dtype"], line["bytes"]) for line in lines] == [("float32", 4), ("float16", 4096)]
        assert all(0 < line["min_us"] <= line["median_us"] for line in lines)


def test_a_wrong_average_is_noticed() -> None:
    class Forgetful:
        rank, ranks = 0, 2

        def barrier(self) -> None:
            pass

        def maximum(self, value: float) -> float:
            return value

        def allreduce(self, tensor: torch.Tensor, name: str) -> None:
            pass

    with pytest.raises(bursts.WrongResultError, match="the average over 2 ranks is wrong"):
        bursts.measure(Forgetful(), 1024, torch.float32, 3, CPU)


def test_steps_are_compared_with_plain_ones_where_gradients_are_exchanged() -> None:
    done = on_ranks(1, compare_steps, timeout=240.0, PYTHONPATH=PYTHONPATH, HOROVOD_ELASTIC="1", **WITHOUT_AMX)
    lines = results(done, 0)
    assert len(lines) == 2
    assert all(line["ratio"] > 0 and line["plain_us"] > 0 for line in lines)


def test_steps_that_exchange_nothing_are_refused() -> None:
    done = on_ranks(1, compare_steps, timeout=240.0, PYTHONPATH=PYTHONPATH, HOROVOD_ELASTIC="")
    assert done.status == 1
    assert "HOROVOD_ELASTIC=1 was not heard" in done.output


def test_rounds_are_compared_each_by_itself() -> None:
    # The machine is half as fast in the second round, and faster and faster in the last.
    found = steps.ratios([[1.0, 1.1, 1.1, 1.0], [2.0, 2.2, 2.2, 2.0], [4.0, 3.3, 2.2, 1.0]])
    assert found["ratio"] == pytest.approx(1.1)
    assert found["noise"] == 0.0


def test_gradients_are_cut_into_pieces_of_the_same_memory() -> None:
    whole = torch.arange(3.0 * (1 << 20)).view(3, 1024, 1024)
    cut = pieces([whole, torch.ones(5)])
    assert [piece.numel() for piece in cut] == [1 << 20, 1 << 20, 1 << 20, 5]
    cut[1].zero_()
    assert not whole[1].any()


def test_only_what_ran_on_the_device_under_the_name_counts() -> None:
    events = [
        {"cat": "kernel", "name": "ronde_move", "dur": 3.0},
        {"cat": "kernel", "name": "ronde_move", "dur": 5.0},
        {"cat": "gpu_memcpy", "name": "Memcpy DtoD", "dur": 100.0},
        {"cat": "cuda_driver", "name": "ronde_move", "dur": 50.0},
        {"name": "no category"},
    ]
    assert microseconds(events, calls=1, names="ronde_", fewest=2) == 8.0
    assert microseconds(events, calls=2, names="", fewest=1) == 54.0
    with pytest.raises(NotPackedError, match=r"2 calls ran ronde_\* on the device 2 times; the profiler saw Memcpy"):
        microseconds(events, calls=2, names="ronde_", fewest=2)
