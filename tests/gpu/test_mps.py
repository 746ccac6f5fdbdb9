"""Ranks of ``ronde run --mps`` share the GPU through a service of NVIDIA's MPS, of which nothing is left after the job.

These need the real ``nvidia-cuda-mps-control``, which comes with NVIDIA's driver, and no such service running already.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import horovod.torch as hvd
from ranks import launch, search_path

HERE = Path(__file__).parent
PROGRAM = "nvidia-cuda-mps-control"
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
# Long enough for a busy machine.
PATIENCE = 30.0


def ask(command: str) -> list[str]:
    """Return what the service says to a command, in words."""
    done = subprocess.run([PROGRAM], input=f"{command}\n", capture_output=True, text=True, timeout=20, check=False)
    return done.stdout.split() if done.returncode == 0 else []


def told(command: str) -> list[str]:
    """Return the service's answer; whoever asks while another asks may get none, and asks again."""
    deadline = time.monotonic() + PATIENCE
    while not (words := ask(command)) and time.monotonic() < deadline:
        time.sleep(0.05)  # sleep: between two looks
    return words


def computes_under_mps() -> None:
    """Reduce on the GPU, and write down by which server; with HOLD set, stay until killed."""
    hvd.init()
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    for size in (3, 1 << 20):
        total = hvd.allreduce(torch.full((size,), float(hvd.rank() + 1), device=device), op=hvd.Sum, name=f"t{size}")
        assert total.eq(sum(range(1, hvd.size() + 1))).all(), total
    (server,) = told("get_server_list")
    clients = told(f"get_client_list {server}")
    assert str(os.getpid()) in clients, f"process {os.getpid()} is none of the clients {clients} of server {server}"
    hvd.barrier()
    found = {
        "pipes": os.environ[PIPES],
        "queues": os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS"),
        "server": int(server),
        "rank": os.getpid(),
    }
    folder = Path(os.environ["FOLDER"])
    unfinished = folder / f"{hvd.rank()}.part"
    unfinished.write_text(json.dumps(found))
    unfinished.rename(folder / f"{hvd.rank()}")
    if "HOLD" in os.environ:
        signal.pause()


CALL = [sys.executable, "-c", "from test_mps import computes_under_mps; computes_under_mps()"]


def variables(folder: str) -> dict[str, str]:
    """Return what ranks need, and see to it that there is something to test."""
    assert shutil.which(PROGRAM), f"{PROGRAM} is not here: install the package of NVIDIA's driver that has it"
    assert PIPES not in os.environ, f"{PIPES} is set; these tests start a service of their own"
    return {"FOLDER": folder, "PYTHONPATH": search_path(HERE, HERE.parent / "python")}


def left_of(found: list[dict[str, object]]) -> list[str]:
    """Return what is left of a job's service and its ranks."""
    processes = {entry[key] for entry in found for key in ("server", "rank")}
    left = [f"process {process}" for process in processes if Path(f"/proc/{process}").exists()]
    folders = {Path(str(entry["pipes"])).parent for entry in found}
    return left + [str(folder) for folder in folders if folder.exists()]


def test_ranks_are_clients_of_a_service_that_is_gone_after_the_job() -> None:
    for size in (2, 4):
        with tempfile.TemporaryDirectory() as folder:
            done = launch(size, ["--mps", "--verbose", *CALL], 180, **variables(folder))
            assert done.status == 0, done.output
            assert "is used as it is" not in done.output, f"a service runs here; end it first\n{done.output}"
            found = [json.loads(Path(folder, str(rank)).read_text()) for rank in range(size)]
        assert len({entry["server"] for entry in found}) == 1, found
        assert all(entry["queues"] is None for entry in found), found
        assert left_of(found) == [], done.output
    assert torch.ones(3, device="cuda").sum().item() == 3.0


def test_a_killed_launcher_leaves_nothing_of_the_service() -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, **variables(folder), "HOLD": "1", "PYTHONUNBUFFERED": "1"}
        ronde = os.environ.get("RONDE_TEST_LAUNCHER") or str(Path(sys.executable).with_name("ronde"))
        job = subprocess.Popen([ronde, "run", "-np", "2", "--mps", *CALL], env=environment, stdin=subprocess.DEVNULL)
        try:
            files = [Path(folder, str(rank)) for rank in range(2)]
            wait_for(lambda: job.poll() is not None or all(file.exists() for file in files), 180)
            assert job.poll() is None, "the job has ended by itself"
            found = [json.loads(file.read_text()) for file in files]
        finally:
            job.kill()
            job.wait()
    wait_for(lambda: not left_of(found))
    assert left_of(found) == []
    assert torch.ones(3, device="cuda").sum().item() == 3.0


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until a condition holds, or for so long."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)  # sleep: between two looks
