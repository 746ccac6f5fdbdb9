"""Test hosts that can be logged in to: a real `sshd` on each, and on each the keys to reach all others.

    with SshHosts(2) as hosts:
        hosts.run(1, ["ssh", "-p", hosts.port, "h2", "hostname"])

Every host has a host key of its own, which all hosts know, and one user, root, with an empty home
in HOME: this machine's own home, keys and settings are out of reach. All accept the same user key.

A host may have more doors than one: `serve` starts another server on another port, with other rules
or another key, so that logins can fail in every way without a new set of hosts.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from hosts import Hosts, HostsError
from waiting import eventually

PORT = 12345
HOME = "/home/root"
PACKAGES = "openssh-server openssh-client"

RULES = f"""
AuthorizedKeysFile {HOME}/.ssh/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
UsePAM no
PrintMotd no
MaxStartups 200
Subsystem sftp internal-sftp
"""


class SshHosts(Hosts):
    """Hosts with ssh servers; the arguments are those of `Hosts`."""

    def __init__(
        self,
        count: int,
        rate: str | None = None,
        expose: Sequence[Path | str] = (),
        interfaces: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__(count, rate, expose, interfaces)
        self.port = PORT

    def _start(self) -> None:
        if not shutil.which("sshd", path="/usr/sbin:/usr/bin") or not shutil.which("ssh-keygen"):
            raise HostsError(f"hosts with ssh need tools that are not installed: apt-get install {PACKAGES}")
        super()._start()
        with tempfile.TemporaryDirectory(prefix="ronde-sshd-") as scratch:
            names = ["user", *(self.name(host) for host in self.numbers())]
            keys = make_keys([Path(scratch) / name for name in names])
        user = keys[0]
        known = "".join(self._known(host, PORT, keys[host].public) for host in self.numbers())
        for host in self.numbers():
            self._make_home(host, user, known)
            self.write(host, "/etc/ssh/host_key", keys[host].private, mode=0o600)
            self.path(host, "/run/sshd").mkdir(exist_ok=True)
        self._start_servers(dict.fromkeys(self.numbers(), PORT), RULES, "/etc/ssh/host_key")

    def _known(self, host: int, port: int, public: str) -> str:
        names = (self.name(host), self.address(host), f"{self.name(host)}.v6", self.address6(host))
        return ",".join(f"[{name}]:{port}" for name in names) + f" {public}"

    def _make_home(self, host: int, user: KeyPair, known: str) -> None:
        accounts = self.path(host, "/etc/passwd").read_text().splitlines()
        others = [line for line in accounts if not line.startswith("root:")]
        root = f"root:x:0:0:root:{HOME}:/bin/bash"
        self.write(host, "/etc/passwd", "\n".join([root, *others]) + "\n")
        for folder in (HOME, f"{HOME}/.ssh"):
            self.path(host, folder).mkdir(mode=0o700)
        self.write(host, f"{HOME}/.ssh/id_ed25519", user.private, mode=0o600)
        self.write(host, f"{HOME}/.ssh/id_ed25519.pub", user.public)
        self.write(host, f"{HOME}/.ssh/authorized_keys", user.public)
        self.write(host, f"{HOME}/.ssh/known_hosts", known)

    def write(self, host: int, inside: str, text: str, mode: int = 0o644) -> None:
        """Write a file of the host."""
        path = self.path(host, inside)
        path.write_text(text)
        path.chmod(mode)

    def serve(self, host: int, port: int, rules: str = "", new_key: bool = False, known: bool = True) -> None:
        """Open another door: a server on that port.

        `rules` are lines of its configuration, which win over the usual ones. `known` says whether host 1 knows
        the host's key for this port. With `new_key` the server shows another one, as after a new installation.
        """
        key = "/etc/ssh/host_key"
        if known:
            public = self.run(host, ["ssh-keygen", "-y", "-f", key])
            with self.path(1, f"{HOME}/.ssh/known_hosts").open("a") as file:
                file.write(self._known(host, port, public))
        if new_key:
            with tempfile.TemporaryDirectory(prefix="ronde-sshd-") as scratch:
                (made,) = make_keys([Path(scratch) / self.name(host)])
            key = f"/etc/ssh/host_key.{port}"
            self.write(host, key, made.private, mode=0o600)
        # The first value of a setting counts.
        self._start_servers({host: port}, rules + "\n" + RULES, key)

    def _start_servers(self, ports: Mapping[int, int], rules: str, key: str) -> None:
        started = []
        for host, port in ports.items():
            config = f"Port {port}\nHostKey {key}\nPidFile /run/sshd/{port}.pid\n{rules}"
            self.write(host, f"/etc/ssh/sshd_config.{port}", config)
            log = ["-E", f"/var/log/sshd.{port}.log"]
            command = ["/usr/sbin/sshd", "-f", f"/etc/ssh/sshd_config.{port}", *log]
            started.append((host, self.popen(host, command, stderr=subprocess.PIPE, text=True)))
        for host, process in started:
            complaint = process.communicate()[1]
            if process.returncode != 0:
                raise HostsError(f"{self.name(host)}: sshd did not start: {complaint.strip()}")
        for host, port in ports.items():
            log_file = self.path(host, f"/var/log/sshd.{port}.log")
            # The server writes it once it listens, which is after its starter has returned.
            eventually(
                self.path(host, f"/run/sshd/{port}.pid").exists,
                lambda host=host, log_file=log_file: f"sshd of {self.name(host)} to listen: {log_file.read_text()}",
            )


class KeyPair:
    """A key as the two files that ssh has of it."""

    def __init__(self, file: Path) -> None:
        self.private = file.read_text()
        self.public = file.with_name(file.name + ".pub").read_text()


def make_keys(files: Sequence[Path]) -> list[KeyPair]:
    """Make a key for each name, all at once."""
    makers = [
        subprocess.Popen(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", file.name, "-f", str(file)])
        for file in files
    ]
    for maker in makers:
        if maker.wait() != 0:
            raise HostsError(f"ssh-keygen failed with status {maker.returncode}")
    return [KeyPair(file) for file in files]
