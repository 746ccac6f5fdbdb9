"""Terraform, or OpenTofu where there is none, with the OpenStack provider from the cache, in a folder of its own.

    cluster = Cluster(folder, {"auth_data": {…}, …})
    cluster.write(horovod_worker_node={"count": 3})
    done = cluster.run("plan")

`TERRAFORM` names another program than the one that is found.
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy" / "openstack"

# What leftovers.py has: it lies in a folder that is not one of Python's.
leftovers = SimpleNamespace(**runpy.run_path(str(DEPLOY / "leftovers.py")))

# Variables by which the provider could find another cloud than the one that a test means.
OTHER_CLOUDS = ("OS_", "TF_")


def prepared(what: str) -> Path:
    """Return where `tools/openstack` keeps something; it is built now if it has not been yet."""
    command = [ROOT / "tools" / "openstack", what]
    return Path(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip())


@functools.cache
def program() -> str:
    """Return the program: the quickest there is, since OpenTofu has to be built first."""
    found = os.environ.get("TERRAFORM") or shutil.which("terraform") or shutil.which("tofu")
    return found or str(prepared("tofu") / "tofu")


@functools.cache
def environment() -> dict[str, str]:
    """Return an environment in which only our mirror of providers is known, and no cloud."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OTHER_CLOUDS)}
    return {**kept, "TF_CLI_CONFIG_FILE": str(prepared("provider") / "cli.tfrc"), "TF_IN_AUTOMATION": "1"}


def version() -> str:
    """Return what the program says it is."""
    said = subprocess.run([program(), "version"], env=environment(), capture_output=True, text=True, check=True)
    return said.stdout.splitlines()[0]


class Cluster:
    """A folder as `terraform init` leaves it, or a copy of one, in which a test writes the users' two files.

    `before` goes before every command line, to run it elsewhere; `env` is added to every environment.
    """

    def __init__(
        self,
        folder: Path,
        variables: dict[str, Any],
        template: Path | None = None,
        before: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.variables = variables
        self.before = before
        self.env = {**environment(), **(env or {})}
        if template is None:
            ignored = shutil.ignore_patterns(".terraform*", "*.tfstate*", "image")
            shutil.copytree(DEPLOY, folder, dirs_exist_ok=True, ignore=ignored)
            self.run("init", check=True)
        else:
            shutil.copytree(template, folder, symlinks=True)
        self.write()

    def write(self, **variables: Any) -> None:
        """Write the two files: objects are merged with those of before, and what is None is left out."""
        for name, value in variables.items():
            old = self.variables.get(name)
            self.variables[name] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
        texts = {name: f"{name} = {hcl(value)}\n" for name, value in self.variables.items() if value is not None}
        (self.folder / "auth_data.auto.tfvars").write_text(texts.pop("auth_data", ""))
        (self.folder / "resources.auto.tfvars").write_text("".join(texts.values()))

    def run(
        self, verb: str, *words: str, check: bool = False, env: dict[str, str] | None = None, question: str = ""
    ) -> Done:
        """Run a verb to its end, without questions or colours; `console` can be asked one."""
        done = subprocess.run(
            self.words(verb, *words),
            cwd=self.folder,
            env={**self.env, **(env or {})},
            input=question,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{verb} failed: {done.stdout}\n{done.stderr}")
        return Done(done)

    def words(self, verb: str, *words: str) -> list[str]:
        """Return the command line of a verb."""
        if verb == "state":
            return [*self.before, program(), verb, *words]
        options = [] if verb == "console" else ["-no-color"]
        if verb in ("init", "plan", "apply", "destroy"):
            options.append("-input=false")
        return [*self.before, program(), verb, *options, *words]

    def plan(self) -> dict[str, Any]:
        """Plan, and return the plan as the program describes it."""
        self.run("plan", "-out=test.tfplan", check=True)
        shown = self.run("show", "-json", "test.tfplan", check=True).output
        return dict(json.loads(shown))

    def planned(self) -> dict[str, dict[str, Any]]:
        """Plan, and return what would be there afterwards, by address."""
        changes = self.plan()["resource_changes"]
        return {change["address"]: change["change"]["after"] for change in changes if change["mode"] == "managed"}


def identity_of(cluster: Cluster) -> str:
    """Give a cluster its identity, for which nothing is made in the cloud, and return that."""
    cluster.run("apply", "-auto-approve", "-target=terraform_data.identity", check=True)
    return (cluster.folder / ".ronde" / "identities").read_text().strip()


class Done:
    """How a run has ended, and what it said."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.status = done.returncode
        self.output = done.stdout
        self.text = done.stdout + done.stderr
        # Messages are broken into lines and framed; this is what they say.
        self.words = " ".join(self.text.replace("│", " ").split())


def hcl(value: Any) -> str:
    """Return a value as users write it: JSON is HCL, except for the names in objects."""
    if isinstance(value, dict):
        return "({" + ", ".join(f"{name} = {hcl(part)}" for name, part in value.items() if part is not None) + "})"
    # What looks like a template in a text is none.
    return json.dumps(value).replace("${", "$${").replace("%{", "%%{")
