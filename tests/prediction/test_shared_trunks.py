"""Trunks between switches on which the channels by all NICs of a node meet, of which one is run."""

from __future__ import annotations

from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.prediction.predict import Prediction, predict
from simcoll.prediction.replications import part
from simcoll.scenario.scenario import Scenario
from simcoll.scenario.scenario_files import Point
from simcoll.topology.machine_files import shipped_systems

RATIOS = (1, 1.5, 2, 4, 8)
CABLE = {"bandwidth": "100 GB/s", "latency": "1 us"}
CALLS = [
    (c, a) for c in ("all_reduce", "all_gather", "broadcast") for a in ("ring", "tree") if a == "ring" or "red" in c
]


def on(fabric: str, algorithm: str = "ring", collective: str = "all_reduce", **keys: Any) -> Scenario:
    """A call of 16 MiB on nodes of 8 H100 on a fabric; some keys are those of the call."""
    own = {key: keys.pop(key) for key in ("size", "profile", "variability", "replications", "workload") if key in keys}
    call = {"collective": collective, "algorithm": algorithm, "size": "16 MiB"} if "workload" not in own else {}
    where = {"system": "hgx-h100", "nodes": 4, "fabric": fabric, **keys}
    return Scenario.model_validate({"topology": where, **call, **own})


def time_ps(*args: str, **keys: Any) -> int:
    """Its time."""
    return predict(on(*args, **keys)).time_ps


@pytest.mark.parametrize(("collective", "algorithm"), CALLS)
def test_a_shared_trunk_serves_as_trunks_of_each_rail(collective: str, algorithm: str) -> None:
    """Eight rails that share a leaf's trunk take as long as rails that have one each of an eighth of it, to the
    picosecond, whatever trunks lack, and however many nodes a leaf has."""
    for ratio, per_leaf in product(RATIOS, (1, 2)):
        keys = {"oversubscription": ratio, "nodes_per_leaf": per_leaf}
        shared, apart = (time_ps(each, algorithm, collective, **keys) for each in ("fat-tree", "rail-optimised"))
        assert shared == apart, (ratio, per_leaf)


def test_rails_spread_over_spines() -> None:
    """Trunks to two, four or eight spines serve eight rails as one that is as wide; of more spines than rails some have
    no traffic, and the narrower trunks limit the rest. So times never fall with what trunks lack, or with spines."""
    for ratio in RATIOS:
        keys: dict[str, Any] = {"oversubscription": ratio, "nodes_per_leaf": 1}
        times = [time_ps("fat-tree", spines=spines, **keys) for spines in (1, 2, 4, 8, 16, 32)]
        assert len(set(times[:4])) == 1
        assert times == sorted(times)
    limited = [time_ps("fat-tree", oversubscription=ratio, nodes_per_leaf=1, size="1 GiB") for ratio in RATIOS]
    assert all(few < many for few, many in pairwise(limited))


def test_a_trunk_that_limits_a_ring_is_busy() -> None:
    """It carries 2 (n - 1) / n of a call's bytes each way, nearly all of the time, and no link has more than that."""
    found: Prediction = predict(on("fat-tree", nodes_per_leaf=1, oversubscription=8, size="1 GiB"))
    rate = 8 * 50e9 / 8
    assert found.time_ps == pytest.approx(2 * 31 / 32 * 2**30 / rate * 1e12, rel=0.01)
    names = found.links.names
    trunks = [names.index(f"leaf{leaf}->spine0") for leaf in range(4)]
    assert found.busy[trunks] == pytest.approx(1, rel=0.01)
    assert found.busy.max() <= 1


