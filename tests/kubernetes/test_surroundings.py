"""What ranks find around them: volumes, shared memory, and a root that cannot be written to. Needs root."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from laptop import Laptop
from testbed import Cluster

# Writes to the volume; says what shared memory is, and how much more than containers usually have goes into it.
LOOKS = """
import os, pathlib, ronde
ronde.init()
pathlib.Path("/data", f"rank-{ronde.rank()}").write_text("trained")
kinds = {line.split()[1]: line.split()[2] for line in open("/proc/mounts")}
if ronde.local_rank() == 0:
    pathlib.Path("/dev/shm/large").write_bytes(bytes(80 << 20))
size = os.statvfs("/dev/shm")
print("shared memory:", kinds["/dev/shm"], size.f_blocks * size.f_frsize >> 20, "MiB")
try:
    pathlib.Path("/fixed/more").touch()
except OSError as error:
    print("fixed:", error.strerror)
"""
# Says where it can write.
WRITES = """
import os, pathlib
for folder in ("/", "/tmp", "/dev/shm", os.environ["HOME"]):
    try:
        pathlib.Path(folder, "written").touch()
        print(folder, "can be written to")
    except OSError as error:
        print(f"{folder}: {error.strerror}")
size = os.statvfs("/dev/shm")
print("shared memory:", size.f_blocks * size.f_frsize >> 20, "MiB")
"""


@pytest.fixture
def data(job_cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """Make two claims, data and fixed, bound to one folder that every node has."""
    folder = tmp_path / "data"
    folder.mkdir()
    # Ranks are not root, and nobody changes the owner of such a volume.
    folder.chmod(0o777)
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {**common, "capacity": {"storage": "1Gi"}, "hostPath": {"path": str(folder)}}
    claim = {**common, "resources": {"requests": {"storage": "1Gi"}}}
    for name in ("data", "fixed"):
        about = {"apiVersion": "v1", "metadata": {"name": name}}
        job_cluster.apply(
            {**about, "kind": "PersistentVolume", "spec": volume},
            {**about, "kind": "PersistentVolumeClaim", "spec": {**claim, "volumeName": name}},
        )
    yield folder
    for kind in ("pvc", "pv"):
        job_cluster.kubectl("delete", kind, "data", "fixed", "--wait=true", "--timeout=60s")


def test_what_ranks_write_to_a_claim_is_there_afterwards_and_shared_memory_is_large(
    data: Path, laptop: Laptop, tmp_path: Path
) -> None:
    script = tmp_path / "looks.py"
    script.write_text(LOOKS)
    volumes = ["--volume", "data:/data", "--volume", "fixed:/fixed:ro"]
    command = laptop.start_run("keeps", 6, "python looks.py", "--script", script, *volumes)
    assert command.end() == 0, command
    assert {file.name: file.read_text() for file in data.iterdir()} == {f"rank-{rank}": "trained" for rank in range(6)}
    shared = re.findall(r"shared memory: (\w+) (\d+) MiB", command.output())
    assert len(shared) == 6, command
    assert all(kind == "tmpfs" and int(size) > 80 for kind, size in shared), shared
    assert command.output().count("fixed: Read-only file system") == 6, command


def test_what_an_image_has_on_pythons_path_stays_there(laptop: Laptop, tmp_path: Path) -> None:
    template = tmp_path / "template.yaml"
    # As if the image had set it: what of a pod is not said by a job is the template's, and then the image's.
    template.write_text("spec: {containers: [{name: train, env: [{name: PYTHONPATH, value: /mine}]}]}\n")
    script = 'python -c "import ronde, sys; print(ronde.__file__, sys.path[1:3])"'
    command = laptop.start_run("path", 2, script, "--policy", "spread", "--template", template)
    assert command.end() == 0, command
    package = "/ronde/lib/python3/site-packages"
    assert command.output().count(f"] {package}/ronde/__init__.py ['{package}', '/mine']\n") == 2, command


def test_a_training_needs_no_root_that_it_can_write_to(laptop: Laptop, tmp_path: Path) -> None:
    script = tmp_path / "writes.py"
    script.write_text(WRITES)
    flags = ["--read-only-root", "--shared-memory", "96Mi", "--policy", "spread", "--script", script]
    command = laptop.start_run("modest", 2, "python writes.py && exec python /examples/digits.py", *flags)
    assert command.end() == 0, command
    for line in (
        "/: Read-only file system",
        "/tmp can be written to",
        "/dev/shm can be written to",
        "/ronde/home can be written to",
        "shared memory: 96 MiB",
    ):
        assert command.output().count(f"] {line}\n") == 2, f"{line}: {command}"
    assert re.search(r"accuracy on 2 ranks [\d.]+%, .*: the same", command.output()), command
