"""Manifests as values: the objects of YAML, as kubectl reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from testbed import Cluster


def objects(cluster: Cluster, file: Path) -> list[dict[str, Any]]:
    """Return the objects of a file, without making them; the cluster must know their kinds."""
    return objects_of(cluster, file.read_text())


def objects_of(cluster: Cluster, yaml: str) -> list[dict[str, Any]]:
    """Return the objects of a text."""
    text = cluster.kubectl("create", "--dry-run=client", "--output=json", "--filename", "-", input=yaml).strip()
    decoder, found = json.JSONDecoder(), []
    while text:
        one, end = decoder.raw_decode(text)
        found += one.get("items", [one])
        text = text[end:].strip()
    return found
