"""An API server with bad days, for tests: a proxy before the real one that does what a test asks for.

    with cluster.faults() as faults:
        faults.set(Fault(methods=["POST"], path="/pods", status=429, retry_after=1, times=3))
        subprocess.run(["ronde", "kube", "run", ...], env={"KUBECONFIG": str(faults.kubeconfig())})
        assert faults.requests()

Programs of this machine get to it by its own client configuration; pods by `serve_pods`, which puts it behind
`kubernetes.default.svc`. The proxy itself is binaries/faults.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .control_plane import ControlPlane, loopback_socket
from .errors import ClusterError, wait_for
from .layout import API_PORT, CONTROL_PLANE, FAULTS_PORT, program


@dataclass(frozen=True)
class Fault:
    """Which requests are meant (method, expression found in path and query) and what becomes of them.

    Of those that fit, `skip` are left alone first; then `times` are hit, all if 0. After `delay` seconds a request is
    answered with `status`, if that is not 0; or the real server does what it asks for and the answer is lost, with
    `hold` only once `release` is called, so that a test can kill the client in between.
    """

    methods: Sequence[str] = ()
    path: str = ""
    skip: int = 0
    times: int = 0
    status: int = 0
    retry_after: int = 0
    delay: float = 0.0
    lose_answer: bool = False
    hold: bool = False


@dataclass(frozen=True)
class Request:
    """A request that came, and the status that was answered; 0 if it was none."""

    method: str
    path: str
    agent: str
    status: int
    hit: bool
    began: str


class Faults:
    """The proxy, as a context manager. One at a time in a cluster."""

    def __init__(self, control_plane: ControlPlane, folder: Path) -> None:
        self._control_plane = control_plane
        self._control = folder / "faults.sock"
        self._serves_pods = False

    def __enter__(self) -> Faults:
        plane = self._control_plane
        self._control.unlink(missing_ok=True)
        with loopback_socket() as listening:
            self.port: int = listening.getsockname()[1]
            self._process = plane.machine.start(
                "faults",
                program("faults"),
                *("-upstream", f"https://{CONTROL_PLANE}:{API_PORT}"),
                *("-ca", plane.authority.certificate.file),
                *("-certificate", plane.certificate.file),
                *("-key", plane.certificate.key),
                *("-control", self._control),
                *("-listen", f"{CONTROL_PLANE}:{FAULTS_PORT}"),
                stdin=listening.fileno(),
            )
        wait_for("the faulty API server", self._control.exists, check=self._process.check)
        return self

    def __exit__(self, *_error: object) -> None:
        if self._serves_pods:
            self._control_plane.answer_pods_at(API_PORT)
        self._process.end()

    def kubeconfig(self, user: str = "admin", namespace: str = "default") -> Path:
        """Return a client configuration that leads here."""
        return self._control_plane.access.by_token(user, f"127.0.0.1:{self.port}", namespace)

    def serve_pods(self) -> None:
        """Stand behind `kubernetes.default.svc` until the end, so that pods have the bad days too."""
        self._serves_pods = True
        self._control_plane.answer_pods_at(FAULTS_PORT)

    def set(self, *faults: Fault) -> None:
        """Set what happens from now on, instead of what was set before; nothing is the end of all faults."""
        self._ask("PUT", "/rules", json.dumps([asdict(fault) for fault in faults]))

    def requests(self) -> list[Request]:
        """Return all requests that came since the start or `forget`."""
        return [Request(**fields) for fields in json.loads(self._ask("GET", "/requests"))]

    def forget(self) -> None:
        """Forget the requests that came."""
        self._ask("DELETE", "/requests")

    def held(self) -> int:
        """Return how many requests are done and held."""
        count: int = json.loads(self._ask("GET", "/held"))
        return count

    def release(self) -> None:
        """Let those go; their connections end without an answer."""
        self._ask("DELETE", "/held")

    def _ask(self, method: str, path: str, content: str | None = None) -> str:
        connection = _UnixConnection(self._control)
        try:
            connection.request(method, path, content)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status != 200:
            raise ClusterError(f"the faulty API server answered {answer.status} to {method} {path}: {text}")
        return text


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock: Any = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
