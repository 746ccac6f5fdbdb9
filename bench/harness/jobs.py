"""Runs one job of one tool to its end and returns the JSON lines that its ranks printed.

Every tool gets the same treatment: one process a rank, all started at once, and if
one fails the others are ended and its last words are told.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

from harness.environment import BENCH, OurBinaries, UpstreamHorovod
from harness.figures import Line
from harness.ground import Ground, Layout, Place

DEADLINE_SECONDS = 900.0
GRACE_SECONDS = 5.0
LAST_WORDS = 2000
# Upstream's launcher says before each line whose it is.
LABEL = re.compile(r"^\[\d+\]<stdout>:")


class JobError(Exception):
    """A job that was to be measured failed; the message says whose and how."""


class WrongPathError(Exception):
    """Bytes took a path that they cannot take between real hosts, or the wrong one inside a host."""


def run_probe(ground: Ground, layout: Layout, ours: OurBinaries, words: Sequence[object]) -> list[Line]:
    """Run the probe on every rank and make sure that ranks reached each other as they should."""
    lines = run_ronde(ground, layout, ours, [ours.probe, *words])
    _check_links(lines, layout)
    return lines


def run_ronde(ground: Ground, layout: Layout, ours: OurBinaries, command: Sequence[object]) -> list[Line]:
    """Run any command as the ranks of a job of ours, with our Python package on their path if there is one."""
    with _rendezvous(ground, layout, ours) as joining:

        def environment(place: Place) -> dict[str, str]:
            env = {
                **joining,
                "HOROVOD_RANK": str(place.rank),
                "HOROVOD_SIZE": str(place.size),
                "HOROVOD_LOCAL_RANK": str(place.local_rank),
                "HOROVOD_LOCAL_SIZE": str(place.local_size),
                "HOROVOD_CROSS_RANK": str(place.cross_rank),
                "HOROVOD_CROSS_SIZE": str(place.cross_size),
                "HOROVOD_HOSTNAME": f"h{place.host}",
            }
            return {**env, **_package(ours)}

        places = layout.places()
        processes = [ground.popen(place.host, command, environment(place)) for place in places]
        return _collect(f"ronde ({command[0]})", processes)


def run_alone(ground: Ground, ours: OurBinaries, command: Sequence[object]) -> list[Line]:
    """Run a command as a single process that is part of no job, with our Python package on its path."""
    return _collect(f"{command[0]}", [ground.popen(1, command, _package(ours))])


def run_gloo(ground: Ground, layout: Layout, python: Path, seconds: float, sizes: Sequence[int]) -> list[Line]:
    """Run the allreduce of torch.distributed with Gloo."""
    return run_torch("Gloo", ground, layout, [python, "-m", "peers.gloo", "--seconds", seconds, *sizes])


def run_torch(who: str, ground: Ground, layout: Layout, command: Sequence[object]) -> list[Line]:
    """Run any command as ranks that torch.distributed can bring together, as torchrun would."""
    port = ground.free_port()
    processes = [
        ground.popen(
            place.host,
            command,
            {
                "PYTHONPATH": str(BENCH),
                "RANK": str(place.rank),
                "WORLD_SIZE": str(place.size),
                "MASTER_ADDR": ground.address(1),
                "MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": ground.interface,
                # What torchrun sets: ranks that share a machine should not each take all of it.
                "OMP_NUM_THREADS": "1",
            },
        )
        for place in layout.places()
    ]
    return _collect(who, processes)


def run_workers(who: str, ground: Ground, layout: Layout, command: Sequence[object]) -> list[Line]:
    """Run any command as workers that tf.distribute can bring together, with TF_CONFIG to tell each its place."""
    places = layout.places()
    workers = [f"{ground.address(place.host)}:{ground.free_port()}" for place in places]

    def config(place: Place) -> str:
        return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": place.rank}})

    processes = [
        ground.popen(place.host, command, {"PYTHONPATH": str(BENCH), "TF_CONFIG": config(place)}) for place in places
    ]
    return _collect(who, processes)


def run_horovod(ground: Ground, ranks: int, peer: UpstreamHorovod, words: Sequence[object]) -> list[Line]:
    """Run a Python module as the ranks of an upstream Horovod job on this machine."""
    start = "from horovod.runner.launch import run_commandline; run_commandline()"
    command = [peer.python, "-c", start, "-np", ranks, "--gloo", peer.python, *words]
    env = {"PYTHONPATH": f"{BENCH}{os.pathsep}{peer.package}", "OMP_NUM_THREADS": "1"}
    return _collect("Horovod", [ground.popen(1, command, env)])


def run_openmpi(ground: Ground, ranks: int, program: Path, seconds: float, sizes: Sequence[int]) -> list[Line]:
    """Run Open MPI over shared memory, on this machine."""
    command: list[object] = ["mpirun", "-np", ranks, "--mca", "btl", "self,vader", "--mca", "pml", "ob1"]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    if ranks > len(os.sched_getaffinity(0)):
        command.append("--oversubscribe")
    process = ground.popen(1, [*command, program, seconds, *sizes], {})
    return _collect("Open MPI", [process])


def stream_speed(ground: Ground, python: Path, seconds: float) -> float:
    """Return the bytes a second that one plain TCP stream carries from host 1 to host 2."""
    module = [python, "-m", "peers.stream"]
    env = {"PYTHONPATH": str(BENCH)}
    receiver = ground.popen(2, [*module, "receive", ground.address(2)], env)
    assert receiver.stdout is not None
    words = receiver.stdout.readline().split()
    if len(words) != 2:
        receiver.kill()
        raise JobError(f"the plain stream's receiver did not start: {receiver.communicate()[1]}")
    sender = ground.popen(1, [*module, "send", ground.address(2), words[1], "--seconds", seconds], env)
    lines = _collect("the plain stream", [receiver, sender])
    return float(lines[0]["bytes_per_second"])


def _package(ours: OurBinaries) -> dict[str, str]:
    """Return what lets Python find our package, if there is one, and the programs of this benchmark."""
    return {} if ours.package is None else {"PYTHONPATH": f"{BENCH}{os.pathsep}{ours.package}"}


def _check_links(lines: Sequence[Line], layout: Layout) -> None:
    """Make sure that every rank reached every other as it should."""
    places = layout.places()
    reports = {line["rank"]: line["links"] for line in lines if line["work"] == "links"}
    for place in places:
        expected = [
            "Itself" if other.rank == place.rank else "SharedMemory" if other.host == place.host else "Tcp"
            for other in places
        ]
        if reports.get(place.rank) != expected:
            found = reports.get(place.rank)
            raise WrongPathError(f"rank {place.rank} should reach the ranks by {expected}, but did by {found}")


@contextmanager
def _rendezvous(ground: Ground, layout: Layout, ours: OurBinaries) -> Iterator[dict[str, str]]:
    """Hold a rendezvous on host 1 while ranks need it; give what they must know to join."""
    secret = ground.shared / f"secret-{secrets.token_hex(4)}"
    descriptor = os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))
    listen = f"{ground.address(1)}:{ground.free_port()}"
    command = [ours.ronde, "rendezvous", "--size", layout.size, "--listen", listen, "--secret-file", secret]
    process = ground.popen(1, command, {})
    try:
        assert process.stdout is not None
        name, _, address = process.stdout.readline().strip().partition("=")
        if name != "RONDE_RENDEZVOUS":
            process.kill()
            raise JobError(f"the rendezvous did not start: {process.communicate()[1].strip()}")
        yield {name: address, "RONDE_SECRET_FILE": str(secret), "RONDE_START_TIMEOUT": "120"}
    finally:
        process.terminate()
        process.communicate()
        secret.unlink()


def _end(processes: Sequence[subprocess.Popen[str]], pending: Iterable[Future[tuple[str, str]]]) -> None:
    """End what still runs: politely first, since a launcher has ranks of its own to end."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    wait(list(pending), timeout=GRACE_SECONDS)
    for process in processes:
        if process.poll() is None:
            process.kill()


def _collect(who: str, processes: Sequence[subprocess.Popen[str]]) -> list[Line]:
    """Wait for all processes and return their lines; at the first failure end them all and say why."""
    with ThreadPoolExecutor(max_workers=len(processes)) as pool:
        pending: dict[Future[tuple[str, str]], int] = {
            pool.submit(process.communicate): number for number, process in enumerate(processes)
        }
        outputs: dict[int, str] = {}
        try:
            while pending:
                done, _ = wait(pending, timeout=DEADLINE_SECONDS, return_when=FIRST_COMPLETED)
                if not done:
                    raise JobError(f"{who}: no rank ended within {DEADLINE_SECONDS:.0f} s")
                for future in done:
                    number = pending.pop(future)
                    outputs[number], errors = future.result()
                    status = processes[number].returncode
                    if status != 0:
                        said = errors.strip()[-LAST_WORDS:] or "it said nothing"
                        raise JobError(f"{who}: process {number} failed with status {status}: {said}")
        finally:
            _end(processes, pending)
    lines = [LABEL.sub("", line) for number in sorted(outputs) for line in outputs[number].splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]
