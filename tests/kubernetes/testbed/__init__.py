"""Real Kubernetes clusters for tests and for people, made of namespaces of this machine; `cluster.py` is the way in."""

from __future__ import annotations

from .cluster import Cluster
from .errors import ClusterError, wait_for
from .faults import Fault, Faults
from .images import SHELL_IMAGE
from .node import Node, NodeSpec
from .simulated import Simulated

__all__ = ["SHELL_IMAGE", "Cluster", "ClusterError", "Fault", "Faults", "Node", "NodeSpec", "Simulated", "wait_for"]
