"""Jobs on Kubernetes, beside the MPI Operator, on the clusters of tests/kubernetes: see bench/README.md."""

from __future__ import annotations

import sys

from harness.environment import ROOT

sys.path.insert(0, str(ROOT / "tests" / "kubernetes"))
