"""Training that goes on when ranks come and go, whatever the framework.

The user's state is a :class:`State`, which can be saved, restored, and taken over from rank 0. :func:`run_fn` runs the
training function in a loop: after a failure it restores the state, after a change of hosts it keeps it, and in both
cases the process joins the job anew. News about hosts comes from the launcher through ``notification_manager``;
without such a launcher there is none, and ``check_host_updates`` has nothing to raise.
"""

from __future__ import annotations

import ctypes
import functools
import queue
from collections.abc import Callable, Iterable
from typing import Any

from ronde import _core
from ronde._collectives import Max
from ronde.exceptions import HorovodInternalError, HostsUpdatedInterrupt

__all__ = [
    "HostUpdateResult",
    "ObjectState",
    "State",
    "WorkerNotificationManager",
    "notification_manager",
    "run_fn",
]


class HostUpdateResult:
    """What has happened to the hosts of a job, as flags."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class State:
    """What a training needs to go on in another process.

    ``bcast_object`` returns rank 0's argument on every rank and ``get_rank`` this process' rank. Subclasses say how to
    ``save``, ``restore`` and ``sync``.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.SimpleQueue[tuple[float, int]] = queue.SimpleQueue()
        self._last_updated_timestamp: float = 0
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Have functions called after each reset, for example to adapt the learning rate to the number of ranks."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Adapt to the job that this process has joined."""
        self._host_messages = queue.SimpleQueue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Take note that hosts have changed; ``check_host_updates`` tells the training."""
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Save the state, to come back to after a failure, and see whether hosts have changed."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise ``HostsUpdatedInterrupt`` if hosts have changed: on all ranks or on none, as rank 0 has heard."""
        last = previous = self._last_updated_timestamp
        changes = HostUpdateResult.no_update
        while not self._host_messages.empty():
            timestamp, change = self._host_messages.get()
            if timestamp > last:
                last = timestamp
                changes |= change
        previous, self._last_updated_timestamp, changes = self._bcast_object((previous, last, changes))
        if self._last_updated_timestamp > previous:
            raise HostsUpdatedInterrupt(changes == HostUpdateResult.removed)

    def save(self) -> None:
        """Keep the state in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Bring back the state that was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Take over the state of rank 0."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapt to another number of ranks; nothing by default."""


class ObjectState(State):
    """State made of plain values, given by keyword and available as attributes.

    Values are saved by reference, so replace them instead of changing them.

    >>> state = ObjectState(bcast_object=lambda values: values, get_rank=lambda: 0, epoch=0)
    >>> state.epoch = 3
    >>> state.commit()
    >>> state.epoch = 4
    >>> state.restore(); state.epoch
    3
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any) -> None:
        self._saved_state = kwargs
        for name, value in kwargs.items():
            setattr(self, name, value)
        super().__init__(bcast_object=bcast_object, get_rank=get_rank)

    def save(self) -> None:
        """Remember the values."""
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def restore(self) -> None:
        """Bring back the values that were saved last."""
        for name, value in self._saved_state.items():
            setattr(self, name, value)

    def sync(self) -> None:
        """Take over the values of rank 0."""
        if self._saved_state:
            self.save()
            self._saved_state = self._bcast_object(self._saved_state)
            self.restore()


class WorkerNotificationManager:
    """Passes news about hosts on to the states of running trainings."""

    def __init__(self) -> None:
        self._listeners: list[State] = []

    def init(self, *_: Any, **__: Any) -> None:
        """Take, and need nothing of, the address of the launcher that Horovod's own modules pass here."""

    def register_listener(self, listener: State) -> None:
        """Pass news on to a state from now on."""
        self._listeners.append(listener)

    def remove_listener(self, listener: State) -> None:
        """Pass no more news on to a state."""
        self._listeners = [other for other in self._listeners if other is not listener]

    def handle_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Pass on that hosts have changed. Timestamps grow from one change to the next."""
        for listener in self._listeners:
            listener.on_hosts_updated(timestamp, update_res)


notification_manager = WorkerNotificationManager()


def run_fn(func: Callable[..., Any], reset: Callable[[], None]) -> Callable[..., Any]:
    """Return a function that runs ``func(state, ...)`` until it returns, joining the job anew after each change.

    ``reset`` leaves the job and joins it again. Other errors than those of the job are the function's own and end it.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        notification_manager.init()
        notification_manager.register_listener(state)
        needs_sync = True
        try:
            while True:
                try:
                    # A rank that lost nothing still has to help one that is new.
                    if _on_any_rank(needs_sync):
                        state.sync()
                    return func(state, *args, **kwargs)
                except HorovodInternalError:
                    state.restore()
                    needs_sync = True
                except HostsUpdatedInterrupt as interrupt:
                    needs_sync = not interrupt.skip_sync
                reset()
                state.on_reset()
        finally:
            notification_manager.remove_listener(state)

    return wrapper


# Not a local variable: when the wait is interrupted the engine still writes here.
_word = ctypes.c_int32()


def _on_any_rank(answer: bool) -> bool:
    """Tell whether any rank says yes."""
    if not _core.is_initialized():
        return answer
    _word.value = answer
    address = ctypes.addressof(_word)
    dtype = _core.DTYPES.index("int32")
    handle = _core.enqueue_allreduce(0, "allreduce.elastic.sync", address, address, [1], dtype, Max, 1.0, 1.0, 0)
    _core.wait(handle)
    return bool(_word.value)
