"""What a campaign says at its end: a table of counts, a line for each test that ever failed, and what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from campaign.record import Run
from campaign.schedule import Candidate, Kind, Mode, seconds_missing


@dataclass(frozen=True)
class Named:
    """A unit as a report sees it."""

    name: str
    kind: Kind


def candidates(units: Iterable[Named], fingerprints: Mapping[str, str], runs: Sequence[Run]) -> list[Candidate]:
    """Return each unit in each mode, with how often it ran with its present contents, and how long the last run took.

    The time may be that of a run with other contents, or in the other mode if there was none.
    """
    counts = Counter((run.name, run.mode) for run in runs if run.fingerprint == fingerprints.get(run.name))
    seconds: dict[tuple[str, str], float] = {}
    for run in runs:
        seconds[run.name, run.mode] = run.seconds
    return [
        Candidate(
            unit.name,
            unit.kind,
            mode,
            counts[unit.name, mode.value],
            next((seconds[unit.name, one.value] for one in (mode, *Mode) if (unit.name, one.value) in seconds), None),
        )
        for unit in units
        for mode in Mode
    ]


def table(found: Sequence[Candidate], fingerprints: Mapping[str, str], runs: Sequence[Run]) -> Iterator[str]:
    """Yield the table: how often each unit ran with its present contents, and how many of these runs failed."""
    failed = Counter(run.name for run in runs if run.failures and run.fingerprint == fingerprints.get(run.name))
    by_name: dict[str, dict[Mode, Candidate]] = {}
    for one in found:
        by_name.setdefault(one.name, {})[one.mode] = one
    width = max((len(name) for name in by_name), default=0)
    yield f"{'':{width}}  {'idle':>7}  {'load':>7}  failures"
    for name, modes in sorted(by_name.items()):
        counts = "  ".join(f"{_count(modes[mode]):>7}" for mode in Mode)
        yield f"{name:{width}}  {counts}  {failed[name] or '-'}"


def _count(candidate: Candidate) -> str:
    return f"{candidate.runs}/{candidate.goal}" if candidate.goal else str(candidate.runs)


def failed_tests(fingerprints: Mapping[str, str], runs: Sequence[Run]) -> Iterator[str]:
    """Yield a line for each test that ever failed, with the last failure's commit, mode and log."""
    count = Counter((run.name, test) for run in runs for test in run.failures)
    last = {(run.name, test): run for run in runs for test in run.failures}
    for (name, test), run in sorted(last.items()):
        test_name = test if test.startswith(f"{name}::") else f"{name} {test}"
        changed = "" if run.fingerprint == fingerprints.get(name) else ", changed since"
        times = f"{count[name, test]} time{'s' if count[name, test] > 1 else ''}"
        yield f"FAILED {times}: {test_name} (last at {run.commit}, {run.mode}{changed}): {run.log}"


def fails(fingerprints: Mapping[str, str], runs: Iterable[Run]) -> bool:
    """Tell whether one of these runs failed with contents that are still the present ones."""
    return any(run.failures and run.fingerprint == fingerprints.get(run.name) for run in runs)


def distance(found: Sequence[Candidate]) -> str:
    """Return how far it is to the goal."""
    missing = sum(one.missing for one in found)
    if missing == 0:
        return "long enough: every goal is reached"
    parts = [_reached(kind, found) for kind in Kind if any(one.kind is kind for one in found)]
    unknown = any(one.missing and one.seconds is None for one in found)
    minutes = seconds_missing(found) / 60
    took = f"{'more than' if unknown else 'about'} {minutes:.0f} min by the times of past runs"
    return f"not long enough yet: {' and '.join(parts)} are done; {missing} runs are missing, {took}"


def _reached(kind: Kind, found: Iterable[Candidate]) -> str:
    names = {one.name for one in found if one.kind is kind}
    behind = {one.name for one in found if one.kind is kind and one.missing}
    return f"{len(names) - len(behind)} of {len(names)} {kind.value}s"
