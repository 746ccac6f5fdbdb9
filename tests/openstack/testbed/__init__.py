"""A real OpenStack cloud in namespaces of this machine, for test_cloud.py."""

from .cloud import PASSWORD, PROJECT, USER, Cloud
from .machine import CloudError

__all__ = ["PASSWORD", "PROJECT", "USER", "Cloud", "CloudError"]
