"""A driver of Nova that makes a server a network namespace with an ssh server; all else is as Nova's own FakeDriver.

The namespace hangs on the cloud's bridge with the addresses of the server's ports. Its sshd lets in who has the key of
the server's key pair. Files and processes are the cloud's: only the network, the host name and the keys are its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

from nova.virt import fake

BRIDGE = "cloud"
FOLDER = Path("/var/lib/nova/servers")

SSHD = """Port 22
HostKey {folder}/host_key
PidFile {folder}/sshd.pid
AuthorizedKeysFile {folder}/authorized_keys
PasswordAuthentication no
UsePAM no
StrictModes no
Subsystem sftp internal-sftp
"""


def run(*words: str) -> None:
    """Run a command; Nova reports a server whose commands fail as one in error."""
    subprocess.run(words, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


class NamespaceDriver(fake.FakeDriver):
    """Makes and removes the namespaces."""

    def spawn(self, context: Any, instance: Any, *others: Any, **named: Any) -> None:
        """Make a server: what Nova gives beside its name and ports is of no use here."""
        super().spawn(context, instance, *others, **named)
        space, folder = _names(instance)
        folder.mkdir(parents=True)
        run("ip", "netns", "add", space)
        run("ip", "-n", space, "link", "set", "lo", "up")
        for number, port in enumerate(named["network_info"]):
            outside, inside = f"s{port['id'][:12]}", f"eth{number}"
            run("ip", "link", "add", outside, "type", "veth", "peer", "name", inside, "netns", space)
            run("ip", "-n", space, "link", "set", inside, "address", port["address"], "up")
            run("ip", "link", "set", outside, "master", BRIDGE, "up")
            for subnet in port["network"]["subnets"]:
                bits = subnet["cidr"].split("/")[1]
                for address in subnet["ips"]:
                    run("ip", "-n", space, "address", "add", f"{address['address']}/{bits}", "dev", inside)
                run("ip", "-n", space, "route", "replace", "default", "via", subnet["gateway"]["address"])
        (folder / "authorized_keys").write_text(f"{instance.key_data or ''}\n")
        (folder / "sshd_config").write_text(SSHD.format(folder=folder))
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{folder}/host_key")
        Path("/run/sshd").mkdir(exist_ok=True)
        script = f"hostname {instance.hostname} && exec /usr/sbin/sshd -f {folder}/sshd_config -E {folder}/log"
        run("ip", "netns", "exec", space, "unshare", "--uts", "sh", "-c", script)

    def destroy(self, context: Any, instance: Any, *others: Any, **named: Any) -> None:
        """Remove a server, also one that was made in part."""
        space, folder = _names(instance)
        if folder.exists():
            inside = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=False)
            for number in inside.stdout.split():
                os.kill(int(number), signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", space], check=False)
            shutil.rmtree(folder)
        super().destroy(context, instance, *others, **named)


def _names(instance: Any) -> tuple[str, Path]:
    return f"server-{instance.uuid[:13]}", FOLDER / instance.uuid
