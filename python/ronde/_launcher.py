"""Runs the ``ronde`` program that came with this package, as one would in a terminal.

What the job prints appears in ``sys.stdout`` and ``sys.stderr``. Where those are files or terminals the program writes
to them itself, so that progress bars overwrite themselves; where they are objects, as in a notebook, the lines are
passed on by the calling thread, whose cell they belong to.

The program is in a session of its own: Ctrl-C in a terminal reaches this process only, which passes it on once. Its
standard input is a pipe that nobody writes to and that closes when this process is gone, however it went; that tells
the launcher to end the job.
"""

from __future__ import annotations

import importlib.metadata
import io
import os
import selectors
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

# Whether the program has ended while others hold its output open is looked up this often, in seconds.
_LOOK_UP = 0.5


class Stream(Protocol):
    """What takes text: a file, or whatever stands for one."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...


def program(name: str) -> str:
    """Return the path of an executable of this package's installation, or else of ``PATH``."""
    try:
        files = importlib.metadata.files("ronde") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == name and os.access(path := file.locate(), os.X_OK) and Path(path).is_file():
            return str(Path(path).resolve())
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"cannot find the program {name}, which is installed with the package ronde")
    return found


def launch(
    arguments: Sequence[str],
    streams: Sequence[Stream | None] | None = None,
    look_up: Callable[[], None] = lambda: None,
) -> int:
    """Run ``ronde`` with these arguments, show its output, and return its status once it has ended.

    The output goes to the two ``streams``, or else to those of this process; ``look_up`` is called now and then until
    the end. An exception that arrives meanwhile, such as ``KeyboardInterrupt``, ends the job and is raised when it has
    ended.
    """
    streams = streams or [sys.stdout, sys.stderr]
    out, err = map(_destination, streams)
    command = [program("ronde"), *arguments]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=err, start_new_session=True) as process,
        selectors.DefaultSelector() as outputs,
    ):
        for pipe, stream in zip((process.stdout, process.stderr), streams):
            if pipe is not None and stream is not None:
                outputs.register(pipe, selectors.EVENT_READ, _Lines(pipe, stream))
        try:
            _show_until_end(process, outputs, look_up)
        except BaseException as error:
            process.send_signal(signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
            _see_to_its_end(process, outputs, look_up)
            raise
        return process.returncode


def _destination(stream: Stream | None) -> int:
    """Return what ``Popen`` needs for output to arrive in a stream."""
    if stream is None:
        return subprocess.DEVNULL
    buffer = getattr(stream, "buffer", None)
    # A stream that only looks like a file may name a descriptor that is not where its text goes: a notebook's names
    # the terminal of its server, a compressed file's the file below the compression.
    if isinstance(stream, io.TextIOWrapper) and isinstance(getattr(buffer, "raw", buffer), io.FileIO):
        stream.flush()
        return stream.fileno()
    return subprocess.PIPE


def _show_until_end(
    process: subprocess.Popen[bytes], outputs: selectors.BaseSelector, look_up: Callable[[], None]
) -> None:
    while outputs.get_map():
        ready = outputs.select(_LOOK_UP)
        look_up()
        for key, _ in ready:
            try:
                goes_on = key.data.pass_on()
            except Exception:
                # Nobody takes the output any more: the launcher notices, as it does in any pipeline.
                _close(key, outputs)
                raise
            if not goes_on:
                _close(key, outputs)
        if not ready and process.poll() is not None:
            break
    process.wait()


def _close(key: selectors.SelectorKey, outputs: selectors.BaseSelector) -> None:
    outputs.unregister(key.fileobj)
    key.data.pipe.close()


def _see_to_its_end(
    process: subprocess.Popen[bytes], outputs: selectors.BaseSelector, look_up: Callable[[], None]
) -> None:
    """Wait for a launcher that was told to end the job; one more Ctrl-C makes it kill the ranks at once."""
    while process.poll() is None:
        try:
            _show_until_end(process, outputs, look_up)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
        except Exception:
            # The output is lost, and the exception that ends the job is about to be raised: what counts is the end.
            continue


class _Lines:
    """One of the launcher's two outputs, on its way into a stream line by line."""

    def __init__(self, pipe: Any, stream: Stream) -> None:
        self.pipe = pipe
        self.stream = stream
        self.partial = b""

    def pass_on(self) -> bool:
        """Pass on what has come, up to the last end of a line; tell whether more may come."""
        read = os.read(self.pipe.fileno(), 1 << 16)
        text = self.partial + read
        cut = text.rfind(b"\n") + 1 if read else len(text)
        whole, self.partial = text[:cut], text[cut:]
        if whole:
            self.stream.write(whole.decode(errors="replace"))
            self.stream.flush()
        return bool(read)
