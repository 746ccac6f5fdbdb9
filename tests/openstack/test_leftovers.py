"""leftovers.py: which things of a cloud it takes for a folder's own, and how it deletes them.

The cloud is a fake of OpenStack's library; test_cloud.py has a real one, and a Terraform that is stopped.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from terraform import leftovers


def test_leftovers_are_looked_for_by_every_identity_that_the_folder_had(tmp_path: Path) -> None:
    identity = {"address": "terraform_data.identity", "type": "terraform_data", "values": {"id": "2"}}
    server = {
        "address": "openstack_compute_instance_v2.master",
        "type": "openstack_compute_instance_v2",
        "values": {"id": "s"},
    }
    file = tmp_path / "identities"
    # Nothing has been made; before there were identities; before and after `destroy`.
    assert leftovers.own_marks("ronde-cluster-ronde", [], file) == set()
    assert leftovers.own_marks("ronde-cluster-ronde", [server], file) == {"ronde-cluster-ronde"}
    assert leftovers.own_marks("ronde-cluster-ronde", [identity, server], file) == {"ronde-cluster-ronde-2"}
    file.write_text("1\n2\n")
    assert leftovers.own_marks("ronde-cluster-ronde", [], file) == {"ronde-cluster-ronde-1", "ronde-cluster-ronde-2"}


class Things(SimpleNamespace):
    """Things of a cloud as OpenStack's library lists them: by their description, if one is asked for."""

    def __call__(self, **wanted: str) -> list[SimpleNamespace]:
        return [one for one in self.all if all(getattr(one, name) == value for name, value in wanted.items())]


def thing(name: str, **attributes: Any) -> SimpleNamespace:
    return SimpleNamespace(id=f"id-of-{name}", name=name, **{"description": "", "metadata": {}} | attributes)


class FakeLibrary:
    """A cloud as OpenStack's library shows it; notes what is deleted."""

    def __init__(self, **things: list[SimpleNamespace]) -> None:
        self.deleted: list[str] = []
        self.things = things
        self.compute = self.network = self.block_storage = self
        self.service_catalog = [{"type": "volumev3"}]

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("delete_", "remove_", "detach_")):
            return lambda *what: self.deleted.append(
                " ".join([name, *(getattr(one, "id", one) for one in what if one)])
            )
        return Things(all=self.things.get(name, []))


def test_leftovers_are_this_folders_and_not_those_of_another_cluster_of_that_name() -> None:
    marks = {"ours": "ronde-cluster-ronde-1", "theirs": "ronde-cluster-ronde-2", "old": "ronde-cluster-ronde"}
    metadata = {whose: {"ronde_cluster": "ronde", "ronde_mark": mark} for whose, mark in marks.items()}
    metadata["old"] = {"ronde_cluster": "ronde"}
    cloud = FakeLibrary(
        servers=[thing(whose, metadata=metadata[whose]) for whose in marks] + [thing("nobodys")],
        networks=[thing(whose, description=mark) for whose, mark in marks.items()],
        keypairs=[thing(mark) for mark in marks.values()],
        volumes=[thing(whose, metadata=metadata[whose], attachments=[]) for whose in marks],
    )

    def found(*marks: str) -> list[str]:
        return [f"{kind} {one.name}" for kind, one, _ in leftovers.everything(cloud, set(marks))]

    assert found() == []
    ours = found("ronde-cluster-ronde-1")
    assert ours == ["server ours", "network ours", "key pair ronde-cluster-ronde-1", "volume ours"]
    old = found("ronde-cluster-ronde")
    assert old == ["server old", "network old", "key pair ronde-cluster-ronde", "volume old"]


@pytest.mark.parametrize(
    ("service", "expected"), [("volumev3", True), ("block-storage", True), ("block-store", True), ("compute", False)]
)
def test_volumes_are_looked_for_wherever_a_cloud_has_them(service: str, expected: bool) -> None:
    cloud = FakeLibrary(volumes=[thing("share", metadata={"ronde_mark": "ronde-cluster-ronde-1"}, attachments=[])])
    cloud.service_catalog = [{"type": service}]
    found = [kind for kind, _, _ in leftovers.everything(cloud, {"ronde-cluster-ronde-1"})]
    assert found == (["volume"] if expected else [])


@pytest.mark.parametrize("owner", leftovers.INTERFACES)
def test_leftovers_of_a_router_and_of_a_volume_that_are_known_are_found(owner: str) -> None:
    mark = "ronde-cluster-ronde-1"
    inside = thing("inside", device_id="id-of-router", device_owner=owner, network_id="id-of-network")
    elsewhere = thing("elsewhere", device_id="id-of-router", device_owner=owner, network_id="id-of-another")
    cloud = FakeLibrary(
        servers=[thing("master", metadata={"ronde_mark": mark})],
        routers=[thing("router", description=mark)],
        networks=[thing("network", description=mark)],
        ports=[inside, elsewhere],
        volumes=[thing("share", metadata={"ronde_mark": mark}, attachments=[{"server_id": "id-of-master"}])],
    )
    found = list(leftovers.everything(cloud, {mark}))
    assert [f"{kind} {one.id}" for kind, one, _ in found] == [
        "volume attachment id-of-master/id-of-share",
        "server id-of-master",
        "router interface id-of-inside",
        "router id-of-router",
        "network id-of-network",
        "volume id-of-share",
    ]
    for kind, one, delete in found:
        if kind in ("volume attachment", "router interface", "router"):
            delete(one)
    assert cloud.deleted == [
        "detach_volume id-of-master id-of-share",
        "remove_interface_from_router id-of-router id-of-inside",
        "remove_interface_from_router id-of-router id-of-inside",
        "remove_interface_from_router id-of-router id-of-elsewhere",
        "delete_router id-of-router",
    ]
