"""Adds over all ranks, step by step, and prints what came out: `sums.py [STEPS] [SECONDS A STEP]`."""

from __future__ import annotations

import socket
import sys
import time

import numpy as np

import ronde

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1
pause = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
ronde.init()
for step in range(steps):
    total = ronde.allreduce(np.full(1000, ronde.rank() + 1.0, np.float32), op=ronde.Sum)
    assert (total == ronde.size() * (ronde.size() + 1) / 2).all()
    print(f"step {step} on {socket.gethostname()}: {total[0]:.0f}", flush=True)
    time.sleep(pause)  # sleep: the user wants the job to last
