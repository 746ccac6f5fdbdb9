"""The loop of a campaign: one run after the other, each counted for the contents that it had."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from datetime import datetime, timezone

from campaign import processes, report
from campaign.fingerprints import Fingerprints
from campaign.outcomes import failures
from campaign.record import Record, Run
from campaign.report import Named
from campaign.runs import Limits, StoppedError, run, stop_if_asked
from campaign.schedule import Candidate, next_run
from campaign.units import Unit
from suites import ROOT

# In place of a fingerprint.
GONE = "gone"


class Campaign:
    """Units that run one after the other, and the record of it."""

    def __init__(self, units: Sequence[Unit], record: Record, past: Sequence[Run], limits: Limits) -> None:
        self.units = {unit.name: unit for unit in units}
        self.record = record
        self.limits = limits
        self._contents = Fingerprints()
        self.fingerprints = {unit.name: self._contents.of(unit.inputs) for unit in units}
        record.note_fingerprints(self.fingerprints)
        self.past = list(past)

    def run_for(self, minutes: float) -> int:
        """Start runs for so many minutes; return the number of the signal that stopped it before, or 0."""
        processes.block()
        deadline = time.monotonic() + 60 * minutes
        try:
            while self.units and time.monotonic() < deadline:
                stop_if_asked()
                tested = [Named(unit.name, unit.kind) for unit in self.units.values()]
                self.run_next(next_run(report.candidates(tested, self.fingerprints, self.past)))
        except StoppedError as stopped:
            print(f"stopped by {stopped}; the run in progress does not count", flush=True)
            return stopped.number
        return 0

    def run_next(self, chosen: Candidate) -> None:
        """Run a unit once, say how it ended, and keep that."""
        unit, log = self.units[chosen.name], self.record.running_log
        before = self._present(unit)
        if before == GONE:
            print(f"{unit.name}  left out from now on: its files are gone", flush=True)
            del self.units[unit.name]
            return
        ended = run(unit, chosen.mode, self.limits, log)
        if self._present(unit) != before:
            print(f"{unit.name}  {chosen.mode.value}  changed during the run, which does not count", flush=True)
            return
        failed = failures(unit.kind, ended, log.read_text(errors="replace"))
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        kept = self.record.keep_log(unit.name, chosen.mode.value, now) if failed else ""
        done = Run(unit.name, chosen.mode.value, before, commit(), now, ended.seconds, tuple(failed), kept)
        self.record.add(done)
        self.past.append(done)
        print(f"{unit.name}  {chosen.mode.value}  {'FAILED' if failed else 'ok'}  {ended.seconds:.1f} s", flush=True)
        if failed:
            print(f"    {', '.join(failed)}: {kept}", flush=True)

    def _present(self, unit: Unit) -> str:
        """Return the fingerprint of a unit now: it may be edited or built anew while others run."""
        try:
            found = self._contents.of(unit.inputs)
        except FileNotFoundError:
            found = GONE
        if found != self.fingerprints[unit.name]:
            self.fingerprints[unit.name] = found
            self.record.note_fingerprints({unit.name: found})
        return found


def commit() -> str:
    """Return the commit that is checked out, with a mark if files differ from it."""
    command = ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+changes"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.strip() or "no commit"
