"""tools/setup on machines that lack something: what it says and installs, and that it does no more than that.

Each test has a checkout, a PATH and a package manager of its own. The compiler, interpreters, Rust and apt are fakes,
in folders whose names say so; the script under test and everything else that it calls are real.
"""

from __future__ import annotations

import http.server
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
# What tools/setup reads.
FILES = ("Cargo.toml", "rust-toolchain.toml", "tools/setup", "tools/rustup", "tools/cache.sh", "tools/packages.txt")
REPLACED = ("apt-", "cc", "c99", "gcc", "cargo", "rustc", "python", "pyenv", "go", "mpirun", "sudo", "id", "uname")
RUST = ("rustc", "cargo", "cargo-clippy", "cargo-fmt")
INSTALL = "apt-get update && apt-get install -y --no-install-recommends"


class Machine:
    """A machine that has everything, until a test takes something away."""

    def __init__(self, folder: Path, system: Path, server: socket.socket) -> None:
        self.checkout = folder / "checkout"
        for file in FILES:
            (self.checkout / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / file, self.checkout / file)
        self.home = folder / "home"
        self.home.mkdir()
        self.cache = folder / "cache"
        self.programs = folder / "fake-programs"
        self.programs.mkdir()
        self.path = f"{self.programs}:{system}"
        self.apt_calls = folder / "apt-calls"
        self.apt_versions = folder / "apt-versions"
        self.on_install = folder / "on-install"
        self.startup_file = folder / "crt1.o"
        self.startup_file.touch()
        self.certificates = folder / "certificates.crt"
        self.certificates.touch()
        self.os_release = folder / "os-release"
        self.os_release.write_text('PRETTY_NAME="Debian GNU/Linux 99 (test)"\nID=debian\n')
        self._server = server
        self.add("cc", f"echo {self.startup_file}")
        self.add("uname", "case $1 in -sm) echo Linux x86_64 ;; *) echo x86_64 ;; esac")
        self.add("id", "echo 1000")
        self.add("apt-cache", f'echo \'  Candidate:\' "$(sed -n "s/^$2 //p" {self.apt_versions})"')
        self.add("find", f"echo {folder}/lists/Packages")
        self.add("apt-get", f'echo "$@" >>{self.apt_calls}; . {self.on_install}')
        self.add_python("python3", "3.11")
        self.rust = self.add_rust(folder / "fake-rust", "1.97.1")
        (self.programs / "rustc").symlink_to(self.rust / "rustc")
        self.offer({"gcc": "16.1", "python3": "3.13.5", "rustc": "1.63.0+dfsg1-2"})
        self.on_install.write_text("exit 100\n")

    def add(self, name: str, script: str, folder: Path | None = None) -> None:
        """Add a fake program to those on the PATH, or to those of a folder."""
        program = (folder or self.programs) / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.unlink(missing_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    def add_python(self, name: str, version: str, venv: bool = True) -> None:
        """Add a fake interpreter that tells its version, and whether it can make virtual environments."""
        self.add(name, f"echo {version} {venv} /fake-python/{name}")

    def add_rust(self, root: Path, version: str) -> Path:
        """Add a fake toolchain beside the PATH, and return the folder of its programs."""
        for program in RUST:
            self.add(
                program, f'[ "$1" = --version ] && echo "rustc {version} (fake)" || echo {root}', folder=root / "bin"
            )
        return root / "bin"

    def remove(self, *names: str) -> None:
        """Take programs off the PATH."""
        for name in names:
            (self.programs / name).unlink()

    def remove_rust(self) -> None:
        """Take Rust away."""
        self.remove("rustc")
        shutil.rmtree(self.rust)

    def offer(self, versions: dict[str, str]) -> None:
        """Set what the distribution offers."""
        self.apt_versions.write_text("".join(f"{package} {version}\n" for package, version in versions.items()))

    def setup(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run tools/setup."""
        host, port = self._server.getsockname()
        settings = {
            "HOME": str(self.home),
            "PATH": self.path,
            "RONDE_CACHE": str(self.cache),
            "RUSTUP_UPDATE_ROOT": f"http://{host}:{port}/rustup",
            "SETUP_OS_RELEASE": str(self.os_release),
            "SSL_CERT_FILE": str(self.certificates),
            **environment,
        }
        return subprocess.run(
            [self.checkout / "tools" / "setup", *words], env=settings, capture_output=True, text=True, check=False
        )

    def refusal(self, *words: str, **environment: str) -> str:
        """Run tools/setup, which must fail with one line and without having got anything; return the line."""
        done = self.setup(*words, **environment)
        assert done.returncode == 1, done
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert line.startswith("error: ")
        assert not self.apt_calls.exists()
        assert not self.connected()
        assert not self.cache.exists()
        return line.removeprefix("error: ")

    def connected(self) -> bool:
        """Tell whether anything has connected to what stands in for rustup's server."""
        try:
            self._server.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def chosen(self, *words: str, **environment: str) -> tuple[str, str]:
        """Run tools/setup, which must find everything and say nothing; return the folder of Rust, and the Python."""
        done = self.setup(*words, **environment)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        rust, python = (self.checkout / "target" / "setup.env").read_text().splitlines()
        return rust.removeprefix("setup_rust="), python.removeprefix("setup_python=")


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with this machine's programs, except for those that a test may take away."""
    folder = tmp_path_factory.mktemp("programs")
    for program in (*Path("/bin").iterdir(), *Path("/usr/bin").iterdir()):
        if not program.name.startswith(REPLACED) and not (folder / program.name).exists():
            (folder / program.name).symlink_to(program)
    return folder


@pytest.fixture
def machine(tmp_path: Path, system: Path) -> Iterator[Machine]:
    """Return a machine that has everything, with a server of rustup that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield Machine(tmp_path, system, server)


class FakeInstaller(http.server.BaseHTTPRequestHandler):
    """Answers every request with a program that leaves a file in the home folder."""

    def do_GET(self) -> None:
        """Send the program."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"#!/bin/sh\ntouch $HOME/ran\n")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def fake_rustup_server() -> Iterator[str]:
    """Return the address of a server whose only program is not rustup's."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), FakeInstaller) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield "http://{}:{}".format(*server.server_address)
        server.shutdown()


@pytest.mark.parametrize("goal", ["demo", "test"])
def test_says_nothing_where_everything_is_there(machine: Machine, goal: str) -> None:
    assert machine.chosen(goal) == (str(machine.rust), "/fake-python/python3")
    assert not machine.apt_calls.exists()
    assert not machine.cache.exists()


def test_names_a_missing_compiler(machine: Machine) -> None:
    machine.remove("cc")
    assert machine.refusal("demo") == f"not installed: a C compiler; as root: {INSTALL} gcc libc6-dev"


def test_names_the_compiler_where_only_the_c_library_s_files_are_missing(machine: Machine) -> None:
    machine.add("cc", "echo crt1.o")
    assert machine.refusal("demo") == f"not installed: a C compiler; as root: {INSTALL} gcc libc6-dev"


def test_names_missing_certificates(machine: Machine) -> None:
    machine.certificates.unlink()
    assert machine.refusal("demo") == f"not installed: TLS certificates; as root: {INSTALL} ca-certificates"


def test_names_a_missing_python(machine: Machine) -> None:
    machine.remove("python3")
    assert machine.refusal("demo") == f"not installed: Python 3.10 to 3.14; as root: {INSTALL} python3-venv"


def test_names_an_older_python_where_the_default_is_too_new(machine: Machine) -> None:
    machine.remove("python3")
    machine.offer({"python3": "3.15.2-1", "python3.13-venv": "3.13.18-1", "python3.14-venv": "3.14.10-1"})
    assert machine.refusal("demo").endswith("python3.13-venv")


def test_names_the_venv_of_the_python_that_is_there(machine: Machine) -> None:
    machine.add_python("python3", "3.12", venv=False)
    assert machine.refusal("demo") == f"not installed: Python's venv; as root: {INSTALL} python3.12-venv"


def test_names_the_distribution_s_rust_where_it_is_new_enough(machine: Machine) -> None:
    machine.remove_rust()
    machine.offer({"rustc": "1.97.1+dfsg1-1"})
    assert machine.refusal("demo") == f"not installed: Rust 1.89; as root: {INSTALL} rustc cargo"
    assert machine.refusal("test") == f"not installed: Rust 1.89; as root: {INSTALL} rustc cargo rust-clippy rustfmt"


@pytest.mark.parametrize("program", ["cargo-clippy", "cargo-fmt"])
def test_asks_for_the_linters_of_rust_where_they_run(machine: Machine, program: str) -> None:
    (machine.rust / program).unlink()
    machine.offer({"rustc": "1.97.1+dfsg1-1"})
    assert machine.refusal("test").endswith("rust-clippy rustfmt")
    machine.chosen("demo")


def test_names_programs_of_the_parts(machine: Machine) -> None:
    (machine.checkout / "tools" / "packages.txt").write_text(
        "# PROGRAM PACKAGE PART...\n"
        "mpirun openmpi-bin one\n"
        "missing-1 several-programs two\n"
        "/no/such/folder/missing-2 several-programs two three\n"
        "sh dash two\n"
    )
    machine.chosen("test", "four")
    assert machine.refusal("test", "one") == f"not installed: mpirun; as root: {INSTALL} openmpi-bin"
    two = f"not installed: missing-1, missing-2; as root: {INSTALL} several-programs"
    assert machine.refusal("test", "two") == two
    assert machine.refusal("test", "four", "two", "one").endswith(" openmpi-bin several-programs")


def test_names_go_only_where_it_is_asked_for(machine: Machine) -> None:
    machine.offer({"golang-go": "2:1.26~1"})
    machine.chosen("test")
    assert machine.refusal("test", "go") == f"not installed: Go 1.24; as root: {INSTALL} golang-go"
    machine.offer({"golang-go": "2:1.19~1"})
    assert machine.refusal("test", "go") == "Go 1.24 or newer is needed: https://go.dev/dl"
    machine.add("go", "echo go version go1.26.1 linux/amd64")
    machine.chosen("test", "go")


def test_names_everything_in_one_line(machine: Machine) -> None:
    machine.remove("cc", "python3")
    machine.remove_rust()
    machine.certificates.unlink()
    assert machine.refusal("demo") == (
        "not installed: a C compiler, Python 3.10 to 3.14, TLS certificates; as root: "
        f"{INSTALL} gcc libc6-dev python3-venv ca-certificates (Rust then comes from rustup)"
    )


def test_says_that_no_rust_is_available(machine: Machine) -> None:
    machine.remove_rust()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        closed_server = "http://{}:{}".format(*closed.getsockname())
    done = machine.setup("demo", RUSTUP_UPDATE_ROOT=closed_server, PYTHON=sys.executable)
    assert done.returncode == 1
    started, line = done.stderr.splitlines()
    assert started == f"installing Rust into {machine.cache} with rustup"
    assert line.startswith(
        "error: Rust 1.89 or newer is needed: none is installed, Debian GNU/Linux 99 (test) has 1.63.0, "
        f"and rustup cannot be used: {closed_server}/"
    )


def test_runs_no_installer_but_the_one_that_is_pinned(machine: Machine, fake_rustup_server: str) -> None:
    machine.remove_rust()
    done = machine.setup("demo", RUSTUP_UPDATE_ROOT=fake_rustup_server, PYTHON=sys.executable)
    assert done.returncode == 1
    assert done.stderr.endswith("/rustup-init: not the file that was expected\n")
    assert not (machine.home / "ran").exists()


def test_takes_rust_that_is_too_old_for_none(machine: Machine, tmp_path: Path) -> None:
    machine.add_rust(tmp_path / "fake-rust", "1.88.9")
    machine.offer({"rustc": "1.89.0"})
    assert machine.refusal("demo").endswith("rustc cargo")
    machine.add_rust(tmp_path / "fake-rust", "1.89.0")
    machine.chosen("demo")


def test_prefers_the_toolchain_that_the_checkout_names(machine: Machine) -> None:
    machine.remove_rust()
    toolchains = machine.home / ".rustup" / "toolchains"
    for version in ("1.95.1", "1.100.0", "1.101.0"):
        newest = machine.add_rust(toolchains / f"{version}-x86_64-unknown-linux-gnu", version)
    assert machine.chosen("demo")[0] == str(newest)
    pinned = machine.add_rust(toolchains / "1.95.0-x86_64-unknown-linux-gnu", "1.95.0")
    assert machine.chosen("demo")[0] == str(pinned)


def test_asks_rustup_for_nothing_that_it_does_not_have(machine: Machine) -> None:
    # As rustup's proxies do in a folder with a rust-toolchain.toml.
    machine.add("rustc", f"[ ! -e rust-toolchain.toml ] || touch {machine.home}/downloaded; echo {machine.rust.parent}")
    machine.chosen("demo")
    assert not (machine.home / "downloaded").exists()


@pytest.mark.parametrize("version", ["3.9", "3.15"])
def test_takes_another_python_where_the_default_is_not_supported(machine: Machine, version: str) -> None:
    machine.add_python("python3", version)
    machine.add_python("python3.12", "3.12")
    assert machine.chosen("demo")[1] == "/fake-python/python3.12"


def test_takes_another_python_where_the_default_has_no_venv(machine: Machine) -> None:
    machine.add_python("python3", "3.11", venv=False)
    machine.add_python("python3.12", "3.12")
    assert machine.chosen("demo")[1] == "/fake-python/python3.12"


def test_says_which_pythons_are_supported(machine: Machine) -> None:
    machine.add_python("python3", "3.9")
    machine.offer({"python3": "3.9.2-3"})
    assert machine.refusal("demo") == "Python 3.10 to 3.14 is needed; python3 is 3.9"


def test_takes_the_python_that_is_named_and_no_other(machine: Machine) -> None:
    machine.add_python("python3.8", "3.8")
    machine.add_python("python3.13", "3.13")
    assert machine.chosen("demo", PYTHON="python3.13")[1] == "/fake-python/python3.13"
    assert machine.refusal("demo", PYTHON="python3.8") == "Python 3.10 to 3.14 is needed; python3.8 is 3.8"
    assert machine.refusal("demo", PYTHON="python3.7") == "Python 3.10 to 3.14 is needed; python3.7 is not there"


def test_says_which_systems_are_supported(machine: Machine) -> None:
    machine.os_release.write_text('PRETTY_NAME="Fedora Linux 45"\nID=fedora\n')
    line = "Debian or Ubuntu on x86-64 is needed; this is Fedora Linux 45 (Linux x86_64)"
    assert machine.refusal("demo") == line
    machine.os_release.unlink()
    assert machine.refusal("demo") == "Debian or Ubuntu on x86-64 is needed; this is another system (Linux x86_64)"
    machine.os_release.write_text('NAME="elementary OS"\nID=elementary\nID_LIKE=ubuntu\n')
    machine.chosen("demo")
    machine.add("uname", "echo Linux aarch64")
    assert machine.refusal("demo") == "Debian or Ubuntu on x86-64 is needed; this is elementary OS (Linux aarch64)"


def test_root_gets_everything_in_one_step_that_is_announced(machine: Machine) -> None:
    machine.add("id", "echo 0")
    machine.add("kept-cc", f"echo {machine.startup_file}")
    machine.remove("cc", "python3")
    machine.certificates.unlink()
    machine.add_python("kept-python3", "3.13")
    machine.on_install.write_text(
        f"cd {machine.programs} && mv kept-cc cc && mv kept-python3 python3 && touch {machine.certificates}\n"
    )
    done = machine.setup("demo")
    (call,) = machine.apt_calls.read_text().splitlines()
    assert call.startswith("install ")
    assert call.endswith(" gcc libc6-dev python3-venv ca-certificates")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"installing a C compiler, Python 3.10 to 3.14, TLS certificates: apt-get {call}\n"
    machine.chosen("demo")


def test_root_gets_the_lists_of_packages_first_where_there_are_none(machine: Machine) -> None:
    machine.add("id", "echo 0")
    machine.add("find", "true")
    machine.offer({})
    machine.add("kept-go", "echo go version go1.26.1 linux/amd64")
    update, install = f"echo golang-go 1.26 >{machine.apt_versions}", f"cd {machine.programs}; mv kept-go go"
    machine.on_install.write_text(f"[ $1 = install ] || {{ {update}; exit; }}; {install}\n")
    assert machine.setup("test", "go").returncode == 0
    machine.chosen("test", "go")


def test_root_is_told_when_packages_cannot_be_installed(machine: Machine) -> None:
    machine.add("id", "echo 0")
    machine.remove("cc")
    machine.on_install.write_text("echo E: no such package; exit 100\n")
    done = machine.setup("demo")
    assert done.returncode == 1
    assert done.stderr.splitlines()[1] == "error: apt-get failed, see target/setup.log: E: no such package"
    # With old lists of packages a second attempt may succeed.
    assert [call.split()[0] for call in machine.apt_calls.read_text().splitlines()] == ["install", "update"]


def test_root_is_told_when_packages_do_not_help(machine: Machine) -> None:
    machine.add("id", "echo 0")
    machine.remove("cc")
    machine.on_install.write_text("exit 0\n")
    done = machine.setup("demo")
    assert done.returncode == 1
    assert done.stderr.splitlines()[1] == "error: still not installed: a C compiler; see target/setup.log"


def test_refuses_words_that_it_does_not_know(machine: Machine) -> None:
    done = machine.setup("everything")
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: tools/setup demo|test")
