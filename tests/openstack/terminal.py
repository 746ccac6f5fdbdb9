"""A verb of `ronde cluster` on a terminal of its own: what somebody sees who sits there, and types.

    with Terminal(command, "init", "new") as terminal:
        terminal.answer("how many workers (1): ", "3")
        assert terminal.end() == 0, terminal.shown

What is typed before it is asked for shows at once, so wait for the question; a password's hides it a moment later.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import termios

from command import Command

CTRL_C = "\x03"


def read(terminal: int) -> str:
    """Return what a terminal shows next."""
    assert select.select([terminal], [], [], 60)[0], "nothing came"
    return os.read(terminal, 4096).decode()


class Terminal:
    """The terminal, as a context manager. The verb is killed at the end if it is still there."""

    def __init__(self, command: Command, verb: str, *words: str) -> None:
        self.shown = ""
        # How much of that has been waited for.
        self._seen = 0
        self._ours, theirs = pty.openpty()
        try:
            self.process = subprocess.Popen(
                command.words(verb, *words),
                env=command.env,
                cwd=command.folder.parent,
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                start_new_session=True,
                preexec_fn=_sit_down,
            )
        except BaseException:
            os.close(self._ours)
            raise
        finally:
            os.close(theirs)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def await_text(self, text: str) -> None:
        """Wait until a text is shown, after the one that was waited for before."""
        while (at := self.shown.find(text, self._seen)) < 0:
            assert self._read_on(), f"it has ended without {text!r}: {self.shown}"
        self._seen = at + len(text)

    def type(self, text: str) -> None:
        """Type something."""
        os.write(self._ours, text.encode())

    def answer(self, question: str, text: str) -> None:
        """Wait for a question, and type a line."""
        self.await_text(question)
        self.type(f"{text}\n")

    def hides(self) -> bool:
        """Whether what is typed does not show."""
        return not termios.tcgetattr(self._ours)[3] & termios.ECHO

    def end(self) -> int:
        """Wait until the verb has ended, and return how."""
        while self._read_on():
            pass
        return self.process.wait(timeout=60)

    def _read_on(self) -> bool:
        """Read what is shown next; whether there was something."""
        try:
            self.shown += read(self._ours)
        except AssertionError as error:
            raise AssertionError(f"{error} after: {self.shown}") from None
        except OSError:
            # How a terminal says that its last user has left.
            return False
        return True


def _sit_down() -> None:
    """Make standard input the terminal of the session: passwords are read from that, and Ctrl-C goes to whom it has."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # A runner in the background may ignore interrupts.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
