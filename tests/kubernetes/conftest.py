"""What the tests of the cluster share: clusters with 5, 3 and 2 GPUs, that every test leaves as it found them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deployed import deployed_images
from jobs import await_all_free, await_left, clear
from laptop import Laptop, prepare_for_controllers
from testbed import Cluster, Faults

LOGS = Path(__file__).resolve().parents[2] / "target" / "test-logs" / "kubernetes"


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster([5, 3, 2]) as cluster, logs_are_kept(request, cluster):
        yield cluster


@pytest.fixture(scope="session")
def job_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Bring up a cluster on which jobs can run: its nodes have the images, and it knows RondeJobs."""
    with Cluster([5, 3, 2], images=[deployed_images()]) as cluster, logs_are_kept(request, cluster):
        prepare_for_controllers(cluster)
        yield cluster


@contextmanager
def logs_are_kept(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[None]:
    """Keep the logs of a cluster if a test has failed."""
    yield
    if request.session.testsfailed:
        cluster.save_logs(LOGS)
        print(f"the logs of the cluster are in {LOGS}")


@pytest.fixture
def everything_is_given_back(cluster: Cluster) -> Iterator[None]:
    """Have a test begin and end with all GPUs free, on whichever cluster its file uses."""
    await_all_free(cluster)
    yield
    await_all_free(cluster)


@pytest.fixture
def laptop(job_cluster: Cluster, tmp_path: Path) -> Iterator[Laptop]:
    """Return a place to start commands from; when the test has ended, all GPUs must be free, and nothing be left."""
    with Laptop(job_cluster, tmp_path) as laptop:
        yield laptop
    try:
        await_left(job_cluster)
        await_all_free(job_cluster)
    finally:
        clear(job_cluster)


@pytest.fixture
def namespace(job_cluster: Cluster) -> Iterator[str]:
    """Make a namespace, which a test may give rules of its own. When the test has ended, nothing must be left in it."""
    job_cluster.kubectl("create", "namespace", "strict")
    yield "strict"
    try:
        await_left(job_cluster, namespace="strict")
    finally:
        clear(job_cluster, "strict")
        job_cluster.kubectl("delete", "namespace", "strict", "--wait=true", "--timeout=60s")


@pytest.fixture
def faults(job_cluster: Cluster) -> Iterator[Faults]:
    """Put an API server with bad days before that of the cluster."""
    with job_cluster.faults() as faults:
        yield faults
