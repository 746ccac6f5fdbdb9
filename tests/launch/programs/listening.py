"""Prints the ports of this host that others can connect to, while all ranks of the job are connected."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import ronde

LISTENING = "0A"
LOOPBACK = {"0100007F", "00000000000000000000000001000000"}

ronde.init()
ronde.allreduce(np.ones(1000, np.float32))
for table in ("tcp", "tcp6"):
    for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
        _, local, _, state, *_ = line.split()
        address, port = local.split(":")
        if state == LISTENING and address not in LOOPBACK:
            print(f"listens at {int(port, 16)}", flush=True)
ronde.barrier()
