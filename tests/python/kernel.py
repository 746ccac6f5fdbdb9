"""A real IPython kernel, driven as a notebook's page drives it."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

# How long anything may take.
PATIENCE = 60.0


@dataclass
class Ran:
    """What a cell left on the page."""

    status: str = ""
    result: str | None = None
    error: str = ""
    """The traceback as shown, or what stands for one."""
    streams: dict[str, str] = field(default_factory=lambda: {"stdout": "", "stderr": ""})
    displays: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    """What every display has shown, first to last."""

    @property
    def last(self) -> list[dict[str, str]]:
        """What every display shows at the end."""
        return [shown[-1] for shown in self.displays.values()]

    @property
    def head(self) -> str:
        """The line that says how the job is."""
        return self.last[0]["text/plain"]

    def rank(self, rank: int) -> str:
        """Return the text of a rank's part."""
        return self.last[1 + rank]["text/plain"]

    def is_open(self, rank: int) -> bool:
        """Tell whether a rank's part is unfolded."""
        found = re.match(r"<details[^>]*?( open)?(?: ontoggle[^>]*)?>", self.last[1 + rank]["text/html"])
        assert found
        return found[1] is not None


class Kernel:
    """A kernel, in a folder of its choice."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self._cells: dict[str, Ran] = {}
        self.manager = manager(folder)
        self.manager.start_kernel(
            cwd=str(folder), env={**os.environ, "IPYTHONDIR": str(folder / "ipython"), **variables}
        )
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)

    def begin(self, code: str) -> str:
        """Start a cell; return its name."""
        cell = self.client.execute(code)
        self._cells[cell] = Ran()
        return cell

    def until(self, cell: str, *texts: str) -> None:
        """Wait until displays of a cell show these texts."""
        deadline = time.monotonic() + PATIENCE
        while not all(text in str(self._cells[cell].displays) for text in texts):
            self._take_message(deadline)

    def finish(self, cell: str) -> Ran:
        """Wait for a cell's end."""
        deadline = time.monotonic() + PATIENCE
        while self._take_message(deadline) != cell:
            pass
        while (reply := self.client.get_shell_msg(timeout=_left(deadline)))["parent_header"].get("msg_id") != cell:
            pass
        ran = self._cells[cell]
        ran.status = reply["content"]["status"]
        return ran

    def run(self, code: str) -> Ran:
        """Run a cell to its end."""
        return self.finish(self.begin(code))

    def close(self) -> None:
        """End the kernel."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def _take_message(self, deadline: float) -> str | None:
        """Take in what comes next; return the name of the cell that has ended with it, if one has."""
        message = self.client.get_iopub_msg(timeout=_left(deadline))
        cell: str = message["parent_header"].get("msg_id", "")
        kind, content = message["msg_type"], message["content"]
        if cell in self._cells:
            if kind == "status" and content["execution_state"] == "idle":
                return cell
            _take(self._cells[cell], kind, content)
        return None


def manager(folder: Path) -> KernelManager:
    """Return what starts the kernel of this Python, whatever others the user has.

    It speaks through sockets in a folder: nobody else can reach it, and no port can be taken.
    """
    return KernelManager(
        transport="ipc",
        ip=str(folder / "kernel"),
        connection_file=str(folder / "kernel.json"),
        kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),
    )


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _take(ran: Ran, kind: str, content: dict[str, Any]) -> None:
    if kind == "stream":
        ran.streams[content["name"]] += content["text"]
    elif kind == "execute_result":
        ran.result = content["data"]["text/plain"]
    elif kind == "error":
        ran.error = "\n".join(content["traceback"])
    elif kind in ("display_data", "update_display_data"):
        ran.displays.setdefault(content["transient"]["display_id"], []).append(content["data"])


@contextlib.contextmanager
def kernel(folder: Path, **variables: str) -> Iterator[Kernel]:
    """Give a kernel that has loaded the magic."""
    running = Kernel(folder, **variables)
    try:
        loaded = running.run("%load_ext ronde")
        assert (loaded.status, loaded.streams) == ("ok", {"stdout": "", "stderr": ""}), loaded
        yield running
    finally:
        running.close()
