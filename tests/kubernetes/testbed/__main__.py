"""A cluster for people, behind `make cluster-up NODES=5,3,2` and `make cluster-down`.

`up` leaves a keeper behind, a process that holds the cluster until it is told to end. There is one such cluster a
user; its keeper writes down who it is once all is ready, which is also how `up` finds a cluster that is up already.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from .cluster import Cluster
from .errors import ClusterError, wait_for
from .layout import cache, program
from .leftovers import birth, sweep
from .simulated import Simulated


def main() -> None:
    """Do what the command line says."""
    arguments = argparse.ArgumentParser(prog="testbed", description="A Kubernetes cluster on this machine.")
    verbs = arguments.add_subparsers(dest="verb", required=True)
    for verb in ("up", "keep"):
        parser = verbs.add_parser(verb)
        parser.add_argument("nodes", type=_nodes, help="GPUs of each node, for example 5,3,2")
        parser.add_argument("images", nargs="*", type=Path, help="archives of images that all nodes have")
        parser.add_argument("--simulated", type=int, default=0, help="so many nodes of 8 GPUs more, which run nothing")
    verbs.add_parser("down")
    options = arguments.parse_args()
    try:
        if options.verb == "up":
            up(options.nodes, options.images, options.simulated)
        elif options.verb == "keep":
            keep(options.nodes, options.images, options.simulated)
        else:
            down()
    except ClusterError as error:
        raise SystemExit(f"error: {error}") from None


def _nodes(text: str) -> list[int]:
    nodes = [int(gpus) for gpus in text.split(",")]
    if min(nodes) < 0:
        raise argparse.ArgumentTypeError("a node has no less than 0 GPUs")
    return nodes


def _state_file() -> Path:
    # Tests have one of their own.
    return Path(os.environ.get("RONDE_TEST_CLUSTER_STATE") or cache() / "cluster.json")


def _state() -> dict[str, Any] | None:
    """Return what the keeper wrote, if it still lives."""
    try:
        state: dict[str, Any] = json.loads(_state_file().read_text())
    except (OSError, ValueError):
        return None
    return state if birth(state["pid"]) == state["born"] else None


def up(nodes: list[int], images: list[Path], simulated: int) -> None:
    """Start a keeper unless one is there, and say how to use its cluster."""
    state = _state()
    if state is None:
        # Here, so that what is built first can be seen.
        program("kubectl")
        _state_file().unlink(missing_ok=True)
        log = _state_file().with_suffix(".log")
        with log.open("wb") as output:
            words = [sys.executable, "-m", "testbed", "keep", ",".join(map(str, nodes)), *map(str, images)]
            words.append(f"--simulated={simulated}")
            keeper = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

        def started() -> dict[str, Any] | None:
            if keeper.poll() is not None:
                raise ClusterError(f"the cluster did not come up: {log.read_text().strip()}")
            return _state()

        state = wait_for("the cluster", started, 300)
    elif (state["nodes"], state["simulated"]) != (nodes, simulated):
        now = f"NODES={','.join(map(str, state['nodes']))}"
        if state["simulated"]:
            now += f" SIMULATED={state['simulated']}"
        raise ClusterError(f"a cluster with {now} is up already; `make cluster-down` ends it")
    print(f"export KUBECONFIG={state['kubeconfig']}")
    print(f"alias kubectl={program('kubectl')}")


def keep(nodes: list[int], images: list[Path], simulated: int) -> None:
    """Hold a cluster until SIGTERM."""

    def end(*_signal: object) -> None:
        raise SystemExit

    # Handled, not blocked and waited for: what is blocked here would be in every container.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    with Cluster(nodes, images=images, simulated=Simulated(simulated) if simulated else None) as cluster:
        own = {"pid": os.getpid(), "born": birth(os.getpid())}
        state = {**own, "nodes": nodes, "simulated": simulated, "kubeconfig": str(cluster.kubeconfig())}
        written = _state_file().with_suffix(".new")
        written.write_text(json.dumps(state))
        written.rename(_state_file())
        while True:
            signal.pause()


def down() -> None:
    """End the cluster, and what killed ones have left."""
    state = _state()
    if state is not None:
        os.kill(state["pid"], signal.SIGTERM)
        wait_for("the cluster to end", lambda: birth(state["pid"]) != state["born"])
        for file in (_state_file(), _state_file().with_suffix(".log")):
            file.unlink(missing_ok=True)
    sweep()


if __name__ == "__main__":
    main()
