"""All-reduces of registered buffers: barriers and the bytes of links, where a switch reduces, from release 2.27 on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import simcoll
from nccl_law import BLOCK, ITEM, KEPT, LAUNCH, call, channel, rated
from nccl_law import LAW as EAGER

import simcoll as sc
from simcoll.engine.timing_model import service_ps
from simcoll.prediction.predict import predict
from simcoll.scenario.scenario import Scenario

LAW = f"{EAGER}graph: {{launch: 3 us}}\n"
ASKED = {"launch": {"registered": True}}


def time_ps(nbytes: int, launch: dict[str, Any], system: str = "hgx-h100", **more: Any) -> int:
    """Time of an all-reduce that is launched so."""
    how = {"collective": "all_reduce", **more}
    return call(system, nbytes=nbytes, law=LAW, launch=launch, **how).time_ps


@pytest.mark.parametrize("system", ["hgx-h100", "hgx-b200"])
@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize("exponent", [3, 10, 14, 16, 20, 27, 33])
def test_large_calls_take_barriers_and_links_small_ones_flags(system: str, n: int, exponent: int) -> None:
    """Of a large call links carry every byte, and an n-th once more, while it is stored as it is loaded. Of a small one
    they carry the data of all n, with as many flags. Nothing is copied, so no block's rate and no chunk counts."""
    found = call(system, "all_reduce", 2**exponent, law=LAW, ranks=n, **ASKED)
    assert found.algorithm == "symmetric"
    flags = found.protocol == "LL"
    assert flags == (n * 2**exponent <= (2**17 if system == "hgx-h100" else 2**19))  # of powers of two
    share = 1 / (2 * n) if flags else n / (n + 1)
    moved = service_ps(max(2**exponent, n * ITEM), round(rated(found) * KEPT * BLOCK["NVLS"]["reach"] * share))
    once = LAUNCH + (2 if flags else 4) * BLOCK["LL"]["hop"]
    pieces = 1 if exponent < 10 else 256
    assert found.time_ps == pytest.approx(once + moved * (1 + 1 / pieces), abs=2000)


@pytest.mark.parametrize("exponent", range(4, 34, 5))
def test_registering_never_costs(exponent: int) -> None:
    """Copies that are left out take no time: at every size a call takes less."""
    assert time_ps(2**exponent, ASKED["launch"]) < time_ps(2**exponent, {})


@pytest.mark.parametrize(
    "other",
    [
        {"library_version": "2.26"},
        {"collective": "broadcast"},
        {"algorithm": "ring"},
        {"protocol": "Simple"},
        {"op": "max"},
        {"dtype": "int32"},
        {"system": "dgx-a100"},
        {"nodes": 2, "ranks": 16},
        {"env": {"NCCL_ALGO": "Ring"}},
    ],
)
def test_elsewhere_it_changes_nothing(other: dict[str, Any]) -> None:
    """Symmetric kernels add floats where a switch does, on one node, where the user leaves the choice."""
    assert time_ps(2**22, ASKED["launch"], **other) == time_ps(2**22, {}, **other)


@pytest.mark.parametrize(("version", "by_itself"), [("2.29", False), ("2.30", True), (None, True)])
@pytest.mark.parametrize("gpus", ["all", 8, 4])
def test_a_graph_of_one_process_is_registered_from_230_on(version: str | None, by_itself: bool, gpus: Any) -> None:
    """One process that captures the calls of all GPUs knows all buffers; processes of some GPUs do not."""
    graph = {"graph": True, "gpus_per_process": gpus}
    one, told, not_ = (
        time_ps(2**22, {**graph, **more}, library_version=version)
        for more in ({}, {"registered": True}, {"registered": False})
    )
    assert told < not_
    assert one == (told if by_itself and gpus != 4 else not_)


def test_a_call_of_a_plan_is_the_same() -> None:
    """Alone and in a workload a registered call takes as long."""
    asked = {"collective": "all_reduce", "algorithm": "auto", "size": "16 MiB"}
    where = {"topology": {"system": "hgx-h100"}, "profile": "nccl-hopper", **ASKED}
    alone = predict(Scenario.model_validate({**where, **asked}))
    plan = predict(Scenario.model_validate({**where, "workload": {"operations": [{"name": "call", **asked}]}}))
    assert channel(alone).call.registered
    assert plan.time_ps == alone.time_ps


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("launch", "family"),
    [
        ({}, "registered"),
        pytest.param({"graph": True}, "registered graph", marks=pytest.mark.long),
        ({"gpus_per_process": "all"}, "registered, one process"),
    ],
)
def test_diagnose_finds_registered_buffers(tmp_path: Path, launch: dict[str, Any], family: str) -> None:
    """A table of registered buffers that does not say so is faster than expected, and is told why."""
    law, rows = f"{LAW}host: {{launch: 4 us}}\n", ["collective,ranks,size_bytes,time_us"]
    how = {"launch": {**launch, **ASKED["launch"]}}
    for exponent in (6, 10, 14, 18, 20, 22, 24, 26):
        found = call("hgx-h100", "all_reduce", 2**exponent, law=law, **how)
        rows.append(f"all_reduce,8,{2**exponent},{found.time_ps / 1e6}")
    table, profile = tmp_path / "table.csv", tmp_path / "law.yaml"
    table.write_text("\n".join(rows) + "\n")
    profile.write_text(law)
    got = simcoll("diagnose", str(table), "--topology", "hgx-h100", "--set", f"profile={profile}", "--json")
    assert json.loads(got.out)["cause"] == family


@pytest.mark.parametrize(
    ("more", "used"),
    [
        ({"collective": "all_reduce"}, True),
        ({"collective": "all_reduce", "library_version": "2.20.5"}, False),
        ({"collective": "all_reduce", "algorithm": "ring"}, False),
        ({"collective": "all_reduce", "protocol": "Simple"}, False),
        ({"collective": "all_reduce", "env": {"NCCL_ALGO": "Ring"}}, False),
        ({"collective": "all_reduce", "dtype": "int32"}, False),
        ({"collective": "all_gather", "dtype": "int8"}, True),
        ({"collective": "reduce_scatter"}, True),
        ({"collective": "broadcast"}, False),
        ({"collective": "all_reduce", "topology": {"system": "hgx-h100", "nodes": 2}}, False),
        ({"collective": "all_reduce", "topology": {"system": "hgx-h100", "nodes": 2}, "ranks": 3}, True),
        ({"collective": "all_gather", "topology": "mi300x", "ranks": 8}, False),
    ],
)
def test_registered_buffers_that_change_nothing_are_said(more: dict[str, Any], used: bool) -> None:
    """A note stands where `launch.registered` changes no time, and nowhere else."""
    asked = {"topology": "hgx-h100", "size": "1 MiB", **more}
    plain, registered = (sc.run(**asked, launch=launch) for launch in ({}, {"registered": True}))
    assert (plain["time"] != registered["time"]) == used
    said = [note for note in registered.notes if note not in plain.notes]
    assert [note.startswith("launch.registered changes nothing") for note in said] == [True] * (not used)
