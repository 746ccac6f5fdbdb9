"""Data loaders that prepare batches in a thread of their own, for any framework."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]


class BaseDataLoader:
    """A loader: subclasses say how many batches there are and how to get them."""

    def __len__(self) -> int:
        """Return the number of batches."""
        raise NotImplementedError

    def _iterate(self) -> Iterator[Any]:
        """Yield the batches."""
        raise NotImplementedError

    def _process_batch(self, batch: Any) -> Any:
        """Change a batch before the user gets it; not by default."""
        return batch

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)


class AsyncDataLoaderMixin:
    """Mixed in front of a loader: a thread runs ``_iterate`` ahead of the training, as far as the queue has room.

    >>> class Numbers(BaseDataLoader):
    ...     def __len__(self): return 3
    ...     def _iterate(self): return iter(range(3))
    >>> class AsyncNumbers(AsyncDataLoaderMixin, Numbers):
    ...     pass
    >>> list(AsyncNumbers(async_loader_queue_size=2))
    [0, 1, 2]
    """

    def __init__(
        self, async_loader_queue_size: int = 64, debug_data_loader: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader
        self._running: _Ahead | None = None
        super().__init__(*args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        loader: Any = self
        if self.async_loader_queue_size <= 0:
            yield from super().__iter__()  # type: ignore[misc]
            return
        self.close_async_loader()
        self._running = running = _Ahead(loader._iterate(), self.async_loader_queue_size)
        try:
            for batch in running:
                if self.debug_data_loader:
                    print(f"batches prepared ahead: {running.ready()}", flush=True)
                yield loader._process_batch(batch)
        finally:
            running.close()

    def close_async_loader(self) -> None:
        """End the thread, if there is one."""
        if self._running is not None:
            self._running.close()
            self._running = None


class _Ahead:
    """A thread that fills a queue from an iterator, and the other end of that queue."""

    def __init__(self, batches: Iterator[Any], room: int) -> None:
        self._batches = batches
        self._queue: queue.Queue[tuple[str, Any]] = queue.Queue(room)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._fill, name="ronde-data-loader", daemon=True)
        self._thread.start()

    def _fill(self) -> None:
        try:
            for batch in self._batches:
                if not self._put("batch", batch):
                    return
            self._put("end", None)
        except BaseException as error:
            # Raised where the batch was wanted.
            self._put("error", error)

    def _put(self, kind: str, content: Any) -> bool:
        self._queue.put((kind, content))
        return not self._closed.is_set()

    def __iter__(self) -> Iterator[Any]:
        while True:
            kind, content = self._queue.get()
            if kind == "end":
                return
            if kind == "error":
                raise content
            yield content

    def ready(self) -> int:
        """Return how many batches wait in the queue."""
        return self._queue.qsize()

    def close(self) -> None:
        """End the thread. It may be waiting for room in the queue, so that is emptied until it is gone."""
        self._closed.set()
        while self._thread.is_alive():
            try:
                self._queue.get(timeout=0.01)
            except queue.Empty:
                continue
        self._thread.join()
