"""Taking over variables from one rank: those of models and of optimizers, in any version of Keras."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy

from ronde._basics import basics
from ronde.keras import arrays
from ronde.keras.flavours import backend, own_variables, sync_state, to_numpy, weights_of
from ronde.process_sets import ProcessSet, global_process_set

__all__ = ["broadcast_global_variables", "broadcast_model", "broadcast_variables"]


def broadcast_variables(
    variables: Sequence[Any], root_rank: int, name: str = "variable", process_set: ProcessSet = global_process_set
) -> None:
    """Overwrite variables with the root's; every rank lists the same ones in the same order.

    They are matched by their places: what Keras 2 calls a slot depends on where the optimizer was first used.
    """
    keys = [f"broadcast.{name}.{place}" for place in range(len(variables))]
    values = arrays.broadcast_all([to_numpy(each) for each in variables], root_rank, keys, process_set)
    if basics.rank() != root_rank:
        for variable, value in zip(variables, values):
            variable.assign(value)


def broadcast_model(model: Any, optimizer: Any | None, root_rank: int, leave_out: Iterable[Any] = ()) -> None:
    """Overwrite what a model has learned, and the state of an optimizer, with the root's."""
    sync_state(model)
    local = {id(variable) for variable in leave_out}
    weights = [variable for variable in weights_of(model) if id(variable) not in local]
    slots = [] if optimizer is None else own_variables(optimizer)
    counts = [len(weights), len(slots)]
    for rank, theirs in enumerate(arrays.allgather(numpy.array([counts]), "keras.counts").tolist()):
        if theirs != counts:
            raise ValueError(
                f"the model has {counts[0]} weights and its optimizer {counts[1]} variables, but on rank {rank} it is "
                f"{theirs[0]} and {theirs[1]}; all ranks have to train the same model with the same optimizer"
            )
    broadcast_variables(weights, root_rank, "model")
    broadcast_variables(slots, root_rank, "optimizer")


def broadcast_global_variables(root_rank: int) -> Any:
    """Return an operation that overwrites all variables of a graph of TensorFlow 1 with the root's.

    Models of Keras are not in such a graph any more: broadcast those with ``BroadcastGlobalVariablesCallback``.
    """
    if backend() != "tensorflow":
        raise RuntimeError(
            "hvd.broadcast_global_variables() is for graphs of TensorFlow 1; to broadcast a model, give "
            "hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank) to model.fit()"
        )
    from ronde.tensorflow.functions import broadcast_global_variables as in_graph

    return in_graph(root_rank)
