"""What counts as seen by a fit on the board of clusters, and what scored rows may teach."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clusters import board, cluster_scores, left_out, lessons
from clusters.rows import ClusterRow, by_profile, fitted_beside
from clusters.rows import rows_of as of_tables
from command import simcoll
from made_tables import made, write

from simcoll.accuracy.fit import parameters
from simcoll.engine.timing_model import Params
from simcoll.formats.measured import MeasuredRow
from simcoll.scenario.profile import BesideTable, Profile, find_profile, load_network, parse_profile, shipped_profiles
from simcoll.scenario.scenario import Scenario
from simcoll.scenario.scenario_files import Point, load


def a_row(table: str, collective: str | None = None, **more: Any) -> MeasuredRow:
    """A row of the table with this label."""
    about = {"ranks": 8, "size_bytes": 1, "time_us": 1.0, **more}
    return MeasuredRow(collective=collective or "all_gather", others={"table": table}, **about)


EVERY = {name: load_network(name) for name in shipped_profiles()}
BESIDE = [(name, each) for name, profile in EVERY.items() for each in profile.beside]


@pytest.mark.parametrize(("name", "table"), BESIDE)
def test_rows_that_costs_were_fitted_to_beside_a_record_are_known(name: str, table: BesideTable) -> None:
    """A row is one of them by the hash of its table, the pattern of its label and its collective, where one is said;
    also for a profile that takes the costs from this one. The costs are parameters that the profile has."""
    heir = parse_profile(f"name: heir\nlike: {name}\nharness: nccl-tests\n", "heir")
    assert all(parameters.cost(cost, EVERY[name], Params()) > 0 for cost in table.costs)
    for profile in (EVERY[name], heir):
        for pattern in table.tables:
            label = pattern.replace("*", "_8")
            assert fitted_beside(profile, table.sha256, a_row(label, table.collective))
            assert not fitted_beside(profile, table.sha256[::-1], a_row(label, table.collective))
            assert not fitted_beside(profile, table.sha256, a_row(f"other_{label}", table.collective))
            assert fitted_beside(profile, table.sha256, a_row(label, "broadcast")) == (table.collective is None)


def test_rows_beside_a_record_are_neither_left_out_nor_fitted() -> None:
    """Costs of GPUs stay where a transport is left out, so on several nodes such rows show nothing that is unseen."""
    point = next(iter(load("quickstart", [])))
    for nodes in (1, 2):
        row = ClusterRow("c", a_row("t", nodes=nodes), point, "efa", 0.5, 1.1, True, left_out_us=1.2, fitted_us=1.3)
        errors = {"zero-shot": 10.0, "left out": 20.0, "fitted": 30.0}
        assert {way: error(row) for way, error in cluster_scores.WAYS.items()} == pytest.approx(errors)
        unseen = {"left out": None, **({"fitted": None} if nodes > 1 else {})}
        found = {way: error(replace(row, gpus_seen=True)) for way, error in cluster_scores.WAYS.items()}
        assert found == pytest.approx({**errors, **unseen})


def test_a_cluster_teaches_its_own_intervals_nothing() -> None:
    """What others teach a cluster is the same whatever was measured on it; intervals of rows, also of a profile that
    was fitted to it, have what others teach, and nothing else."""
    asked = {"topology": "hgx-h100", "collective": "all_reduce", "size": "1 GiB", "profile": "nccl-hopper"}
    point = Point(Scenario.model_validate(asked))

    def of(factor: float) -> list[ClusterRow]:
        rows = [ClusterRow(name, a_row("t"), point, "nvlink", 0.9, 1.1, False) for name in "ab" for _ in range(4)]
        return [replace(row, predicted_us=factor if row.cluster == "a" else 1.1) for row in rows]

    near, far = (lessons.of_others(of(factor)) for factor in (1.01, 9.0))
    assert near["a"] == far["a"]
    assert near["b"] != far["b"]
    text = find_profile("nccl-hopper").read_text(encoding="utf-8").replace("name: nccl-hopper", "name: mine")
    taught = [near["a"], far["a"], near["b"], far["b"]]
    ends = [by_profile(text, of(1.0)[:1], known)[0][1] for known in taught]
    (same, as_before, narrow, wide) = [each[1] / each[0] for each in ends if each]
    assert same == as_before
    assert narrow < wide


@pytest.mark.long
def test_a_node_count_left_out_teaches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster of three node counts has a time and an interval for each by a fit to the two others: the same whatever
    was measured there; and one of two node counts has none."""
    monkeypatch.chdir(tmp_path)
    columns, sizes = "system,collective,ranks,nodes,dtype,size_bytes,time_us,harness", (2**10, 2**16, 2**22, 2**28)

    def rows_of(times: Mapping[tuple[int, int], float]) -> list[ClusterRow]:
        """The rows of a cluster with these times in us, by node count and size."""
        lines = [
            f"h100,all_reduce,{8 * nodes},{nodes},float16,{size},{us},library" for (nodes, size), us in times.items()
        ]
        Path("h100.csv").write_text("\n".join([columns, *lines]), encoding="utf-8")
        return of_tables(tmp_path, tmp_path, lambda line: None)

    def scored(factors: Mapping[int, float]) -> list[ClusterRow]:
        """The rows of a cluster that takes so many times longer than predicted, by its node counts."""
        told = rows_of({(nodes, size): 1.0 + size for nodes in factors for size in sizes})
        rows = rows_of({(row.nodes, row.row.size_bytes): factors[row.nodes] * row.predicted_us for row in told})
        return left_out.with_node_counts_left_out(rows, lambda line: None, dict[str, Profile]())

    as_it_is, slow = scored({1: 1.05, 2: 1.05, 4: 1.05}), scored({1: 1.05, 2: 1.05, 4: 2.1})
    of_four = [
        [(row.other_nodes_us, row.other_nodes_ends) for row in rows if row.nodes == 4] for rows in (as_it_is, slow)
    ]
    assert all(time_us and ends for time_us, ends in of_four[0])
    assert of_four[0] == of_four[1]
    assert all(row.other_nodes_us for row in as_it_is)
    assert not any(row.other_nodes_us for row in scored({1: 1.05, 2: 1.05}))


