"""Measures on a GPU beside the peers, and compares with the aims: bench/README.md.

    python bench/gpu/main.py --site SITE --ronde SITE/bin/ronde [--only PART...] [--quick] [--json FILE]

``python`` is one with a PyTorch that sees a GPU, and torchvision; SITE is a folder that the wheel was installed into.
Nothing is built or installed, so this is for machines that have neither compilers nor a network; ``make bench-gpu``
does the whole of it. The table comes last, and before it all rows as one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu import suite
from gpu.aims import PARTS
from gpu.launch import Launcher, look
from harness.environment import SetupError
from harness.jobs import JobError
from harness.report import Report


def main(words: Sequence[str] | None = None) -> int:
    """Measure what the command line names; what is not met does not make it fail, what does not work does."""
    parser = argparse.ArgumentParser(prog="bench/gpu/main.py", description="Measure on a GPU beside the peers.")
    parser.add_argument("--site", type=Path, required=True, help="the folder that the wheel was installed into")
    parser.add_argument("--ronde", type=Path, required=True, help="the launcher of that wheel")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=[], help="only these parts")
    parser.add_argument("--quick", action="store_true", help="shows that it works, not how fast it is")
    parser.add_argument("--json", type=Path, help="also write everything to this file")
    options = parser.parse_args(words)
    launcher = Launcher(options.ronde.resolve(), options.site.resolve(), Path(sys.executable))
    report = Report(command=" ".join(["bench/gpu/main.py", *(sys.argv[1:] if words is None else words)]))
    failure: Exception | None = None
    try:
        suite.measure(report, launcher, look(launcher.python), options.only, options.quick)
    except (SetupError, JobError) as error:
        failure = error
    except KeyboardInterrupt:
        return 130
    if report.rows:
        print(json.dumps(report.summary(), ensure_ascii=False), flush=True)
        report.print()
        if options.json:
            report.write(options.json)
    if failure is not None:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
