"""Nothing is left of a cluster, whichever way it ends, and clusters do not meet. Needs root."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pods import FOREVER, await_phase, shell_pod
from testbed import Cluster, ClusterError, wait_for
from testbed.leftovers import cgroups_of, folders_of, processes_of, sweep

HERE = Path(__file__).resolve().parent
SETTINGS = ["vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward"]

# A cluster with a pod and a kubelet that stands still, held by a process that says its name and waits to be killed.
RUNNER = """
from pods import FOREVER, await_phase, shell_pod
from testbed import Cluster
with Cluster([1]) as cluster:
    cluster.apply(shell_pod("runs", FOREVER, gpus=1))
    await_phase(cluster, "runs", "Running")
    cluster.nodes["node-1"].freeze_kubelet()
    print(cluster.name, flush=True)
    input()
"""


def machine() -> dict[str, object]:
    """Describe everything of this machine that a cluster could change."""
    return {
        "mounts": sorted(line.split(" ", 2)[2] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        "interfaces": sorted(link.name for link in Path("/sys/class/net").iterdir()),
        "named networks": sorted(Path("/run/netns").glob("*")),
        "routes": Path("/proc/net/route").read_text(),
        "rules": subprocess.run(["nft", "list", "ruleset"], stdout=subprocess.PIPE, text=True, check=True).stdout,
        "settings": {name: Path("/proc/sys", name).read_text() for name in SETTINGS},
        "kubelet's folder": Path("/var/lib/kubelet").exists(),
        "runtime's folders": [Path(path).exists() for path in ("/run/containerd/io.containerd.runtime.v2.task",)],
    }


def assert_nothing_is_left(name: str) -> None:
    assert processes_of(name) == {}
    assert cgroups_of(name) == []
    assert folders_of(name) == []


def test_nothing_is_left_after_the_end() -> None:
    before = machine()
    with Cluster([1]) as cluster:
        cluster.apply(shell_pod("runs", FOREVER, gpus=1))
        await_phase(cluster, "runs", "Running")
        cluster.nodes["node-1"].freeze_kubelet()
        words = " ".join(processes_of(cluster.name).values())
        # The way they are looked for finds them.
        assert all(part in words for part in ("etcd", "kubelet", "containerd-shim", "/pause", FOREVER))
        assert cgroups_of(cluster.name)
        assert machine() == before, "a running cluster shows on the machine"
    assert machine() == before
    assert_nothing_is_left(cluster.name)


def test_nothing_is_left_when_a_cluster_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    before = machine()
    names = []

    def fail(cluster: Cluster, _nodes: object) -> None:
        names.append(cluster.name)
        raise ClusterError("a node that does not join")

    monkeypatch.setattr(Cluster, "_join", fail)
    with pytest.raises(ClusterError, match="does not join"), Cluster([1]):
        pass
    assert machine() == before
    assert_nothing_is_left(names[0])


def test_a_killed_run_takes_its_processes_along_and_the_next_removes_the_rest() -> None:
    before = machine()
    words = [sys.executable, "-c", RUNNER]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE) as runner:
        assert runner.stdout is not None
        name = runner.stdout.readline().strip()
        assert name, "the cluster did not come up"
        assert any(FOREVER in process for process in processes_of(name).values())
        runner.send_signal(signal.SIGKILL)
    wait_for("all processes to end", lambda: not processes_of(name))
    assert folders_of(name)
    sweep()
    assert_nothing_is_left(name)
    assert machine() == before


def test_two_clusters_do_not_meet(cluster: Cluster) -> None:
    with Cluster([7]) as other:
        assert other.free_gpus() == {"node-1": 7}
        assert cluster.free_gpus()["node-1"] == 5
        other.kubectl("create", "namespace", "only-here")
        assert cluster.result("get", "namespace", "only-here").returncode != 0
        # What is proof in one is nothing in the other.
        stranger = (
            cluster.kubeconfig()
            .read_text()
            .replace(
                str(cluster.control_plane.authority.certificate.file),
                str(other.control_plane.authority.certificate.file),
            )
        )
        config = json.loads(stranger)
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{other.control_plane.port}"
        file = other.folder / "stranger.kubeconfig"
        file.write_text(json.dumps(config))
        refused = other.result("get", "nodes", f"--kubeconfig={file}")
        assert "Unauthorized" in refused.stderr or "provide credentials" in refused.stderr
    assert cluster.free_gpus()["node-1"] == 5


def test_people_bring_a_cluster_up_and_down_again(tmp_path: Path) -> None:
    def testbed(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "testbed", *words]
        environment = {**os.environ, "RONDE_TEST_CLUSTER_STATE": str(tmp_path / "cluster.json")}
        return subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, check=False)

    try:
        first = testbed("up", "2,1")
        assert first.returncode == 0, first.stderr
        export = first.stdout.splitlines()[0]
        kubeconfig = Path(export.removeprefix("export KUBECONFIG="))
        name = kubeconfig.parents[1].name
        assert processes_of(name)
        assert testbed("up", "2,1").stdout == first.stdout
        refused = testbed("up", "4")
        assert refused.returncode != 0
        assert "NODES=2,1 is up already" in refused.stderr
    finally:
        ended = testbed("down")
    assert ended.returncode == 0, ended.stderr
    assert_nothing_is_left(name)
    assert testbed("down").returncode == 0
