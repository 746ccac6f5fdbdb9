#!/usr/bin/env python3
"""A fake of Terraform, which makes nothing: it replays what the real one wrote (`recorded`, made by record.py).

`FAKE_TERRAFORM` names the folder of a story; a verb replays `plan.jsonl`, `apply.jsonl`, `destroy-plan.jsonl` or
`destroy-apply.jsonl` of it and ends as the recorded run did. In the folder that it runs in, it leaves the inventory
that the real one would, and for tests `fake.json`: its words, its process and the interrupts that it got.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

STORY = Path(os.environ["FAKE_TERRAFORM"])
SEEN = Path("fake.json")


def main() -> int:
    """Do what the real one did."""
    verb = sys.argv[1]
    if verb == "init":
        print("Terraform has been successfully initialized!")
        Path(".terraform").mkdir(exist_ok=True)
        return 0
    if verb == "state":
        state = Path("terraform.tfstate")
        print(state.read_text() if state.exists() else "", end="")
        return 0
    if verb == "plan":
        name = "destroy-plan" if "-destroy" in sys.argv else "plan"
        (out,) = (word.removeprefix("-out=") for word in sys.argv if word.startswith("-out="))
        Path(out).write_text(name)
        return replay(name)
    deletes = Path(sys.argv[-1]).read_text() == "destroy-plan"
    status = replay("destroy-apply" if deletes else "apply")
    if status == 0:
        leave(deletes)
    return status


def leave(deletes: bool) -> None:
    """Leave the files that the real one would."""
    state, inventory = Path("terraform.tfstate"), Path("inventory.yaml")
    if deletes:
        state.write_text(os.environ.get("FAKE_REMAINS", ""))
        inventory.unlink(missing_ok=True)
    else:
        shutil.copy(STORY / "state.txt", state)
        shutil.copy(STORY / "inventory.yaml", inventory)


def replay(name: str) -> int:
    """Write the lines of a recording; return the status that the real one ended with."""
    interrupts: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    seen: dict[str, Any] = {"words": sys.argv[1:], "process": os.getpid(), "interrupts": 0}
    failed = False
    for line in (STORY / f"{name}.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["type"] == "fake":
            # Something that leaves its process group, as ssh's background connections do.
            words = ["sleep", "600"]  # sleep: is there until it is killed
            seen["left"] = subprocess.Popen(words, start_new_session=True).pid
            SEEN.write_text(json.dumps(seen))
            print(json.dumps({"type": "log", "@message": "waiting"}), flush=True)
            while not interrupts:
                signal.pause()
            # Time for a second one, which the real one would give up its state for.
            signal.sigtimedwait([signal.SIGUSR1], 1.0)
            seen["interrupts"] = len(interrupts)
            SEEN.write_text(json.dumps(seen))
            continue
        failed = failed or event.get("diagnostic", {}).get("severity") == "error"
        print(line, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
