#!/usr/bin/env python3
"""Kills a random process of a job on three hosts at a random moment, many times: nothing may be left anywhere.

    target/env/test/bin/python tests/launch/kill_campaign.py --kills 200 --seed 7

Who is killed: the launcher, its driver, either end of an ssh connection, the agent or guardian of a host, or a
rank. When: while the job starts, while it runs, or while it ends. The ranks ignore every request to
end and hide their children (`programs/stubborn.sh`). After each kill all hosts must soon be as they were before the
job: no process, no file. Each kill is one line, and the last line adds up. Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# The folder of this file is there already when it is run by name.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hosts"))

from launcher import LATE_HEARTBEAT, PROGRAMS, Job, roles, start
from quiet import Quiet
from sshd import SshHosts
from waiting import PATIENCE
from wheel import forget_what_was_sent, without_wheel

HOSTS = 3
RANKS = 4
WORDS = ("-np", RANKS, "-H", "h1:1,h2:2,h3:1", "--grace", 1, *LATE_HEARTBEAT, PROGRAMS / "stubborn.sh")
# The host that has nothing of ours, so that everything must be sent there.
LACKING = 3
PHASES = ("start", "run", "end")
# How far into a phase a kill may come. Starting takes about as long as this, ending a little longer than the grace.
SECONDS = {"start": 1.0, "run": 0.3, "end": 1.2}
VICTIMS = ("launcher", "driver", "ssh", "sshd", "guardian", "agent", "rank")


class Kill(NamedTuple):
    """What was killed when, how long it took until nothing was left, and what was left after all."""

    phase: str
    after: float
    role: str
    victim: str | None
    gone: float
    left: str

    def __str__(self) -> str:
        when = f"{self.phase:5}  {self.after:5.2f} s"
        end = f"LEFT SOMETHING\n{self.victim}\n{self.left}" if self.left else f"gone in {self.gone:4.2f} s"
        return f"{when}  {self.role:8}  {(self.victim or '')[:60]:60}  {end}"


def campaign(kills: int, seed: int) -> Iterator[Kill]:
    """Kill so many times, and tell after each what was killed and what that has left.

    What is left stays in its hosts, which are thrown away, and the next kill has new ones.
    """
    choose = random.Random(seed)
    done = 0
    while done < kills:
        with SshHosts(HOSTS) as hosts, without_wheel(hosts, LACKING):
            quiet = Quiet(hosts)
            clean = True
            while clean and done < kills:
                kill = _one(hosts, quiet, choose, phase=PHASES[done % len(PHASES)])
                # A job that was faster than the kill counts for nothing, but must leave nothing either.
                if kill.victim or kill.left:
                    done += 1
                    yield kill
                clean = not kill.left


def _one(hosts: SshHosts, quiet: Quiet, choose: random.Random, phase: str) -> Kill:
    if phase == "start":
        # So that there is something to interrupt: the program and the package have to be sent.
        forget_what_was_sent(hosts, LACKING)
    with start(hosts, *WORDS) as job:
        if phase != "start":
            job.wait_until_up(RANKS)
        if phase == "end":
            os.kill(job.wait_for("launcher").pid, signal.SIGTERM)
        moment = choose.uniform(0, SECONDS[phase])
        time.sleep(moment)  # sleep: the kill is meant to come at any moment
        role, victim = _kill(hosts, choose)
        if victim is None:
            _end(job)
        begin, left = time.monotonic(), ""
        try:
            quiet.await_again()
            job.end(PATIENCE)
        except AssertionError as error:
            left = f"{error}\n{job.text('output')}{job.text('errors')}"
        return Kill(phase, moment, role, victim, time.monotonic() - begin, left)


def _kill(hosts: SshHosts, choose: random.Random) -> tuple[str, str | None]:
    """Kill one of those who are there now; each part is as likely as any other."""
    everybody = [(role, process) for role, process in roles(hosts) if role in VICTIMS]
    if not everybody:
        return "nobody", None
    role = choose.choice(sorted({role for role, _ in everybody}))
    victim = choose.choice([process for found, process in everybody if found == role])
    try:
        os.kill(victim.pid, signal.SIGKILL)
    except ProcessLookupError:
        return role, None
    return role, str(victim)


def _end(job: Job) -> None:
    """End a job in order, if it has not ended."""
    for process in job.processes("launcher"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)


def main() -> None:
    """Run the campaign that the command line asks for."""
    arguments = argparse.ArgumentParser(description="Kill processes of jobs at random; nothing may be left.")
    arguments.add_argument("--kills", type=int, default=200, help="how many (200)")
    arguments.add_argument("--seed", type=int, help="repeats a campaign; taken from the clock if not given")
    options = arguments.parse_args()
    seed = options.seed if options.seed is not None else time.time_ns() % 1_000_000
    print(f"{options.kills} kills, seed {seed}", flush=True)
    done = []
    for kill in campaign(options.kills, seed):
        done.append(kill)
        print(f"{len(done):4}  {kill}", flush=True)
    by_role = ", ".join(f"{count} {role}" for role, count in Counter(kill.role for kill in done).most_common())
    by_phase = ", ".join(f"{count} {phase}" for phase, count in Counter(kill.phase for kill in done).items())
    print(f"{len(done)} kills: {by_role}; by phase {by_phase}")
    failed = [kill for kill in done if kill.left]
    if failed:
        raise SystemExit(f"error: {len(failed)} of {len(done)} kills left something; again with --seed {seed}")
    slowest = max(kill.gone for kill in done)
    print(f"{len(done)} kills left nothing; everything was gone after {slowest:.2f} s at most")


if __name__ == "__main__":
    main()
