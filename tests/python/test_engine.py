"""What the engine tells people: who failed first and why, who is late and where it is, what happened when."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import ronde
from ranks import NO_KILL, all_ranks_pass, launch, on_ranks


def raises_on_one_rank() -> None:
    # The launcher stops the survivors as well; they want to see the error first.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    folder = Path(os.environ["FOLDER"])
    ronde.init()
    if ronde.rank() == 1:
        ronde.barrier()
        raise ValueError("no such file: data.bin")
    try:
        ronde.barrier()
        ronde.allreduce(np.ones(3))
    except ronde.HorovodInternalError as error:
        (folder / str(ronde.rank())).write_text(str(error))


@pytest.mark.parametrize("apart", ["", "each rank on a host of its own"])
def test_an_uncaught_exception_reaches_the_other_ranks_before_the_rank_has_left(tmp_path: Path, apart: str) -> None:
    done = on_ranks(3, apart_if_asked, options=NO_KILL, FOLDER=str(tmp_path), APART=apart)
    assert done.status == 1, done.output
    for survivor in ("0", "2"):
        message = (tmp_path / survivor).read_text()
        assert "rank 1" in message, done.output
        assert "it raised ValueError: no such file: data.bin (test_engine.py:" in message, done.output


def apart_if_asked() -> None:
    if os.environ["APART"]:
        os.environ["RONDE_MEMORY_DOMAIN"] = os.environ["HOROVOD_RANK"]
    raises_on_one_rank()


def leaves_workers_behind() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    folder = Path(os.environ["FOLDER"])
    ronde.init()
    if ronde.rank() == 1:
        ronde.barrier()
        worker = os.fork()
        if worker == 0:
            # It outlives its parent, as those of a DataLoader do for a while.
            while True:
                signal.pause()
        (folder / "worker").write_text(str(worker))
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        ronde.barrier()
        ronde.allreduce(np.ones(3))
    except ronde.HorovodInternalError as error:
        worker_lives = Path("/proc", (folder / "worker").read_text(), "exe").exists()
        (folder / str(ronde.rank())).write_text(f"{worker_lives} {error}")


def test_a_dead_rank_is_noticed_though_its_children_live_on(tmp_path: Path) -> None:
    done = on_ranks(2, leaves_workers_behind, options=NO_KILL, FOLDER=str(tmp_path))
    assert done.status != 0, done.output
    worker_lives, _, message = (tmp_path / "0").read_text().partition(" ")
    assert worker_lives == "True", done.output
    assert "rank 1" in message, done.output


def comes_late() -> None:
    ronde.init()
    ronde.barrier()
    if ronde.rank() == 1:
        reads_slowly()
    ronde.allreduce(np.ones(2))


def reads_slowly() -> None:
    # Until the others have complained: the file is made by the test when it has read the report.
    while not Path(os.environ["GO_ON"]).exists():
        time.sleep(0.05)  # sleep: between two looks, here and not in a helper, since the report says where a rank is


def test_who_waits_long_is_told_for_whom_and_what_that_rank_is_doing(tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    call = "from test_engine import comes_late as program; program()"
    command = [Path(sys.executable).with_name("ronde"), "run", "-np", "2", sys.executable, "-c", call]
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parent),
        "PYTHONUNBUFFERED": "1",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "1",
        "GO_ON": str(go_on),
    }
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL
    )
    assert process.stdout is not None
    output = ""
    for line in process.stdout:
        output += line
        if "reads_slowly" in line:
            go_on.touch()
    assert process.wait(60) == 0, output
    assert "has waited" in output, output
    assert "Missing ranks:" in output, output
    assert "test_engine.py:" in output, output
    assert "% of a core" in output, output


def stalls_for_good() -> None:
    ronde.init()
    ronde.barrier()
    if ronde.rank() == 0:
        with pytest.raises(ronde.HorovodInternalError, match=r"stall|waited"):
            ronde.allreduce(np.ones(2))
    else:
        while True:
            try:
                ronde._core.wait(ronde._core.enqueue_barrier(0, "another name"))
            except ronde.HorovodInternalError:
                break


def test_a_stall_ends_the_job_after_the_time_set_for_it() -> None:
    all_ranks_pass(2, stalls_for_good, HOROVOD_STALL_CHECK_TIME_SECONDS="1", HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="2")


def reduces_by_name() -> None:
    ronde.init()
    for _ in range(3):
        data = np.ones(10, np.float32)
        handle = ronde._core.enqueue_allreduce(
            0, "allreduce.test_allreduce", data.ctypes.data, data.ctypes.data, (10,), 7, 1, 1.0, 1.0, 0
        )
        ronde._core.wait(handle)
    ronde.barrier()


def test_a_timeline_shows_every_tensor_and_those_of_all_ranks_merge(tmp_path: Path) -> None:
    done = on_ranks(
        2,
        reduces_by_name,
        HOROVOD_TIMELINE=str(tmp_path / "trace-{rank}.json"),
        HOROVOD_TIMELINE_MARK_CYCLES="1",
    )
    assert done.status == 0, done.output
    for rank in range(2):
        text = (tmp_path / f"trace-{rank}.json").read_text()
        json.loads(text)
        for word in ("allreduce.test_allreduce", "NEGOTIATE_ALLREDUCE", '"ALLREDUCE"', "CYCLE_START"):
            assert word in text, text
        # The leader also sees who was ready when.
        ready = {event["name"] for event in json.loads(text) if event["ph"] == "X"}
        assert ready >= {"0", "1"} if rank == 0 else not ready & {"0", "1"}, text
    merged = tmp_path / "merged.json"
    ronde_command = Path(sys.executable).with_name("ronde")
    traces = [str(tmp_path / f"trace-{rank}.json") for rank in range(2)]
    subprocess.run([ronde_command, "timeline", "merge", str(merged), *traces], check=True, timeout=60)
    names = {event.get("args", {}).get("name", "") for event in json.loads(merged.read_text())}
    assert sum("allreduce.test_allreduce" in name for name in names) == 2, names


def test_only_rank_0_writes_a_timeline_that_names_no_rank(tmp_path: Path) -> None:
    done = on_ranks(2, reduces_by_name, HOROVOD_TIMELINE=str(tmp_path / "trace.json"))
    assert done.status == 0, done.output
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def cycles() -> None:
    before = None
    for cycle in range(int(os.environ["CYCLES"])):
        ronde.init()
        assert ronde.allreduce(np.ones(1), op=ronde.Sum).item() == ronde.size()
        ronde.shutdown()
        if cycle == 10:
            before = resources()
    assert before is not None
    after = resources()
    assert after[0] <= before[0] + 2, f"descriptors: {before[0]} became {after[0]}"
    assert after[1] <= before[1] + 2, f"threads: {before[1]} became {after[1]}"
    assert after[2] <= before[2] + 40_000, f"resident KiB: {before[2]} became {after[2]}"


def resources() -> tuple[int, int, int]:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return len(list(Path("/proc/self/fd").iterdir())), int(status["Threads"]), int(status["VmRSS"].split()[0])


def test_a_thousand_jobs_one_after_the_other_leave_nothing_behind() -> None:
    done = on_ranks(2, cycles, timeout=1200.0, CYCLES="1000")  # Beside a dozen compilers, 300 s were not enough.
    assert done.status == 0, done.output


def test_variables_that_cannot_be_honoured_are_explained_once() -> None:
    program = "import ronde; ronde.init(); ronde.barrier()"
    done = launch(2, [sys.executable, "-c", program], HOROVOD_AUTOTUNE="1", HOROVOD_FUSION_THRESHOLD="many")
    assert done.status == 0, done.output
    assert done.output.count("HOROVOD_AUTOTUNE") == 1, done.output
    assert done.output.count("HOROVOD_FUSION_THRESHOLD=many is not a whole number") == 1, done.output
