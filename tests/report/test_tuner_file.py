"""The tuner's file, read back by the rules of NCCL's example plugin, chooses what was recommended."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from command import simcoll
from systems import WITH_GPUS

import simcoll as api
from simcoll.nccl.environment import selection
from simcoll.prediction import result_rows
from simcoll.report.exports import nccl_tables
from simcoll.topology.topology_builder import load_system

COLLECTIVES = {"all_reduce": "allreduce", "all_gather": "allgather", "broadcast": "broadcast"}
ALGORITHMS = {"tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"}
PROTOCOLS = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}


class Call(NamedTuple):
    """The arguments of the plugin's `getCollInfo`."""

    collective: str
    nbytes: int
    nodes: int
    ranks: int


def plugin(text: str, call: Call) -> tuple[str, str] | None:
    """The pair that the plugin of NVIDIA/nccl (ext-tuner/example/plugin.c) puts to the front for a call, or none: the
    first line that fits counts, -1 fits anything, ends of sizes are part of a range; comments and empty lines are
    passed over."""
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        assert len(line) < 256
        collective, least, most, algorithm, protocol, _, nodes, ranks, operations, registered = line.split(",")
        assert algorithm in ALGORITHMS
        fits = [collective == COLLECTIVES[call.collective], int(least) <= call.nbytes <= int(most) < 2**64]
        fits += [int(nodes) in (-1, call.nodes), int(ranks) in (-1, call.ranks)]
        fits += [int(operations) in (-1, 1), int(registered) in (-1, 0)]
        if all(fits):
            return algorithm, PROTOCOLS[protocol]
    return None


def calls(rows: Sequence[Any]) -> Iterator[tuple[Call, list[Any]]]:
    """Each call of some results, with its rows."""
    of: dict[Call, list[Any]] = {}
    for row in rows:
        of.setdefault(Call(row["collective"], row["size_bytes"], row["nodes"], row["ranks"]), []).append(row)
    yield from of.items()


SWEEP = {
    "topology": {"system": "hgx-h100", "nodes": [1, 2]},
    "collective": ["all_reduce", "all_gather"],
    "profile": "nccl-hopper",
    "size": {"from": "1 KiB", "to": "64 MiB", "factor": 16},
}


def check_choices(keys: dict[str, Any], points: int, folder: Path) -> str:
    """Assert that the file of a sweep chooses a quickest pair of each of its points; return the file."""
    rows = api.run(api.load(keys))
    written = result_rows.to_csv([result_rows.ResultRow.of(row) for row in rows])
    (folder / "results.csv").write_text(written, encoding="utf-8")
    text = simcoll("export", folder, "--to", "nccl-tuner").out
    found = list(calls([row for row in rows if row["status"] == "ok"]))
    assert len(found) == points
    for call, ran in found:
        quickest = min(row["time_us"] for row in ran)
        assert plugin(text, call) in {(r["algorithm"], r["protocol"]) for r in ran if r["time_us"] == quickest}, call
    return text


@pytest.mark.thorough
@pytest.mark.parametrize("asked", [["auto"], ["best"], ["auto", "best", "ring"], ["all"]])
def test_results(asked: list[str], tmp_path: Path) -> None:
    """Of every point of a sweep, whatever was asked for, the file chooses the quickest pair that ran; of `auto` alone
    what NCCL chooses by itself, of `best` what takes least."""
    text = check_choices({**SWEEP, "algorithm": asked}, 2 * 2 * 5, tmp_path)
    assert plugin(text, Call("broadcast", 1024, 1, 8)) is plugin(text, Call("all_reduce", 1024, 3, 24)) is None


@pytest.mark.long
@pytest.mark.parametrize("system", WITH_GPUS)
def test_results_of_every_system(system: str, tmp_path: Path) -> None:
    """The same on 1 to 8 nodes of every shipped system, at every doubling."""
    nodes = [n for n in (1, 2, 3, 4, 8) if n == 1 or load_system(system).nic]
    sizes = {"from": "1 KiB", "to": "1 GiB", "factor": 2}
    topology = {"system": system, "nodes": nodes}
    keys = {"topology": topology, "collective": ["all_reduce", "all_gather"], "size": sizes, "algorithm": "auto"}
    check_choices(keys, len(nodes) * 2 * 21, tmp_path)


