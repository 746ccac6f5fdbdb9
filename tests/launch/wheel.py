"""Our own files in the environment that every test host sees, and a host without them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ronde
import troubles
from launcher import BIN
from sshd import HOME, SshHosts

PACKAGE = Path(ronde.__file__).parent
# All there is of the wheel.
FILES = [str(path) for path in (BIN / "ronde", BIN / "horovodrun", PACKAGE, PACKAGE.parent / "horovod")]
# Where a host keeps what launchers have sent.
CACHE = f"{HOME}/.cache/ronde"


@contextmanager
def without_wheel(hosts: SshHosts, host: int) -> Iterator[None]:
    """Take everything of ours off a host, and afterwards what was sent there."""
    with troubles.hidden(hosts, host, FILES):
        try:
            yield
        finally:
            forget_what_was_sent(hosts, host)


def forget_what_was_sent(hosts: SshHosts, host: int) -> None:
    """Make the host one that no launcher has ever sent anything to."""
    hosts.run(host, ["rm", "-rf", CACHE])
