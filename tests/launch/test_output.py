"""What ranks on many hosts print: every line whole, in order, none lost, also when nobody reads for a while."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hosts import Hosts
from launcher import ENVIRONMENT, PROGRAMS, roles, run, start
from sshd import HOME, PORT, SshHosts
from waiting import PATIENCE, eventually

pytestmark = pytest.mark.usefixtures("quiet")

MIB = 1 << 20
# After so many seconds a host that says nothing is lost; long enough for a busy machine.
HEARTBEAT = 5


@pytest.fixture(scope="module")
def hosts() -> Iterator[SshHosts]:
    """Give three hosts."""
    with SshHosts(3) as made:
        yield made


def test_a_thousand_lines_a_second_from_each_rank(hosts: SshHosts) -> None:
    ranks, count = 4, 1500
    # Half of the lines go to each stream, so 500 a second on each are 1,000 a second.
    done = run(hosts, "-np", ranks, "-H", "h1:1,h2:2,h3:1", "python", PROGRAMS / "lines.py", count, 500)
    assert done.status == 0, done.errors[-2000:]
    for text, name in ((done.output, "out"), (done.errors, "err")):
        numbers = defaultdict(list)
        for line in text.splitlines():
            label = re.match(r"\[(\d+)\] (\d+) (\w+) (\d+) ", line)
            if label is None:
                # Only the launcher speaks without a label, and of waiting if this machine is busy.
                assert line.startswith(("ronde ", "  ", "waiting for ")), line[:200]
                assert name == "err"
                continue
            # The label is the rank's own, and the line ends as it was printed.
            body, check = line.split(" ", 1)[1].rsplit(" ", 1)
            assert label[1] == label[2]
            assert label[3] == name
            assert zlib.crc32(body.encode()) == int(check), line[:200]
            numbers[int(label[1])].append(int(label[4]))
        assert numbers == {rank: list(range(count)) for rank in range(ranks)}


def test_colour_progress_bars_and_a_last_line_without_end_pass_through(hosts: SshHosts) -> None:
    say = r"printf '\033[31mred\033[0m\n10%%\r20%%\r100%%\nlast'"
    done = run(hosts, "-np", 2, "-H", "h1,h2", "sh", "-c", say)
    assert done.status == 0, done
    for rank in range(2):
        # In a file or a pipe every state of a progress bar is a line.
        assert done.lines_of(rank) == ["\x1b[31mred\x1b[0m", "10%", "20%", "100%", "last"], done.output
    with on_terminal(hosts, f'ronde run -p {PORT} -np 2 -H h1,h2 sh -c "{say}"; echo "ended $?"') as screen:
        screen.wait_for("ended 0")
    for rank in range(2):
        # On a terminal it overwrites itself; the terminal adds a return to every newline.
        for wanted in (f"[{rank}] \x1b[31mred\x1b[0m\r\n", f"[{rank}] 20%\r", f"[{rank}] last\r\n"):
            assert wanted in screen.text, screen.text


def test_each_ranks_output_is_kept_in_files(hosts: SshHosts) -> None:
    say = 'echo "out of $HOROVOD_RANK on $(hostname)"; echo "err of $HOROVOD_RANK" >&2'
    done = run(hosts, "-np", 3, "-H", "h1,h2:2", "--output-filename", "/tmp/logs", "sh", "-c", say)
    assert done.status == 0, done
    folder = hosts.path(1, "/tmp/logs")
    try:
        for rank, machine in enumerate(["h1", "h2", "h2"]):
            assert (folder / f"rank.{rank}" / "stdout").read_text() == f"out of {rank} on {machine}\n"
            assert (folder / f"rank.{rank}" / "stderr").read_text() == f"err of {rank}\n"
        assert not hosts.path(2, "/tmp/logs").exists(), "the files are where the launcher is"
    finally:
        hosts.run(1, ["rm", "-r", "/tmp/logs"])


def test_a_blocked_terminal_stalls_only_those_who_print(hosts: SshHosts) -> None:
    # Rank 0 prints more than all buffers together hold, rank 1 never prints and counts in a file instead.
    size = 64 * MIB
    program = (
        f"if [ $HOROVOD_RANK = 0 ]; then yes 0123456789abcde | head -c {size}; else n=0; "
        "while [ ! -e /tmp/enough ]; do n=$((n + 1)); echo $n >/tmp/count; sleep 0.05; done; "  # sleep: it has time
        "rm /tmp/enough; fi"
    )
    # Rank 0 is remote, so that its lines have the longest way; the heartbeat would notice a stall.
    words = ["-np", 2, "-H", "h2,h3", "--heartbeat-timeout", HEARTBEAT, "sh", "-c", program]
    read_end, write_end = os.pipe()
    with start(hosts, *words, stdout=write_end) as job, os.fdopen(read_end, "rb") as screen:
        os.close(write_end)
        count = hosts.path(3, "/tmp/count")

        def counted() -> int:
            # The file is empty for a moment whenever it is written.
            return int(eventually(lambda: count.exists() and count.read_text().strip(), "rank 1 to count"))

        counted()
        time.sleep(HEARTBEAT + 1)  # sleep: a stall of anything but printing would end the job now
        before = counted()
        eventually(lambda: counted() > before, "rank 1 to go on")
        assert job.process.poll() is None, "the job ended while nobody read"
        assert memory_of_launcher(hosts) < 200 * MIB
        hosts.path(3, "/tmp/enough").touch()
        shown = screen.read()
        done = job.end()
    count.unlink()
    assert done.status == 0, done
    check_flood(shown, size)


@pytest.mark.parametrize("where", ["h1", "h2"])
def test_nothing_is_lost_of_what_a_rank_prints_last(hosts: SshHosts, where: str) -> None:
    # It prints as fast as it can, and ends with its pipes full; several times, since it is a matter of moments.
    size = 8 * MIB
    for _ in range(4):
        done = run(hosts, "-np", 1, "-H", where, "sh", "-c", f"yes 0123456789abcde | head -c {size}")
        assert done.status == 0, done
        check_flood(done.output.encode(), size)


def check_flood(shown: bytes, size: int) -> None:
    """Make sure that all lines are there of a rank 0 that printed so many bytes, 16 a line."""
    line = b"[0] 0123456789abcde\n"
    assert shown.count(line) == size // 16
    # Compared without showing them.
    assert len(shown) == size // 16 * len(line), "there is something else between the lines"


def memory_of_launcher(hosts: Hosts) -> int:
    """Return the most memory that one of the launcher's own processes has taken so far."""
    sizes = []
    for role, process in roles(hosts):
        if role in ("launcher", "driver", "agent", "guardian"):
            status = Path(f"/proc/{process.pid}/status").read_text()
            found = re.search(r"VmHWM:\s+(\d+) kB", status)
            assert found is not None
            sizes.append(int(found[1]) * 1024)
    assert len(sizes) >= 5, "launcher, driver, and guardian and agent of two hosts"
    return max(sizes)


