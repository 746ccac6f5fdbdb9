"""Guests of QEMU as the machines of a cluster: own kernels, disks, systemd, and cloud-init fed from a local disk.

    with Pair(folder) as guests:
        guests.master.run("hostname")
        play("site.yml", inventory=guests.inventory())

The first is the master, with a volume for the share, the second a worker. As in a cloud both reach packages, through
this machine; they reach each other over a cable of their own; and only the master can be reached from here, so that the
way to the worker is through it. The kernel's help for guests is not used, since not every machine has it: they are
slow. All of it ends with the process that made them, also when that is killed.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAMES = ("ronde-master", "ronde-worker-1")
# What the cloud would call the volume; disks are found by the first twenty characters of it.
VOLUME = "4f0c1d2e-aaaa-bbbb-cccc-000000000001"

USER_DATA = """#cloud-config
locale: C.UTF-8
users:
  - name: debian
    uid: 1000
    shell: /bin/bash
    sudo: ALL=(ALL) NOPASSWD:ALL
    ssh_authorized_keys: [{key}]
"""

SSH_CONFIG = """Host ronde-master
    HostName 127.0.0.1
    Port {port}
Host ronde-worker-1
    HostName 10.78.0.2
    ProxyJump ronde-master
Host *
    User debian
    IdentityFile {folder}/key
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    StrictHostKeyChecking accept-new
    BatchMode yes
    ConnectTimeout 10
