"""Shards: the points of a sweep dealt out to processes that know of each other by a folder alone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from command import simcoll, start
from hypothesis import given
from hypothesis import strategies as st

from simcoll.prediction.sweep import Journal, Shard, is_written, logged, ordered, sweep, write
from simcoll.scenario.scenario_files import load

SCENARIO = """\
name: shards
topology: {fabric: single-switch, hosts: 8, link: {bandwidth: 50 GB/s, latency: 0.5 us}}
collective: all_reduce
algorithm: [ring, auto, naive]
size: {from: 1 KiB, to: 64 KiB, factor: 4}
plots: [busbw]
"""
POINTS = 12
WHOLE = ["manifest.json", "plots", "results.csv"]


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scenario of twelve points."""
    path = tmp_path_factory.mktemp("shards") / "shards.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def whole(scenario: Path) -> bytes:
    """Its results.csv, from a run that is no shard."""
    assert simcoll("run", scenario, "--quiet", "-o", scenario.parent / "whole").status == 0
    return (scenario.parent / "whole/results.csv").read_bytes()


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@given(keys=st.lists(st.text("0123456789abcdef", min_size=4), unique=True), of=st.integers(1, 30))
def test_shares_are_all_and_nothing_twice(keys: list[str], of: int):
    """The shares of any number of shards hold every point once, in order, and differ by one point at most."""
    shares = [Shard(number, of).share(keys) for number in range(1, of + 1)]
    assert sorted(index for share in shares for index in share) == list(range(len(keys)))
    assert all(share == sorted(share) for share in shares)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("of", [1, 2, 3, 12])
def test_shards_in_any_order(of: int, scenario: Path, whole: bytes, tmp_path: Path):
    """Each shard leaves its rows in a log of its own and exits with 0.

    The one that finds all rows writes the bytes of a run that is no shard, draws the plots, and removes the logs.
    """
    order = random.Random(of).sample(range(1, of + 1), of)
    for number in order[:-1]:
        found = simcoll("run", scenario, "-o", tmp_path, "--shard", f"{number}/{of}")
        assert found.status == 0
        assert f"of {POINTS} points are missing" in found.err
        assert "results.csv" not in _names(tmp_path)
    assert set(_names(tmp_path)) <= {f"results.{number}of{of}.jsonl" for number in order}
    assert simcoll("run", scenario, "-o", tmp_path, "--shard", f"{order[-1]}/{of}", "--quiet") == (0, "", "")
    assert _names(tmp_path) == WHOLE
    assert (tmp_path / "results.csv").read_bytes() == whole


@pytest.mark.thorough
def test_a_run_that_is_no_shard_computes_what_shards_left(scenario: Path, whole: bytes, tmp_path: Path):
    """`simcoll run` without --shard uses the rows of all shards, of whatever number of them, and ends the sweep."""
    for share in ("1/2", "3/5", "2/5"):
        assert simcoll("run", scenario, "-o", tmp_path, "--shard", share).status == 0
    logs = sum(path.read_text(encoding="utf-8").count("\n") for path in tmp_path.glob("*.jsonl"))
    assert 6 <= logs < POINTS
    assert simcoll("run", scenario, "-o", tmp_path, "--json", "--jobs", 2).json["reused"] == logs
    assert _names(tmp_path) == WHOLE
    assert (tmp_path / "results.csv").read_bytes() == whole


@pytest.mark.thorough
@pytest.mark.parametrize("rows", [pytest.param("theirs", marks=pytest.mark.long), "none"])
def test_shards_at_the_same_moment(rows: str, scenario: Path, whole: bytes, tmp_path: Path):
    """Two shards side by side, from nothing or with all rows there already so that all of them finish at once: all
    exit with 0, and what they leave is whole."""
    points = load(str(scenario))
    for number in (1, 2) if rows == "theirs" else ():
        list(sweep(points, journal=Journal(tmp_path, Shard(number, 2)), shard=Shard(number, 2)))
    words = ["run", scenario, "-o", tmp_path, "--quiet", "--shard"]
    processes = [start(*words, f"{number}/2") for number in (1, 2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert simcoll(*words, "1/2").status == 0
    assert _names(tmp_path) == WHOLE
    assert (tmp_path / "results.csv").read_bytes() == whole


def test_every_moment_of_another_shards_end(scenario: Path, whole: bytes, tmp_path: Path):
    """A shard whose rows are done may find another one before, within or after its end: it writes the same bytes or
    none, and never takes a folder for incomplete that is whole."""
    points, mine, other = load(str(scenario)), Shard(1, 2), Shard(2, 2)
    for shard in (mine, other):
        list(sweep(points, journal=Journal(tmp_path, shard), shard=shard))
    journal = Journal(tmp_path, other)
    rows = ordered(logged(points, journal))
    for end in (lambda: write(tmp_path, rows, points, "other"), journal.own.unlink):
        end()
        found = simcoll("run", scenario, "-o", tmp_path, "--shard", "1/2")
        assert (found.status, "missing" in found.err) == (0, False)
        assert is_written(tmp_path, points)
        assert (tmp_path / "results.csv").read_bytes() == whole
    assert not list(tmp_path.glob("*.jsonl"))


def test_a_shard_of_what_is_done(scenario: Path, whole: bytes, tmp_path: Path):
    """A shard that is started again after the end simulates nothing, says so, and changes nothing."""
    simcoll("run", scenario, "-o", tmp_path, "--quiet")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    found = simcoll("run", scenario, "-o", tmp_path, "--shard", "2/3", "--json")
    assert (found.status, found.json["points"]) == (0, [])
    assert str(tmp_path / "results.csv") in found.err
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_shards_of_another_scenario(scenario: Path, whole: bytes, tmp_path: Path):
    """Rows and results of another scenario in the folder are not taken for those of this one."""
    for share in ("1/2", "2/2"):
        other = simcoll("run", scenario, "-o", tmp_path, "--quiet", "--set", "seed=1", "--shard", share)
        assert other.status == 0
    assert simcoll("run", scenario, "-o", tmp_path, "--shard", "1/2", "--set", "seed=2").status == 0
    assert simcoll("run", scenario, "-o", tmp_path, "--shard", "1/2").status == 0
    assert simcoll("run", scenario, "-o", tmp_path, "--shard", "2/2").status == 0
    assert _names(tmp_path) == WHOLE
    assert (tmp_path / "results.csv").read_bytes() == whole


@pytest.mark.parametrize("share", ["0/2", "3/2", "1/0", "2", "a/b", "1/2/3", "-1/2", "1.0/2", "", "/"])
def test_shares_that_are_none(share: str, scenario: Path, tmp_path: Path):
    """Wrong input: exit 2, nothing on stdout, nothing written."""
    found = simcoll("run", scenario, "-o", tmp_path / "out", "--shard", share)
    assert (found.status, found.out) == (2, "")
    assert f"--shard: {share!r} names no shard" in found.err
    assert not (tmp_path / "out").exists()


def test_a_shard_without_a_folder(scenario: Path):
    """Shards meet in a folder, so one has to be named."""
    found = simcoll("run", scenario, "--shard", "1/2")
    assert (found.status, found.out) == (2, "")
    assert "-o" in found.err
