"""`ronde setup-ssh`: from a host that knows nobody to one that a job can start on, with a person at a terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Iterator, Sequence

import pytest

from launcher import ENVIRONMENT, Finished, run, start_command
from sshd import HOME, SshHosts

FRESH, CHANGED, KEYS_ONLY = 2001, 2002, 2003
PASSWORD = "correct horse"
PATIENCE = 60.0


@pytest.fixture
def hosts() -> Iterator[SshHosts]:
    """Give a host without a key of its own, and one that takes passwords but knows nobody."""
    with SshHosts(2) as made:
        for file in ("id_ed25519", "id_ed25519.pub"):
            made.path(1, f"{HOME}/.ssh/{file}").unlink()
        made.path(2, f"{HOME}/.ssh/authorized_keys").unlink()
        made.run(2, ["sh", "-c", f"echo 'root:{PASSWORD}' | chpasswd"])
        made.serve(2, FRESH, "PasswordAuthentication yes", known=False)
        made.serve(2, CHANGED, "PasswordAuthentication yes", new_key=True)
        made.serve(2, KEYS_ONLY)
        yield made


def setup(hosts: SshHosts, *words: object) -> Finished:
    """Run it without a terminal."""
    with start_command(hosts, ["ronde", "setup-ssh", *words]) as job:
        return job.end()


def at_a_terminal(hosts: SshHosts, words: Sequence[object], answers: Sequence[tuple[str, str]]) -> tuple[int, str]:
    """Run it on a terminal, where each question in turn gets its answer; return the status and what was to be seen."""
    person, terminal = pty.openpty()
    # A session of its own with this terminal, which is where ssh asks for passwords.
    command = ["setsid", "--ctty", "--wait", *hosts.enter(1), "ronde", "setup-ssh", *(str(word) for word in words)]
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=ENVIRONMENT) as process:
        os.close(terminal)
        seen, looked, deadline = "", 0, time.monotonic() + PATIENCE
        waiting = list(answers)
        while select.select([person], [], [], max(0.0, deadline - time.monotonic()))[0]:
            try:
                block = os.read(person, 4096)
            except OSError:  # Everybody has closed the terminal.
                break
            seen += block.decode()
            if waiting and waiting[0][0] in seen[looked:]:
                looked = len(seen)
                os.write(person, waiting.pop(0)[1].encode() + b"\n")
        else:
            process.kill()
            pytest.fail(f"it still runs; so far: {seen}")
        os.close(person)
        status = process.wait()
    assert not waiting, f"it was never asked: {waiting}; seen: {seen}"
    return status, seen.replace("\r\n", "\n")


def test_a_host_is_set_up_once_and_for_all(hosts: SshHosts) -> None:
    words = ["-H", "h1,h2", "-p", FRESH]
    status, seen = at_a_terminal(hosts, words, [("[y/N] ", "y"), ("password: ", PASSWORD)])
    assert status == 0, seen
    fingerprint = hosts.run(2, ["ssh-keygen", "-lf", "/etc/ssh/host_key"]).split()[1]
    assert f"  h2  ED25519  {fingerprint}\n" in seen
    assert "made ~/.ssh/id_ed25519, a key without a passphrase" in seen
    assert seen.endswith("  h1  ready      this machine, no ssh needed\n  h2  ready      key installed\n"), seen
    authorized = hosts.path(2, f"{HOME}/.ssh/authorized_keys")
    assert authorized.read_text() == hosts.path(1, f"{HOME}/.ssh/id_ed25519.pub").read_text()
    assert authorized.stat().st_mode & 0o777 == 0o600
    again = setup(hosts, *words)
    assert (again.status, again.output.splitlines()[-1]) == (0, "  h2  ready      was set up before"), again
    assert len(authorized.read_text().splitlines()) == 1
    done = run(hosts, "-np", 2, "-H", "h1,h2", "hostname", port=FRESH)
    assert (done.status, done.lines_of(1)) == (0, ["h2"]), done


def test_without_a_terminal_nothing_is_asked_or_recorded(hosts: SshHosts) -> None:
    known = hosts.path(1, f"{HOME}/.ssh/known_hosts")
    before = known.read_text()
    done = setup(hosts, "-H", "h2", "-p", FRESH)
    assert done.status == 1
    assert "nothing was recorded: there is no terminal to ask on" in done.output
    assert f"ronde setup-ssh -H h2 -p {FRESH} --yes" in done.output
    assert known.read_text() == before
    agreed = setup(hosts, "-H", "h2", "-p", FRESH, "--yes")
    assert agreed.status == 1, "the password is still missing"
    assert "it wants the password of root, and there is no terminal to ask on" in agreed.output
    added = known.read_text().removeprefix(before)
    assert added.startswith(f"[h2]:{FRESH} ssh-ed25519 "), added


def test_whoever_says_no_keeps_things_as_they_are(hosts: SshHosts) -> None:
    known = hosts.path(1, f"{HOME}/.ssh/known_hosts")
    before = known.read_text()
    status, seen = at_a_terminal(hosts, ["-H", "h2", "-p", FRESH], [("[y/N] ", "")])
    assert status == 1, seen
    assert known.read_text() == before


def test_a_changed_key_is_never_replaced(hosts: SshHosts) -> None:
    known = hosts.path(1, f"{HOME}/.ssh/known_hosts")
    before = known.read_text()
    done = setup(hosts, "-H", "h2", "-p", CHANGED, "--yes")
    assert done.status == 1
    assert "presented another host key than the one this machine knows" in done.output
    assert known.read_text() == before


def test_a_server_without_passwords_needs_another_way_in(hosts: SshHosts) -> None:
    done = setup(hosts, "-H", "h2", "-p", KEYS_ONLY)
    assert done.status == 1
    public = hosts.path(1, f"{HOME}/.ssh/id_ed25519.pub").read_text().strip()
    assert f"to ~/.ssh/authorized_keys of root there:\n        {public}\n" in done.output


def test_a_wrong_password_is_told(hosts: SshHosts) -> None:
    wrong = [("password: ", "wrong")] * 3
    status, seen = at_a_terminal(hosts, ["-H", "h2", "-p", FRESH, "--yes"], wrong)
    assert status == 1, seen
    assert "error: the key was not installed on h2: the login with a password failed\n" in seen
    assert not hosts.path(2, f"{HOME}/.ssh/authorized_keys").exists()
