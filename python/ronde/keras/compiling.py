"""Two places of Keras that have to know of distributed optimizers: ``Model.compile`` and ``LossScaleOptimizer``.

XLA cannot compile a training step that holds TensorFlow operations which wait for other ranks. Keras 3 compiles steps
with it wherever there is a GPU (``jit_compile="auto"``), so ``compile`` is told not to, for models with a distributed
optimizer; who asks for it gets an error that says what to do. On JAX and PyTorch nothing of that is needed.

A ``LossScaleOptimizer`` of Keras 3 around a distributed optimizer would look for infinities before gradients are
reduced, find them on one rank and not on the other, and the ranks would part. So it takes over the reduction from the
optimizer that it is given. ``compile`` makes such ones by itself for models in ``mixed_float16``.

Both are looked after from the moment the first distributed optimizer is made, and models without one are not affected.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from ronde.keras.flavours import backend, inner_of, is_keras3

__all__ = ["forbid_xla", "holds_distributed", "watch_compiling"]

_watched: set[type[Any]] = set()


def watch_compiling(optimizer: Any) -> None:
    """Look after the models and loss scaling of the Keras that an optimizer is of, once."""
    keras = sys.modules[_package_of(optimizer)]
    model = _defining(keras.Model, "compile")
    if model not in _watched:
        _watched.add(model)
        model.compile = _compile(model.compile)
    if is_keras3(optimizer):
        scaling = keras.optimizers.LossScaleOptimizer
        if scaling not in _watched:
            _watched.add(scaling)
            scaling.__init__ = _init_loss_scale(scaling.__init__)


def forbid_xla(model: Any) -> None:
    """Have the steps of a model that was compiled already run without XLA, where that cannot do them."""
    if _needs_no_xla(model.optimizer) and model.jit_compile:
        model.jit_compile = False


def holds_distributed(optimizer: Any) -> bool:
    """Tell whether an optimizer, one inside it, or one of several is distributed."""
    if isinstance(optimizer, (list, tuple)):
        return any(map(holds_distributed, optimizer))
    if isinstance(optimizer, dict):
        return holds_distributed(list(optimizer.values()))
    return hasattr(type(optimizer), "_distribute") or (
        optimizer is not None and not isinstance(optimizer, str) and holds_distributed(inner_of(optimizer))
    )


def _needs_no_xla(optimizer: Any) -> bool:
    return holds_distributed(optimizer) and (not is_keras3(optimizer) or backend() == "tensorflow")


def _package_of(optimizer: Any) -> str:
    """Return ``keras`` or ``tf_keras``: what the optimizer's class is made of, wherever the class itself is."""
    for kind in type(optimizer).__mro__:
        package = kind.__module__.partition(".")[0]
        if package in ("keras", "tf_keras"):
            return package
    raise ValueError(f"{type(optimizer).__name__} is not an optimizer of Keras")


def _defining(kind: type[Any], method: str) -> Any:
    return next(parent for parent in kind.__mro__ if method in vars(parent))


def _compile(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def compile(model: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A001
        call = signature.bind(model, *args, **kwargs)
        given = call.arguments
        if _needs_no_xla(given.get("optimizer")):
            if given.get("jit_compile") is True and not given.get("run_eagerly"):
                raise ValueError(
                    "jit_compile=True compiles training steps with XLA, which cannot contain the exchange of gradients "
                    "that hvd.DistributedOptimizer adds; leave jit_compile out of compile(), or pass jit_compile=False"
                )
            given["jit_compile"] = False
        return original(*call.args, **call.kwargs)

    return compile


def _init_loss_scale(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(optimizer, *args, **kwargs)
        inner = optimizer.inner_optimizer
        reduction = getattr(inner, "_reduction", None)
        if reduction is not None:
            from ronde.keras.optimizer import convert

            inner._hand_over()
            convert(optimizer, reduction)

    return __init__