def test_recommendations(tmp_path: Path) -> None:
    """At every size simulated, and so at both ends of each range, the file chooses what is recommended of NCCL's
    algorithms; the file from JSON is the same, the lines that are printed are that file, and the variables of each
    range leave NCCL just that pair."""
    scenario = tmp_path / "s.yaml"
    few = {"topology": {"system": "hgx-h100", "nodes": 2}, "collective": "all_reduce", "size": ["1 KiB", "16 MiB"]}
    scenario.write_text(json.dumps({**SWEEP, **few}), encoding="utf-8")
    run = ("recommend", scenario, "--quiet", "--set", "executor=nccl")
    found = simcoll(*run, "--json", "-o", tmp_path / "t.csv", "--to", "nccl-tuner").json["recommendations"]
    text = (tmp_path / "t.csv").read_text(encoding="utf-8")
    (tmp_path / "r.json").write_text(json.dumps({"recommendations": found}), encoding="utf-8")
    assert simcoll("export", tmp_path / "r.json", "--to", "nccl-tuner").out == text
    for one in found:
        for best in one["sizes"]:
            call = Call("all_reduce", best["size_bytes"], one["nodes"], one["ranks"])
            assert plugin(text, call) == (best["nccl"], best["protocol"])
        for chosen in one["ranges"]:
            left = selection(chosen["env"]["NCCL_ALGO"], chosen["env"]["NCCL_PROTO"])
            assert (left.algorithms["all_reduce"], left.protocols["all_reduce"]) == (
                {chosen["nccl"]},
                {chosen["protocol"]},
            )
    lines = simcoll(*run).out.splitlines()
    _, *rules = text.splitlines()  # the first names the columns: a remark, which is printed as wide as a terminal
    assert lines[-len(rules) :] == rules
    shell = [line.partition("  # ")[0] for line in lines if line.startswith("NCCL_ALGO=")]
    assert set(shell) == {" ".join(f"{k}={v}" for k, v in c["env"].items()) for r in found for c in r["ranges"]}


def test_sizes_that_another_algorithm_serves_best_are_left_to_nccl(tmp_path: Path) -> None:
    """Where NCCL does not have what is recommended, no line fits; around it the lines stay."""
    ends = [(1024, 4096, "ring"), (4096, 16384, None), (16384, None, "tree")]
    ranges = [{"from_bytes": a, "to_bytes": b, "nccl": name, "protocol": "LL", "time_us": 1.0} for a, b, name in ends]
    one = {"collective": "all_reduce", "ranks": 8, "nodes": 1, "ranges": ranges}
    (tmp_path / "r.json").write_text(json.dumps({"recommendations": [one]}), encoding="utf-8")
    text = simcoll("export", tmp_path / "r.json", "--to", "nccl-tuner").out
    chosen = [plugin(text, Call("all_reduce", size, 1, 8)) for size in (8, 4095, 4096, 16383, 16384, 2**40)]
    assert chosen == [("ring", "LL"), ("ring", "LL"), None, None, ("tree", "LL"), ("tree", "LL")]


def test_only_calls_of_nccl_are_chosen(tmp_path: Path) -> None:
    """A schedule that another executor runs is none of NCCL's algorithms, though it may have the name of one."""
    rows = [
        result_rows.ResultRow(collective="all_reduce", algorithm=name, protocol="LL", ranks=8, nodes=1, executor=runs,
                              size_bytes=1024, time_us=time_us, status="ok")
        for name, runs, time_us in (("ring", "nccl", 2.0), ("tree", "msccl", 1.0))
    ]  # fmt: skip
    path = tmp_path / "results.csv"
    path.write_text(result_rows.to_csv(rows), encoding="utf-8")
    found = simcoll("export", path, "--to", "nccl-tuner")
    assert plugin(found.out, Call("all_reduce", 1024, 1, 8)) == ("ring", "LL")
    assert "all_reduce/tree" in found.err


@pytest.mark.parametrize("column", ["dtype", "profile", "topology"])
def test_rows_of_two_kinds_are_refused(column: str, tmp_path: Path) -> None:
    """A file that says nothing of types, profiles and systems cannot hold the choices of two."""
    rows = [
        result_rows.ResultRow(collective="all_reduce", algorithm="ring", protocol="LL", ranks=8, nodes=1,
                              size_bytes=1024, time_us=1.0, status="ok", **{column: name})
        for name in ("one", "other")
    ]  # fmt: skip
    path = tmp_path / "results.csv"
    path.write_text(result_rows.to_csv(rows), encoding="utf-8")
    found = simcoll("export", path, "--to", "nccl-tuner")
    assert found.status == 2
    assert f"rows differ in {column} (one, other)" in found.err


@pytest.mark.parametrize(
    ("sizes", "step"),
    [
        ((1 << 20,), "1048576(bytes)"),
        ((8, 16, 32), "2(factor)"),
        ((1000, 4000), "4(factor)"),
        ((1000, 1500, 2000), "500(bytes)"),
        ((8, 16, 1000), "1048576(bytes)"),
    ],
)
def test_nccl_tests_step_leads_from_size_to_size(sizes: Sequence[int], step: str) -> None:
    """As its header has it: a factor, or bytes; its default where no step leads to all."""
    row = result_rows.ResultRow(status="ok", collective="all_reduce", ranks=16, nodes=2, time_us=1.0, op="sum")
    text = nccl_tables.tests([dataclasses.replace(row, size_bytes=size) for size in sizes])
    assert f"# nThread 8 nGpus 1 minBytes {sizes[0]} maxBytes {sizes[-1]} step: {step} warmup" in text
