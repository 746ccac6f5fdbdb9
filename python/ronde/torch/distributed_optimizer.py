"""The optimizer that averages gradients over all ranks while the backward pass is still running.

A gradient is sent off by a hook as soon as it is complete; ``step`` waits for those under way and then runs the
wrapped optimizer's own step. Parameters travel in *buckets*: alone, or together where groups are asked for.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ronde._build import split_list
from ronde._collectives import Average
from ronde.process_sets import ProcessSet, global_process_set
from ronde.torch import ops
from ronde.torch.compression import Compression, Undo, pack, wire_of
from ronde.torch.handles import forget, synchronize, synchronize_all
from ronde.torch.hooked_optimizer import HookedOptimizer
from ronde.torch.memory import PLAIN
from ronde.torch.sparse import sparse_allreduce_async

__all__ = ["_DistributedOptimizer"]


class _Bucket:
    """Parameters whose gradients travel together, and how many of those are not complete.

    Under which name and how early they are wanted is kept here as well: a gradient is sent off in the middle of the
    backward pass, and on a GPU whatever that takes may leave the GPU without work.
    """

    __slots__ = ("flight", "missing", "name", "parameters", "place")

    def __init__(self, parameters: list[Tensor], name: str, place: int) -> None:
        self.parameters = parameters
        self.missing = len(parameters)
        self.name = name
        self.place = place
        self.flight: _Flight | int | None = None


class _Flight:
    """An exchange under way: the dense gradients under one handle, sparse ones each with a function that waits.

    Most buckets need none: a gradient that travels alone, as it is and in place, is known by its handle.
    """

    __slots__ = ("dense", "handle", "sparse")

    def __init__(self) -> None:
        self.handle: int | None = None
        # Parameter, what undoes the compression, and whether the result is to be sparse (its sparse dimensions).
        self.dense: list[tuple[Tensor, Undo, int]] = []
        self.sparse: list[tuple[Tensor, Callable[[], Tensor]]] = []


class _DistributedOptimizer(HookedOptimizer):
    """Mixed in front of an optimizer class; see :func:`ronde.torch.optimizer.DistributedOptimizer`."""

    def __init__(
        self,
        params: Any,
        named_parameters: Any,
        compression: Any = Compression.none,
        backward_passes_per_step: int = 1,
        op: int = Average,
        gradient_predivide_factor: float = 1.0,
        groups: int | Sequence[Sequence[Tensor]] | None = None,
        sparse_as_dense: bool = False,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(params)
        self.op = op
        self.gradient_predivide_factor = gradient_predivide_factor
        self.sparse_as_dense = sparse_as_dense
        self._compression = compression
        self._should_synchronize = True
        # Whether `synchronize` has been called since the last step, by the user or on behalf of a GradScaler.
        self._synchronized = False
        self._synchronized_for_scaler = False
        self._in_flight = 0
        # The sparse dimensions of the gradients that were sparse before: this rank may have none in some step.
        self._sparse_dims: dict[Tensor, int] = {}
        self._buckets: list[_Bucket] = []
        self._bucket_of: dict[Tensor, _Bucket] = {}
        self._attach(named_parameters, backward_passes_per_step, process_set)
        self._make_buckets(list(self._passes_left), groups)

    @property
    def param_groups(self) -> Any:
        """The parameters and their options.

        A GradScaler asks for these to look for infinities in the gradients, before it calls ``step`` or decides not
        to. All ranks have to decide alike, so the gradients must have been reduced by then.
        """
        if (
            sys._getframe(1).f_code.co_name == "_unscale_grads_"
            and self.__dict__.get("_should_synchronize")
            and (self._in_flight or not self._synchronized)
        ):
            self.synchronize()
            self._synchronized, self._synchronized_for_scaler = False, True
        return self.__dict__["param_groups"]

    @param_groups.setter
    def param_groups(self, groups: Any) -> None:
        self.__dict__["param_groups"] = groups

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters to be trained; their gradients are reduced like the others."""
        super().add_param_group(param_group)
        if "_buckets" in self.__dict__:
            self._make_buckets(self._adopt(), None)

    def synchronize(self) -> None:
        """Wait until all gradients are reduced. What this rank computed no gradient for counts as zeros."""
        if self._distributed:
            with self._lock:
                if any(parameter.requires_grad for parameter in self._frozen):
                    self._make_buckets(self._adopt(), None)
                # Also where ranks disagree: the next step starts afresh.
                self._start_counting()
                for bucket in self._buckets:
                    if bucket.flight is None:
                        self._send(bucket)
                self._land_all()
        self._synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Let ``step`` run without ``synchronize``, which has been called before, for example to clip gradients.

        Usage: ``optimizer.synchronize(); clip(...); with optimizer.skip_synchronize(): optimizer.step()``
        """
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Wait for the gradients and update the parameters.

        A closure computes gradients itself, so they are waited for each time after it was called.
        """
        if self._should_synchronize:
            if closure is not None:
                closure = functools.partial(self._call_and_synchronize, closure)
            elif self._in_flight or not self._synchronized_for_scaler:
                if self._synchronized:
                    warnings.warn(
                        "optimizer.step() called without optimizer.skip_synchronize() context after "
                        "optimizer.synchronize(). This can cause training slowdown. You may want to consider using "
                        "optimizer.skip_synchronize() context if you use optimizer.synchronize() in your code.",
                        stacklevel=2,
                    )
                self.synchronize()
        self._synchronized = self._synchronized_for_scaler = False
        return super().step() if closure is None else super().step(closure)

    # PyTorch wraps the `step` of every optimizer class once, to call the hooks that users register. That of the wrapped
    # class is enough: a second time they would run twice, and the first time before the gradients are reduced.
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Forget the gradients, with the arguments of the wrapped optimizer; not between backward and step."""
        if self._in_flight:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(). This is prohibited as it can cause a race condition."
            )
        self._synchronized = self._synchronized_for_scaler = False
        super().zero_grad(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load what ``state_dict`` of this or of a plain optimizer gave, and forget exchanges that are under way."""
        for bucket in self._buckets:
            flight, bucket.flight, bucket.missing = bucket.flight, None, len(bucket.parameters)
            handle = flight.handle if isinstance(flight, _Flight) else flight
            if handle is not None:
                forget(handle)
        self._in_flight = 0
        self._synchronized = self._synchronized_for_scaler = False
        self._should_synchronize = True
        self._start_counting()
        super().load_state_dict(*args, **kwargs)

    def _make_buckets(self, parameters: list[Tensor], groups: int | Sequence[Sequence[Tensor]] | None) -> None:
        for members in grouped(parameters, groups):
            bucket = _Bucket(members, self._name_of(members[0]), self._places[members[0]])
            self._buckets.append(bucket)
            self._bucket_of.update((parameter, bucket) for parameter in members)

    def _release(self, parameter: Tensor) -> None:
        super()._release(parameter)
        bucket = self._bucket_of.pop(parameter)
        bucket.parameters = [other for other in bucket.parameters if other is not parameter]
        bucket.missing = len(bucket.parameters)
        if bucket.parameters:
            first = bucket.parameters[0]
            bucket.name, bucket.place = self._name_of(first), self._places[first]
        else:
            self._buckets.remove(bucket)
            self._in_flight -= bucket.flight is not None

    def _gradient_complete(self, parameter: Tensor) -> None:
        bucket = self._bucket_of[parameter]
        bucket.missing -= 1
        if bucket.missing == 0:
            self._send(bucket)

    def _call_and_synchronize(self, closure: Callable[[], Any]) -> Any:
        with torch.enable_grad():
            loss = closure()
        self.synchronize()
        return loss

    def _send(self, bucket: _Bucket) -> None:
        """Start the exchange of a bucket's gradients."""
        bucket.flight = self._start_alone(bucket)
        if bucket.flight is None:
            bucket.flight = self._start(bucket)
        self._in_flight += 1

    def _start_alone(self, bucket: _Bucket) -> int | None:
        """Start the exchange of a gradient that can travel as it is; None if it cannot, and nothing was done then."""
        parameter = bucket.parameters[0]
        gradient, number = parameter.grad, self.process_set.process_set_id
        if len(bucket.parameters) > 1 or gradient is None or number is None or gradient.is_sparse or self._sparse_dims:
            return None
        wire = None
        if self._compression is not Compression.none:
            wire = wire_of(self._compression, gradient)
            if wire is None:
                return None
        return PLAIN.allreduce(gradient, bucket.name, self.op, *self._factors(), number, bucket.place, False, wire)

    def _start(self, bucket: _Bucket) -> _Flight:
        flight = _Flight()
        packed, wires = [], []
        for parameter in bucket.parameters:
            gradient = self._gradient_to_send(parameter)
            if gradient.is_sparse:
                wait = sparse_allreduce_async(gradient, self._name_of(parameter), self.op, self.process_set)
                flight.sparse.append((parameter, wait))
            else:
                tensor, undo, wire = pack(self._compression, gradient)
                packed.append(tensor)
                wires.append(wire)
                sparse_dims = self._sparse_dims.get(parameter, 0)
                flight.dense.append((parameter, undo, sparse_dims))
        if packed:
            arguments = (True, bucket.name, self.op, *self._factors(), self.process_set, bucket.place)
            if len(packed) == 1:
                flight.handle = ops.start_allreduce(packed[0], *arguments, wire=wires[0])
            else:
                flight.handle = ops.start_grouped_allreduce(packed, *arguments, wires)
        return flight

    def _gradient_to_send(self, parameter: Tensor) -> Tensor:
        gradient = parameter.grad
        if gradient is None:
            if parameter.requires_grad and parameter not in self._sparse_dims:
                parameter.grad = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
                return parameter.grad
            gradient = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
            if parameter in self._sparse_dims:
                gradient = gradient.to_sparse(self._sparse_dims[parameter])
        if gradient.is_sparse:
            self._sparse_dims[parameter] = gradient.sparse_dim()
            if self.sparse_as_dense:
                return gradient.detach().to_dense()
        return gradient.detach()

    def _factors(self) -> tuple[float, float]:
        """Return what gradients are multiplied by before and after they are added up."""
        return 1.0 / self.gradient_predivide_factor, self.gradient_predivide_factor

    @torch.no_grad()
    def _land_all(self) -> None:
        """Wait for every exchange; where some fail, raise the first error at the end."""
        alone, handles, flights = [], [], []
        for bucket in self._buckets:
            flight, bucket.flight, bucket.missing = bucket.flight, None, len(bucket.parameters)
            if isinstance(flight, int):
                alone.append(bucket.parameters[0])
                handles.append(flight)
            else:
                flights.append(flight)
        failure = None
        try:
            for parameter, result in zip(alone, synchronize_all(handles)):
                if parameter.grad is not result:
                    _take(parameter, result)
        except Exception as error:
            failure = error
        for flight in flights:
            try:
                self._land(flight)
            except Exception as error:
                failure = failure or error
        self._in_flight = 0
        if failure is not None:
            raise failure

    def _land(self, flight: Any) -> None:
        if flight.handle is not None:
            outputs = synchronize(flight.handle)
            outputs = [outputs] if isinstance(outputs, Tensor) else outputs
            for (parameter, undo, sparse_dims), output in zip(flight.dense, outputs):
                result = undo(output)
                if sparse_dims:
                    parameter.grad = result.to_sparse(sparse_dims)
                else:
                    _take(parameter, result)
        for parameter, wait in flight.sparse:
            parameter.grad = wait()


def _take(parameter: Tensor, result: Tensor) -> None:
    """Make a result the gradient of a parameter."""
    if parameter.grad is None:
        # A parameter that was frozen meanwhile travels along, but is not to be trained.
        parameter.grad = result if parameter.requires_grad else None
    elif parameter.grad.data_ptr() != result.data_ptr():
        parameter.grad.copy_(result)


def grouped(parameters: list[Tensor], groups: int | Sequence[Sequence[Tensor]] | None) -> list[list[Tensor]]:
    """Deal parameters into groups: one each, a number of groups, or lists of those that belong together.

    >>> grouped([1, 2, 3, 4, 5], 2)
    [[1, 2, 3], [4, 5]]
    """
    if groups is None:
        return [[parameter] for parameter in parameters]
    if isinstance(groups, int):
        return [list(part) for part in split_list(parameters, groups) if part]
    here = set(parameters)
    chosen = [[parameter for parameter in group if parameter in here] for group in groups]
    taken = {parameter for group in chosen for parameter in group}
    return [group for group in chosen if group] + [[p] for p in parameters if p not in taken]
