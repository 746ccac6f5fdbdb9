"""`ronde cluster` with real runs of Terraform, for which no cloud is needed, or only one that answers questions."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from pathlib import Path

from command import MACHINES, WHEEL, Command, await_that, gone
from fake_cloud import PASSWORD, USER, FakeCloud
from record import MAIN
from terraform import ROOT, environment, program


class RealTerraform(Command):
    """A folder whose resources are Terraform's own, so that no cloud is needed."""

    def __init__(self, folder: Path, configure: str) -> None:
        for name in ("site.yml", "remove.yml", "roles/members/templates/hostfile.j2"):
            (folder / "ansible" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "ansible" / name).touch()
        (folder / "main.tf").write_text(MAIN)
        (folder / "resources.auto.tfvars").write_text("horovod_worker_node = { count = 2 }\n")
        (folder / "variables.tf").write_text('variable "horovod_worker_node" {}\n')
        (folder / "inventory.yaml").write_text((Path(__file__).parent / "recorded/up/inventory.yaml").read_text())
        super().__init__(folder)
        self.fake("ansible-playbook", "exit 0")
        self.env = {**environment(), "PATH": self.env["PATH"]}
        self.terraform = program()
        self.configure(configure)

    def configure(self, script: str) -> None:
        """Let the machines be prepared like this."""
        path = self.folder / "configure"
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)


def test_a_real_terraform_is_interrupted_resumed_and_deletes_everything(tmp_path: Path) -> None:
    child = tmp_path / "child"
    hangs = f"sleep 600 & echo $! >{child}; wait"  # sleep: is there until it is interrupted
    command = RealTerraform(tmp_path / "cluster", hangs)
    with command.running("up") as process:
        await_that("the machines' preparation", lambda: child.exists() and child.read_text().endswith("\n"))
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=60)[0]
    assert process.returncode == 130, output
    assert gone(int(child.read_text()))
    command.configure("echo 'TASK [all : Well] ***'")
    done = command.run("up")
    assert done.returncode == 0, done.stderr
    assert re.search(r"(created|replaced) +terraform_data\.configure\[0\]", done.stderr), done.stderr
    assert "terraform_data.network" not in done.stderr, "what was made stays"
    command.configure("touch prepared-again")
    assert "all is as it should be" in command.run("plan").stdout
    done = command.run("up")
    assert done.returncode == 0, done.stderr
    assert (command.folder / "prepared-again").exists(), "machines may have changed, though no file has"
    done = command.run("down", "--yes")
    assert done.returncode == 0, done.stderr
    left = subprocess.run([program(), "state", "list"], cwd=command.folder, env=command.env, capture_output=True)
    assert left.stdout == b""


def test_a_real_terraform_deletes_what_it_made_though_what_it_asks_for_is_gone(tmp_path: Path) -> None:
    command = RealTerraform(tmp_path / "cluster", "true")
    asked = tmp_path / "asked.tfstate"
    asked.write_text('{"version": 4, "serial": 1, "lineage": "", "outputs": {}, "resources": []}')
    (command.folder / "asks.tf").write_text(
        f'data "terraform_remote_state" "asked" {{\n  backend = "local"\n  config  = {{ path = "{asked}" }}\n}}\n'
    )
    done = command.run("up")
    assert done.returncode == 0, done.stderr
    asked.unlink()
    done = command.run("down", "--yes")
    assert done.returncode == 0, done.stderr
    assert "warning: the plan failed: data.terraform_remote_state.asked: " in done.stderr
    assert "5 things deleted" in done.stdout


def test_the_docs_tell_how_many_changes_a_cluster_of_two_workers_is(command: Command) -> None:
    (said,) = re.findall(r"terraform plan  (\d+ changes)", (ROOT / "docs" / "cluster-command.md").read_text())
    key = command.folder.parent / "key.pub"
    key.write_text("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA anna\n")
    with FakeCloud() as cloud:
        login = ["--auth-url", cloud.address, "--project", "research", "--user", USER, "--key", "key.pub"]
        shutil.rmtree(command.folder)
        words = ["init", str(command.folder), "--wheel", WHEEL, *MACHINES, *login]
        made = command.run(*words, env={"OS_PASSWORD": PASSWORD})
        assert made.returncode == 0, made.stderr
        command.terraform = program()
        done = command.run("plan", env=environment())
    assert done.returncode == 0, done.stderr
    assert f"{said}; nothing was done yet" in done.stdout


def test_the_real_provider_is_refused_with_the_fix(command: Command) -> None:
    with FakeCloud() as cloud:
        login = ["--auth-url", cloud.address, "--project", "research", "--user", "nobody", "--key", "anna"]
        shutil.rmtree(command.folder)
        words = ["init", str(command.folder), "--wheel", WHEEL, *MACHINES, *login]
        made = command.run(*words, env={"OS_PASSWORD": "x-y-z"})
        assert made.returncode == 0, made.stderr
        command.terraform = program()
        done = command.run("plan", env=environment())
    assert done.returncode == 1
    assert "the cloud does not accept the login" in done.stderr, done.stderr
    assert "x-y-z" not in done.stderr + done.stdout
