"""Bare systems: Debian with nothing but `make`, made by debootstrap, and with a copy of this checkout.

A system is an overlay over the folder that `root` prints, so that it starts bare every time. Its processes have
mounts and process numbers of their own, which end with each command. It shares this machine's network, and what this
machine needs to get at package registries: its certificates, and the settings of apt, pip, Cargo and proxies.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
# Files with settings, the user's below the home folder.
SETTINGS = ("etc/apt/apt.conf.d", "etc/hosts", "etc/pip.conf", "etc/resolv.conf", "usr/local/share/ca-certificates")
USER_SETTINGS = (".cargo/config.toml", ".config/pip/pip.conf")
# Variables with settings, by the ends of their names.
PREFIXES = (
    *("CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTR", "RUSTUP_DIST_", "RUSTUP_UPDATE_", "SSL_CERT_"),
    *("PIP_CERT", "PIP_DEFAULT_TIMEOUT", "PIP_EXTRA_", "PIP_INDEX_", "PIP_TRUSTED_"),
)
SUFFIXES = ("_CA_BUNDLE", "_PROXY", "_proxy")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENTER = """
set -e
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/changes,workdir=$2/work" "$2/root"
mount --rbind /dev "$2/root/dev"
mount --rbind /sys "$2/root/sys"
mount -t proc proc "$2/root/proc"
shift
root=$1/root
shift
exec chroot "$root" "$@"
"""


class BareSystem:
    """A system of a suite of Debian, whose changes lie in `folder`; `user` is who works on it."""

    def __init__(self, suite: str, folder: Path, user: str) -> None:
        self.user = user
        self._folder = folder
        made = subprocess.run([Path(__file__).with_name("root"), suite], stdout=subprocess.PIPE, text=True, check=True)
        self._base = made.stdout.strip()
        for part in ("changes", "work", "root"):
            (folder / part).mkdir()
        self._home = Path("/root") if user == "root" else Path("/home") / user
        self.checkout = self._home / "ronde"
        if user != "root":
            self.run("useradd", "--create-home", user, user="root").check_returncode()
        self._copy_settings()
        self._copy_checkout()

    def run(self, *command: str, user: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command in the checkout, or in the root folder if it is not there yet; its output is one text."""
        return subprocess.run(
            [*self._enter(), *self._become(user or self.user), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def exists(self, path: str) -> bool:
        """Tell whether a path of the checkout, or of the user's home folder, is there."""
        places = (self.checkout, self._home)
        return any((self._inside(place) / path).exists() for place in places)

    def _inside(self, path: Path) -> Path:
        return self._folder / "changes" / path.relative_to("/")

    def _enter(self) -> list[str]:
        private = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        return [*private, "bash", "-c", ENTER, "enter", self._base, str(self._folder)]

    def _become(self, user: str) -> list[str]:
        home = self._home if user == self.user else Path("/root")
        passed = [
            f"{name}={value}"
            for name, value in os.environ.items()
            if name.startswith(PREFIXES) or name.endswith(SUFFIXES)
        ]
        environment = ["env", "-i", f"PATH={PATH}", f"HOME={home}", "LANG=C.UTF-8", *passed]
        moved = f'cd {self.checkout} 2>/dev/null; exec "$@"'
        return ["setpriv", "--reuid", user, "--regid", user, "--init-groups", *environment, "bash", "-c", moved, "bash"]

    def _copy_settings(self) -> None:
        places = [(Path("/") / file, Path("/") / file) for file in SETTINGS]
        places += [(Path.home() / file, self._home / file) for file in USER_SETTINGS]
        for source, target in places:
            if source.exists():
                self._inside(target).parent.mkdir(parents=True, exist_ok=True)
                copy = shutil.copytree if source.is_dir() else shutil.copy
                copy(source, self._inside(target))

    def _copy_checkout(self) -> None:
        target = self._inside(self.checkout)
        target.mkdir(parents=True)
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        files = subprocess.run(listed, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True).stdout
        for file in filter(None, files.split("\0")):
            if (REPOSITORY / file).exists():
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(REPOSITORY / file, target / file, follow_symlinks=False)
        self.run("chown", "--recursive", f"{self.user}:", str(self._home), user="root").check_returncode()
