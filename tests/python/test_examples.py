"""The examples do what they say."""

from __future__ import annotations

import re
import sys

import pytest

from ranks import REPOSITORY, launch


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_digits_are_learned_as_well_by_several_ranks_as_by_one(ranks: int) -> None:
    done = launch(ranks, [sys.executable, str(REPOSITORY / "examples" / "digits.py")])
    assert done.status == 0, done.output
    first, *_, last = done.lines_of(0)
    assert "1437 digits" in first
    found = re.fullmatch(rf"accuracy on {ranks} ranks? ([0-9.]+)%, in one process ([0-9.]+)%: the same", last)
    assert found, done.output
    assert float(found[1]) == float(found[2]) > 95.0
    assert done.output.count("images/s") == 12
