"""A rank that prints lines as fast as it can, `printer.py BYTES [SECONDS]`, and stays for so many seconds then."""

from __future__ import annotations

import sys
import time

LINE = b"step 000000 loss 0.000000 accuracy 0.000000 images/s 0000.0 learning rate 0.0010\n"
LINES_AT_ONCE = 800


def lines_of(size: int) -> int:
    """Return how many lines `main` prints for so many bytes."""
    return size // (len(LINE) * LINES_AT_ONCE) * LINES_AT_ONCE


def main(size: int, seconds: float) -> None:
    """Print so many bytes, or a little less: whole lines only."""
    block = LINE * LINES_AT_ONCE
    for _ in range(lines_of(size) // LINES_AT_ONCE):
        sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()
    time.sleep(seconds)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.0)
