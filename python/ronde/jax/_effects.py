"""How collectives keep their order in compiled programs. All that touches private parts of JAX is in this file.

XLA may run what does not depend on each other in any order, and not in the same one on every rank; ranks that wait for
each other in different collectives wait forever. JAX has *ordered effects* for this: an operation that has one takes a
token from the operation before it and gives one to the next, through loops, branches and nested functions, and from one
program to the next. Ours has an effect of its own (:data:`EFFECT`).

Compiled for a CPU, a collective becomes a call of the plug-in library (``crates/jax``), on a thread of XLA and without
Python. For other devices it becomes a callback into :mod:`ronde.jax.host`, with the same token.

What is used of JAX that it does not promise to keep:

- ``jax._src.effects``: the registries that say which effects are ordered and where they are allowed;
- ``jax._src.core.abstract_token``: the type of a token among operands;
- ``jax._src.dispatch.runtime_tokens``: the tokens between programs, to be forgotten after a failure.

Where a release of JAX has moved one of them, collectives become ordered callbacks of
:func:`jax.experimental.io_callback`, which is public: slower, and not under :func:`jax.checkpoint`. :data:`PRIVATE`
says why, and is ``None`` if all is there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental import io_callback
from jax.interpreters import mlir

from ronde import _plugin
from ronde.jax import host
from ronde.jax.collectives import Collective

__all__ = ["EFFECT", "PRIVATE", "failing_once", "settle", "tie_down"]

_TARGET = "ronde_collective"

# Why the private parts of JAX cannot be used.
PRIVATE: str | None = None

try:
    from jax._src import core as _core
    from jax._src import dispatch as _dispatch
    from jax._src import effects as _effects

    @dataclasses.dataclass(frozen=True)
    class _CollectiveEffect(_effects.Effect):
        """Other ranks take part."""

        def __str__(self) -> str:
            return "Collective"

        __repr__ = __str__

    for _registry in (
        _effects.ordered_effects,
        _effects.lowerable_effects,
        _effects.control_flow_allowed_effects,
        _effects.custom_derivatives_allowed_effects,
        _effects.remat_allowed_effects,
    ):
        _registry.add_type(_CollectiveEffect)
    _TOKEN = _core.abstract_token
    _RUNTIME_TOKENS = _dispatch.runtime_tokens
    EFFECT: Any = _CollectiveEffect()
except (ImportError, AttributeError) as error:
    EFFECT = None
    PRIVATE = f"JAX {jax.__version__} is built differently inside: {error}"


def tie_down(primitive: Any) -> None:
    """Say how the primitive of all collectives is compiled."""
    if PRIVATE is not None:
        do_without_private_parts(primitive)
        return
    library = _plugin.attach("jax")
    jax.ffi.register_ffi_target(_TARGET, jax.ffi.pycapsule(library.ronde_jax_collective), platform="cpu")
    _lower(primitive, _by_library, "cpu")
    _lower(primitive, _by_callback)


def do_without_library(primitive: Any) -> None:
    """Compile for a CPU as for other devices; for tests."""
    _lower(primitive, _by_callback, "cpu")


def do_without_private_parts(primitive: Any) -> None:
    """Compile by public means only, for whatever device."""
    global EFFECT
    # The effect of ordered callbacks has no public name, but a program that has one can be asked for it.
    (EFFECT,) = jax.make_jaxpr(lambda: io_callback(lambda: None, None, ordered=True))().effects
    for platform in ("cpu", None):
        _lower(primitive, mlir.lower_fun(_by_public_callback), platform)


def _lower(primitive: Any, rule: Any, platform: str | None = None) -> None:
    # Newer releases lower equal operations only once; each of ours has a name of its own.
    options = {"cacheable": False} if "cacheable" in inspect.signature(mlir.register_lowering).parameters else {}
    mlir.register_lowering(primitive, rule, platform=platform, **options)


def settle() -> None:
    """Wait until all collectives that this thread has started are over, and raise what went wrong with the last."""
    with failing_once():
        jax.effects_barrier()


@contextlib.contextmanager
def failing_once() -> Iterator[None]:
    """Forget the tokens between programs if one has failed.

    A failed program leaves a failed token, which is given to the next, and so on: every later one would fail.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError:
        if PRIVATE is None:
            _RUNTIME_TOKENS.clear()
        raise


# How many collectives a module has so far.
_counts: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _name_of(context: Any, call: Collective) -> str:
    """Return the name under which ranks find each other in this collective.

    Collectives of a process run one after the other, so a name may be used again by the next. It is the place in the
    compiled program: known to all ranks that run the same, and for repeated calls the same, which the engine remembers.
    """
    if call.name is not None:
        return call.name
    module = context.module_context.module
    number = next(_counts.setdefault(module, itertools.count()))
    program = mlir.ir.StringAttr(module.operation.attributes["sym_name"]).value
    return f"jax.{program.removeprefix('jit_')}.{number}"


def _by_library(context: Any, *operands: Any, call: Collective) -> Any:
    """Lower to a call of the plug-in library."""
    with_token = context.replace(avals_in=[_TOKEN, *context.avals_in], avals_out=[_TOKEN, *context.avals_out])
    lower = jax.ffi.ffi_lowering(_TARGET, has_side_effect=True)
    attributes = {**call.attributes(), "name": _name_of(context, call)}
    token, *results = lower(with_token, context.tokens_in.get(EFFECT), *operands, **attributes)
    _pass_on(context, token)
    return results


def _by_callback(context: Any, *operands: Any, call: Collective) -> Any:
    """Lower to a callback into Python, ordered by the same token."""
    results, token, _ = mlir.emit_python_callback(
        context,
        functools.partial(host.run, call, _name_of(context, call)),
        context.tokens_in.get(EFFECT),
        list(operands),
        context.avals_in,
        context.avals_out,
        has_side_effect=True,
    )
    _pass_on(context, token)
    return results


def _pass_on(context: Any, token: Any) -> None:
    context.set_tokens_out(context.tokens_in.update_tokens(mlir.TokenSet({EFFECT: token})))


def _by_public_callback(*operands: Any, call: Collective) -> Any:
    """Do as :func:`_by_callback`, by public means; a name cannot tell the program then."""
    results = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in call.results(operands)]
    return io_callback(functools.partial(host.run, call, call.name or "jax.0"), results, *operands, ordered=True)