def test_the_terminals_stop_key_does_not_kill_the_job(hosts: SshHosts) -> None:
    ronde = f"ronde run -p {PORT} -np 2 -H h1,h2 --heartbeat-timeout {HEARTBEAT}"
    rank = 'n=0; until [ -e /tmp/enough ]; do n=$((n + 1)); echo "count $n"; sleep 0.1; done'  # sleep: it has time
    # With job control, as in a terminal: the shell takes over when its job is stopped. Unless told not to, the kernel
    # discards what a terminal has not shown yet when its stop key is pressed.
    script = f'stty noflsh; set -m; {ronde} sh -c \'{rank}\'; echo "stopped $?"; read answer; fg; echo "ended $?"'
    with on_terminal(hosts, script) as screen:
        screen.wait_for(r"\[1\] count 3\b")
        screen.type("\x1a")
        screen.wait_for("stopped 148")
        time.sleep(HEARTBEAT + 1)  # sleep: hosts that heard nothing would end the job now
        last = max(int(number) for number in re.findall(r"\[1\] count (\d+)", screen.text))
        screen.type("\n")
        screen.wait_for(rf"\[1\] count {last + 1}\b")
        for host in (1, 2):
            hosts.path(host, "/tmp/enough").touch()
        screen.wait_for("ended 0")
    for host in (1, 2):
        hosts.path(host, "/tmp/enough").unlink()
    for rank_number in range(2):
        counted = re.findall(rf"\[{rank_number}\] count (\d+)\r?\n", screen.text)
        assert counted == [str(number) for number in range(1, len(counted) + 1)]
        assert counted


class Screen:
    """A terminal, as the person before it sees and uses it."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self.text = ""

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._terminal, keys.encode())

    def wait_for(self, pattern: str, seconds: float = PATIENCE) -> None:
        """Read until the pattern shows."""
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.text):
            assert time.monotonic() < deadline, f"{pattern} does not show: {self.text}"
            try:
                self.text += os.read(self._terminal, 1 << 16).decode(errors="replace")
            except OSError:
                # The terminal's other end is closed.
                raise AssertionError(f"{pattern} did not show: {self.text}") from None


@contextmanager
def on_terminal(hosts: Hosts, script: str) -> Iterator[Screen]:
    """Run a script of bash on host 1 with a terminal of its own, until the end of the block."""
    terminal, other_end = pty.openpty()
    with subprocess.Popen(
        [*hosts.enter(1), "env", "-C", HOME, "setsid", "--ctty", "--wait", "bash", "-c", script],
        env=ENVIRONMENT,
        stdin=other_end,
        stdout=other_end,
        stderr=other_end,
    ) as shell:
        os.close(other_end)
        try:
            yield Screen(terminal)
        finally:
            shell.kill()
            os.close(terminal)
