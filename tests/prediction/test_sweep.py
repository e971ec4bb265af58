"""Sweeps: finished rows survive a kill, are used again, and change nothing in the result."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
from command import KILLED, SCRIPT, python, simcoll

from simcoll.prediction import sweep, workers
from simcoll.prediction.result_rows import ResultRow
from simcoll.prediction.sweep import LOG, Journal
from simcoll.scenario.profile import find_profile, shipped_profiles
from simcoll.scenario.scenario import Scenario
from simcoll.scenario.scenario_files import Point, load

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


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder that a whole run has written, and the lines of the log of such a run: to be copied, not changed."""
    folder = tmp_path_factory.mktemp("ran")
    scenario = folder / "sweep.yaml"
    scenario.write_text(SCENARIO, encoding="utf-8")
    assert _run(scenario, folder / "whole")["reused"] == 0
    return folder / "whole", _log_of(scenario, folder / "other")


@pytest.fixture
def logged(ran: tuple[Path, list[str]], tmp_path: Path) -> tuple[Path, list[str], bytes]:
    """A folder as a whole run leaves it, the lines of that run's log, and the bytes of its results.csv."""
    whole, lines = ran
    folder = shutil.copytree(whole, tmp_path / "logged")
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


@pytest.mark.parametrize("profile", shipped_profiles())
def test_a_profile_hangs_on_all_files_that_it_takes_costs_from(profile: str, tmp_path: Path):
    """Law: the files of a point are all that the costs of its profile, own or shipped, are written in: those that it is
    like, over any number of steps, that of the transport, and those that the system names."""
    shipped_files, mine = shipped_profiles(), tmp_path / "mine.yaml"
    text = shipped_files[profile].read_text("utf-8")
    mine.write_text(text, encoding="utf-8")
    wanted = {shipped_files[name] for name in ("nccl-hopper", "nccl-nvlink", "ib-ndr")}  # of the system
    like = re.search(r"^like: (\S+)$", text, re.M)
    while like:
        wanted.add(shipped_files[like[1]])
        like = re.search(r"^like: (\S+)$", shipped_files[like[1]].read_text("utf-8"), re.M)
    of_nics = "of_nics: true" in text
    for name in [f"nccl-hopper+{profile}"] if of_nics else [profile, str(mine)]:
        call = {"topology": {"system": "hgx-h100"}, "collective": "all_reduce", "size": "1 KiB"}
        point = Scenario.model_validate({**call, "profile": name})
        own = shipped_files[profile] if of_nics else find_profile(name)
        assert wanted | {own} <= set(point.files())
        assert all(path.read_text("utf-8") in point.contents() for path in wanted | {own})


def test_extending_a_sweep_keeps_order(scenario: Path, logged: tuple[Path, list[str], bytes], tmp_path: Path):
    """Rows are ordered by the scenario, whatever came from the log and in whatever order it stands there."""
    _, lines, whole = logged
    folder = tmp_path / "mixed"
    folder.mkdir()
    (folder / "results.jsonl").write_text("".join(lines[::-2]), encoding="utf-8")
    assert _run(scenario, folder, "--jobs", 2)["reused"] == POINTS // 2
    assert (folder / "results.csv").read_bytes() == whole


def _kept(folder: Path) -> list[str]:
    """The keys in the whole lines of all logs."""
    lines = [line for log in folder.glob("*.jsonl") for line in log.read_text(encoding="utf-8").splitlines()]
    return [json.loads(line)["key"] for line in lines if line.startswith("{") and line.endswith("}}")]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "words",
    # One process writes the log in each of these; test_shards.py has more of the last.
    [[], ["--jobs", 2], pytest.param(["--shard", "1/1"], marks=pytest.mark.long)],
    ids=["alone", "jobs", "shard"],
)
def test_a_run_that_is_killed_again_and_again_goes_on(
    words: list[object], scenario: Path, logged: tuple[Path, list[str], bytes], tmp_path: Path
):
    """Killed between two rows and within one: no row in the log is ever lost or computed twice, and the bytes in the
    end are those of a run that was never killed."""
    _, lines, whole = logged
    folder, known = tmp_path / "killed", list[str]()
    for room in (sum(map(len, lines[:4])), sum(map(len, lines[:8])) + 100):
        done = python(KILLED + SCRIPT, [room, "run", scenario, "-o", folder, "--quiet", *words])
        assert done.returncode == -signal.SIGXFSZ
        keys = _kept(folder)
        assert sum(log.stat().st_size for log in folder.iterdir()) == room
        assert len(set(keys)) == len(keys) > len(known)
        assert keys[: len(known)] == known
        known = keys
    assert _run(scenario, folder)["reused"] == len(known)
    assert (folder / "results.csv").read_bytes() == whole
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "results.csv"]


