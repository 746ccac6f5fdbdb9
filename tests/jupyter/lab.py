"""A real JupyterLab server in a folder of its own."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jupyterlab
from page import PATIENCE, PREFERENCES

from waiting import eventually


@dataclass(frozen=True)
class Lab:
    """A running server."""

    address: str
    token: str
    folder: Path


@contextmanager
def running_lab(folder: Path) -> Iterator[Lab]:
    """Give a server of the notebooks in a folder."""
    home = folder / ".home"
    for file, contents in PREFERENCES.items():
        (home / "config" / file).parent.mkdir(parents=True)
        (home / "config" / file).write_text(contents, encoding="utf-8")
    # The pages lie where the pins are, which the environment with the wheel refers to.
    shared = Path(jupyterlab.__file__).parents[4] / "share" / "jupyter"
    token = secrets.token_hex(16)
    environment = {
        **os.environ,
        "HOME": str(home),
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTER_PATH": str(shared),
        "JUPYTER_TOKEN": token,
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0"]
    command += [f"--app-dir={shared / 'lab'}", f"--notebook-dir={folder}"]
    log = folder / ".home" / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
    try:
        yield Lab(await_address(server, log), token, folder)
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            # Its kernels end when it does.
            server.kill()
            raise


def await_address(server: subprocess.Popen[bytes], log: Path) -> str:
    """Wait until a server says where it is."""
    with subprocess.Popen(
        ["tail", "--follow", "--lines=+1", f"--pid={server.pid}", str(log)], stdout=subprocess.PIPE, text=True
    ) as tail:
        assert tail.stdout is not None
        said = []
        for line in tail.stdout:
            said.append(line)
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                tail.kill()
                await_listener(int(found[1]))
                return found[0]
    raise AssertionError(f"JupyterLab has ended:\n{''.join(said)}")


def await_listener(port: int) -> None:
    """Wait until a port is listened at: the server says where it will be before it is there, and then no more."""

    def listens() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), PATIENCE).close()
        except ConnectionRefusedError:
            return False
        return True

    eventually(listens, f"JupyterLab to listen at port {port}", PATIENCE)
