"""Sweeps: finished rows survive a kill, are used again, and change nothing in the result."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import SCRIPT, environment, simcoll

from simcoll import sweep
from simcoll.journal import LOG, Journal
from simcoll.config import shipped
from simcoll.scenario import load

SCENARIO = """\
name: sweep
topology: {fabric: single-switch, hosts: 8, link: {bandwidth: 50 GB/s, latency: 0.5 us}}
collective: all_reduce
algorithm: [ring, tree, naive]
size: {from: 1 KiB, to: 64 KiB, factor: 4}
plots: []
"""
POINTS = 12


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """A scenario of twelve points."""
    path = tmp_path / "sweep.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


@pytest.fixture
def logged(scenario: Path, tmp_path: Path) -> tuple[Path, list[str], bytes]:
    """A folder with the log of a whole run, the log's lines, and the bytes of its results.csv."""
    folder = tmp_path / "logged"
    rows = _run(scenario, folder)
    lines = _log_of(scenario, tmp_path / "other")
    assert rows["reused"] == 0
    return folder, lines, (folder / "results.csv").read_bytes()


def _run(scenario: Path, folder: Path, *words: object) -> dict[str, object]:
    found = simcoll("run", scenario, "-o", folder, "--json", *words)
    assert found.status == 0
    return dict(found.json)


def _log_of(scenario: Path, folder: Path) -> list[str]:
    """The log that a run of all points leaves when it is killed before results.csv is written."""
    list(sweep.sweep(load(str(scenario)), journal=Journal(folder)))
    return (folder / LOG).read_text(encoding="utf-8").splitlines(keepends=True)


def test_the_log_has_a_line_a_row_and_goes(logged: tuple[Path, list[str], bytes]):
    """results.jsonl holds one JSON line a row while the run lasts, and is gone when results.csv is there."""
    folder, lines, _ = logged
    assert len(lines) == POINTS
    assert all(json.loads(line) for line in lines)
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "results.csv"]


@pytest.mark.parametrize("kept", [0, 1, 7, POINTS])
@pytest.mark.parametrize("torn", ["", "half", '{"key": "no end', "\0\0\0"])
def test_finished_rows_are_used_again(
    kept: int, torn: str, scenario: Path, logged: tuple[Path, list[str], bytes], tmp_path: Path
):
    """A run takes the rows of an earlier log, whatever a kill left as its last line, and writes the same bytes."""
    _, lines, whole = logged
    folder = tmp_path / "resumed"
    folder.mkdir()
    (folder / "results.jsonl").write_text("".join(lines[:kept]) + torn, encoding="utf-8")
    assert _run(scenario, folder)["reused"] == kept
    assert (folder / "results.csv").read_bytes() == whole
    assert not (folder / "results.jsonl").exists()


@pytest.mark.parametrize(
    "garbage", ["[]\n", "null\n", '{"key": 3}\n', '{"row": {}}\n', "\n\n", '"key"\n', '{"key": "x", "row": 3}\n']
)
def test_a_log_that_is_not_ours(garbage: str, scenario: Path, logged: tuple[Path, list[str], bytes], tmp_path: Path):
    """Lines that are no row of this sweep are passed over."""
    _, lines, whole = logged
    folder = tmp_path / "odd"
    folder.mkdir()
    (folder / "results.jsonl").write_text(garbage + lines[0] + garbage, encoding="utf-8")
    assert _run(scenario, folder)["reused"] == 1
    assert (folder / "results.csv").read_bytes() == whole


@pytest.mark.parametrize("row", ["3", "null", "[]"])
def test_a_row_that_was_spoilt(row: str, scenario: Path, logged: tuple[Path, list[str], bytes], tmp_path: Path):
    """A line with a known key and a row that is none is computed again."""
    _, lines, whole = logged
    folder = tmp_path / "spoilt"
    folder.mkdir()
    line = json.dumps({**json.loads(lines[0]), "row": json.loads(row)})
    (folder / "results.jsonl").write_text(f"{line}\n", encoding="utf-8")
    assert _run(scenario, folder)["reused"] == 0
    assert (folder / "results.csv").read_bytes() == whole


@pytest.mark.parametrize(
    "change", ["seed=1", "model.o_send=1 us", "dtype=int32", "topology.link.latency=1 us", "name=other"]
)
def test_what_decides_a_row_decides_its_reuse(change: str, scenario: Path, logged: tuple[Path, list[str], bytes]):
    """A row of another seed, model, type, topology or name is not used."""
    folder, lines, _ = logged
    (folder / "results.jsonl").write_text("".join(lines), encoding="utf-8")
    assert _run(scenario, folder, "--set", change)["reused"] == 0


