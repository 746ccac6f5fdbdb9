"""Images that cannot be had: the job fails with the reason, and its GPUs are free. Needs root."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from laptop import Command, Laptop
from testbed import Cluster
from testbed.namespaces import Process

PORT = 5000
HOST = f"127.0.0.1:{PORT}"


@pytest.fixture
def registry(job_cluster: Cluster) -> Iterator[Process]:
    """Start a registry on node-2, for that node alone: plain HTTP is asked for only on the same machine."""
    node = job_cluster.nodes["node-2"]
    process = node.machine.start("registry", sys.executable, Path(__file__).with_name("registry.py"), PORT)
    yield process
    process.end()


def start(laptop: Laptop, name: str, image: str, *flags: object, ttl: int = 0) -> Command:
    about = ["--gpus", 1, "--image", image, "--name", name, "--ttl", ttl]
    return laptop.start("run", *about, "--node-selector", "kubernetes.io/hostname=node-2", *flags, "--", "true")


def test_images_that_cannot_be_pulled_are_named_with_the_reason(laptop: Laptop, registry: Process) -> None:
    cluster = laptop.cluster
    account = [f"--docker-server={HOST}", "--docker-username=ronde", "--docker-password=wrong"]
    cluster.kubectl("create", "secret", "docker-registry", "credentials", *account)
    # All at once: the last word on an image takes a while.
    missing = start(laptop, "missing", f"{HOST}/public/train:1")
    refused = start(laptop, "refused", f"{HOST}/private/train:1", "--image-pull-secret", "credentials")
    senseless = start(laptop, "senseless", "No:such:name")
    never = start(laptop, "never", f"{HOST}/public/train:1", "--image-pull-policy", "Never")

    # The node has three GPUs: whoever gives way has a pod of a later attempt.
    assert senseless.end() == 1
    assert re.search(r"senseless-chief(-r\d+)? on node-2 cannot start: its image's name is not valid", senseless.said())
    assert never.end() == 1
    absent = r"never-chief(-r\d+)? on node-2 cannot start: its image is not on the node, and may not be pulled"
    assert re.search(absent, never.said())

    for name, command in (("missing", missing), ("refused", refused)):
        assert command.end() == 1
        early = rf"… {name}-chief(-r\d+)? on node-2: its image cannot be pulled"
        assert re.search(early, command.said()), "said at once"
        assert "on node-2 cannot start: its image cannot be pulled" in command.said()
        assert "1 GPU free again" in command.said()
    assert f"{HOST}/public/train:1: not found" in missing.said()
    assert "401 Unauthorized" in refused.said()
    # The secret was used, and it was the password that was wrong.
    assert "401 ronde /v2/private/train/manifests/1" in registry.log.read_text()
    cluster.kubectl("delete", "secret", "credentials")
