"""Reducing the gradients of a model: the part that tapes and optimizers of every kind have in common.

In a graph each gradient is an operation of its own, which travels while others are still computed; the engine puts
together what is ready at the same time. Eagerly all gradients are there before the first can travel, so they go as
groups, one for each type. ``groups`` asks for groups in both cases.

The names count the gradients: they repeat from step to step, and do not depend on what else is in a rank's graph.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from ronde._build import split_list
from ronde._collectives import Average
from ronde.process_sets import ProcessSet, global_process_set
from ronde.tensorflow.compression import Compressor
from ronde.tensorflow.ops import allreduce, grouped_allreduce
from ronde.tensorflow.reductions import is_elastic, number_of, size_of
from ronde.tensorflow.references import reference

__all__ = ["check_gradient_options", "make_allreduce_grads_fn", "reduce_all_but_local"]

Groups = Any  # A number of groups, a list of lists of variables, or None.


def check_gradient_options(op: int, gradient_predivide_factor: float, num_groups: int, groups: Groups) -> Groups:
    """Check the options that optimizers and tapes share, and return the groups that are meant."""
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if num_groups != 0:
        warnings.warn("num_groups is deprecated; use groups", DeprecationWarning, stacklevel=3)
        if groups is None:
            groups = num_groups
    if groups is not None and not isinstance(groups, list) and not (isinstance(groups, int) and groups > 0):
        raise ValueError("groups should be a positive integer or a list of list of tf.Variable.")
    return groups


def make_allreduce_grads_fn(
    name: str,
    device_dense: str,
    device_sparse: str,
    compression: type[Compressor],
    sparse_as_dense: bool,
    op: int,
    gradient_predivide_factor: float,
    groups: Groups,
    process_set: ProcessSet = global_process_set,
) -> Callable[..., list[Any]]:
    """Return a function that reduces a list of gradients: ``reduce(grads, variables, use_generic_names=False)``.

    Gradients may be tensors, ``tf.IndexedSlices``, or ``None``, which stays ``None``. ``variables`` are those of the
    gradients, in their order; ``groups`` refers to them.
    """
    scope = f"{name}_Allreduce"

    def reduce(grads: Iterable[Any], variables: Sequence[Any] = (), use_generic_names: bool = False) -> list[Any]:
        results = [
            tf.convert_to_tensor(grad) if sparse_as_dense and isinstance(grad, tf.IndexedSlices) else grad
            for grad in grads
        ]
        number_of(process_set)
        if process_set.included() is False or (process_set.size() == 1 and not is_elastic()):
            # Ranks outside of the set train alone.
            return results
        sparse, groups_of_dense = _share_out(results, variables, groups)
        options: dict[str, Any] = {
            "device_dense": device_dense,
            "device_sparse": device_sparse,
            "op": op,
            "process_set": process_set,
            "ignore_name_scope": use_generic_names,
        }
        factors: dict[str, Any] = {
            "compression": compression,
            "prescale_factor": 1.0 / gradient_predivide_factor,
            "postscale_factor": gradient_predivide_factor,
        }
        with tf.name_scope(scope):
            prefix = scope if tf.executing_eagerly() else "HorovodAllreduce_grad"
            for place in sparse:
                results[place] = allreduce(results[place], name=f"{prefix}_{place}", **options)
            for group in groups_of_dense:
                if len(group) == 1:
                    place = group[0]
                    results[place] = allreduce(results[place], name=f"{prefix}_{place}", **options, **factors)
                    continue
                its_name = f"{prefix}_{group[0]}_to_{group[-1]}"
                found = grouped_allreduce([results[place] for place in group], name=its_name, **options, **factors)
                for place, result in zip(group, found):
                    results[place] = result
        return results

    return reduce


def _share_out(grads: list[Any], variables: Sequence[Any], groups: Groups) -> tuple[list[int], list[list[int]]]:
    """Return the places of sparse gradients, and those of the others by groups."""
    there = [place for place, grad in enumerate(grads) if grad is not None]
    sparse = [place for place in there if isinstance(grads[place], tf.IndexedSlices)]
    dense = [place for place in there if not isinstance(grads[place], tf.IndexedSlices)]
    if isinstance(groups, int):
        return sparse, [list(group) for group in split_list(dense, min(groups, len(dense)))] if dense else []
    shared: list[list[int]] = []
    if groups:
        places = {reference(variables[place]): place for place in dense}
        for group in groups:
            # A variable that is in two groups travels with the first.
            shared.append([places.pop(key) for key in map(reference, group) if key in places])
        dense = sorted(set(dense) - {place for group in shared for place in group})
    alone = [dense] if tf.executing_eagerly() else [[place] for place in dense]
    return sparse, [group for group in shared + alone if group]


def reduce_all_but_local(
    reduce: Callable[..., list[Any]],
    grads: Sequence[Any],
    variables: Sequence[Any],
    local: set[Any],
    scale_local_gradients: bool,
    process_set: ProcessSet,
    **options: Any,
) -> list[Any]:
    """Reduce the gradients of all variables but the local ones, whose references are in ``local``.

    Gradients of local variables are divided by the number of ranks if ``scale_local_gradients``: they are then what
    the average would have been, had the other ranks contributed nothing.
    """
    results = list(grads)
    if not local:
        return reduce(results, variables, **options)
    shared = [place for place, variable in enumerate(variables) if reference(variable) not in local]
    found = reduce([results[place] for place in shared], [variables[place] for place in shared], **options)
    for place, result in zip(shared, found):
        results[place] = result
    if scale_local_gradients:
        for place in set(range(len(results))) - set(shared):
            results[place] = divided(results[place], size_of(process_set))
    return results


def divided(grad: Any, divisor: Any) -> Any:
    """Divide a gradient of any kind by a number."""
    if grad is None:
        return None
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(divided(grad.values, divisor), grad.indices, grad.dense_shape)
    return grad / tf.cast(divisor, grad.dtype)
