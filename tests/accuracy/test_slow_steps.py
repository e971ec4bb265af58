"""Recorded times: late ranks, slow calls, and the plan of a recorded step."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.command import simcoll
from helpers.recorded_jobs import Recorder, write

SIZES = (1 << 20, 1 << 24, 1 << 27)


def steps(r: Recorder, times_us: dict[int, float], late: int | None = None, factor: float = 1.0) -> None:
    """Run steps whose calls take `factor` times the given times; all ranks but `late` wait 2 ms for it in each call."""
    draw = random.Random(r.rank)
    for _ in range(12):
        for size in SIZES:
            wait = 2.0 if late not in (None, r.rank) else 0.0
            took = factor * times_us[size] / 1e3 + wait + draw.uniform(0, 0.001)
            r.call("all_reduce", size // 4, took_ms=took, after_ms=5)


@pytest.fixture(scope="module")
def expected() -> dict[int, float]:
    """Return the predicted times on eight H100."""
    rows = [
        simcoll("predict", "all_reduce", "--on", "hgx-h100", "--size", f"{size} B", "--json").json for size in SIZES
    ]
    return {size: row["points"][0]["time_us"] for size, row in zip(SIZES, rows, strict=True)}


def diagnosed(folder: Path, *more: object) -> Any:
    """Return the document of a diagnosis on eight H100."""
    return simcoll("diagnose", folder, "--on", "hgx-h100", "--json", *more).json


def test_sound_steps_are_healthy(tmp_path: Path, expected: dict[int, float]) -> None:
    """Calls as predicted, made by ranks in step on skewed clocks, are healthy; the picture is drawn."""
    clocks = [random.Random(rank).randrange(-(10**9), 10**9) for rank in range(8)]
    folder = write(tmp_path / "dumps", 8, lambda r: steps(r, expected), clock_ns=clocks)
    document = diagnosed(folder, "-o", tmp_path / "out")
    assert document["verdict"] == "healthy"
    assert [call["size_bytes"] for call in document["recorded"]["calls"]] == list(SIZES)
    assert (tmp_path / "out" / "recorded.png").stat().st_size > 10_000


@pytest.mark.long
def test_slow_calls_are_found(tmp_path: Path, expected: dict[int, float]) -> None:
    """Calls that take 2.5 times as long as predicted are no fault of a rank."""
    document = diagnosed(write(tmp_path / "dumps", 8, lambda r: steps(r, expected, factor=2.5)))
    assert document["verdict"] == "finding" and document["cause"] != "late rank"
    assert {call["verdict"] for call in document["recorded"]["calls"]} == {"slow"}


def test_a_late_rank_is_no_slow_network(tmp_path: Path, expected: dict[int, float]) -> None:
    """A rank for which all others wait is named, and the calls are as expected."""
    clocks = [random.Random(rank).randrange(-(10**9), 10**9) for rank in range(8)]
    document = diagnosed(write(tmp_path / "dumps", 8, lambda r: steps(r, expected, late=3), clock_ns=clocks))
    assert (document["cause"], document["where"]["rank"]) == ("late rank", 3)
    assert {call["verdict"] for call in document["recorded"]["calls"]} == {"inside"}
    assert document["recorded"]["ranks"][0]["late_us"] == pytest.approx(2000, rel=0.01)


def test_lateness_without_measured_durations(tmp_path: Path) -> None:
    """The ends of calls tell offsets of clocks from lateness."""

    def late(r: Recorder) -> None:
        for _ in range(30):
            r.call("all_reduce", after_ms=10)
            entry = r.entries[-1]
            entry["time_discovered_completed_ns"] = entry["time_created_ns"] + 5_000_000
            entry["time_created_ns"] += 4_000_000 if r.rank == 2 else 0

    folder = write(tmp_path / "dumps", 4, late, clock_ns=[0, 10**9, -(10**9), 10**6])
    document = simcoll("diagnose", folder, "--json").json
    assert (document["cause"], document["where"]["rank"]) == ("late rank", 2)


def inspector(folder: Path, times_us: dict[int, float], factor: float, late: int | None = None) -> Path:
    """Write lines of NCCL Inspector for eight ranks, a file for each."""
    folder.mkdir()
    for rank in range(8):
        lines = []
        for number in range(36):
            size = SIZES[number % 3]
            took = factor * times_us[size] + (2000 if late not in (None, rank) else 0)
            head = {"id": "0x9f", "rank": rank, "n_ranks": 8, "nnodes": 1}
            about = {"dump_timestamp_us": 10**15 + number * 5000, "hostname": "n0", "pid": 100 + rank}
            perf = {"coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": size, "coll_exec_time_us": took}
            lines.append(json.dumps({"header": head, "metadata": about, "coll_perf": perf}))
        (folder / f"inspector-{rank}.jsonl").write_text("\n".join([*lines, lines[0][:50]]))
    return folder


@pytest.mark.parametrize(("factor", "late", "cause"), [(1, None, None), (1, 5, "late rank"), (3, None, "slow")])
def test_inspector(
    tmp_path: Path, expected: dict[int, float], factor: float, late: int | None, cause: str | None
) -> None:
    """Lines of Inspector are judged as dumps are."""
    document = diagnosed(inspector(tmp_path / "lines", expected, factor, late))
    if cause == "slow":
        assert {call["verdict"] for call in document["recorded"]["calls"]} == {"slow"}
    else:
        assert (document["cause"], document["where"]["rank"]) == (cause, late)


# --- import ---


def tensor_parallel(r: Recorder) -> None:
    """Steps of 10 ms on eight ranks: two pairs of calls within neighbours, a message, and gradients among all."""
    mine = str(1 + r.rank // 4)
    for _ in range(4):
        r.call("all_reduce", 1 << 20, group=mine, after_ms=2, dtype="BFloat16", took_ms=0.1)
        r.call("_all_gather_base", 1 << 18, group=mine, after_ms=3, dtype="BFloat16", took_ms=0.1)
        if r.rank in (0, 4):
            r.call("send 0->4" if r.rank == 0 else "recv 4<-0", 4096, after_ms=0, dtype="BFloat16")
        r.call("all_reduce", 1 << 24, after_ms=5, dtype="BFloat16")


def imported(folder: Path, script: Callable[[Recorder], None], tmp_path: Path, **how: Any) -> Path:
    """Write dumps and import them; return the plan."""
    write(folder, 8, script, groups={"1": range(4), "2": range(4, 8)}, **how)
    outcome = simcoll("import", folder, "-o", tmp_path / "plan.yaml", "--assume", "hgx-h100", "--json")
    assert outcome.status == 0, outcome.err
    return tmp_path / "plan.yaml"


@pytest.mark.parametrize("buffer", [2000, 9])
def test_a_dump_is_a_workload(tmp_path: Path, buffer: int) -> None:
    """The plan has the calls of one step, with groups, sizes and order; it runs, is explained and varied."""
    plan = imported(tmp_path / "dumps", tensor_parallel, tmp_path, buffer=buffer)
    text = plan.read_text()
    calls = [line.split()[1] for line in text.splitlines() if "collective:" in line]
    assert calls == ["all_reduce", "all_gather", "send_recv", "all_reduce"]
    sizes = [line.split()[1] for line in text.splitlines() if line.split()[0] == "size:"]
    assert sizes == [str(2 << 20), str(4 * 2 << 18), str(2 * 4096), str(2 << 24)]
    row = simcoll("run", plan, "--json").json["points"][0]
    assert row["status"] == "ok"
    assert row["time_us"] == pytest.approx(10_000, rel=0.03)
    assert simcoll("explain", plan).status == 0
    slower = simcoll("run", plan, "--json", "--set", "dtype=float32", "--set", "topology.nodes=2").json["points"][0]
    assert slower["status"] == "ok"


def test_dumps_that_are_no_step(tmp_path: Path) -> None:
    """Folders without dumps, and dumps without calls, give a message."""
    (tmp_path / "empty").mkdir()
    outcome = simcoll("import", tmp_path / "empty")
    assert outcome.status == 2 and "no dump" in outcome.err
    outcome = simcoll("import", write(tmp_path / "idle", 2, lambda r: None))
    assert outcome.status == 2 and "no finished collective" in outcome.err
