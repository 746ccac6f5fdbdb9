"""Docker daemons of our own, each as if on a machine of its own, for tests that build and run images.

A daemon lives in namespaces of its own: its processes and containers, mounts, `/run` and network (bridge, firewall
rules, forwarding) are not this machine's, and its images and containers lie in memory. All of it hangs on one process
that ends when the pipe from this process closes, so it is gone after the `with` block and also when the tests are
killed; the folder then holds no more than a log.

    with Daemon(folder) as daemon:
        daemon.docker("run", "--rm", IMAGE, "hostname")

A daemon that builds images has to reach packages and should remember what it has built: `builder=True` keeps it on
this machine's network, where it then makes no bridge and no rule, and its images in the folder. `connect` puts a cable
between two daemons. The tools come from `prepare`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

# The daemon's processes are children of this shell, which waits for the end of its standard input. It is told the
# daemon's folder, where images lie, the cgroup for containers, and the options. `/run` is its own, since the daemon
# keeps things there that must not meet those of another; `/proc` has to fit the process numbers.
HOLDER = """
set -eu
folder=$1 place=$2 parent=$3
shift 3
read -r outer rest </proc/self/stat
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mkdir -p "$folder/data"
[ "$place" = disk ] || mount -t tmpfs tmpfs "$folder/data"
dockerd --host "unix://$folder/socket" --data-root "$folder/data" --exec-root /run/docker --pidfile /run/docker.pid \
    --cgroup-parent "$parent" --exec-opt native.cgroupdriver=cgroupfs "$@" </dev/null >"$folder/log" 2>&1 &
daemon=$!
echo "ready $outer"
read -r end || :
kill "$daemon" && wait "$daemon" || :
# Version 1 has a tree of groups for every controller, version 2 has one.
for group in /sys/fs/cgroup"$parent" /sys/fs/cgroup/*"$parent"; do
    [ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} ";"
done
"""


class DockerError(Exception):
    """A command of Docker failed; the message says which and what it said."""


@functools.cache
def prepared(what: str) -> Path:
    """Return where `prepare` keeps the tools or the base image."""
    return Path(subprocess.run([HERE / "prepare", what], check=True, stdout=subprocess.PIPE, text=True).stdout.strip())


@functools.cache
def environment() -> dict[str, str]:
    """Return an environment in which Docker's programs are found, wherever `prepare` put them."""
    tools = prepared("tools")
    libraries = next(tools.glob("usr/lib/*/xtables"), None)
    found = {**os.environ, "PATH": f"{tools}/usr/sbin:{tools}/usr/bin:{os.environ['PATH']}", "DOCKER_BUILDKIT": "1"}
    if libraries is not None:
        found |= {"XTABLES_LIBDIR": str(libraries), "LD_LIBRARY_PATH": str(libraries.parent)}
    return found


class Daemon:
    """A Docker daemon, as a context manager; what it keeps on disk lies in `folder`."""

    def __init__(self, folder: Path, *, builder: bool = False) -> None:
        self.folder = folder
        self.builder = builder
        self.address = "127.0.0.1"
        self._cgroup = f"/ronde-images-{os.getpid()}-{folder.name}"

    def __enter__(self) -> Daemon:
        self.folder.mkdir(parents=True, exist_ok=True)
        private = ["--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
        if self.builder:
            place, options = "disk", ["--bridge=none", "--iptables=false", "--ip-forward=false"]
        else:
            place, options = "memory", []
            private.append("--net")
        self._holder = subprocess.Popen(
            ["unshare", *private, "sh", "-c", HOLDER, "sh", str(self.folder), place, self._cgroup, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
            # A Ctrl-C is for the tests, which then close the pipe.
            start_new_session=True,
        )
        try:
            assert self._holder.stdout is not None
            words = self._holder.stdout.readline().split()
            if len(words) != 2:
                raise DockerError("the namespaces of a Docker daemon could not be made; is this root?")
            self.pid = int(words[1])
            if not self.builder:
                self.inside("ip", "link", "set", "lo", "up")
            self._await_daemon()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _await_daemon(self) -> None:
        end = time.monotonic() + 60
        while subprocess.run(self._words("version"), capture_output=True, env=environment(), check=False).returncode:
            if self._holder.poll() is not None or time.monotonic() > end:
                raise DockerError(f"dockerd did not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.1)  # sleep: between two looks

    def close(self) -> None:
        """End the daemon and everything in its containers."""
        try:
            self._holder.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self._holder.kill()
            self._holder.communicate()
        for rest in ("socket", "log"):
            (self.folder / rest).unlink(missing_ok=True)

    def inside(self, *words: str) -> None:
        """Run a command in the daemon's network."""
        _run(["nsenter", f"--net=/proc/{self.pid}/ns/net", *words])

    def _words(self, *words: object) -> list[str]:
        return ["docker", "--host", f"unix://{self.folder}/socket", *(str(word) for word in words)]

    def docker(self, *words: object, **options: Any) -> str:
        """Run a docker command to its end and return what it printed; raise if it failed."""
        return _run(self._words(*words), **options).strip()

    def result(self, *words: object, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a docker command to its end and return how it ended and what it printed."""
        return subprocess.run(
            self._words(*words), capture_output=True, text=True, env=environment(), check=False, **options
        )

    def popen(self, *words: object, **options: Any) -> subprocess.Popen[str]:
        """Start a docker command."""
        return subprocess.Popen(self._words(*words), text=True, env=environment(), **options)

    @contextlib.contextmanager
    def container(self, *words: object) -> Iterator[str]:
        """Start a container in the background (`docker run --detach WORDS…`), give its id, remove it at the end."""
        container = self.docker("run", "--detach", *words)
        try:
            yield container
        finally:
            self.docker("rm", "--force", "--volumes", container)

    def bridge_address(self, container: str) -> str:
        """Return the address that a container has on the default bridge."""
        return self.docker("inspect", "--format", "{{.NetworkSettings.IPAddress}}", container)


def connect(left: Daemon, right: Daemon) -> None:
    """Put a cable between the networks of two daemons; each then has an `address` on it."""
    left.inside("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", str(right.pid))
    for number, daemon in enumerate((left, right), 1):
        daemon.address = f"10.78.0.{number}"
        daemon.inside("ip", "address", "add", f"{daemon.address}/24", "dev", "eth0")
        daemon.inside("ip", "link", "set", "eth0", "up")


def _run(words: Sequence[str], **options: Any) -> str:
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), check=False, **options)
    if done.returncode != 0:
        raise DockerError(f"`{' '.join(words)}` failed with status {done.returncode}: {done.stderr or done.stdout}")
    return done.stdout
