"""Questions that are too large: what is refused, by what estimate, and before anything large is made."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import simcoll
from workloads import CABLE

from simcoll.config import yaml_tree
from simcoll.engine.streamed import check_steps
from simcoll.errors import InputError
from simcoll.explanation.recommendation import recommendations
from simcoll.prediction.placed_topology import topology_of
from simcoll.prediction.predict import predict
from simcoll.prediction.work_limits import FEW, ScheduleWork, grown
from simcoll.scenario.scenario import Scenario
from simcoll.scenario.scenario_files import Point
from simcoll.schedule.algorithms import stream
from simcoll.schedule.registry import ALGORITHMS
from simcoll.schedule.schedule import StreamedSchedule

HOSTS = 1_000_000
MOST_MADE = 200_000_000  # bytes, while a question is refused: a topology of a million hosts takes ten times as much
STAR = {"fabric": "single-switch", "hosts": HOSTS, "link": CABLE}
TREE = {"fabric": "fat-tree", "hosts": HOSTS, "link": CABLE}
RING = {"collective": "all_reduce", "algorithm": "ring", "size": "4 MB", "topology": STAR}
KERNELS = {"profile": "nccl-hopper", "topology": {"system": "hgx-h100", "nodes": 2048}}
REASONS = r"GB of memory, and this machine has|(h|min) of processor time, and the limit is"
TOO_LARGE: dict[str, dict[str, Any]] = {
    "one step of all pairs": {"algorithm": "all_pairs"},
    "an exchange": {"collective": "all_to_all", "algorithm": "direct"},
    "an exchange by groups": {"collective": "all_to_all", "algorithm": "hierarchical", "topology": TREE},
    "messages that meet on trunks": {
        "collective": "all_to_all",
        "algorithm": "direct",
        "size": "64 MiB",
        "topology": {**TREE, "hosts": 4096},
    },
    "many rows": {"algorithm": "halving_doubling", "topology": TREE},
    "unequal chunks": {"size": "64 MiB"},
    "a choice left open": {"algorithm": "auto", "size": "64 MiB", "topology": TREE},
    "a bound": {"algorithm": "auto", "size": "64 MiB", "topology": TREE, "profile": "ideal"},
    "unequal links": {"topology": {**STAR, "link": {**CABLE, "bandwidth": {"value": "10 GB/s", "spread": "1 %"}}}},
    "a fault": {"faults": [{"link": "host0->switch", "kind": "down", "at": "1 us"}]},
    "no shortcuts": {"shortcuts": "off"},
    "kernels": {"algorithm": "hierarchical", **KERNELS},
    "kernels of messages": {"algorithm": "hierarchical", "executor": "p2p", **KERNELS},
    "cables of a mesh": {"topology": {**STAR, "fabric": "full-mesh"}},
    "cables of spines": {"topology": {**TREE, "spines": 100_000}},
    "cables of rails": {"topology": {"system": "hgx-h100", "nodes": 16384, "spines": 4096}},
}


def made(asked: Callable[[], object]) -> int:
    """The most memory that Python had at once while it was asked, in bytes."""
    tracemalloc.start()
    try:
        asked()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("keys", TOO_LARGE.values(), ids=TOO_LARGE)
def test_what_is_too_large_is_refused_before_its_topology_is_built(keys: dict[str, Any]) -> None:
    """In one sentence: what it would take, and what to do instead."""

    def asked() -> None:
        with pytest.raises(InputError, match=REASONS) as told:
            predict(Scenario.model_validate(RING | keys))
        assert "; " in str(told.value) and "\n" not in str(told.value)

    assert made(asked) < MOST_MADE


@pytest.mark.parametrize("door", ["run", "explain", "measure --dry-run"])
def test_all_doors_refuse_it(door: str, tmp_path: Path) -> None:
    """A sweep has the reason in the row of the point."""
    path = tmp_path / "large.yaml"
    path.write_text(yaml_tree.dump({**RING, "algorithm": "all_pairs"}), encoding="utf-8")
    asked = simcoll(*door.split(), path)
    assert asked.status and "GB of memory, and this machine has" in asked.out + asked.err
    assert door != "run" or f"{path}:6:10: topology.hosts: more than 507 billion messages" in asked.err


@pytest.mark.thorough
def test_recommend_leaves_out_what_is_too_large(tmp_path: Path) -> None:
    """And recommends another algorithm, also where the scenario names the one that is."""
    hosts = 50_000
    keys = {**RING, "algorithm": "all_pairs", "size": f"{4 * hosts} B", "topology": {**STAR, "hosts": hosts}}
    path = tmp_path / "large.yaml"
    path.write_text(yaml_tree.dump(keys), encoding="utf-8")
    assert simcoll("run", path, "-o", tmp_path / "out").status
    found = simcoll("recommend", path, "--among", "all_pairs", "--among", "ring", "--json")
    assert found.status == 0, found.err
    (advice,) = json.loads(found.out)["recommendations"]
    assert advice["ranges"][0]["algorithm"] == "ring"
    assert re.search(REASONS, advice["left_out"]["all_pairs"])


@pytest.mark.thorough
def test_recommend_refuses_more_choices_than_anybody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a topology is built; fewer choices are taken, and so is a longer time."""
    few = [Point(Scenario.model_validate(RING | {"topology": {**TREE, "hosts": 1000}, "size": "4 MB"}))]
    many = [Point(Scenario.model_validate(RING | {"topology": {**TREE, "hosts": 10_000}, "size": "4 MB"}))]
    monkeypatch.setenv("SIMCOLL_LONGEST", "1 s")

    def asked() -> None:
        with pytest.raises(
            InputError, match=r"332 runs, .* 33\.2 s .*the limit is 1 s.*--among, e\.g\. ring, .*SIMCOLL"
        ):
            recommendations(many)

    assert made(asked) < made(lambda: topology_of(many[0].scenario))  # schedules of few ranks are made, and joined
    assert recommendations(few, ["ring"])
    monkeypatch.setenv("SIMCOLL_LONGEST", "1 h")
    (found,) = recommendations(few)
    named = {each.groups for each in found.of}
    assert None in named and 2 in named and 250 not in named  # leaves of four hosts, as where no groups are named


