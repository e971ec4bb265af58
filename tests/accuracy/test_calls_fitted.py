"""What fits, rivals and validation make of calls as NCCL makes them."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import simcoll
from hypothesis import given, settings
from hypothesis import strategies as st
from nccl_law import BLOCK, EVERYWHERE, KEPT, LAW, asked, call, changed, rated, text, under

from simcoll.accuracy.bad_rows import suspicious
from simcoll.accuracy.fit import parameters
from simcoll.accuracy.fit.calibrate import calibrate
from simcoll.accuracy.fit.parameters import BESIDE, BLOCKS, OF_CALLS, OF_TRANSPORT, ParameterSetting, cost
from simcoll.accuracy.fit.retiming import Question
from simcoll.accuracy.studies import _baselines
from simcoll.config import yaml_tree
from simcoll.engine.timing_model import Params
from simcoll.errors import InputError
from simcoll.formats.measured import MeasuredRow, find_measured, read_measured
from simcoll.nccl.kernel_costs import KINDS, BlockCosts
from simcoll.scenario.loading import Point
from simcoll.scenario.profile import costs_by_file, load_profile, parse_profile
from tools import refit

# --- what costs do ---

OFTEN = ("hop", "net", "start", "own", "turn")
DURATIONS = ["launch", *OF_CALLS, *(name for name in BLOCKS if name.partition(".")[2] in OFTEN)]


def question(which: int) -> tuple[Point, Question]:
    """One of these calls, of 1 MB."""
    system, nodes, ranks, collective, algorithm, protocol = EVERYWHERE[which]
    how = {"ranks": ranks, "nodes": nodes, "algorithm": algorithm, "protocol": protocol}
    point = asked(system, collective, 1_000_000, **how)
    with under(LAW):
        return point, Question(point.scenario)


@settings(max_examples=60)
@given(st.integers(0, len(EVERYWHERE) - 1), st.sampled_from(DURATIONS), st.floats(1, 8))
def test_what_takes_longer_is_never_faster(which: int, name: str, times: float) -> None:
    """A longer launch, hop, start, or own share never makes a call faster, and those of other blocks change nothing."""
    _, asking = question(which)
    law = parse_profile(LAW, "law.yaml")
    before = ParameterSetting({}, law.launch, law.links, law.kernels)
    now, then = asking.time_ps(before), asking.time_ps(before.at({name: times * cost(name, law, Params())}))
    assert then >= now
    *_, algorithm, protocol = EVERYWHERE[which]
    kind = {"nvls": "NVLS", "direct": "P2P"}.get(algorithm, protocol)
    if "." in name and name.partition(".")[0] != kind:
        assert then == now


# --- tables ---

FITTED = {"launch": 5, "LL.hop": 0.6, "LL.rate": 6, "Simple.start": 1.8, "Simple.hop": 3.4, "efficiency.nvlink": 90}
COLUMNS = ("system", "library", "library_version", "collective", "ranks", "nodes", "dtype", "size_bytes", "time_us")


def made(
    ranks: Sequence[int], collectives: Sequence[str], noise: float = 0.0, every: int = 1
) -> Iterator[dict[str, Any]]:
    """Rows of library calls on H100s by the law, release 2.27, with log-normal noise."""
    chance = np.random.default_rng(3)
    for collective, n, exponent in itertools.product(collectives, ranks, range(9, 29, every)):
        time_us = call("hgx-h100", collective, 2**exponent, ranks=n, library_version="2.27").time_ps / 1e6
        yield {
            "system": "h100", "library": "nccl", "library_version": "2.27.3", "collective": collective, "ranks": n,
            "nodes": 1, "dtype": "float32", "size_bytes": 2**exponent,
            "time_us": time_us * float(np.exp(chance.normal(0, noise))) if noise else time_us,
        }  # fmt: skip


def write(path: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """A measured table."""
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_kernels_are_found_again(folder: Path) -> None:
    """From times with 3 % noise on 2 and 4 ranks the costs of the kernels behind them come back, from other values, and
    8 ranks, which no fit has seen, are told within 5 % of the law."""
    pytest.importorskip("scipy")
    rows = list(made((2, 4, 8), ("all_gather", "all_reduce", "broadcast"), noise=0.03, every=3))
    other = {"LL": {"hop": 900_000, "rate": 9 * 10**9}, "Simple": {"start": 900_000, "hop": 5_000_000}}
    begin = text({kind: {**its, **other.get(kind, {})} for kind, its in BLOCK.items()}, launch=3_000_000)
    Path("begin.yaml").write_text(begin.replace(f"efficiency: {KEPT}", "efficiency: 1.0"), encoding="utf-8")
    found = calibrate(
        [write("t.csv", rows)], "hgx-h100", fit=["ranks=2,4"], free=list(FITTED), sets=["profile=begin.yaml"]
    )
    for p in found.document["parameters"]:
        law = FITTED[p["name"]]
        assert abs(p["value"] - law) < max(0.05 * law, p["high"] - p["low"]), p
    unseen = [point for point in found.document["points"] if point["ranks"] == 8]
    assert not any(point["fitted"] for point in unseen)
    exact = [one["time_us"] for one in made((8,), ("all_gather", "all_reduce", "broadcast"), every=3)]
    assert [point["predicted_us"] for point in unseen] == pytest.approx(exact, rel=0.05)


def a_row(size: int, time_us: float, **more: Any) -> MeasuredRow:
    """A measured row."""
    return MeasuredRow(
        **{"collective": "all_reduce", "ranks": 8, "nodes": 1, **more, "size_bytes": size, "time_us": time_us}
    )


def test_rows_that_cannot_be_right() -> None:
    """Suspicious is what took more than 1.1 times as long as some size of twice its own or more, and nothing else: not
    what just reaches that, not what has no row of that size, nor one of another series only."""
    assert suspicious([a_row(1, 12.0), a_row(2, 10.0), a_row(4, 30.0)]) == [True, False, False]
    assert suspicious([a_row(1, 10.0), a_row(2, 10.0)]) == [False, False]
    assert suspicious([a_row(1, 1.1), a_row(2, 1.0)]) == [False, False]
    assert suspicious([a_row(1, 100.0), a_row(4, 10.0), a_row(7, 1.0)]) == [True, False, False]
    assert suspicious([a_row(2, 10.0), a_row(1, 12.0)]) == [False, True]  # in any order
    for other in ({"ranks": 4}, {"dtype": "float16"}, {"algorithm": "ring"}, {"others": {"op": "max"}}):
        assert suspicious([a_row(1, 100.0), a_row(2, 10.0, **other)]) == [False, False], other
    assert suspicious([a_row(1, 12.0), a_row(2, 100.0), a_row(2, 10.0)]) == [True, False, False]  # of repeats the best
    alike = [a_row(size, 20.0 + size / 8) for size in (1, 2, 4, 8)]
    assert suspicious([*alike, a_row(16, 10.0)]) == [False] * 5  # so many in a row are how the library is
    assert suspicious([*alike[1:], a_row(16, 10.0)]) == [True, True, True, False]
    assert suspicious([*alike[:2], a_row(3, 30.0), *alike[2:], a_row(16, 10.0)]) == [True] * 5 + [False]
    assert suspicious([]) == []


@settings(max_examples=50)
@given(st.lists(st.floats(1, 1000), min_size=1, max_size=12), st.floats(0.1, 10))
def test_suspicion_has_no_unit(times: list[float], factor: float) -> None:
    """It does not depend on the unit of time, and what rises with the size is never suspicious."""
    rows = [a_row(2**k, time) for k, time in enumerate(times)]
    scaled = [a_row(2**k, time * factor) for k, time in enumerate(times)]
    near = any(abs(a / b - 1.1) < 1e-9 for a, b in itertools.pairwise(times))
    assert near or suspicious(rows) == suspicious(scaled)
    assert not any(suspicious([a_row(2**k, time) for k, time in enumerate(sorted(times))]))


def test_rivals_know_their_own_laws() -> None:
    """A latency and a bandwidth, a power of the size, and rated links are told without error by the rival that has this
    law, at sizes between and beyond; and what has too few rows is told by none."""
    point = asked("hgx-h100", "all_reduce", 2**20, ranks=8)
    sizes, unseen = [2**k for k in range(10, 24, 2)], [3 * 2**12, 2**9, 2**25]

    def off(known: Sequence[Any], new: Sequence[Any]) -> dict[str, float | None]:
        told = [(_baselines.predicted(known, *one), one[0].time_us) for one in new]
        errors = {name: [its[name] and abs(its[name] / us - 1) for its, us in told] for name in _baselines.RIVALS}
        return {name: None if None in its else max(its) for name, its in errors.items()}

    def errors(law: Any, fitted: Sequence[int] = sizes) -> dict[str, float | None]:
        known, new = ([a_row(size, law(size)) for size in its] for its in (fitted, unseen))
        return off(known, [(one, point) for one in new])

    assert errors(lambda size: 7.5 + size / 3e4)["latency-bandwidth fit"] == pytest.approx(0, abs=1e-6)
    assert errors(lambda size: 0.5 * size**0.7)["log-log interpolation"] == pytest.approx(0, abs=1e-6)
    known = [a_row(size, size**0.5 * ranks**0.9, ranks=ranks) for size in unseen for ranks in (2, 4)]
    more = [(a_row(size, size**0.5 * 8**0.9, ranks=8), point) for size in unseen]
    assert off(known, more)["log-log interpolation"] == pytest.approx(0, abs=1e-6)
    speed = rated(call("hgx-h100", "all_reduce", 2**20, ranks=8))
    assert errors(lambda size: 7 / 4 * size / speed * 1e6)["spec sheet"] == pytest.approx(0, abs=1e-6)
    few = errors(lambda size: 1.0, fitted=sizes[:1])
    assert few["latency-bandwidth fit"] is few["log-log interpolation"] is None
    assert few["spec sheet"] is not None
    told = simcoll("tune", "hgx-h100", "--version", "2.27", "--json").json["choice"]
    times = {c["size_bytes"]: c["time_us"] for c in told if c["collective"] == "all_reduce"}
    asking = [(a_row(size, times[size], library_version="2.27.3"), point) for size in (2**10, 2**20, 2**30)]
    assert off([], asking)["NCCL's tuner"] == pytest.approx(0, abs=1e-6)
    table = [row for row in read_measured(find_measured("h100_sxm_nccl-2.27.3.csv")) if row.dtype == "float16"]
    copied = [(row, asked("hgx-h200", row.collective, row.size_bytes, ranks=row.ranks)) for row in table[::9]]
    assert off([], copied)["nearest system's table"] == pytest.approx(0, abs=1e-9)
    assert off([], [(row, asked("hgx-h100", "all_reduce", 2**20, ranks=8)) for row in table[:9]])[
        "nearest system's table"
    ]


@pytest.fixture
def of_others(folder: Path) -> list[dict[str, Any]]:
    """A study of a folder of tables, and the rows of a table there."""
    for name in ("tables", "nothing", "strange", "v/studies"):
        Path(name).mkdir(parents=True)
    Path("v/studies/own.yaml").write_text(
        "title: Own\nplace: tables\ncases: [{table: tables/mine.csv, system: hgx-h100}]\n", encoding="utf-8"
    )
    rows = list(made((2, 4), ("all_gather", "all_reduce"), every=6))
    write("tables/mine.csv", rows)
    return rows


def test_tables_of_nobody_are_refused(of_others: list[dict[str, Any]]) -> None:
    """A folder without tables, and a system that nobody knows, are one clear error each, and nothing is written."""
    write("strange/mine.csv", [{**one, "system": "abacus"} for one in of_others])
    for wrong, why in (
        ("nothing", "nothing: has no *.csv; give a folder of measured tables with --tables"),
        ("nowhere", "nowhere: has no *.csv; give a folder of measured tables with --tables"),
        ("strange", "which system 'abacus' is, is not known; name one of"),
    ):
        found = simcoll("validate", "own", "--folder", "v", "--tables", wrong, "-o", "out")
        assert (found.status, found.out) == (2, "")
        assert why in found.err
        assert len(found.err.splitlines()) == 1
        assert not Path("out").exists()


def test_tables_of_others_are_scored(of_others: list[dict[str, Any]]) -> None:
    """`validate --tables` scores the tables of a folder by cluster, as clusters.yaml names them: series that are near,
    what intervals hold, rivals, signed errors by region."""
    pytest.importorskip("scipy")
    gathered = [one for one in of_others if one["collective"] == "all_gather"]
    write("tables/far.csv", [{**one, "time_us": 2 * one["time_us"], "system": "h100_far"} for one in gathered])
    write("tables/ours.csv", [{**one, "system": "h100_ours"} for one in of_others])
    met = [one for one in gathered if one["ranks"] == 4]
    sizes = ", ".join(f"{one['size_bytes']} B" for one in met)
    told = simcoll("predict", "all_gather", "--on", "hgx-h100", "--size", f"[{sizes}]", "--set", "ranks=4", "--json")
    here = [
        {**one, "system": "h100_here", "time_us": row["time_us"]}
        for one, row in zip(met, told.json["points"], strict=True)
    ]
    write("tables/here.csv", here)
    Path("tables/mine.csv").rename("mine.csv")
    Path("v/studies/own.yaml").write_text(
        "title: Own\nplace: tables\ncases: [{table: mine.csv, system: hgx-h100}]\n", encoding="utf-8"
    )
    text = "clusters:\n- {name: away, rows: [h100_far], system: hgx-h100, lacks: It is far away.}\n"
    text += "- {name: here, rows: [h100_here], system: hgx-h100, lacks: Nothing is lacking.}\n"
    text += "- {name: ours, rows: [h100_ours], system: hgx-h100}\n"
    Path("v/clusters.yaml").write_text(text, encoding="utf-8")
    found = simcoll("validate", "own", "--folder", "v", "--tables", "tables", "-o", "out", "--quiet")
    assert found.status == 0, found.err
    board = Path("out/CLUSTERS.md").read_text(encoding="utf-8")
    of_away = [
        line for line in board.splitlines() if line.startswith("| one node, ") and ": away (none in the fit)" in line
    ]
    assert [line.endswith("| missed |") for line in of_away] == [True]
    assert "| one node | 5 of 7 |" in board  # those that were made twice as slow are not near
    assert "| away | all_gather | 1 |" in board
    assert all(name in board for name in ("NCCL's tuner", "nearest table", "What 90 % intervals hold"))
    # a cluster that misses the goal of one node is told with what the model lacks there, others are not
    goals = re.findall(r"^\| (away|here|ours) \|.*\| (met|missed) \|", board, re.M)
    assert dict(goals) == {"away": "missed", "here": "met", "ours": "missed"}
    asked_for = re.findall(r"^\* \*\*(.*)\*\*: (.*)$", board.split("## Rows outside")[0], re.M)
    assert dict(asked_for) == {"away": "It is far away.", "ours": "not known."}
    # each cell of intervals that misses its goal is told with the calls that make it so, and no other is
    of_cells = re.findall(r"^\| 90 % intervals, (.*?) \| .* \| (met|missed)(.*) \|$", board, re.M)
    few, wide = (
        {name.removeprefix("in the fit: ") for name in re.findall(r"^\* \*\*(.*?)\*\*: .* on \d", section, re.M)}
        for section in board.split("## Rows outside")[1].split("## Intervals wider than calls need")
    )
    assert few == {name for name, _, how in of_cells if "few" in how}
    assert wide == {name for name, _, how in of_cells if "many" in how or "wide" in how}
    assert wide


EVERY = (*BESIDE, *OF_TRANSPORT, *OF_CALLS, *BLOCKS)


def of(name: str) -> Iterator[dict[str, Any]]:
    """Rows that a parameter changes, with times that no law has."""
    many: dict[str, Any] = {"ranks": (2, 8)}
    if name.startswith("graph."):
        many = {"ranks": (8,), "launch.replays": (1, 4), "launch.graph": ("true",), "launch.gpus_per_process": (8,)}
    elif name.startswith("host."):
        many = {"ranks": (8,), "launch.gpus_per_process": (2, 8)}
    elif name.startswith("transport."):
        many = {"ranks": (16,), "nodes": (2,)}
    elif name.startswith("pull."):
        many = {"ranks": (2, 8), "protocol": ("pull",), "launch.graph": ("true",)}
    shared = {"library": "nccl", "library_version": "2.27.3", "dtype": "float32", "nodes": 1}
    collectives = ("all_reduce",) if name.startswith("pull.") else ("all_reduce", "all_to_all")
    for collective, *keys in itertools.product(collectives, *many.values()):
        for size in (1 << 10, 1 << 18, 1 << 26):
            how = dict(zip(many, keys, strict=True))
            time_us = 20 + size / 1e5 + how["ranks"] * 8 / how.get("launch.replays", 8)
            yield {**shared, "collective": collective, **how, "size_bytes": size, "time_us": time_us}


@pytest.mark.parametrize(
    ("profile", "system", "names"),
    [
        ("nccl-blackwell", "hgx-b200", ("graph.upload", "host.message")),
        pytest.param("nccl-blackwell", "hgx-b200", EVERY, marks=pytest.mark.long),
        pytest.param("nccl-volta", "dgx1-v100", EVERY, marks=pytest.mark.long),
        pytest.param("nccl-pcie", "l40s-pcie", EVERY, marks=pytest.mark.long),
    ],
)
def test_what_may_be_freed_is_written(profile: str, system: str, names: Sequence[str], folder: Path) -> None:
    """Each parameter, freed by itself from a profile that may know nothing of its kind, is refused by its name, or
    fitted: the profile is read again, has the value, and an interval around it that is not of no width."""
    written = 0
    for name in names:
        rows = list(of(name))
        with Path("t.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        try:
            found = calibrate(["t.csv"], system, free=[name], sets=[f"profile={profile}"])
        except InputError as error:
            assert str(error).startswith((f"{name}: ", "none of ")), name
            continue
        (p,) = found.document["parameters"]
        assert parse_profile(found.text, "p").name == "calibrated", name
        assert p["value"] is None or None in (p["low"], p["high"]) or p["low"] <= p["value"] <= p["high"], name
        assert p["value"] is None or p["low"] != p["high"], name
        written += 1
    assert written > len(names) / 3


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_fit_to_one_node_leaves_nics_open(nodes: int, tmp_path: Path) -> None:
    """A profile that was fitted to rows of one node says nothing of hops between nodes, one of several nodes all."""
    slow = changed("LL", hop=4_000_000)
    rows = ["library,collective,ranks,nodes,dtype,size_bytes,time_us"]
    for k in range(8, 24, 2):
        time = call("hgx-h100", "all_gather", 1 << k, slow, nodes=nodes, ranks=8 * nodes).time_ps / 1e6
        rows.append(f"nccl,all_gather,{8 * nodes},{nodes},float32,{1 << k},{time}")
    table = tmp_path / "table.csv"
    table.write_text("\n".join(rows) + "\n")
    found = calibrate([table], "hgx-h100", free=["LL.hop"], sets=["profile=nccl"])
    assert (parse_profile(found.text, "found.yaml").transport is None) == (nodes == 1)


@pytest.mark.parametrize("name", ["nccl", "nccl-ampere"])
def test_a_fit_keeps_what_it_does_not_know(name: str, tmp_path: Path) -> None:
    """What the profile says of a block and no fit asks for is written as it was: LL128's own block, what is saved. A
    fit may begin with the profile of a relative; what it writes is for the GPUs that were measured."""
    took = {1 << k: call("hgx-h100", "all_gather", 1 << k, ranks=8).time_ps / 1e6 for k in range(8, 24, 2)}
    rows = ["library,collective,ranks,dtype,size_bytes,time_us"]
    rows += [f"nccl,all_gather,8,float32,{size},{time}" for size, time in took.items()]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(rows) + "\n")
    begin = load_profile(name).kernels
    found = parse_profile(calibrate([table], "hgx-h100", free=["LL.hop"], sets=[f"profile={name}"]).text, "p")
    kernels = found.kernels
    assert found.generations == ("hopper",)
    assert begin is not None
    assert kernels is not None
    assert (kernels.LL128.own, kernels.Simple.saved) == (begin.LL128.own, begin.Simple.saved)
    assert kernels.Simple.saved > 0


def test_generations_of_gpus_have_costs_in_common() -> None:
    """What was fitted to generations together is written once, and no fit to one of them names it. At most twelve
    fitted costs are a generation's own, and thirteen that are written."""
    profiles = {name: load_profile(name) for name in refit.GENERATIONS}
    for name in load_profile(refit.COMMON).fitted:
        assert len(sharing := refit.sharers(name)) > 1, name
        assert not any(name in profiles[each].fitted for each in sharing), name
    assert max(len(profile.fitted) for profile in profiles.values()) <= 12
    assert max(len(costs_by_file(profile)[name]) for name, profile in profiles.items()) <= 13


@pytest.mark.parametrize("name", refit.GENERATIONS)
def test_a_fit_again_leaves_inherited_costs_where_they_are(name: str) -> None:
    """A whole profile, as a calibration writes it, and the file that is like another say the same."""
    shipped = load_profile(name)
    of_calls = {each: parameters.text(each, cost(each, shipped, Params())) for each in OF_CALLS}
    blocks = {
        kind: {
            key: parameters.text(f"{kind}.{key}", cost(f"{kind}.{key}", shipped, Params()))
            for key in BlockCosts.model_fields
        }
        for kind in KINDS
    }
    file = yaml_tree.dump({"name": name, "kernels": {**of_calls, **blocks}})
    again = refit.inheriting(file, name)
    assert parse_profile(again, name).kernels == shipped.kernels
    written = yaml_tree.parse(again, name).plain()["kernels"]
    costs = {f"{kind}.{key}" for kind in KINDS for key in written.get(kind, {})}
    assert costs == {each for each in costs_by_file(shipped)[name] if each.partition(".")[0] in KINDS}
