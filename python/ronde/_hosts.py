"""Where jobs from Python and notebooks run if nobody says: on the hosts of the cluster around them, if there is one."""

from __future__ import annotations

import os
from pathlib import Path

# Where the reference cluster keeps the list of its hosts (docs/cluster.md), in the folder that all of them share.
SHARED = Path("/mnt/share/.ronde/hostfile")


def cluster_hostfile() -> Path | None:
    """Return the file with the hosts of the cluster that this process runs in, or ``None`` if it runs in none."""
    named = os.environ.get("RONDE_HOSTFILE")
    if named:
        # If it is not there the launcher says so: better than a job on other hosts than were meant.
        return Path(named)
    return SHARED if SHARED.is_file() else None
