"""tools/mutants without cargo-mutants: which mutants are drawn, what is remembered of them, and when a run fails."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest


def script(name: str) -> ModuleType:
    """Import one of the scripts in tools/."""
    loader = SourceFileLoader(name, str(Path(__file__).resolve().parents[2] / "tools" / name))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


mutants = script("mutants")

MANY = [mutants.Mutant(f"crates/x/src/lib.rs:{line}:5: replace f -> bool with true", "code") for line in range(10, 99)]
TITLE = "crates/x/src/lib.rs: replace f -> bool with true"


def outcome(name: str, summary: str) -> dict[str, object]:
    return {"scenario": {"Mutant": {"name": name}}, "summary": summary}


def test_a_sample_depends_on_the_seed_and_not_on_the_order_of_the_list() -> None:
    drawn = mutants.sample(MANY, 20, seed=1)
    assert len(set(drawn)) == 20
    assert mutants.sample(reversed(MANY), 20, seed=1) == drawn
    assert mutants.sample(MANY, 20, seed=2) != drawn
    assert mutants.sample(MANY[::-1], None, seed=1) == MANY
    assert mutants.sample(MANY, 1000, seed=1) == MANY


def test_the_title_has_neither_line_nor_column() -> None:
    assert MANY[0].title == MANY[1].title == TITLE


def test_the_code_that_changes_is_marked() -> None:
    line = "        low < high && high < most"
    assert mutants.marked(line, 13) == "low »< high && high < most"
    assert mutants.marked(line, 28) == "low < high && high »< most"
    assert mutants.marked(line, 9) == "»low < high && high < most"


def test_a_caught_mutant_stays_caught_and_a_survivor_is_tried_again_when_the_package_changes(tmp_path: Path) -> None:
    path = tmp_path / "results" / "x.json"
    results = mutants.Results(path, "before")
    baseline = {"scenario": "Baseline", "summary": "Success"}
    summaries = ("CaughtMutant", "MissedMutant", "Timeout", "Unviable", "Failure")
    results.add({"outcomes": [baseline, *(outcome(name, name) for name in summaries)]})
    results.add({"outcomes": [outcome("another", "CaughtMutant")]})

    stored = {"CaughtMutant": "caught", "Timeout": "timeout", "Unviable": "unviable", "another": "caught"}
    assert mutants.Results(path, "before").outcomes() == {**stored, "MissedMutant": "missed"}
    assert mutants.Results(path, "after").outcomes() == stored


def test_the_score_leaves_out_what_did_not_compile_and_what_was_not_tried() -> None:
    outcomes = dict(zip((one.name for one in MANY), ["caught"] * 6 + ["timeout", "missed", "unviable"]))
    found = mutants.score(MANY[:10], outcomes, {})
    assert found.viable == 8
    assert found.lines("x") == [
        "x: 87.5 % caught; 6 caught, 1 timed out, 1 missed, 1 unviable, 1 not tried",
        "",
        f"survived: {MANY[7].name}",
        "  at: code",
    ]


@pytest.mark.parametrize(("missed", "fails"), [(1, False), (2, True)])
def test_more_than_one_unexplained_survivor_in_twenty_fails(missed: int, fails: bool) -> None:
    outcomes = dict(zip((one.name for one in MANY), ["missed"] * missed + ["caught"] * (20 - missed)))
    assert mutants.score(MANY[:20], outcomes, {}).fails is fails


def test_a_survivor_with_a_reason_is_shown_with_it_and_does_not_count() -> None:
    reasons = mutants.parse_accepted(f"# What this is.\n\n{TITLE}\n  at: code\n  why: no test can tell\n")
    found = mutants.score(MANY[:3], {one.name: "missed" for one in MANY}, reasons)
    assert not found.fails
    assert found.lines("x")[2:5] == [f"accepted: {MANY[0].name}", "  at: code", "  why: no test can tell"]
    elsewhere = [mutants.Mutant(MANY[0].name, "other code")]
    assert mutants.score(elsewhere, {MANY[0].name: "missed"}, reasons).unexplained == elsewhere


@pytest.mark.parametrize(
    "text", [TITLE, f"{TITLE}\n  at: code", f"{TITLE}\n  why: x\n  at: code", f"{TITLE}\n  at: code\n  x"]
)
def test_an_accepted_survivor_needs_its_code_and_a_reason(text: str) -> None:
    with pytest.raises(ValueError, match="replace f"):
        mutants.parse_accepted(text)


def test_the_list_of_accepted_survivors_is_well_formed() -> None:
    reasons = mutants.parse_accepted(mutants.ACCEPTED.read_text())
    folders = tuple(f"{core.folder}/" for core in mutants.CORES.values())
    assert [title for title, _ in reasons if not title.startswith(folders)] == []


def test_the_hash_of_the_code_ignores_its_tests(tmp_path: Path) -> None:
    source = tmp_path / "lib.rs"
    hashes = []
    for text in (
        "fn f() {}\n#[cfg(test)]\nmod tests {\n}\n",
        "fn f() {}\n#[cfg(test)]\nmod tests {\n    fn more() {}\n}\n",
        "fn g() {}\n#[cfg(test)]\nmod tests {\n}\n",
    ):
        source.write_text(text)
        hashes.append(mutants.code_hash(tmp_path, ["lib.rs"]))
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_copy_is_made_anew_where_it_differs_and_nowhere_else(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for path, text in ((source / "a" / "same", "1"), (source / "b", "2"), (target / "left", "3")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    mutants.copy_changed(source, target, ["a/same", "b", "deleted"])
    for path in (source / "b", target / "a" / "same", target / "b"):
        os.utime(path, ns=(5, 5))
    (target / "b").write_text("mutated")
    mutants.copy_changed(source, target, ["a/same", "b"])
    assert {str(path.relative_to(target)): path.read_text() for path in target.rglob("*") if path.is_file()} == {
        "a/same": "1",
        "b": "2",
    }
    assert (target / "a" / "same").stat().st_mtime_ns == 5
    # Cargo would take an older file for one that is built already.
    assert (target / "b").stat().st_mtime_ns > 5