def test_a_changed_file_is_noticed(scenario: Path, tmp_path: Path):
    """A row computed with another content of its profile is not used."""
    profile, folder = tmp_path / "mine.yaml", tmp_path / "out"
    profile.write_text("{name: mine, model: {o_send: 1 us}}", encoding="utf-8")
    sets = [f"profile={profile}", "size=1 KiB"]
    before = [row["time_us"] for _, row, _ in sweep.sweep(load(str(scenario), sets), journal=Journal(folder))]
    profile.write_text("{name: mine, model: {o_send: 2 us}}", encoding="utf-8")
    found = _run(scenario, folder, *(word for text in sets for word in ("--set", text)))
    assert found["reused"] == 0
    assert [row["time_us"] for row in found["points"]] != before  # type: ignore[attr-defined]


def test_a_changed_system_is_noticed(scenario: Path):
    """The file of a shipped system decides a row like a file of one's own."""
    (point,) = load(str(scenario), ["topology={system: hgx-h100}", "algorithm=ring", "size=1 KiB"])
    assert shipped("topologies") / "hgx-h100.yaml" in point.scenario.files()


def test_another_scenario_replaces(scenario: Path, logged: tuple[Path, list[str], bytes], tmp_path: Path):
    """Another scenario in the same folder leaves its own results only."""
    folder, _, whole = logged
    other = tmp_path / "other.yaml"
    other.write_text(
        SCENARIO.replace("sweep", "other")
        .replace("all_reduce", "reduce")
        .replace("ring", "chain")
        .replace("tree, ", "")
    )
    assert len(_run(other, folder)["points"]) == 8  # type: ignore[arg-type]
    text = (folder / "results.csv").read_text(encoding="utf-8")
    assert "all_reduce" not in text
    assert text.count("\n") == 9
    _run(scenario, folder)
    assert (folder / "results.csv").read_bytes() == whole


def test_extending_a_sweep_keeps_order(scenario: Path, logged: tuple[Path, list[str], bytes], tmp_path: Path):
    """Rows are ordered by the scenario, whatever came from the log and in whatever order it stands there."""
    _, lines, whole = logged
    folder = tmp_path / "mixed"
    folder.mkdir()
    (folder / "results.jsonl").write_text("".join(lines[::-2]), encoding="utf-8")
    assert _run(scenario, folder, "--jobs", 2)["reused"] == POINTS // 2
    assert (folder / "results.csv").read_bytes() == whole


def test_a_killed_run_goes_on(tmp_path: Path):
    """SIGKILL after the first rows, the same command again: the bytes of a run that was never killed."""
    scenario = tmp_path / "sweep.yaml"
    sizes = "size: {from: 1 KiB, to: 4 MiB, factor: 4}"
    scenario.write_text(
        SCENARIO.replace("hosts: 8", "hosts: 24").replace("size: {from: 1 KiB, to: 64 KiB, factor: 4}", sizes)
    )
    killed, log = tmp_path / "killed", tmp_path / "killed" / "results.jsonl"
    words = [sys.executable, "-c", SCRIPT, "run", str(scenario), "-o", str(killed), "--quiet"]
    with subprocess.Popen(words, env=environment()) as process:
        while process.poll() is None and not (log.exists() and log.read_bytes().count(b"\n") >= 3):
            time.sleep(0.005)
        process.kill()
    left = log.read_bytes().count(b"\n") if log.exists() else 21
    assert 3 <= left < 21
    assert not (killed / "results.csv").exists()
    assert _run(scenario, killed)["reused"] == left
    _run(scenario, tmp_path / "whole")
    names = ["manifest.json", "results.csv"]
    assert sorted(path.name for path in killed.iterdir()) == names
    assert (killed / "results.csv").read_bytes() == (tmp_path / "whole/results.csv").read_bytes()


def test_killed_twice(scenario: Path, logged: tuple[Path, list[str], bytes], tmp_path: Path):
    """The torn line of a first kill does not spoil the first row after it: a second kill finds that row too."""
    _, lines, whole = logged
    folder = tmp_path / "twice"
    folder.mkdir()
    (folder / LOG).write_text(lines[0] + lines[1][:20], encoding="utf-8")
    rows = sweep.sweep(load(str(scenario)), journal=Journal(folder))
    assert [next(rows)[2] for _ in range(3)] == [True, False, False]
    assert _run(scenario, folder)["reused"] == 3
    assert (folder / "results.csv").read_bytes() == whole


def test_refusals_and_leavings_are_remembered(scenario: Path, tmp_path: Path):
    """A refused point is a finished row as well, and what `algorithm: all` left out stays out."""
    sets = ["algorithm=all", "ranks=[7, 9]", "size=1 KiB"]
    points = load(str(scenario), sets)
    list(sweep.sweep(points, journal=Journal(tmp_path / "out")))
    again = _run(scenario, tmp_path / "out", *(word for text in sets for word in ("--set", text)))
    fresh = _run(scenario, tmp_path / "fresh", *(word for text in sets for word in ("--set", text)))
    assert again["reused"] == len(points)
    assert again["points"] == fresh["points"]
