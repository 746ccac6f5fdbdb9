"""Prints numbered lines at a steady rate on both streams: `lines.py COUNT A_SECOND`.

Every line says its rank, stream and number, and ends with a check of the rest, so that one line inside another shows.
"""

from __future__ import annotations

import os
import sys
import time
import zlib

count, a_second = int(sys.argv[1]), float(sys.argv[2])
rank = os.environ["HOROVOD_RANK"]
begin = time.monotonic()
for number in range(count):
    # Lengths from a few bytes to a few KiB, so that lines end everywhere in everybody's buffers.
    filling = "x" * (number * 37 % 3000)
    for stream, name in ((sys.stdout, "out"), (sys.stderr, "err")):
        text = f"{rank} {name} {number} {filling}"
        stream.write(f"{text} {zlib.crc32(text.encode())}\n")
        stream.flush()
    early = begin + number / a_second - time.monotonic()
    if early > 0.01:
        time.sleep(early)  # sleep: the rate is the point
