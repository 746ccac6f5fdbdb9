"""pytorch-ignite trains on our ranks: it imports ``horovod.torch`` and takes the modules in it from there.

``ignite`` is imported by what the ranks call, since ``tests/gpu/run.py`` imports this file where it is not installed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import prepare
from models import ROWS, assert_same, assert_same_on_all_ranks, batches, loss_of, network, train_alone
from promises import runs
from ranks import HERE, on_ranks, search_path

FOLDERS = [Path(__file__).parent, HERE]


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.9)


def trains_and_evaluates(local_rank: int) -> None:
    """Train with ignite's trainer and loader, and compare with plain PyTorch in one process."""
    import ignite.distributed as idist
    from ignite.engine import create_supervised_evaluator, create_supervised_trainer
    from ignite.metrics import Accuracy, Loss

    prepare.once()
    assert (idist.backend(), idist.get_world_size(), idist.get_rank()) == ("horovod", 2, local_rank)
    model = network()
    if local_rank == 1:
        nn.init.ones_(model[0].weight)
    model = idist.auto_model(model)
    optimizer = idist.auto_optim(momentum(model.parameters()))
    data = TensorDataset(*map(torch.cat, zip(*batches())))
    # Each rank gets every other row, so that one step of all ranks has the rows of one whole batch.
    loader = idist.auto_dataloader(data, batch_size=ROWS, shuffle=False)
    create_supervised_trainer(model, optimizer, nn.functional.cross_entropy).run(loader)

    alone = train_alone(momentum)
    assert_same(model, alone)
    assert_same_on_all_ranks(model)

    metrics = {"accuracy": Accuracy(), "loss": Loss(nn.functional.cross_entropy)}
    found = create_supervised_evaluator(model, metrics).run(loader).metrics
    inputs, targets = data.tensors
    assert found["accuracy"] == pytest.approx((alone(inputs).argmax(1) == targets).double().mean().item())
    assert found["loss"] == pytest.approx(loss_of(alone, inputs, targets).item())


def exchanges(rank: int) -> None:
    """Use each collective of ignite."""
    import ignite.distributed as idist

    tensor = torch.tensor([1.0, 4.0]) * (rank + 1)
    reduced = {op: idist.all_reduce(tensor, op).tolist() for op in ("SUM", "AVERAGE", "MIN", "MAX", "PRODUCT")}
    assert reduced == {
        "SUM": [3.0, 12.0],
        "AVERAGE": [1.5, 6.0],
        "MIN": [1.0, 4.0],
        "MAX": [2.0, 8.0],
        "PRODUCT": [2.0, 32.0],
    }
    assert idist.all_gather(tensor).tolist() == [1.0, 4.0, 2.0, 8.0]
    assert idist.all_gather({"rank": rank}) == [{"rank": 0}, {"rank": 1}]
    assert idist.broadcast("word" if rank == 1 else None, src=1, safe_mode=True) == "word"
    group = idist.new_group([1])
    assert (group.ranks, group.included()) == ([1], rank == 1)
    assert idist.all_gather(tensor, group=group).tolist() == tensor.tolist()
    idist.barrier()


def runs_on_the_ranks_of_a_job() -> None:
    import ignite.distributed as idist

    with idist.Parallel(backend="horovod") as parallel:
        parallel.run(trains_and_evaluates)
        parallel.run(exchanges)


def test_it_trains_on_the_ranks_of_a_job() -> None:
    # Importing PyTorch and ignite on all ranks takes long on a busy machine.
    done = on_ranks(2, runs_on_the_ranks_of_a_job, timeout=300.0, PYTHONPATH=search_path(*FOLDERS))
    assert done.status == 0, done.output


def test_it_starts_ranks_of_its_own() -> None:
    runs(
        f"""
        import sys
        sys.path[:0] = {[str(folder) for folder in FOLDERS]}
        import ignite.distributed as idist
        import test_ignite
        idist.spawn("horovod", test_ignite.trains_and_evaluates, args=(), nproc_per_node=2)
        """
    )
