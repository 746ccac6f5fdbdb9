"""The test executables of the workspace: which there are, how they are built, and how Cargo would run them.

Two things that `make test` runs with Cargo are left out: what loom checks, which tries all orders of events in every
run, and the examples in the documentation, which have no executables.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaign.schedule import Kind
from campaign.units import Unit, output_of

# The package whose tests need CUDA's assembler, and the variable that says where it is.
ASSEMBLED, ASSEMBLER = "ronde-cuda", "RONDE_PTXAS"


@dataclass(frozen=True)
class Target:
    """A test executable that may not have been built yet."""

    name: str
    """`package` for unit tests of a library, `package::bin/program` for those of a program, else `package::test`."""
    package: str
    folder: Path


def targets() -> list[Target]:
    """Return all test executables of the workspace."""
    metadata = json.loads(output_of(["cargo", "metadata", "--locked", "--no-deps", "--format-version", "1"]))
    return [
        Target(_name(package["name"], target), package["name"], Path(package["manifest_path"]).parent)
        for package in metadata["packages"]
        for target in package["targets"]
        if target["test"]
    ]


def _name(package: str, target: dict[str, Any]) -> str:
    kind = target["kind"][0]
    if kind == "test":
        return f"{package}::{target['name']}"
    return f"{package}::bin/{target['name']}" if kind == "bin" else package


def built(wanted: Sequence[Target], packages: Sequence[str]) -> list[Unit]:
    """Build these executables, and return how to run them.

    The whole workspace is built, as for `make test`, unless `packages` names some: built alone, crates may have fewer
    features, so these executables are others, with counts of their own.
    """
    which = [word for package in packages for word in ("--package", package)] or ["--workspace"]
    messages = output_of(["cargo", "test", "--quiet", "--locked", "--no-run", "--message-format=json", *which])
    artifacts = [json.loads(line) for line in messages.splitlines()]
    environment: tuple[tuple[str, str], ...] = ()
    if any(target.package == ASSEMBLED for target in wanted):
        environment = ((ASSEMBLER, output_of(["tools/ptxas"]).strip()),)
    return units(wanted, artifacts, environment)


def units(
    wanted: Sequence[Target], messages: Sequence[dict[str, Any]], environment: tuple[tuple[str, str], ...] = ()
) -> list[Unit]:
    """Return how to run these executables, by the messages of the `cargo test` that built them."""
    package_in = {target.folder: target.package for target in wanted}
    executables: dict[str, Path] = {}
    beside: defaultdict[Path, list[Path]] = defaultdict(list)
    for message in messages:
        folder = Path(message.get("manifest_path", "")).parent
        if message["reason"] != "compiler-artifact" or folder not in package_in:
            continue
        if message["profile"]["test"] and message["executable"]:
            executables[_name(package_in[folder], message["target"])] = Path(message["executable"])
        elif {"bin", "cdylib"} & set(message["target"]["kind"]):
            # What the tests of the package start or load.
            beside[folder] += [Path(name) for name in message["filenames"] if not name.endswith((".rlib", ".rmeta"))]
    return [
        Unit(
            name=target.name,
            kind=Kind.RUST,
            command=(str(executables[target.name]), "--include-ignored"),
            folder=target.folder,
            inputs=(executables[target.name], *sorted(beside[target.folder])),
            environment=(("CARGO_MANIFEST_DIR", str(target.folder)), *environment),
        )
        for target in wanted
    ]