@pytest.mark.parametrize("door", ["run", "explain", "recommend", "recommend --set profile=nccl-hopper"])
def test_more_ranks_than_places_are_refused_where_they_stand(door: str, tmp_path: Path) -> None:
    """With file, line and column, and what would do."""
    path = tmp_path / "many.yaml"
    text = "ranks: [2, 9]\ntopology: {system: hgx-h100}\ncollective: all_reduce\nsize: 1 MB\nplots: []\n"
    path.write_text(text, encoding="utf-8")
    command, *options = door.split()
    asked = simcoll(command, path, *options, *(["-o", tmp_path / "out"] if command == "run" else []))
    told = " ".join((asked.out + asked.err).split()).replace(" # ", " ")
    assert ":1:12: ranks: 9 ranks do not fit 8 places of hgx-h100; write at most 8 ranks" in told


@pytest.mark.parametrize("value", ["long", "3", "3 parsec", "0", "-1 h", "1e99 h"])
def test_a_longest_time_that_is_none_is_one_clear_error(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the variable, however little work there is."""
    monkeypatch.setenv("SIMCOLL_LONGEST", value)
    with pytest.raises(InputError, match=r"^SIMCOLL_LONGEST: .*; ") as told:
        check_steps(0)
    assert "\n" not in str(told.value)


def counted(source: StreamedSchedule) -> ScheduleWork:
    """The work of a schedule that is made, slot by slot."""
    parts = [part.by_slot() for part in source.parts()]
    rows = [part.rows for part in parts]
    return ScheduleWork(sum(part.rows * part.steps for part in parts), sum(rows), max(rows, default=0))


QUICK = {
    "all_reduce": ("ring", "tree", "recursive_doubling", "hierarchical", "hierarchical_tree", "nvls"),
    "all_gather": ("ring",),
    "gather": ("binomial",),
}


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        pytest.param(collective, name, marks=() if name in QUICK.get(collective, ()) else pytest.mark.long)
        for collective, entries in ALGORITHMS.items()
        for name in entries
    ],
)
def test_an_estimate_is_never_more_than_the_work(collective: str, algorithm: str) -> None:
    """Nor less than a quarter of its transfers, but for a few: on twice as many ranks as the larger of those from which
    one learns."""

    def make(n: int) -> StreamedSchedule:
        return stream(collective, algorithm, n, agents=n)

    ranks = 2 * FEW[1]
    least, work = grown(make, ranks), counted(make(ranks))
    assert all(few <= right for few, right in zip(least, work, strict=True))
    assert work.transfers <= 4 * least.transfers + 8
