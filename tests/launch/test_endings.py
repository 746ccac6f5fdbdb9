"""However a job ends, soon nothing of it is left on any host, and one clear story says what happened.

The ranks here ignore every request to end and hide their children (`programs/stubborn.sh`), so nothing goes by itself.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import troubles
from launcher import LATE_HEARTBEAT, PROGRAMS, Job, roles, run, start
from processes import Process, processes_of
from quiet import Quiet
from sshd import SshHosts
from waiting import PATIENCE, eventually

STUBBORN = PROGRAMS / "stubborn.sh"
# Host 1 has an agent without ssh, the others one each.
WHERE = ("-np", 4, "-H", "h1:1,h2:2,h3:1")
RANKS = 4
# What the launcher says when it is told to end.
ENDED_BY = {
    signal.SIGINT: "interrupted: the ranks were told; Ctrl-C again kills them\n",
    signal.SIGTERM: "told to end by SIGTERM: the ranks were told\n",
    signal.SIGHUP: "told to end by SIGHUP: the ranks were told\n",
}
# What it says when one of those who make up the job is killed, always the last of its kind: on h3, if there.
KILLED = {
    "launcher": "error: the launcher was killed; all ranks were stopped\n",
    "driver": "error: the driver was killed by signal 9 (SIGKILL); all ranks were stopped\n",
    "ssh": "error: lost h3 (rank 3): its connection was closed (killed by signal 9 (SIGKILL))\n",
    "guardian": "error: lost h3 (rank 3): its guardian was killed\n",
    "agent": "error: lost h3 (rank 3): the agent was killed by signal 9 (SIGKILL); all ranks were stopped\n",
    "rank": "error: rank 3 on h3 failed first: killed by signal 9 (SIGKILL)\n",
}
# What each rank has started: two children that wait, and four that have left it.
CHILDREN = 6


@pytest.fixture(scope="module")
def hosts() -> Iterator[SshHosts]:
    """Give three hosts."""
    with SshHosts(3) as made:
        yield made


def secret_of(rank: Process) -> str:
    """Return the secret of a rank's job as text. It is in a file of the agent, by the numbers of the rank's host."""
    name = "RONDE_SECRET_FILE="
    (file,) = (line.removeprefix(name) for line in rank.environment().splitlines() if line.startswith(name))
    secret = Path(f"/proc/{rank.pid}/root{file}").read_text()
    assert len(secret) == 64
    return secret


def stubborn_job(hosts: SshHosts, *options: object) -> Job:
    """Start ranks that will not go, and wait until they run."""
    heartbeat = () if "--heartbeat-timeout" in options else LATE_HEARTBEAT
    job = start(hosts, *WHERE, *heartbeat, *options, STUBBORN)
    job.wait_until_up(RANKS)
    return job


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_to_the_launcher_ends_everything(hosts: SshHosts, quiet: Quiet, number: signal.Signals) -> None:
    with stubborn_job(hosts) as job:
        os.kill(job.wait_for("launcher").pid, number)
        quiet.await_again()
        done = job.end()
    assert done.status == 128 + number, done
    assert ENDED_BY[number] in done.told(), done


def test_a_second_interrupt_ends_everything_at_once(hosts: SshHosts, quiet: Quiet) -> None:
    with stubborn_job(hosts, "--grace", 10 * PATIENCE) as job:
        launcher = job.wait_for("launcher").pid
        os.kill(launcher, signal.SIGINT)
        eventually(lambda: "interrupted: " in job.text("errors"), "a word about it")
        os.kill(launcher, signal.SIGINT)
        quiet.await_again()
        assert job.end().status == 128 + signal.SIGINT


@pytest.mark.parametrize("role", KILLED)
def test_whoever_is_killed_everything_ends(hosts: SshHosts, quiet: Quiet, role: str) -> None:
    with stubborn_job(hosts, "--grace", 1) as job:
        found = job.processes(role)
        # Connections are opened at the same time, so the youngest need not be that of the last host.
        towards_h3 = [process for process in found if role != "ssh" or "h3" in process.words]
        os.kill(towards_h3[-1].pid, signal.SIGKILL)
        quiet.await_again()
        done = job.end()
    assert done.status != 0
    assert KILLED[role] in done.told(), done


def test_a_login_that_is_cut_ends_everything(hosts: SshHosts, quiet: Quiet) -> None:
    # The server's side of a connection: as when an administrator ends the session.
    with stubborn_job(hosts, "--grace", 1) as job:
        for process in job.processes("sshd"):
            os.kill(process.pid, signal.SIGKILL)
        quiet.await_again()
        assert job.end().status != 0


def test_the_first_rank_that_fails_gives_the_status_and_the_story(hosts: SshHosts, quiet: Quiet) -> None:
    program = f'if [ $HOROVOD_RANK = 2 ]; then echo "no data"; exit 7; else exec {STUBBORN}; fi'
    done = run(hosts, *WHERE, "--grace", 1, "sh", "-c", program)
    quiet.await_again()
    assert done.status == 7, done
    assert done.complaint() == (
        "error: rank 2 on h2 failed first: exit status 7\n"
        "  last output of rank 2:\n"
        "    [2] no data\n"
        "  the other 3 ranks were stopped (<time> later); nothing is left running on h1, h2, h3\n"
        "hint: see all output of rank 2 with --output-filename logs\n"
    )


def test_a_killed_rank_is_named_with_its_signal(hosts: SshHosts, quiet: Quiet) -> None:
    with stubborn_job(hosts, "--grace", 1) as job:
        os.kill(job.processes("rank")[-1].pid, signal.SIGKILL)
        done = job.end()
    quiet.await_again()
    assert done.status == 128 + signal.SIGKILL, done
    assert "error: rank 3 on h3 failed first: killed by signal 9 (SIGKILL)\n" in done.told(), done


def test_a_host_that_is_cut_off_is_lost_after_the_heartbeat_time(hosts: SshHosts, quiet: Quiet) -> None:
    heartbeat = 5
    with stubborn_job(hosts, "--heartbeat-timeout", heartbeat, "--grace", 1) as job:
        before = set(processes_of(hosts, 2))
        begin = time.monotonic()
        with troubles.cut_off(hosts, 2):
            done = job.end()
            assert time.monotonic() - begin > heartbeat / 2, "lost before it could be known"
            # The host itself hears nothing any more either, and ends what it has of the job.
            eventually(
                lambda: not [process for role, process in roles(hosts) if role in ("agent", "rank", "child")],
                f"the end of all {len(before)} processes on the lost host",
            )
    quiet.await_again()
    assert done.status != 0
    assert done.complaint() == (
        "error: lost h2 (ranks 1 and 2): nothing was heard from it for <time>\n"
        "  the other 2 ranks were stopped (<time> later); nothing is left running on h1, h3\n"
        "  ranks on h2 end by themselves at the latest <time> after they last heard of us\n"
        "hint: see whether h2 is up: ronde doctor -H h1,h2,h3 -p 12345\n"
    )


def test_a_host_that_loses_its_power_is_lost() -> None:
    with (
        SshHosts(2) as pair,
        start(pair, "-np", 2, "-H", "h1,h2", "--heartbeat-timeout", 5, "--grace", 1, STUBBORN) as job,
    ):
        job.wait_until_up(2)
        pair.kill(2)
        done = job.end()
    assert done.status != 0
    assert "error: lost h2 (rank 1): nothing was heard from it for <time>\n" in done.complaint(), done


def test_a_job_that_ends_well_takes_its_stray_children_with_it(hosts: SshHosts, quiet: Quiet) -> None:
    stray = "setsid -f sleep 1000; (trap '' TERM HUP INT; sleep 1000) & exit 0"  # sleep: is there until it is killed
    done = run(hosts, *WHERE, "sh", "-c", stray)
    quiet.await_again()
    assert done.status == 0, done


def test_nothing_private_is_on_a_command_line(hosts: SshHosts, quiet: Quiet) -> None:
    password = "correct-horse-battery"
    words = [*WHERE, "--grace", 1, "--env", "ALSO=staple", STUBBORN]
    with start(hosts, *words, env={"MY_PASSWORD": password}) as job:
        job.wait_until_up(RANKS)
        eventually(lambda: len(job.processes("child")) == RANKS * CHILDREN, "all children of the ranks")
        everybody = [process for _, process in roles(hosts)]
        secret = secret_of(job.processes("rank")[0])
        os.kill(job.wait_for("launcher").pid, signal.SIGTERM)
        job.end()
    quiet.await_again()
    for process in everybody:
        line = " ".join(process.words)
        assert password not in line, line
        assert secret not in line, line


def test_ranks_get_the_environment_of_the_launcher(hosts: SshHosts, quiet: Quiet) -> None:
    with start(hosts, *WHERE, "--grace", 1, "--env", "ALSO=staple", STUBBORN, env={"MY_PASSWORD": "horse"}) as job:
        job.wait_until_up(RANKS)
        ranks = job.processes("rank")
        environments = [process.environment().splitlines() for process in ranks]
        secret = secret_of(ranks[0])
        os.kill(job.wait_for("launcher").pid, signal.SIGTERM)
        job.end()
    quiet.await_again()
    assert len(environments) == RANKS
    for environment in environments:
        assert "MY_PASSWORD=horse" in environment
        assert "ALSO=staple" in environment
        assert not any(secret in line for line in environment)
