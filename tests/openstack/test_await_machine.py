"""Waiting for a machine: what is tried again, what is given up, and the words for it.

`ssh` is a fake here, a script that answers as a file tells it to; test_cloud.py has real ones.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from terraform import DEPLOY

# Answers with the next line of `answers`, a status and words; the last line is for all that come after it.
SSH = """#!/bin/sh
# The question has several lines.
echo "$*" | tr '\\n' ' ' >>"$FAKE/asked"
echo "$SSH_ASKPASS_REQUIRE $SSH_ASKPASS" >>"$FAKE/asked"
line=$(sed -n "$(wc -l <"$FAKE/asked")p" "$FAKE/answers")
[ -n "$line" ] || line=$(tail -n 1 "$FAKE/answers")
echo "${line#* }" >&2
exit "${line%% *}"
"""

REFUSED = "255 ssh: connect to host 203.0.113.7 port 22: Connection refused"
DENIED = "255 debian@203.0.113.7: Permission denied (publickey)."


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    return tmp_path


def wait(fake: Path, *answers: str, seconds: int) -> subprocess.CompletedProcess[str]:
    (fake / "answers").write_text("".join(f"{answer}\n" for answer in answers))
    return subprocess.run(
        ["sh", DEPLOY / "await-machine", "ronde-master", "203.0.113.7", str(seconds)],
        cwd=fake,
        env={**os.environ, "PATH": f"{fake}:{os.environ['PATH']}", "FAKE": str(fake)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_machine_that_boots_is_asked_until_it_is_ready(fake: Path) -> None:
    closed = "255 kex_exchange_identification: Connection closed by remote host"
    done = wait(fake, REFUSED, closed, DENIED, "0 ", seconds=60)
    assert (done.returncode, done.stdout) == (0, "ronde-master is ready\n"), done.stderr
    asked = (fake / "asked").read_text().splitlines()
    assert len(asked) == 4
    assert "-F ssh_config -o BatchMode=yes" in asked[0]
    assert "cloud-init status --wait" in asked[0]
    assert asked[0].endswith(" force /bin/false"), "nor is anybody asked on the way through the master"


@pytest.mark.parametrize(
    ("answer", "cause", "fix"),
    [
        (REFUSED, "was not reached in 1 s", "check that admin_cidr holds the address this machine is seen with"),
        (DENIED, "does not let us in", "load the key (ssh-add; ssh-add -l shows it)"),
    ],
)
def test_a_machine_that_does_not_come_is_given_up(fake: Path, answer: str, cause: str, fix: str) -> None:
    done = wait(fake, answer, seconds=1)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: ronde-master (203.0.113.7) {cause}\n  ssh: {answer[4:]}\nhint: {fix}")
    assert done.stderr.endswith("; then terraform apply again\n")


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ("3 status: error", "is up, but its cloud-init failed"),
        ("1 Please login as the user debian", "answers ssh with status 1 instead of a shell"),
        ("255 WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!", "has another host key than before"),
    ],
)
def test_what_will_not_change_is_said_at_once(fake: Path, answer: str, cause: str) -> None:
    done = wait(fake, answer, seconds=600)
    assert done.returncode == 1
    assert cause in done.stderr
    assert len((fake / "asked").read_text().splitlines()) == 1


def test_a_cloud_init_that_does_not_end_is_given_up(fake: Path) -> None:
    # Here, what would be run on the machine is.
    (fake / "ssh").write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    hangs = "exec sleep 600"  # sleep: is there until it is given up
    (fake / "cloud-init").write_text(f'#!/bin/sh\n[ "$2" = --long ] || {hangs}\necho status: running\n')
    (fake / "cloud-init").chmod(0o755)
    done = wait(fake, seconds=1)
    assert done.returncode == 1
    cause = "error: ronde-master (203.0.113.7) is up, but its cloud-init did not end in 1 s"
    assert done.stderr.startswith(
        f"{cause}\n  ssh: status: running\nhint: look at /var/log/cloud-init-output.log there"
    )
