"""A real JupyterLab server in a folder of its own, and a headless browser on its pages."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jupyterlab
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.support.wait import WebDriverWait

LOGS = Path(__file__).resolve().parents[2] / "target" / "test-logs"

# How long a page may take, in seconds, while the machine does other things.
PATIENCE = 120

# The page asks whether people want news, and draws only the cells that are in view.
DISABLED = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
SETTINGS = {"windowingMode": "none"}

CHROMIUM = """
    --headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update
    --disable-sync --window-size=1000,900 --force-device-scale-factor=1
"""


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
    settings = home / "settings" / "@jupyterlab" / "notebook-extension"
    (home / "config" / "labconfig").mkdir(parents=True)
    settings.mkdir(parents=True)
    (home / "config" / "labconfig" / "page_config.json").write_text(json.dumps(DISABLED), encoding="utf-8")
    (settings / "tracker.jupyterlab-settings").write_text(json.dumps(SETTINGS), encoding="utf-8")
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
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
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
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), PATIENCE).close()
            return
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, f"JupyterLab does not listen at port {port}"
            time.sleep(0.05)


class Page:
    """A notebook in a browser."""

    def __init__(self, driver: WebDriver) -> None:
        self.driver = driver

    def open(self, lab: Lab, notebook: str) -> None:
        """Open a notebook with the token, and wait until its kernel does."""
        self.driver.get(f"{lab.address}/lab/tree/{notebook}?reset&token={lab.token}")
        self.wait_for("return document.querySelector('#jp-main-statusbar')?.innerText.includes('| Idle')")
        self.wait_for("return document.querySelector('.jp-NotebookPanel .jp-Spinner') === null")

    def script(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page."""
        return self.driver.execute_script(script, *arguments)

    def wait_for(self, script: str, *arguments: Any) -> Any:
        """Wait until a script returns something true."""
        condition: Callable[[WebDriver], Any] = lambda _: self.script(script, *arguments)  # noqa: E731
        return WebDriverWait(self.driver, PATIENCE, poll_frequency=0.1).until(condition, f"never true: {script}")


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """Give a headless browser."""
    options = Options()
    options.binary_location = shutil.which("chromium") or "chromium"
    for argument in [*CHROMIUM.split(), f"--user-data-dir={folder}"]:
        options.add_argument(argument)
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver") or "chromedriver"))
    try:
        yield Page(driver)
    except BaseException:
        LOGS.mkdir(parents=True, exist_ok=True)
        driver.save_screenshot(str(LOGS / "page.png"))
        print(f"the page as it was is in {LOGS}")
        raise
    finally:
        driver.quit()
