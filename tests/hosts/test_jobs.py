"""Jobs on several hosts: right sums over the right links, with the bytes that the algorithm owes. Needs root."""

from __future__ import annotations

import pytest

import built
from harness import jobs
from harness.environment import OurBinaries
from harness.figures import Figures
from harness.ground import Layout, made_hosts

MIB = 1 << 20
SIZES = (4, 8192, MIB, 5 * MIB + 12)


@pytest.fixture(scope="module")
def ours() -> OurBinaries:
    """Build what the ranks run."""
    folder = built.programs()
    return OurBinaries(ronde=folder / "ronde", probe=folder / "ronde-probe", package=None)


@pytest.mark.parametrize("shape", ["2x1", "3x1", "2x2", "3+1", "1+2+1"])
def test_hosts_send_the_bytes_that_an_allreduce_owes_and_no_more(ours: OurBinaries, shape: str) -> None:
    layout = Layout.parse(shape)
    hosts = len(layout.ranks_on)
    figures = Figures()
    with made_hosts(hosts, None, [ours.ronde.parent]) as ground:
        # The probe checks every element of every result, and its caller that each pair used the link it should.
        figures.add("ronde", jobs.run_probe(ground, layout, ours, ["allreduce", "--seconds", 0.2, *SIZES]))
    leaders = [place.rank for place in layout.places() if place.local_rank == 0]
    for size in (size for size in SIZES if size >= MIB):
        owed = 2 * size * (hosts - 1) / hosts
        for rank in leaders:
            sent = figures.sent_per_call("ronde", size, rank)
            assert sent is not None
            # Headers are a twentieth, and on a busy machine TCP sends some packets again. A ring of all ranks would
            # send half as much again.
            assert owed <= sent <= 1.25 * owed, f"{size} bytes: host of rank {rank}"
