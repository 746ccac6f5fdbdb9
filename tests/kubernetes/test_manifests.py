"""The manifests of deploy/kubernetes are what the program would install, and name the image of this version."""

from __future__ import annotations

import os
import subprocess

from deployed import MANIFESTS, released_image
from laptop import RONDE


def printed(*words: str) -> str:
    # The variable would put another image into the manifests.
    environment = {name: value for name, value in os.environ.items() if name != "RONDE_MANAGER_IMAGE"}
    command = [RONDE, *words]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def test_the_managers_manifests_are_what_the_program_installs() -> None:
    lines = (MANIFESTS / "manager.yaml").read_text().splitlines(keepends=True)
    first = lines.index("---\n")
    assert all(line.startswith("#") for line in lines[:first])
    assert "".join(lines[first:]) == printed("kube", "install", "--print")


def test_all_manifests_name_the_image_of_this_version() -> None:
    version = printed("--version").split()[1]
    assert released_image().endswith(f":{version}")
