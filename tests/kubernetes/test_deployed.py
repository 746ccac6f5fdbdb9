"""The images of deploy/images run on the cluster: one trains, the other is the program. Needs root."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from deployed import MANAGER_IMAGE, TRAINING_IMAGE, deployed_images
from pods import output, shell_pod
from testbed import Cluster
from testbed.archive import pack


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster([1, 1], images=[deployed_images()]) as cluster:
        yield cluster


def test_the_training_image_trains_on_every_node(cluster: Cluster) -> None:
    command = {"image": TRAINING_IMAGE, "command": ["horovodrun", "-np", "2", "python", "/examples/digits.py"]}
    for node in cluster.nodes:
        assert "accuracy" in output(cluster, shell_pod("trains", "", node=node, container=command), seconds=120)


def test_the_managers_image_is_the_program(cluster: Cluster) -> None:
    command = {"image": MANAGER_IMAGE, "command": None, "args": ["--version"]}
    nobody = {"securityContext": {"runAsNonRoot": True}}
    assert output(cluster, shell_pod("manages", "", container=command, **nobody)).startswith("ronde ")


def test_what_a_container_changes_of_its_image_is_not_in_others(cluster: Cluster) -> None:
    change = {"image": TRAINING_IMAGE, "command": ["sh", "-c", "rm -r /examples && cat /etc/hostname >/usr/bin/env"]}
    output(cluster, shell_pod("changes", "", node="node-1", container=change))
    look = {"image": TRAINING_IMAGE, "command": ["env", "ls", "/examples"]}
    for node in cluster.nodes:
        assert "digits.py" in output(cluster, shell_pod("looks", "", node=node, container=look))


def test_an_image_comes_to_one_node_of_a_running_cluster(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "only-file").touch()
    pack(tmp_path / "root", "ronde.test/late:1", tmp_path / "late.tar")
    cluster.load_image(tmp_path / "late.tar", nodes=["node-2"])
    assert "ronde.test/late:1" in cluster.nodes["node-2"].runtime.ctr("images", "list", "--quiet")
    assert "ronde.test/late:1" not in cluster.nodes["node-1"].runtime.ctr("images", "list", "--quiet")
