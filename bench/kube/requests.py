"""How many requests a manager makes of the API server, and causes others to make, from the server's audit log."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Who stands outside of what is measured: we who submit and look.
OUTSIDE = ("admin",)


@dataclass(frozen=True)
class Requests:
    """Requests since some moment, by verb and resource: those of one user, and those of all."""

    own: Counter[str]
    all: Counter[str]


def requests_since(log: Path, offset: int, user: str) -> Requests:
    """Count what is in the log from an offset on. Leases, which come by the clock and not by the job, do not count."""
    own: Counter[str] = Counter()
    everybody: Counter[str] = Counter()
    for line in _lines(log, offset):
        made = json.loads(line)
        who, about = made["user"]["username"], made.get("objectRef", {})
        if who in OUTSIDE or about.get("resource") in (None, "leases", "nodes"):
            continue
        what = "/".join(part for part in (about["resource"], about.get("subresource")) if part)
        everybody[f"{made['verb']} {what}"] += 1
        if who == user:
            own[f"{made['verb']} {what}"] += 1
    return Requests(own, everybody)


def _lines(log: Path, offset: int) -> Iterator[str]:
    with log.open() as content:
        content.seek(offset)
        for line in content:
            # The last one may still be being written.
            if line.endswith("\n"):
                yield line