@settings(max_examples=20)
@given(
    st.sampled_from(["fat-tree", "fat-tree", "ring", "full-mesh", "rail-optimised"]),
    st.sampled_from([*CALLS, ("all_reduce", "nvls_tree"), ("all_reduce", "auto"), ("all_to_all", "auto")]),
    st.sampled_from([2, 3, 4, 6]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([{}, {"spines": 2}, {"spines": 8}, {"levels": 3, "leaves_per_pod": 2}]),
    st.sampled_from([1, 2]),
    st.sampled_from(["hgx-h100", "dgx-a100", "gh200-4", "mi300x"]),
)
def test_no_call_is_quicker_than_the_bound(
    fabric: str, call: tuple[str, str], nodes: int, ratio: float, wide: dict[str, Any], per_leaf: int, system: str
) -> None:
    """Whatever the fabric, and however few bytes its trunks carry."""
    if call[1] == "nvls_tree" and system != "hgx-h100":
        return
    keys: dict[str, Any] = {"link": CABLE}
    if fabric not in ("ring", "full-mesh"):
        deep = wide if fabric == "fat-tree" or "levels" not in wide else {}
        keys = {"oversubscription": ratio, "nodes_per_leaf": per_leaf, **deep}
    found = predict(on(fabric, call[1], call[0], nodes=nodes, system=system, size="64 MiB", **keys))
    assert found.time_ps >= found.lower_bound_ps


@pytest.mark.parametrize("profile", [None, "ideal"])
def test_routes_that_are_drawn_never_spread_better_than_evenly(profile: str | None) -> None:
    """A ring by NCCL, or by copies of which one is run: no draw is quicker than trunks that are shared evenly, and with
    spines that limit the call they are slower; at worst all take one trunk."""
    own = {"profile": profile} if profile else {}
    for ratio, spines in product((1, 4), (2, 8)):
        keys: dict[str, Any] = {"nodes": 16 if profile else 4, "nodes_per_leaf": 1, "spines": spines, **own}
        keys["oversubscription"] = ratio
        drawn = on("fat-tree", variability={"ecmp": {}}, replications=4, **keys)
        times = (part(Point(drawn, replicas=(0, 4))).times_ps or {})["ecmp"]
        even = time_ps("fat-tree", **keys)
        assert min(times) >= even
        assert max(times) <= 1.01 * spines * even
        assert ratio == 1 or max(times) > 1.2 * even


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_plans_and_machines_of_files_have_the_same_trunks(algorithm: str, tmp_path: Path) -> None:
    """A call takes as long alone, after computation in a plan, and on a machine that the user's file describes; in a
    plan of two calls draws of routes are those of either, too."""
    keys: dict[str, Any] = {"nodes_per_leaf": 1, "oversubscription": 4, "spines": 2}
    alone = time_ps("fat-tree", algorithm, **keys)
    call = {"collective": "all_reduce", "algorithm": algorithm, "size": "16 MiB"}
    steps = [{"name": "compute", "time": "3 us"}, {"name": "call", **call, "after": ["compute"]}]
    assert time_ps("fat-tree", workload={"operations": steps}, **keys) == 3_000_000 + alone
    mine = tmp_path / "mine.yaml"
    mine.write_text(shipped_systems()["hgx-h100"].read_text())
    assert time_ps("fat-tree", algorithm, system=None, file=str(mine), **keys) == alone


def test_calls_of_a_plan_draw_for_the_nics_that_each_uses() -> None:
    """Draws of a ring are as slow behind an all-to-all, which uses all NICs by itself, as alone."""
    where: dict[str, Any] = {"nodes": 2, "nodes_per_leaf": 1, "spines": 8}
    keys = {**where, "variability": {"ecmp": {}}, "replications": 3}
    ring = {"collective": "all_gather", "algorithm": "ring", "size": "64 MiB"}
    other = {"collective": "all_to_all", "size": "8 KiB"}
    steps = [{"name": "before", **other}, {"name": "ring", "after": ["before"], **ring}]
    plans = [on("fat-tree", workload={"operations": some}, **keys) for some in (steps[:1], steps)]
    before, both = ((part(Point(plan, replicas=(0, 3))).times_ps or {})["ecmp"] for plan in plans)
    even = time_ps("fat-tree", "ring", "all_gather", size="64 MiB", **where)
    assert min(both) > max(before) + 1.3 * even
