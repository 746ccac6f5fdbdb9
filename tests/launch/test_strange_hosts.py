"""Hosts that are not like the launcher's: without our program, with another one, without Python, noisy, or full."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import troubles
from launcher import BIN, PROGRAMS, Finished, run
from sshd import HOME, SshHosts
from wheel import CACHE, forget_what_was_sent, without_wheel

BOTH = ("-np", 2, "-H", "h1,h2")


@pytest.fixture(scope="module")
def hosts() -> Iterator[SshHosts]:
    """Give two hosts."""
    with SshHosts(2) as made:
        yield made


def sums(hosts: SshHosts, *options: object) -> Finished:
    """Run a rank on each host; they check the sum themselves."""
    done = run(hosts, *BOTH, *options, "python", PROGRAMS / "sums.py")
    assert done.status == 0, done
    assert done.lines_of(1) == ["step 0 on h2: 3"], done
    return done


def files_below(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of every file below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def test_a_host_without_ronde_gets_it_once(hosts: SshHosts) -> None:
    with without_wheel(hosts, 2):
        before = hosts.traffic(2)[0]
        sums(hosts)
        first = hosts.traffic(2)[0] - before
        sent = files_below(hosts.path(2, CACHE))
        # The program and the package's library, at least, and nothing half-written.
        assert sum(size for size, _ in sent.values()) > 1 << 20, sent
        assert first > 1 << 20
        sums(hosts)
        second = hosts.traffic(2)[0] - before - first
        assert files_below(hosts.path(2, CACHE)) == sent, "the second start changed what was there"
        assert second < first / 4, f"the first start sent {first} bytes, the second {second}"


@pytest.mark.parametrize("damaged", ["agents/*", "packages/*/ronde/__init__.py", "packages/*/ronde/_core*.so"])
def test_what_was_sent_and_then_damaged_is_sent_again(hosts: SshHosts, damaged: str) -> None:
    with without_wheel(hosts, 2):
        sums(hosts)
        (path,) = hosts.path(2, CACHE).glob(damaged)
        whole = path.read_bytes()
        path.chmod(0o700)
        path.write_bytes(whole[:-1000])
        sums(hosts)
        # A job may well succeed with a program or a library whose end is missing.
        assert path.read_bytes() == whole, "the damaged file was used"


def test_a_host_with_another_ronde_on_its_path_uses_ours(hosts: SshHosts) -> None:
    with without_wheel(hosts, 2):
        hosts.write(2, "/usr/local/bin/ronde", "#!/bin/sh\necho 'ronde 0.0.1'\nexit 2\n", mode=0o755)
        try:
            sums(hosts)
        finally:
            hosts.path(2, "/usr/local/bin/ronde").unlink()


def test_a_host_with_another_build_in_the_same_place_uses_ours(hosts: SshHosts) -> None:
    program = hosts.path(2, str(BIN / "ronde"))
    original = program.read_bytes()
    try:
        # It works all the same, but is not the same.
        program.write_bytes(original + b"another build")
        sums(hosts)
        assert hosts.path(2, CACHE).is_dir(), "ours was sent"
    finally:
        program.write_bytes(original)
        forget_what_was_sent(hosts, 2)


def test_a_host_without_python_is_named(hosts: SshHosts) -> None:
    python = [str(BIN / name) for name in ("python", "python3", "python3.11") if (BIN / name).is_symlink()]
    pythons = hosts.run(2, ["sh", "-c", "ls -d /usr/local/bin/python* /usr/bin/python* 2>/dev/null || :"]).split()
    with troubles.hidden(hosts, 2, [*python, *pythons]):
        done = run(hosts, *BOTH, "python", PROGRAMS / "sums.py")
    assert done.status == 1, done
    assert done.complaint() == (
        'error: h2: cannot find the command "python"\n'
        "hint: no folder of PATH has it; is the right environment active?\n"
    )


def test_a_command_that_is_only_here_is_named_with_the_host_that_lacks_it(hosts: SshHosts) -> None:
    hosts.write(1, "/usr/local/bin/only-here", "#!/bin/sh\n", mode=0o755)
    try:
        done = run(hosts, *BOTH, "only-here")
    finally:
        hosts.path(1, "/usr/local/bin/only-here").unlink()
    assert done.status == 1, done
    assert done.complaint() == (
        'error: h2: cannot find the command "only-here"\n'
        "hint: no folder of PATH has it; is the right environment active?\n"
    )


def test_a_folder_that_a_host_lacks_is_named(hosts: SshHosts) -> None:
    hosts.path(1, f"{HOME}/work").mkdir()
    try:
        done = run(hosts, *BOTH, "true", folder=f"{HOME}/work")
    finally:
        hosts.path(1, f"{HOME}/work").rmdir()
    # Ranks start in the same folder everywhere; a host that has none says so instead of starting elsewhere in silence.
    assert "h2" in done.told(), done
    assert f"{HOME}/work" in done.told(), done


NOISE = "echo 'Welcome to h2!'; printf 'no newline'; echo trouble >&2; head -c 100000 /dev/urandom"


@pytest.mark.parametrize(
    ("shell", "bashrc"),
    [
        ("/bin/bash", NOISE),
        ("/bin/bash", "printf '\\0\\1RONDE'; exec 3>&1"),
        ("/bin/bash", "stty erase ^H; read -t 0.1 answer; echo $answer"),
        ("/bin/sh", ""),
        ("/bin/tcsh", ""),
        ("/usr/bin/fish", ""),
    ],
    ids=["greets", "binary", "asks", "dash", "tcsh", "fish"],
)
def test_any_login_shell_will_do(hosts: SshHosts, shell: str, bashrc: str) -> None:
    if not hosts.path(2, shell).exists():
        pytest.fail(f"{shell} is not installed: apt-get install {Path(shell).name}")
    with troubles.login_shell(hosts, 2, shell, bashrc):
        done = run(hosts, *BOTH, "sh", "-c", "echo here")
    assert done.status == 0, done
    assert done.lines_of(1) == ["here"]
    assert "Welcome" not in done.output + done.errors


def test_a_login_shell_that_ends_at_once_is_named(hosts: SshHosts) -> None:
    with troubles.login_shell(hosts, 2, "/usr/sbin/nologin"):
        done = run(hosts, *BOTH, "true")
    assert done.status != 0
    assert done.complaint() == (
        "error: h2 (10.77.0.2, port 12345) let user root in, but starts no program for them\n"
        "  ssh: This account is currently not available.\n"
        "hint: if the account has no shell, give it one there:\n"
        "        sudo usermod -s /bin/bash root\n"
        "      otherwise look for ForceCommand and MaxSessions in its /etc/ssh/sshd_config\n"
    )


def test_a_full_disk_matters_only_where_something_must_be_written(hosts: SshHosts) -> None:
    # Not where the project itself lies: it would be out of sight.
    folders = [folder for folder in ("/tmp", "/var/tmp", "/dev/shm") if not PROGRAMS.resolve().is_relative_to(folder)]
    with troubles.full_disk(hosts, 2, folders):
        sums(hosts)


def test_a_host_without_room_for_ronde_is_named(hosts: SshHosts) -> None:
    hosts.path(2, f"{HOME}/.cache").mkdir(exist_ok=True)
    with (
        without_wheel(hosts, 2),
        troubles.full_disk(hosts, 2, [f"{HOME}/.cache", "/tmp", "/var/tmp", "/dev/shm"]),
    ):
        done = run(hosts, *BOTH, "python", PROGRAMS / "sums.py")
    assert done.status != 0
    assert done.complaint() == (
        "error: h2 has no ronde of this build, and it cannot be put there: "
        "head: error writing 'standard output': No space left on device\n"
        "hint: make room or see to the rights of ~/.cache on h2, or set XDG_CACHE_HOME there\n"
    )


def test_a_host_that_is_busy_only_takes_longer(hosts: SshHosts) -> None:
    spinners = [hosts.popen(2, ["sh", "-c", "while :; do :; done"]) for _ in range(6)]
    try:
        sums(hosts)
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()
