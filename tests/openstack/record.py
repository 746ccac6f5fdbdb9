"""Makes the recordings in `recorded` anew, with real Terraform, the real provider and real Ansible.

    PYTHONPATH=tests/openstack python tests/openstack/record.py

Each folder has what `terraform plan -json` and `apply -json` wrote in one story; fake_terraform.py replays it. Machines
are `terraform_data` here, except in the stories `login` and `quota`, where the provider meets the fake cloud.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from fake_cloud import PASSWORD, USER, FakeCloud
from terraform import ROOT, Cluster, environment, program

RECORDED = Path(__file__).parent / "recorded"

MAIN = """
resource "terraform_data" "network" {}
resource "terraform_data" "worker" {
  count = 2
  input = terraform_data.network.id
}
resource "terraform_data" "inventory" {
  triggers_replace = terraform_data.worker[*].id
}
resource "terraform_data" "configure" {
  count            = 1
  triggers_replace = terraform_data.inventory.id
  provisioner "local-exec" {
    command = "exec ./configure"
  }
}
"""

PLAYBOOK = """
- name: Prepare all machines
  hosts: all
  gather_facts: false
  tasks:
    - name: Look
      ansible.builtin.command: "true"
      changed_when: false
    - name: Write a file
      ansible.builtin.command: "true"
      changed_when: true
    - name: Mount the share
      ansible.builtin.command: "%s"
      changed_when: false
"""

INVENTORY = """
all:
  vars:
    cluster_name: ronde
    public_address: 203.0.113.7
    ansible_connection: local
    ansible_python_interpreter: "{{ ansible_playbook_python }}"
  children:
    master: {hosts: {ronde-master: {private_address: 10.0.0.10}}}
    workers: {hosts: {ronde-worker-1: {private_address: 10.0.0.11}, ronde-worker-2: {private_address: 10.0.0.12}}}
"""


class Story:
    """A folder in which Terraform runs, and what it wrote there."""

    def __init__(self, name: str, configure: str) -> None:
        self.to = RECORDED / name
        shutil.rmtree(self.to, ignore_errors=True)
        self.to.mkdir(parents=True)
        self.folder = Path(tempfile.mkdtemp(prefix="record-"))
        (self.folder / "main.tf").write_text(MAIN)
        script = self.folder / "configure"
        script.write_text(f"#!/bin/sh\n{configure}\n")
        script.chmod(0o755)
        self.run("init", "-input=false")

    def run(self, *words: str) -> str:
        """Run it to its end, however that is."""
        done = subprocess.run(self.words(*words), cwd=self.folder, env=environment(), stdout=subprocess.PIPE, text=True)
        return done.stdout

    def words(self, *words: str) -> list[str]:
        return [program(), *words]

    def keep(self, name: str, text: str) -> None:
        (self.to / name).write_text(text)

    def plan(self, name: str = "plan.jsonl", *words: str) -> None:
        self.keep(name, self.run("plan", "-json", "-out=plan", *words))


def ansible(last: str) -> str:
    """Return a script that runs a small playbook, whose last task does this."""
    folder = Path(tempfile.mkdtemp(prefix="record-"))
    (folder / "site.yml").write_text(PLAYBOOK % last)
    (folder / "inventory.yaml").write_text(INVENTORY)
    made = subprocess.run([ROOT / "tools" / "python-env", "ansible"], stdout=subprocess.PIPE, text=True, check=True)
    playbook = Path(made.stdout.strip()) / "bin" / "ansible-playbook"
    settings = ROOT / "deploy" / "openstack" / "ansible" / "ansible.cfg"
    return f"ANSIBLE_CONFIG={settings} ANSIBLE_NOCOLOR=1 exec {playbook} -i {folder}/inventory.yaml {folder}/site.yml"


def up() -> None:
    """Let everything work, and be deleted again."""
    story = Story("up", ansible("true"))
    story.plan()
    story.keep("apply.jsonl", story.run("apply", "-json", "plan"))
    story.keep("state.txt", story.run("state", "list"))
    story.keep("inventory.yaml", INVENTORY.lstrip())
    story.plan("destroy-plan.jsonl", "-destroy")
    story.keep("destroy-apply.jsonl", story.run("apply", "-json", "plan"))


def failing_ansible() -> None:
    """Let a task fail."""
    story = Story("ansible", ansible("ls /no/such/share"))
    story.plan()
    story.keep("apply.jsonl", story.run("apply", "-json", "plan"))


def interrupted() -> None:
    """Interrupt it while it prepares the machines; another run finds the state locked meanwhile."""
    hangs = "exec sleep 600"  # sleep: is there until it is interrupted
    story = Story("interrupted", f"echo 'TASK [share : Mount the share] ***'; {hangs}")
    story.plan()
    running = subprocess.Popen(
        story.words("apply", "-json", "plan"), cwd=story.folder, env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    before = ""
    while "Mount the share" not in before:
        before += running.stdout.readline()
    locked = Story.__new__(Story)
    locked.to, locked.folder = RECORDED / "locked", story.folder
    locked.to.mkdir(exist_ok=True)
    locked.plan()
    running.send_signal(signal.SIGINT)
    after = running.communicate()[0]
    wait = json.dumps({"type": "fake", "do": "wait for an interrupt"})
    story.keep("apply.jsonl", f"{before}{wait}\n{after}")


class FullCloud(FakeCloud):
    """A cloud whose project may have no more of anything that Neutron makes."""

    def _answer(self, method: str, handler: Any) -> tuple[int, Any]:
        if method == "POST" and "/network/" in handler.path:
            text = f"Quota exceeded for resources: ['{handler.path.rpartition('/')[2].rstrip('s')}']."
            return 409, {"NeutronError": {"type": "OverQuota", "message": text, "detail": ""}}
        return super()._answer(method, handler)


def in_fake_cloud(name: str, password: str) -> None:
    """Let the provider itself meet a cloud that refuses."""
    to = RECORDED / name
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    with FullCloud() as cloud:
        variables = {
            "auth_data": {"user_name": USER, "password": password},
            "openstack_provider": {"auth_url": cloud.address, "project_name": "research", "region": "RegionOne"},
            "horovod_master_node": {"flavor_name": "small", "image_name": "debian-12", "key_pair": "anna"},
            "horovod_worker_node": {"count": 1},
            "admin_cidr": "203.0.113.7/32",
        }
        cluster = Cluster(Path(tempfile.mkdtemp(prefix="record-")), variables)
        (to / "plan.jsonl").write_text(cluster.run("plan", "-json", "-out=plan").output)
        if password == PASSWORD:
            (to / "apply.jsonl").write_text(cluster.run("apply", "-json", "plan").output)


if __name__ == "__main__":
    up()
    failing_ansible()
    interrupted()
    in_fake_cloud("login", "wrong")
    in_fake_cloud("quota", PASSWORD)