"""


def prepared() -> Path:
    """Return the folder with the disk that guests start from; it is made now if it has not been yet."""
    return Path(subprocess.run([HERE / "prepare"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip())


def free_port() -> int:
    """Return a port of the loopback address that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Guest:
    """One guest, and the way into it."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder
        self.number = number
        self.name = NAMES[number - 1]
        self.address = f"10.78.0.{number}"

    def start(self, base: Path, forwarded: dict[int, int]) -> None:
        """Make the guest's disks and start it; `forwarded` says which of our ports lead to which of its own."""
        disk = self.folder / f"{self.name}.qcow2"
        _run("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", base / "disk.raw", disk)
        outside, inside = (f"52:54:00:00:{net}:0{self.number}" for net in ("00", "01"))
        ways = "".join(f",hostfwd=tcp:127.0.0.1:{ours}-:{its}" for ours, its in forwarded.items())
        cable = f"addr.type=unix,addr.path={self.folder}/cable,server={'on' if self.number == 1 else 'off'}"
        words: list[str | Path] = ["setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", "-accel", "tcg,tb-size=256"]
        words += ["-cpu", "max", "-m", "2048", "-display", "none", "-no-user-config"]
        words += ["-kernel", base / "vmlinuz", "-initrd", base / "initrd.img", "-append"]
        words += ["root=LABEL=guest console=ttyS0 panic=-1", "-serial", f"file:{self.folder}/{self.name}.log"]
        words += ["-drive", f"file={disk},if=virtio,cache=unsafe"]
        words += ["-drive", f"file={self._seed(outside, inside)},if=virtio,format=raw,readonly=on"]
        words += ["-netdev", f"user,id=outside{ways}", "-device", f"virtio-net-pci,netdev=outside,mac={outside}"]
        words += ["-netdev", f"stream,id=inside,{cable}", "-device", f"virtio-net-pci,netdev=inside,mac={inside}"]
        words += ["-device", "virtio-rng-pci"]
        if self.number == 1:
            volume = self.folder / "volume.qcow2"
            _run("qemu-img", "create", "-q", "-f", "qcow2", volume, "6G")
            words += ["-drive", f"file={volume},if=none,id=volume,cache=unsafe"]
            words += ["-device", f"virtio-blk-pci,drive=volume,serial={VOLUME[:20]}"]
        with (self.folder / f"{self.name}.qemu").open("w") as log:
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _seed(self, outside: str, inside: str) -> Path:
        """Write the disk that cloud-init reads."""
        parts = self.folder / self.name
        parts.mkdir()
        key = (self.folder / "key.pub").read_text().strip()
        network = {
            "version": 2,
            "ethernets": {
                "outside": {"match": {"macaddress": outside}, "dhcp4": True},
                "inside": {"match": {"macaddress": inside}, "addresses": [f"{self.address}/24"]},
            },
        }
        (parts / "user-data").write_text(USER_DATA.format(key=json.dumps(key)))
        (parts / "meta-data").write_text(json.dumps({"instance-id": self.name, "local-hostname": self.name}))
        (parts / "network-config").write_text(json.dumps(network))
        seed = self.folder / f"{self.name}.iso"
        _run("genisoimage", "-quiet", "-volid", "cidata", "-joliet", "-rock", "-output", seed, *parts.iterdir())
        return seed

    def result(self, command: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Run a command in the guest, as the user that clouds have, and return how it ended."""
        words = ["ssh", "-F", self.folder / "ssh_config", self.name, command]
        return subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=timeout
        )

    def run(self, command: str, timeout: float = 300) -> str:
        """Run a command that must end well, and return what it printed."""
        done = self.result(command, timeout)
        assert done.returncode == 0, f"`{command}` on {self.name}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def await_ready(self, command: str = "cloud-init status --wait", timeout: float = 1800) -> None:
        """Wait until the guest lets us in and the command ends well."""
        end = time.monotonic() + timeout
        while (done := self.result(command, timeout)).returncode != 0:
            assert self._process.poll() is None, (self.folder / f"{self.name}.qemu").read_text()
            assert time.monotonic() < end, f"{done.stdout}{done.stderr}{self.console()}"
            time.sleep(2)  # sleep: between two tries, since a refusal comes at once while the guest boots

    def reboot(self) -> None:
        """Boot the guest anew, and wait until it is up."""
        before = self.run("cat /proc/sys/kernel/random/boot_id")
        self.result("sudo systemctl reboot")
        self.await_ready(f"test $(cat /proc/sys/kernel/random/boot_id) != {before} && cloud-init status --wait")

    def console(self) -> str:
        """Return the last of what the guest has printed."""
        return (self.folder / f"{self.name}.log").read_text(errors="replace")[-3000:]

    def close(self) -> None:
        """End the guest, as pulling its plug does."""
        self._process.kill()
        self._process.wait()


class Pair:
    """A master and a worker, as a context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.master = Guest(folder, 1)
        self.worker = Guest(folder, 2)
        self.jupyter_port = free_port()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Pair:
        base = prepared()
        for program in ("qemu-system-x86_64", "qemu-img", "genisoimage", "ssh"):
            assert shutil.which(program), f"the guests need {program}: make test-openstack installs it"
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", self.folder / "key")
        port = free_port()
        (self.folder / "ssh_config").write_text(SSH_CONFIG.format(port=port, folder=self.folder))
        with self._stack as stack:
            self.master.start(base, {port: 22, self.jupyter_port: self.jupyter_port})
            stack.callback(self.master.close)
            self._await_cable()
            self.worker.start(base, {})
            stack.callback(self.worker.close)
            self.master.await_ready()
            self.worker.await_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def _await_cable(self) -> None:
        end = time.monotonic() + 60
        while not (self.folder / "cable").exists():
            assert time.monotonic() < end, (self.folder / f"{self.master.name}.qemu").read_text()
            time.sleep(0.05)  # sleep: between two looks

    def inventory(self) -> Path:
        """Write the inventory of the two, in the format that Terraform writes."""
        everybody = {
            "cluster_name": "ronde",
            "ansible_user": "debian",
            "ansible_ssh_common_args": f"-F '{self.folder}/ssh_config'",
            "public_address": "127.0.0.1",
            "jupyter_port": self.jupyter_port,
            "share_volume": VOLUME,
        }
        hosts = [{guest.name: {"private_address": guest.address, "gpus": 0}} for guest in (self.master, self.worker)]
        described = {
            "all": {"vars": everybody, "children": {"master": {"hosts": hosts[0]}, "workers": {"hosts": hosts[1]}}}
        }
        file = self.folder / "inventory.yaml"
        # What is JSON is also YAML.
        file.write_text(json.dumps(described))
        return file


def _run(*words: str | Path) -> None:
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
