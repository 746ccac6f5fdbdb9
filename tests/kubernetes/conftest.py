"""What the tests of the cluster share: one cluster, with 5, 3 and 2 GPUs, that every test leaves as it found it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from testbed import Cluster


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster([5, 3, 2]) as cluster:
        yield cluster
        if request.session.testsfailed:
            logs = Path(__file__).resolve().parents[2] / "target" / "test-logs" / "kubernetes"
            cluster.save_logs(logs)
            print(f"the logs of the cluster are in {logs}")
