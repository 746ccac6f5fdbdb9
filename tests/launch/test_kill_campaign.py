"""A short random-kill campaign; `make test-kills` runs a long one."""

from __future__ import annotations

from kill_campaign import PHASES, campaign


def test_a_few_random_kills_leave_nothing() -> None:
    done = list(campaign(kills=6, seed=20_260))
    assert {kill.phase for kill in done} == set(PHASES)
    assert not any(kill.left for kill in done), "\n".join(str(kill) for kill in done)
