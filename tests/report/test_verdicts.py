"""The sentence that a command opens with."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import simcoll

import simcoll as sc
from simcoll.prediction.result_rows import ResultRow
from simcoll.prediction.summary_sentence import of_rows, took


@pytest.mark.parametrize(
    ("winners", "said"),
    [
        ("ttr", "tree is fastest at 2 of 3 questions, ring at 1 (8 nodes)"),
        ("ttrr", "tree is fastest at 2 of 4 questions, ring at 2"),
        ("rtn", "ring is fastest at 1 of 3 questions (2 nodes), tree at 1 (4 nodes), naive at 1 (8 nodes)"),
        ("tt=", "tree is fastest at 2 of 3 questions, ring or naive (a tie) at 1 (8 nodes)"),
        ("ttt", "tree is fastest at 3 of 3 questions"),
    ],
)
def test_every_winner_is_named(winners: str, said: str) -> None:
    """Each question counts once, for what is fastest there; a single one has its place."""
    rows = [
        ResultRow(status="ok", topology="t", ranks=8 * nodes, nodes=nodes, size_bytes=1024, algorithm=name, asked=name,
                  collective="all_reduce", time_us=1.0 if name[0] == won or (won == "=" and name != "tree") else 2.0)
        for nodes, won in zip((2, 4, 8, 16), winners, strict=False)
        for name in ("ring", "tree", "naive")
    ]  # fmt: skip
    assert f"; {said}; " in of_rows(rows)


@pytest.mark.parametrize(
    ("swept", "ends"),
    [
        ({"nodes": [1, 2]}, ("1 node", "2 nodes")),
        ({"nodes": [2, 1], "size": ["1 MiB", "64 MiB"]}, ("1 node, 1 MiB", "2 nodes, 64 MiB")),
        ({"env.NCCL_MAX_NCHANNELS": [4, 16]}, ("NCCL MAX NCHANNELS 16", "NCCL MAX NCHANNELS 4")),
        ({"collective": ["all_reduce", "all_gather"]}, ("all_gather", "all_reduce")),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_the_ends_of_a_span_are_named(swept: dict[str, Any], ends: tuple[str, str]) -> None:
    """Of several questions the sentence has the shortest and the longest time, each with what tells it apart."""
    rows = sc.run(**{"collective": "all_reduce", "on": "hgx-h100", "algorithm": "ring", "size": "64 MiB", **swept})
    first, last = (took(of(row["time_us"] for row in rows)) for of in (min, max))
    assert rows.verdict.startswith(f"ring, {len(rows)} points: {first} ({ends[0]}) to {last} ({ends[1]}); ")


@pytest.mark.parametrize(
    ("swept", "best"),
    [
        ({"protocol": ["LL", "Simple"]}, "Fastest: ring Simple"),
        ({"executor": ["nccl", "msccl"]}, "Fastest of what was measured: ring LL128"),
    ],
)
def test_ways_to_run_one_algorithm_compete(swept: dict[str, Any], best: str) -> None:
    """Protocols and executors of one algorithm are named where rows differ in nothing else."""
    found = sc.run("all_reduce", on="hgx-h100", algorithm="ring", size="16 MiB", **swept)
    fastest = took(min(row["time_us"] for row in found if row["confidence"] != "modelled"))
    assert found.verdict.startswith(f"{best}, {fastest} at 16 MiB; ")


def test_what_was_never_measured_is_not_fastest_unsaid() -> None:
    """The first line of the demo: what was measured stands first, and beside it the modelled kernels that would be
    faster, with their sizes."""
    found = sc.run("quickstart", size=["1 KiB", "64 KiB", "32 MiB"])
    assert found.verdict.startswith("Fastest of what was measured: auto or ring (a tie) to 64 KiB, auto from 32 MiB; ")
    assert "; modelled faster, never measured: naive at 1 KiB to 64 KiB; " in found.verdict


@pytest.mark.parametrize(
    ("key", "values", "idle"),
    [
        ("model.channels", [4, 8], True),
        ("model.chunk", ["whole", "64 KiB"], True),
        ("library_version", ["2.21", "2.27"], True),
        ("env.NCCL_MAX_NCHANNELS", [4, 16], False),
        ("library_version", ["2.18", "2.27"], False),
    ],
)
def test_a_key_that_changes_nothing_is_named(key: str, values: list[Any], idle: bool) -> None:
    """Who sweeps a key that has no part in what runs is told so; and is not told so of a key that has one."""
    sizes = ["1 MiB", "16 MiB"]
    found = sc.run("all_reduce", on="hgx-h100", size=sizes, **{key: values})
    times = {tuple(row["time_us"] for row in found if row[key] == value) for value in values}
    assert (len(times) == 1, f" {key} changes nothing here" in found.verdict) == (idle, idle)


def test_a_key_that_changes_draws_alone_changes_something() -> None:
    """Queue pairs leave the undisturbed time as it is, and change the quantiles over draws."""
    tree = {"fabric": "fat-tree", "hosts": 8, "hosts_per_leaf": 4, "spines": 4, "routing": "ecmp"}
    cable = {"bandwidth": "50 GB/s", "latency": "1 us"}
    scenario = {
        "topology": {**tree, "link": cable, "ecmp": {"draws": 20}}, "profile": "one-port", "algorithm": "auto",
        "collective": "all_to_all", "size": "64 MiB", "model": {"chunk": "1 MiB"},
    }  # fmt: skip
    found = sc.run(scenario, **{"topology.ecmp.qps_per_connection": [1, 16]})
    assert len({row["time_us"] for row in found}) == 1 < len({row["time_us_p95"] for row in found})
    assert "nothing here" not in found.verdict


def test_what_a_bound_chooses_is_no_question() -> None:
    """`ideal` plays each algorithm and size by the copies, channels and chunks that serve best: the algorithms compete
    at each size all the same, and who is said to be fastest has the least time in the table."""
    hosts = {"fabric": "single-switch", "hosts": 8, "link": {"bandwidth": "100 Gb/s", "latency": "1 us"}}
    sizes = ["1 KiB", "128 KiB", "16 MiB"]
    found = sc.run("broadcast", on=hosts, profile="ideal", algorithm=["naive", "chain", "binomial"], size=sizes)
    assert len({row["chosen.chunk"] for row in found}) > 2
    best = [min(found.where(size=size), key=lambda row: row["time_us"])["algorithm"] for size in sizes]
    assert best == ["naive", "chain", "chain"]
    assert found.verdict.startswith("Fastest: naive to 1 KiB, chain from 128 KiB;")


def test_the_words_of_an_own_schedule_have_its_name() -> None:
    """Answers name a schedule that was an object by its name, never by the file that stands for it."""
    asked = {"topology": "hgx-h100", "collective": "all_reduce", "size": "1 MiB"}
    explained = sc.explain(asked, algorithm=sc.build("all_reduce", "ring", 8), what_if=False)
    assert explained.verdict.startswith("ring takes ")
    assert ".json" not in f"{explained}{dict(explained)}"
    assert sc.run(asked, algorithm=sc.build("all_reduce", "ring", 4)).verdict.startswith("No answer: refused: ring is ")


@pytest.mark.parametrize("fabric", ["single-switch", "full-mesh"])
def test_a_host_by_itself_has_an_answer(fabric: str) -> None:
    """Calls of one rank take no time, by every algorithm and in a workload, and a sentence says so."""
    alone = {"fabric": fabric, "hosts": 1, "link": {"bandwidth": "1 GB/s", "latency": "1 us"}}
    assert " (a tie), 0 us at 1 MiB" in sc.run("scatter", on=alone, algorithm="all", size="1 MiB").verdict
    operations = [{"name": "a", "collective": "all_to_all", "size": "1 MiB"}]
    assert sc.run({"topology": alone, "workload": {"operations": operations}}).verdict.startswith("A step takes 0 us")


def test_a_schedule_without_a_proof_is_said() -> None:
    """A note says it of an own schedule whose proof is turned off; shipped ones are known."""
    own = {"on": "hgx-h100", "size": "1 MiB", "algorithm": sc.build("all_reduce", "ring", 8)}
    assert any(
        "`proof: off`" in note and "ring.json" in note for note in sc.run("all_reduce", **own, proof="off").notes
    )
    assert not sc.run("all_reduce", **own).notes
    assert not sc.run("all_reduce", **{**own, "algorithm": "ring"}, proof="off").notes


@pytest.mark.parametrize(
    "swept",
    [
        {"protocol": ["LL", "Simple"]},
        {"dtype": ["float16", "float32"]},
        {"workload": {"template": "softmax", "size": ["1 MiB", "64 MiB"]}},
        {"workload": {"template": "softmax", "size": "8 MiB"}, "protocol": ["LL", "Simple"]},
    ],
)
def test_no_brackets_are_empty(swept: dict[str, Any]) -> None:
    """The ends of a span are told apart by what differs, whatever that is: `1.78 ms () to 5.04 ms ()` tells nothing."""
    asked = {"topology": "hgx-h100", "profile": "nccl-hopper", **swept}
    found = sc.run(asked if "workload" in asked else {**asked, "collective": "all_reduce", "size": "8 MiB"})
    assert len(found) == 2
    assert "()" not in found.verdict


def test_rows_without_a_difference_have_no_brackets() -> None:
    """Of rows that differ in nothing that has a column, the span has the times alone."""
    row = ResultRow(status="ok", topology="t", collective="workload", workload="ddp", asked="ring", step_us=1780.0)
    found = of_rows([replace(row, time_us=time_us, step_us=time_us) for time_us in (1780.0, 5040.0)])
    assert "2 steps: 1.78 ms to 5.04 ms;" in found


@pytest.mark.thorough
def test_sums_are_the_same_on_every_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Python 3.12 adds floats with compensation, 3.11 without: no column and no document may show which it was."""

    def compensated(values: Iterable[Any], /, start: Any = 0) -> Any:
        listed = list(values)
        return (
            math.fsum([start, *listed]) if any(isinstance(value, float) for value in listed) else plain(listed, start)
        )

    def written() -> list[str]:
        varied = simcoll("run", "stragglers", "--set", "replications=6", "--set", "topology.nodes=1", "--json")
        advised = simcoll("recommend", "quickstart", *fitted, "--json")
        tuned = simcoll("tune", "hgx-h100", "--ranks", "4", "--profile", "nccl-hopper", "--json")
        assert (varied.status, advised.status, tuned.status) == (0, 0, 0)
        return [varied.out, advised.out, tuned.out]

    fitted = ["--set", "profile=nccl-hopper", "--set", "size=[1 KiB, 64 KiB, 1 MiB, 64 MiB]"]
    plain, before = sum, written()
    monkeypatch.setattr("builtins.sum", compensated)
    assert written() == before