# --- the board ---


@pytest.fixture
def of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A folder with folders of tables, and rows for them."""
    monkeypatch.chdir(tmp_path)
    for name in ("tables", "nothing", "strange"):
        Path(name).mkdir()
    return list(made((2, 4), ("all_gather", "all_reduce"), every=6))


@pytest.mark.thorough
def test_tables_of_others_are_scored(of_others: list[dict[str, Any]]) -> None:
    """The board scores the tables of a folder by cluster, as clusters.yaml names them: series that are near, what
    intervals hold, rivals, signed errors by region."""
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
    text = "clusters:\n- {name: away, rows: [h100_far], system: hgx-h100, lacks: It is far away.}\n"
    text += "- {name: here, rows: [h100_here], system: hgx-h100, lacks: Nothing is lacking.}\n"
    text += "- {name: ours, rows: [h100_ours], system: hgx-h100}\n"
    Path("clusters.yaml").write_text(text, encoding="utf-8")
    text = board.write(Path("tables"), Path(), Path("out"), lambda line: None).read_text(encoding="utf-8")
    of_away = [
        line for line in text.splitlines() if line.startswith("| one node, ") and ": away (none in the fit)" in line
    ]
    assert [line.endswith("| missed |") for line in of_away] == [True]
    assert "| one node | 5 of 7 |" in text  # those that were made twice as slow are not near
    assert "| away | all_gather | 1 |" in text
    assert all(name in text for name in ("NCCL's tuner", "nearest table", "What 90 % intervals hold"))
    # a cluster that misses the goal of one node is told with what the model lacks there, others are not
    goals = re.findall(r"^\| (away|here|ours) \|.*\| (met|missed) \|", text, re.M)
    assert dict(goals) == {"away": "missed", "here": "met", "ours": "missed"}
    asked_for = re.findall(r"^\* \*\*(.*)\*\*: (.*)$", text.split("## Rows outside")[0], re.M)
    assert dict(asked_for) == {"away": "It is far away.", "ours": "not known."}
    # each cell of intervals that misses its goal is told with the calls that make it so, and no other is
    of_cells = re.findall(r"^\| 90 % intervals, (.*?) \| .* \| (met|missed)(.*) \|$", text, re.M)
    few, wide = (
        {name.removeprefix("in the fit: ") for name in re.findall(r"^\* \*\*(.*?)\*\*: .* on \d", section, re.M)}
        for section in text.split("## Rows outside")[1].split("## Intervals wider than calls need")
    )
    assert few == {name for name, _, how in of_cells if "few" in how}
    assert wide == {name for name, _, how in of_cells if "many" in how or "wide" in how}
    assert wide
