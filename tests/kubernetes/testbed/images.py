"""The small images that every node has: the process that holds a pod, and a busybox for tests that need a shell."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from .archive import pack
from .layout import program
from .runtime import PAUSE_IMAGE

SHELL_IMAGE = "ronde.test/shell:1"
# The commands of busybox that tests use; it is each of them by the name it is called with.
COMMANDS = ["sh", "cat", "echo", "env", "head", "hostname", "httpd", "id", "ls", "nc", "nslookup", "ping"]
COMMANDS += ["sleep"]  # sleep: pods may
COMMANDS += ["tail", "test", "true", "false", "wget", "yes", "dd", "df", "grep", "kill", "touch", "mkdir", "date"]


def pack_small_images(folder: Path) -> list[Path]:
    """Write both images into the folder, and return the archives."""
    pause, shell = folder / "pause.tar", folder / "shell.tar"
    with tempfile.TemporaryDirectory() as unpacked:
        root = Path(unpacked)
        shutil.copy(program("pause"), root / "pause")
        pack(root, PAUSE_IMAGE, pause, ["/pause"])
    with tempfile.TemporaryDirectory() as unpacked:
        root = Path(unpacked)
        for part in ("bin", "etc", "tmp"):
            (root / part).mkdir()
        (root / "tmp").chmod(0o1777)
        (root / "etc/passwd").write_text("root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")
        busybox = shutil.which("busybox")
        assert busybox is not None
        shutil.copy(busybox, root / "bin/busybox")
        for command in COMMANDS:
            (root / "bin" / command).symlink_to("busybox")
        pack(root, SHELL_IMAGE, shell, ["sh"])
    return [pause, shell]
