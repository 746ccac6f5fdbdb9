"""The command line of `make flakes`."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from campaign import report
from campaign.cargo_tests import Target, built, targets
from campaign.loop import Campaign
from campaign.pytest_files import PythonFile, python_files, set_up
from campaign.record import BusyError, Record, Run, default_folder
from campaign.report import Named
from campaign.runs import Limits
from campaign.schedule import Kind
from campaign.units import PrepareError, Unit


def show(units: Iterable[Named], fingerprints: Mapping[str, str], runs: Sequence[Run]) -> bool:
    """Print the table, the failures and the distance to the goal; tell whether something fails at present.

    The runs may be of more units: of those that are gone, failures are listed.
    """
    known = list(units)
    present = {unit.name: fingerprints[unit.name] for unit in known if unit.name in fingerprints}
    found = report.candidates(known, present, runs)
    print()
    for line in (*report.table(found, present, runs), *report.failed_tests(present, runs), report.distance(found)):
        print(line, flush=True)
    return report.fails(present, runs)


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of a command line."""
    parser = argparse.ArgumentParser(
        prog="tools/flakes",
        description="Run every test executable and test file again and again, idle and beside four busy loops, those "
        "that ran least first. Counts and logs of failures are kept; it can be stopped and resumed at any time.",
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="for how long to start runs (default: 60)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only executables and files with this in their name")
    parser.add_argument(
        "--package",
        action="append",
        default=[],
        metavar="NAME",
        help="build and run only this package's executables, and no Python; these have counts of their own",
    )
    parser.add_argument("--forget", action="store_true", help="forget the counts and failures of what is run")
    parser.add_argument("--report", action="store_true", help="run nothing; print the counts of past campaigns")
    return parser.parse_args(words)


@dataclass(frozen=True)
class Chosen:
    """What the command line chooses, before anything is built."""

    executables: list[Target]
    files: list[PythonFile]

    def names(self) -> list[Named]:
        """Return the names and kinds."""
        rust = [Named(target.name, Kind.RUST) for target in self.executables]
        return rust + [Named(file.name, Kind.PYTHON) for file in self.files]


def is_chosen(options: argparse.Namespace, name: str) -> bool:
    """Tell whether the command line means the unit of this name."""
    package = name.partition("::")[0]
    return options.only in name and (not options.package or package in options.package)


def choose(options: argparse.Namespace) -> Chosen:
    """Return what the command line means, of what there is."""
    executables = [target for target in targets() if is_chosen(options, target.name)]
    chosen = Chosen(executables, [file for file in python_files() if is_chosen(options, file.name)])
    if not chosen.names():
        raise PrepareError("no test executable or file has such a name")
    return chosen


def prepare(chosen: Chosen, packages: Sequence[str]) -> tuple[list[Unit], list[str]]:
    """Build and set up everything; return what can run here, and a line for each suite that cannot."""
    executables: list[Unit] = []
    if chosen.executables:
        print("building the test executables", flush=True)
        executables = built(chosen.executables, packages)
    if chosen.files:
        print("setting up the test files", flush=True)
    files, left_out = set_up(chosen.files)
    return executables + files, left_out


def run_and_report(campaign: Campaign, minutes: float, left_out: Sequence[str]) -> int:
    """Run units for some minutes, then report on them; return the exit status."""
    units = [Named(unit.name, unit.kind) for unit in campaign.units.values()]
    # Said twice, since the end may be hours away, and the start thousands of lines.
    for line in left_out:
        print(line, flush=True)
    stopped_by = campaign.run_for(minutes)
    failing = show(units, campaign.fingerprints, campaign.past)
    for line in left_out:
        print(line, flush=True)
    if failing:
        return 1
    return 128 + stopped_by if stopped_by else 0


def start(options: argparse.Namespace) -> int:
    """Do what the command line says; return the exit status."""
    record = Record(default_folder())
    if options.report:
        runs = [run for run in record.runs() if is_chosen(options, run.name)]
        return int(show(choose(options).names(), record.fingerprints(), runs))
    with record.locked():
        chosen = choose(options)
        if options.forget:
            record.forget(lambda name: is_chosen(options, name))
        units, left_out = prepare(chosen, options.package)
        runs = [run for run in record.runs() if is_chosen(options, run.name)]
        return run_and_report(Campaign(units, record, runs, Limits()), options.minutes, left_out)


def main(words: Sequence[str] | None = None) -> int:
    """Run a campaign, or report on past ones."""
    try:
        return start(parse(words))
    except (BusyError, PrepareError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        # While something was being built; later, signals are waited for.
        return 128 + signal.SIGINT