FULL_DISK = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, 2 * (int(sys.argv.pop(1)),)); "


@pytest.mark.parametrize("room", [0, 5000, *(pytest.param(room, marks=pytest.mark.long) for room in (100, 700))])
def test_a_full_disk(room: int, scenario: Path, logged: tuple[Path, list[str], bytes], tmp_path: Path):
    """Where no more can be written the run ends with a line that names the log; what was written is used again."""
    _, lines, whole = logged
    folder = tmp_path / "full"
    done = python(FULL_DISK + SCRIPT, [room, "run", scenario, "-o", folder, "--quiet"])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"{folder / LOG}: cannot be written: File too large; ")
    assert len(done.stderr.splitlines()) == 1
    left = (folder / LOG).read_text(encoding="utf-8").splitlines(keepends=True)
    assert "".join(left) == "".join(lines)[:room]
    assert _run(scenario, folder)["reused"] == sum(line.endswith("\n") for line in left)
    assert (folder / "results.csv").read_bytes() == whole


def test_rows_are_kept_until_the_plots_are_there(scenario: Path, tmp_path: Path):
    """A run that ends between table and plots has its rows: the next one only plots."""
    (tmp_path / "plots").touch()
    found = simcoll("run", scenario, "-o", tmp_path, "--set", "plots=[busbw]")
    assert (found.status, found.out.count("all_reduce")) == (2, POINTS)
    (tmp_path / "plots").unlink()
    assert _run(scenario, tmp_path, "--set", "plots=[busbw, latency]")["reused"] == POINTS
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == ["busbw.png", "latency.png"]


def test_points_together_are_points_one_by_one():
    """In their order, whichever are run first; each is begun once, and what is refused is a row, too."""
    often = load("stragglers", ["size=4 KiB", "algorithm=ring", "replications=2"])
    points, begun = [*often, *load("quickstart", ["size=[8 B, 1 MiB]", "algorithm=[nvls, ring]"])], list[int]()
    assert sweep.run_points(points, begun.append) == [sweep.run_point(point) for point in points]
    assert sorted(begun) == list(range(len(points)))


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_point_is_told_of_before_its_row(jobs: int, scenario: Path):
    """Whoever shows progress hears of each point once, when it is begun."""
    begun: list[int] = []
    for index, _, _ in sweep.sweep(load(str(scenario)), jobs, begun=begun.append):
        assert index in begun
    assert sorted(begun) == list(range(POINTS))


def _row_at_once(point: Point) -> ResultRow:
    return ResultRow(status="ok", size_bytes=point.scenario.nbytes)


def test_quick_points_cost_little_to_send():
    """A point that is computed in no time costs the process that sends it less than a millisecond: points are sent
    together, with what they share."""
    points = dict(enumerate(load("quickstart", ["algorithm=ring", "size={from: 4 kB, to: 8 MB, step: 4 kB}"])))
    dict(workers.compute(_row_at_once, {0: points[0], 1: points[1]}, jobs=2))  # starts the processes
    begun = time.process_time()
    rows = dict(workers.compute(_row_at_once, points, jobs=2))
    assert time.process_time() - begun < 1e-3 * len(points)
    assert {index: row.size_bytes for index, row in rows.items()} == {
        index: point.scenario.nbytes for index, point in points.items()
    }


def test_a_sweep_that_grows_has_all_columns(scenario: Path, tmp_path: Path):
    """Rows of a sweep over fewer keys are used in one over more, and get the columns of what is swept now."""
    folder, swept = tmp_path / "grown", ["--set", "model.chunk=[whole, 512 KiB]"]
    list(sweep.sweep(load(str(scenario), ["model.chunk=whole"]), journal=Journal(folder)))
    assert _run(scenario, folder, *swept)["reused"] == POINTS
    _run(scenario, tmp_path / "fresh", *swept)
    assert (folder / "results.csv").read_bytes() == (tmp_path / "fresh/results.csv").read_bytes()


def test_refusals_and_leavings_are_remembered(scenario: Path, tmp_path: Path):
    """A refused point is a finished row as well, and what `algorithm: all` left out stays out."""
    sets = ["algorithm=all", "ranks=[7, 9]", "size=1 KiB"]
    points = load(str(scenario), sets)
    list(sweep.sweep(points, journal=Journal(tmp_path / "out")))
    again = _run(scenario, tmp_path / "out", *(word for text in sets for word in ("--set", text)))
    fresh = _run(scenario, tmp_path / "fresh", *(word for text in sets for word in ("--set", text)))
    assert again["reused"] == len(points)
    assert again["points"] == fresh["points"]
