"""What one plain TCP stream carries between two hosts: the link's speed, without any library.

    python -m peers.stream receive ADDRESS          prints `PORT n`, then one JSON line
    python -m peers.stream send ADDRESS PORT --seconds 2

The receiver discards the first quarter of a second, in which the rate limiter's
bucket is still full and the congestion window small, and reports payload bytes a
second over the rest.
"""

from __future__ import annotations

import argparse
import json
import socket
import time

SETTLE_SECONDS = 0.25
BLOCK = 1 << 20


def receive(address: str) -> None:
    """Take one stream until its end and print its goodput."""
    with socket.create_server((address, 0)) as server:
        print(f"PORT {server.getsockname()[1]}", flush=True)
        connection, _ = server.accept()
    block = bytearray(BLOCK)
    with connection:
        settled = time.perf_counter() + SETTLE_SECONDS
        start, total = 0.0, 0
        now = 0.0
        while taken := connection.recv_into(block):
            now = time.perf_counter()
            if start:
                total += taken
            elif now >= settled:
                start = now
    if not total:
        raise SystemExit("error: the stream ended before its speed could be taken")
    print(json.dumps({"work": "stream", "bytes_per_second": total / (now - start)}), flush=True)


def send(address: str, port: int, seconds: float) -> None:
    """Send as fast as the stream takes it, for so many seconds."""
    block = bytes(BLOCK)
    with socket.create_connection((address, port)) as connection:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            connection.sendall(block)


def main() -> None:
    """Act as the side that the command line names."""
    arguments = argparse.ArgumentParser()
    sides = arguments.add_subparsers(dest="side", required=True)
    receiver = sides.add_parser("receive")
    receiver.add_argument("address")
    sender = sides.add_parser("send")
    sender.add_argument("address")
    sender.add_argument("port", type=int)
    sender.add_argument("--seconds", type=float, required=True)
    options = arguments.parse_args()
    if options.side == "receive":
        receive(options.address)
    else:
        send(options.address, options.port, options.seconds)


if __name__ == "__main__":
    main()
