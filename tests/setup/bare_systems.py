"""`make demo` in bare systems of Debian, by an ordinary user and by root: from what it asks for to its end.

These take an hour and need root, so `make test` has no part in them: `make test-setup`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from bare import BareSystem
from readme_commands import install_command

SUITES = ("bookworm", "trixie", "sid")
# Whose own Rust is new enough; the others get theirs from rustup.
NEW_RUST = ("sid",)
NO_RUST = "error: Rust 1.89 or newer is needed: none is installed"

MakeSystem = Callable[[str, str], BareSystem]


@pytest.fixture
def system(tmp_path: Path) -> MakeSystem:
    """Return what makes a bare system of a suite, for a user."""
    return lambda suite, user: BareSystem(suite, tmp_path, user)


def check_demo(system: BareSystem, suite: str) -> None:
    """Run `make demo`, which must train; or say in one line that it lacks Rust, if no server of rustup is in reach."""
    done = system.run("make", "demo")
    rust_line = [line for line in done.stdout.splitlines() if line.startswith(NO_RUST)]
    if rust_line and suite not in NEW_RUST:
        assert done.returncode == 2
        assert system.run("ls", "target").stdout.split() == ["setup.log"]
        return
    assert done.returncode == 0, done.stdout
    assert done.stdout.rstrip().endswith(": the same")
    rust, _python = system.run("cat", "target/setup.env").stdout.splitlines()
    assert (rust == "setup_rust=/usr/bin") == (suite in NEW_RUST)


@pytest.mark.parametrize("suite", SUITES)
def test_a_user_needs_no_more_than_the_one_line_says(system: MakeSystem, suite: str) -> None:
    bare = system(suite, "user")
    refused = bare.run("make", "demo")
    assert refused.returncode == 2
    error, from_make = refused.stdout.splitlines()
    assert error.startswith("error: not installed: a C compiler, Python 3.10 to 3.14, ")
    assert from_make.startswith("make: *** ")
    assert not bare.exists(".cache")
    assert not bare.exists("target/setup.env")
    bare.run("bash", "-c", install_command(error), user="root").check_returncode()
    check_demo(bare, suite)
    assert not bare.exists(".rustup")


@pytest.mark.parametrize("suite", SUITES)
def test_root_gets_what_is_missing_in_one_step(system: MakeSystem, suite: str) -> None:
    bare = system(suite, "root")
    done = bare.run("tools/setup", "test")
    steps = done.stdout.splitlines()
    assert steps[0].startswith("installing a C compiler, Python 3.10 to 3.14, ")
    assert [step for step in steps if "apt-get" in step] == steps[:1]
    check_demo(bare, suite)
