"""The report: a table of ratios with verdicts for people, and all of it as JSON for programs."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from harness.aims import KIB, MIB, Aim, Measure
from harness.figures import Figures

VERDICTS = {True: "met", False: "not met", None: "-"}


@dataclass(frozen=True)
class Row:
    """One comparison. `ours` and `theirs` are microseconds, bytes or requests, as the measure has it."""

    aim: Aim
    size: int
    ours: float
    theirs: float
    ratio: float
    met: bool | None

    @classmethod
    def judge(cls, aim: Aim, size: int, ours: float, theirs: float, has_aim: bool = True) -> Row:
        """Put two figures in relation and judge them by the aim."""
        if aim.measure is Measure.BEYOND:
            ratio = ours - theirs
        elif aim.measure is Measure.ADDED:
            ratio = ours
        elif aim.measure in (Measure.FASTER, Measure.SHARE):
            ratio = theirs / ours
        else:
            ratio = ours / theirs
        return cls(aim, size, ours, theirs, ratio, aim.met_by(ratio) if has_aim else None)

    def cells(self) -> list[str]:
        """Return the row as the table shows it."""
        shown = _FORMATS.get(self.aim.measure, format_time)
        return [
            self.aim.section,
            format_size(self.size) if self.size else "-",
            self.aim.ours,
            shown(self.ours),
            self.aim.theirs,
            shown(self.theirs),
            _format_ratio(self.aim.measure, self.ratio),
            "-" if self.met is None or self.aim.bound is None else _format_bound(self.aim.measure, self.aim.bound),
            VERDICTS[self.met],
        ]


@dataclass
class Report:
    """All rows of one run, with what one must know to judge them."""

    command: str
    machine: dict[str, object] = field(default_factory=lambda: describe_machine())
    rows: list[Row] = field(default_factory=list)
    figures: dict[str, list[dict[str, object]]] = field(default_factory=dict)
    # What else was seen, for whoever reads the JSON.
    details: dict[str, list[dict[str, object]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def compare(self, aim: Aim, figures: Figures, has_aim: bool = True) -> None:
        """Add a row for each size of an aim for which both sides were measured."""
        for size in aim.sizes:
            ours, theirs = figures.best_or_typical(aim.ours, size), figures.best_or_typical(aim.theirs, size)
            if ours is not None and theirs is not None:
                self.rows.append(Row.judge(aim, size, ours, theirs, has_aim))

    def keep(self, title: str, figures: Figures) -> None:
        """Keep every launch's figures under a title."""
        self.figures[title] = [
            {"tool": tool, "bytes": size, **asdict(launch)}
            for (tool, size), launches in sorted(figures.launches.items(), key=lambda item: (item[0][1], item[0][0]))
            for launch in launches
        ]

    def print(self) -> None:
        """Print the table of ratios, and under it what was measured."""
        header = ["work", "size", "ours", "takes", "against", "takes", "ratio", "aim", "verdict"]
        print(_table([header, *(row.cells() for row in self.rows)]))
        judged = [row.met for row in self.rows if row.met is not None]
        print(f"\n{sum(judged)} of {len(judged)} aims met")
        for note in self.notes:
            print(f"note: {note}")
        machine = self.machine
        print(f"on {machine['processor']}, {machine['cores']} cores, load {machine['load']} before and {_load()} after")

    def print_figures(self) -> None:
        """Print every launch's figures."""
        for title, launches in self.figures.items():
            header = ["tool", "size", "calls", "min", "median", "p90", "mean"]
            lines = [
                [
                    str(launch["tool"]),
                    format_size(int(str(launch["bytes"]))),
                    str(launch["calls"]),
                    *(format_time(float(str(launch[name]))) for name in ("minimum", "median", "p90", "mean")),
                ]
                for launch in launches
            ]
            print(f"\n{title}\n{_table([header, *lines])}")

    def summary(self) -> dict[str, object]:
        """Return all rows, and what one must know to judge them, as JSON has it."""
        rows = [
            {
                "work": row.aim.section,
                "bytes": row.size,
                "ours": row.aim.ours,
                "ours_value": row.ours,
                "theirs": row.aim.theirs,
                "theirs_value": row.theirs,
                "measure": row.aim.measure.name.lower(),
                "ratio": row.ratio,
                "aim": row.aim.bound if row.met is not None else None,
                "verdict": VERDICTS[row.met] if row.met is not None else None,
            }
            for row in self.rows
        ]
        return {
            "command": self.command,
            "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": {**self.machine, "load_after": _load()},
            "measures": {measure.name.lower(): measure.value for measure in Measure},
            "notes": self.notes,
            "rows": rows,
        }

    def write(self, path: Path) -> None:
        """Write everything as JSON."""
        content = {**self.summary(), "launches": self.figures, "details": self.details}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def describe_machine() -> dict[str, object]:
    """Say what the figures were measured on."""
    processor = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            processor = line.partition(":")[2].strip()
            break
    return {
        "processor": processor,
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": _load(),
    }


def format_size(size: float) -> str:
    """Write bytes in the largest unit that fits."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.0f} {name}" if size % unit == 0 else f"{size / unit:.1f} {name}"
    return f"{size:.0f} B"


def format_time(microseconds: float) -> str:
    """Write a time in the unit that suits it."""
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:.3g} s"
    if microseconds >= 1e3:
        return f"{microseconds / 1e3:.3g} ms"
    return f"{microseconds:.3g} µs"


def _format_ratio(measure: Measure, ratio: float) -> str:
    if measure is Measure.SHARE:
        return f"{ratio:.1%} of floor"
    if measure is Measure.BEYOND:
        return f"{ratio / MIB:.1f} MiB beyond"
    if measure is Measure.ADDED:
        return f"{format_time(ratio)} more"
    kind = _KINDS[measure]
    return f"{ratio:.3f}x {kind}" if ratio < 2 else f"{ratio:.2f}x {kind}"


def _format_bound(measure: Measure, bound: float) -> str:
    if measure is Measure.SHARE:
        return f"at least {bound:.0%}"
    if measure is Measure.BEYOND:
        return f"at most {bound / MIB:.0f} MiB"
    if measure is Measure.ADDED:
        return f"at most {format_time(bound)}"
    return f"at {'least' if measure is Measure.FASTER else 'most'} {bound:g}x"


_FORMATS: dict[Measure, Callable[[float], str]] = {
    Measure.BYTES: format_size,
    Measure.BEYOND: format_size,
    Measure.MEMORY: format_size,
    Measure.REQUESTS: "{:.1f}".format,
}
_KINDS = {
    Measure.FASTER: "as fast",
    Measure.WITHIN: "the time",
    Measure.BYTES: "the bytes",
    Measure.MEMORY: "the memory",
    Measure.REQUESTS: "the requests",
}


def _load() -> float:
    return round(os.getloadavg()[0], 2)


def _table(rows: list[list[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)
