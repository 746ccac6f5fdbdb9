"""`--gpus-per-rank` on many hosts, each with GPUs of its own, which a pretended `nvidia-smi` lists."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from launcher import Finished, run, start_command
from sshd import PORT, SshHosts

pytestmark = pytest.mark.usefixtures("quiet")

# At this port the second host has chosen which of its GPUs are visible.
MASKED = 2010
SHOW = ["sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES"']


@pytest.fixture(scope="module")
def hosts() -> Iterator[SshHosts]:
    """Give three hosts: one with two GPUs, one with four, and one with a divided GPU."""
    with SshHosts(3) as made:
        gpus = [f"GPU {number}: NVIDIA H200 (UUID: GPU-{number}abc)" for number in range(4)]
        divided = [gpus[0], *(f"  MIG 3g.20gb     Device  {number}: (UUID: MIG-{number}def)" for number in range(2))]
        for host, lines in ((1, gpus[:2]), (2, gpus), (3, divided)):
            listing = "\n".join(["#!/bin/sh", "cat <<END", *lines, "END", ""])
            made.write(host, "/usr/local/bin/nvidia-smi", listing, mode=0o755)
        made.serve(2, MASKED, "SetEnv CUDA_VISIBLE_DEVICES=GPU-3abc,GPU-1")
        yield made


def seen(done: Finished, ranks: int) -> list[str]:
    """Return what every rank sees of the GPUs."""
    assert done.status == 0, done
    return [" ".join(done.lines_of(rank)) for rank in range(ranks)]


def test_every_host_shares_out_its_own_gpus(hosts: SshHosts) -> None:
    done = run(hosts, "-np", 5, "-H", "h1:1,h2:2,h3:2", "--gpus-per-rank", 1, *SHOW)
    assert seen(done, 5) == ["0", "0", "1", "MIG-0def", "MIG-1def"]
    done = run(hosts, "-np", 3, "-H", "h1:1,h2:2", "--gpus-per-rank", 2, *SHOW)
    assert seen(done, 3) == ["0,1", "0,1", "2,3"]


def test_what_a_host_shows_counts_there_and_the_launchers_own_choice_stays_at_home(hosts: SshHosts) -> None:
    own = {"CUDA_VISIBLE_DEVICES": "1"}
    words = ("-np", 3, "-H", "h1:1,h2:2")
    done = run(hosts, *words, "--gpus-per-rank", 1, *SHOW, port=MASKED, env=own)
    assert seen(done, 3) == ["1", "GPU-3abc", "GPU-1"]
    done = run(hosts, *words, *SHOW, port=MASKED, env=own)
    assert seen(done, 3) == ["1", "GPU-3abc,GPU-1", "GPU-3abc,GPU-1"], "nothing is changed without the flag"


def test_all_hosts_with_too_few_gpus_are_named_before_any_rank_starts(hosts: SshHosts) -> None:
    done = run(hosts, "-np", 5, "-H", "h1:2,h2:3", "--gpus-per-rank", 2, "echo", "here", port=MASKED)
    assert (done.status, done.output) == (1, ""), done
    fewer = "or leave --gpus-per-rank out: ranks may share a GPU"
    assert done.complaint() == (
        "error: h1 has 2 GPUs; --gpus-per-rank 2 needs 4 for 2 ranks\n"
        f"hint: give it fewer slots (-H …,h1:1), {fewer}\n"
        "error: h2 has 4 GPUs, of which CUDA_VISIBLE_DEVICES=GPU-3abc,GPU-1 shows 2; --gpus-per-rank 2 needs 6 "
        "for 3 ranks\n"
        f"hint: give it fewer slots (-H …,h2:1), {fewer}\n"
    )


def test_horovodrun_knows_the_flag_too(hosts: SshHosts) -> None:
    command = ["horovodrun", "-p", PORT, "-np", 2, "-H", "h1:1,h2:1", "--gpus-per-rank", 1, *SHOW]
    with start_command(hosts, command) as job:
        done = job.end()
    assert sorted(done.output.splitlines()) == ["[0]<stdout>:0", "[1]<stdout>:0"], done
