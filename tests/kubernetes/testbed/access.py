"""Who may talk to a cluster's API server, and from where: users, their tokens, and the files clients are told by.

Tokens are made for each cluster. Parts of the cluster reach the server at its address inside; programs of this machine
at a port of the loopback, which a door carries in.
"""

from __future__ import annotations

import http.client
import json
import math
import secrets
import ssl
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .certificates import Authority, Certificate
from .errors import ClusterError

# Everybody with a token, and the groups that give them rights: all of them, those of a part, or none at all.
USERS = {
    "admin": "system:masters",
    "nobody": "",
    "system:kube-controller-manager": "",
    "system:kube-scheduler": "",
    "system:kube-proxy": "",
    "coredns": "system:masters",
    "kwok": "system:masters",
}


class Access:
    """The tokens and client configurations of one cluster, as files in `folder`."""

    def __init__(self, folder: Path, authority: Authority, inside: str) -> None:
        folder.mkdir(mode=0o700)
        self._folder = folder
        self._authority = authority
        self._inside = inside
        self._tokens = {user: secrets.token_hex(16) for user in USERS}
        self.token_file = folder / "tokens.csv"
        lines = [f'{token},{user},{user},"{USERS[user]}"\n' for user, token in self._tokens.items()]
        self.token_file.write_text("".join(lines))

    def token(self, user: str) -> str:
        """Return what a user proves itself with."""
        if user not in self._tokens:
            raise ClusterError(f"there is no user {user}; there are {', '.join(sorted(self._tokens))}")
        return self._tokens[user]

    def by_token(self, user: str, server: str = "", namespace: str = "default") -> Path:
        """Write the client configuration of a user for the server at an address, the one inside unless said."""
        return self.with_token(user, self.token(user), server or self._inside, namespace)

    def with_token(self, user: str, token: str, server: str, namespace: str) -> Path:
        """Write the client configuration of whoever a token stands for."""
        return self._write(f"{user}-{namespace}", server, {"token": token}, namespace)

    def by_certificate(self, name: str, shown: Certificate) -> Path:
        """Write the client configuration of a part of the cluster that shows a certificate."""
        user = {"client-certificate": str(shown.file), "client-key": str(shown.key)}
        return self._write(name, self._inside, user, "default")

    def _write(self, name: str, server: str, user: dict[str, str], namespace: str) -> Path:
        port = server.rpartition(":")[2]
        file = self._folder / f"{name.replace(':', '-')}-{port}.kubeconfig"
        cluster = {"server": f"https://{server}", "certificate-authority": str(self._authority.certificate.file)}
        context = {"cluster": "test", "user": name, "namespace": namespace}
        # JSON is YAML.
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": "test", "context": context}],
            "current-context": "test",
        }
        written = file.with_suffix(".new")
        written.write_text(json.dumps(content, indent=1) + "\n")
        # A client may be reading the old one.
        written.rename(file)
        return file


@dataclass(frozen=True)
class Api:
    """The API server as this process talks to it: for questions that are asked many times a second."""

    port: int
    token: str
    authority: Path

    def _connect(self, timeout: float | None = 10) -> http.client.HTTPSConnection:
        trusted = ssl.create_default_context(cafile=str(self.authority))
        return http.client.HTTPSConnection("127.0.0.1", self.port, context=trusted, timeout=timeout)

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}

    def request(self, method: str, path: str, content: Any = None) -> tuple[int, str]:
        """Return status and text of an answer; status 0 if there was none."""
        connection = self._connect()
        body = None if content is None else json.dumps(content)
        try:
            connection.request(method, path, body, self._headers())
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            return 0, str(error)
        finally:
            connection.close()

    def watch(self, path: str) -> Iterator[dict[str, Any]]:
        """List a collection, and yield what becomes of it: {"type": …, "object": …}, every change in its order.

        What is there already comes first, as ADDED. Ends when the API server ends it.
        """
        found = self.get(path)
        for item in found["items"]:
            yield {"type": "ADDED", "object": item}
        yield from self.events(f"{path}?watch=1&resourceVersion={found['metadata']['resourceVersion']}")

    def follow(self, path: str, seconds: float) -> Iterator[dict[str, Any]]:
        """Yield every event of a collection for so many seconds, beginning with what is there.

        The server ends watches of those who are slow to listen; then this goes on where that one ended.
        """
        end, version = time.monotonic() + seconds, ""
        while (left := end - time.monotonic()) > 0:
            options = f"watch=true&timeoutSeconds={math.ceil(left)}{version}"
            for event in self.events(f"{path}{'&' if '?' in path else '?'}{options}"):
                if event["type"] == "ERROR":
                    raise ClusterError(f"watching {path}: {event['object'].get('message')}")
                version = f"&resourceVersion={event['object']['metadata']['resourceVersion']}"
                yield event

    def events(self, path: str) -> Iterator[dict[str, Any]]:
        """Yield every event of a watch, as it comes, until the server ends it or the caller has seen enough."""
        connection = self._connect(timeout=None)
        try:
            connection.request("GET", path, headers=self._headers())
            answer = connection.getresponse()
            if answer.status != 200:
                raise ClusterError(f"the API server answered {answer.status}: {answer.read().decode()}")
            while line := answer.readline():
                yield json.loads(line)
        finally:
            connection.close()

    def get(self, path: str) -> dict[str, Any]:
        """Return an object or a list; raise if it cannot be had."""
        return self._answered(*self.request("GET", path))

    def create(self, path: str, content: Any) -> dict[str, Any]:
        """Create an object in the collection at the path."""
        return self._answered(*self.request("POST", path, content))

    def create_all(self, path: str, contents: Iterable[Any]) -> None:
        """Create many objects in the collection at the path, over one connection."""
        connection = self._connect()
        try:
            for content in contents:
                connection.request("POST", path, json.dumps(content), self._headers())
                answer = connection.getresponse()
                self._answered(answer.status, answer.read().decode())
        except (OSError, http.client.HTTPException) as error:
            raise ClusterError(f"the API server did not take all objects: {error}") from error
        finally:
            connection.close()

    def replace(self, path: str, content: Any) -> dict[str, Any]:
        """Replace an object."""
        return self._answered(*self.request("PUT", path, content))

    def _answered(self, status: int, text: str) -> dict[str, Any]:
        if not 200 <= status < 300:
            raise ClusterError(f"the API server answered {status}: {text}")
        answer: dict[str, Any] = json.loads(text)
        return answer
