"""The table of test files is complete, and names only what is there."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from suites import OWN_TARGETS, ROOT, SUITES, Group, files


def test_every_test_file_has_one_suite_or_a_target_of_its_own() -> None:
    count = Counter(file for suite in SUITES for file in files(suite))
    assert {file: times for file, times in count.items() if times > 1} == {}
    own = {file for pattern in OWN_TARGETS for file in ROOT.glob(pattern)}
    there = {*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("bench/**/test_*.py")}
    assert there - own == {file for file in count if file not in own}


def test_every_environment_has_its_pins() -> None:
    environments = {name for suite in SUITES for name in suite.environments}
    assert [name for name in environments if not (ROOT / "tools" / f"requirements-{name}.txt").exists()] == []


def test_every_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert [target for target in OWN_TARGETS.values() if f"\n{target}: " not in makefile] == []


def test_only_what_needs_no_root_is_plain() -> None:
    assert [suite.name for suite in SUITES if suite.root and suite.group is Group.PLAIN] == []


def test_a_pattern_that_matches_nothing_is_an_error(tmp_path: Path) -> None:
    suite = replace(SUITES[0], patterns=("tests/*.py", "gone/*.py"))
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").touch()
    with pytest.raises(ValueError, match=r"no file matches gone/\*\.py"):
        files(suite, tmp_path)
