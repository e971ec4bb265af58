"""What fits, rivals and validation make of calls as NCCL makes them."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from command import simcoll
from hypothesis import given, settings
from hypothesis import strategies as st
from made_tables import made, write
from nccl_law import BLOCK, EVERYWHERE, KEPT, LAW, asked, call, changed, rated, text, under

from simcoll.accuracy.fit.calibrate import calibrate
from simcoll.accuracy.fit.parameters import BESIDE, BLOCKS, OF_CALLS, OF_TRANSPORT, cost, with_costs
from simcoll.accuracy.fit.rows_to_fit import RetimedPoint
from simcoll.accuracy.measured_points import suspicious
from simcoll.accuracy.studies import baselines
from simcoll.engine.timing_model import Params
from simcoll.errors import InputError
from simcoll.formats.measured import MeasuredRow
from simcoll.scenario.profile import CostSetting, load_profile, parse_profile
from simcoll.scenario.scenario_files import Point

# --- what costs do ---

OFTEN = ("hop", "net", "start", "own", "turn")
DURATIONS = ["launch", *OF_CALLS, *(name for name in BLOCKS if name.partition(".")[2] in OFTEN)]


def question(which: int) -> tuple[Point, RetimedPoint]:
    """One of these calls, of 1 MB."""
    system, nodes, ranks, collective, algorithm, protocol = EVERYWHERE[which]
    how = {"ranks": ranks, "nodes": nodes, "algorithm": algorithm, "protocol": protocol}
    point = asked(system, collective, 1_000_000, **how)
    with under(LAW):
        return point, RetimedPoint(point.scenario)


@settings(max_examples=60)
@given(st.integers(0, len(EVERYWHERE) - 1), st.sampled_from(DURATIONS), st.floats(1, 8))
def test_what_takes_longer_is_never_faster(which: int, name: str, times: float) -> None:
    """A longer launch, hop, start, or own share never makes a call faster, and those of other blocks change nothing."""
    _, asking = question(which)
    law = parse_profile(LAW, "law.yaml")
    before = CostSetting({}, law.launch, law.links, law.kernels)
    slower = with_costs(before, {name: times * cost(name, law, Params())})
    now, then = asking.time_ps(before), asking.time_ps(slower)
    assert then >= now
    *_, algorithm, protocol = EVERYWHERE[which]
    kind = {"nvls": "NVLS", "direct": "P2P"}.get(algorithm, protocol)
    if "." in name and name.partition(".")[0] != kind:
        assert then == now


# --- tables ---

FITTED = {"launch": 5, "LL.hop": 0.6, "LL.rate": 6, "Simple.start": 1.8, "Simple.hop": 3.4, "efficiency.nvlink": 90}


def test_kernels_are_found_again(folder: Path) -> None:
    """From times with 3 % noise on 2 and 4 ranks the costs of the kernels behind them come back, from other values, and
    8 ranks, which no fit has seen, are told within 5 % of the law."""
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
        told = [(baselines.predicted(known, *one), one[0].time_us) for one in new]
        errors = {name: [its[name] and abs(its[name] / us - 1) for its, us in told] for name in baselines.RIVALS}
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
        for size in (1 << 10, 1 << 17, 1 << 23):
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
