"""Questions of the command line as functions of Python, with objects of one's own."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from command import simcoll as command
from matplotlib.axes import Axes

import simcoll as sc
from simcoll.api.questions import table
from simcoll.api.sweeps import spelt
from simcoll.cli.plot import filter_of
from simcoll.errors import InputError
from simcoll.prediction import result_rows
from simcoll.report.columns import filtered
from simcoll.scenario.scenario import json_schema
from simcoll.schedule.registry import ALGORITHMS
from simcoll.units import kind_of, parse

KEPT = {"ranks": 8, "collective": "all_reduce", "dtype": "float16", "size_bytes": [2**16, 2**20, 2**24]}


def square() -> nx.Graph:
    """Four hosts in a ring, 10 GB/s and 1 us each way."""
    graph: nx.Graph = nx.Graph()
    graph.add_nodes_from((f"h{i}", {"kind": "host", "node": i}) for i in range(4))
    graph.add_edges_from((f"h{i}", f"h{(i + 1) % 4}", {"bandwidth": "10 GB/s", "latency": "1 us"}) for i in range(4))
    return graph


@pytest.fixture
def star() -> Iterator[str]:
    """An all-reduce of one's own: to rank 0 and back."""

    @sc.register("all_reduce", "my_star")
    def my_star(request: sc.Request) -> Iterator[sc.Step]:
        """To rank 0, then to everyone: 2 steps."""
        others = range(1, request.n)
        yield sc.send(others, 0, 0, reduce=True)
        yield sc.send(0, others, 0)

    yield "my_star"
    del ALGORITHMS["all_reduce"]["my_star"]


def wrong(request: sc.Request) -> Iterator[sc.Step]:
    """To rank 0 alone, which no all-reduce is."""
    yield sc.send(range(1, request.n), 0, 0, reduce=True)


def raising(request: sc.Request) -> Iterator[sc.Step]:
    """Nothing: it divides by zero."""
    yield sc.send(0, request.n // 0, 0)


def stepless(request: sc.Request) -> Iterator[Any]:
    """What is no step."""
    yield (0, 1)


BROKEN = {wrong: "rank 1", raising: "ZeroDivisionError", stepless: "a tuple is no step; yield simcoll.send"}


@pytest.fixture(params=BROKEN)
def broken(request: Any) -> Iterator[Any]:
    """An all-reduce of one's own that fails, as `my_broken`."""
    yield sc.register("all_reduce", "my_broken")(request.param)
    del ALGORITHMS["all_reduce"]["my_broken"]


@pytest.mark.parametrize("door", [sc.run, sc.predict, sc.explain, sc.recommend, sc.build])
def test_a_broken_algorithm_is_named_where_it_is_asked_for(broken: Any, door: Any) -> None:
    """Its file and line, its name and what is wrong stand in the one error, or in the row that has no time."""
    keys: dict[str, Any] = {"on": "hgx-h100", "size": "1 KiB", "algorithm": "my_broken"}
    place = rf"{re.escape(__file__)}:\d+: all_reduce/my_broken: .*{re.escape(BROKEN[broken])}"
    if door is sc.build and broken is not wrong:  # which proves nothing
        with pytest.raises(sc.SimcollError, match=place):
            sc.build("all_reduce", "my_broken", 4)
    elif door is sc.run:
        rows = sc.run("all_reduce", **{**keys, "algorithm": ["my_broken", "ring"]})
        assert re.search(place, rows["status"][0]) and rows["status"][1] == "ok"
        alone = sc.run("all_reduce", **{**keys, "algorithm": "ring"}).verdict
        assert rows.verdict == f"{alone} 1 of 2 points has no answer: my_broken."
        assert re.search(place, " ".join(rows.notes)) and str(rows).count("# my_broken: failed") == 1
        assert rows.where(algorithm="ring").notes == []
    elif door is sc.recommend:
        (found,) = sc.recommend("all_reduce", **keys)["recommendations"]
        assert any(re.search(place, reason) for reason in found["left_out"].values())
    elif door is not sc.build:
        with pytest.raises(sc.SimcollError, match=place):
            door("all_reduce", **keys)


def test_a_broken_algorithm_leaves_other_questions_alone(star: str, broken: Any) -> None:
    """What-ifs and recommendations leave it out, and say so with its place."""
    keys: dict[str, Any] = {"on": "hgx-h100", "size": "1 KiB", "algorithm": star}
    place = f"{__file__}:"
    answer = sc.explain("all_reduce", **keys)["points"][0]
    assert [place in note and "all_reduce/my_broken: " in note for note in answer["notes"]] == [True]
    del ALGORITHMS["all_reduce"]["my_broken"]
    assert answer["what_if"] == sc.explain("all_reduce", **keys)["points"][0]["what_if"]
    sc.register("all_reduce", "my_broken")(broken)
    advice = sc.recommend("all_reduce", **{**keys, "algorithm": "ring"})["recommendations"][0]
    assert any(place in reason for reason in advice["left_out"].values())


def test_ways_to_ask_are_one() -> None:
    """A name, a mapping, keywords, a sweep, points, numbers and texts ask for the same."""
    keys = {"topology": {"system": "hgx-h100"}, "collective": "all_reduce", "algorithm": "ring", "size": "1 MiB"}
    asked: list[Any] = [keys, sc.Sweep(keys), sc.Sweep(**keys), sc.load(keys), sc.load(keys)[0]]
    asked += [sc.Sweep(topology="hgx-h100", collective="all_reduce", algorithm="ring", size=2**20)]
    asked += [sc.Sweep(sc.Sweep(keys, size="4 MiB"), size=1e6 and 2**20), sc.load(keys)[0].scenario]
    times = {sc.run(each)["time_ps"][0] for each in asked}
    assert times == {sc.predict(**keys).time_ps} and None not in times
    assert sc.run(keys, model__sharing="fair")["sharing"] == sc.run(keys, **{"model.sharing": "fair"})["sharing"]
    two = sc.predict({**keys, "topology": {"system": "hgx-h100", "nodes": 2}}).time_ps
    others = {"collective": "all_reduce", "algorithm": "ring", "size": "1 MiB"}
    assert (
        sc.predict(on="hgx-h100", nodes=2, **others).time_ps == sc.predict(others, topology="hgx-h100", nodes=2).time_ps
    )
    assert sc.predict(others, nodes=2, on="hgx-h100").time_ps == two
    assert sc.predict("all_reduce", on="hgx-h100", nodes=2, algorithm="ring", size="1 MiB").time_ps == two
    assert sc.predict(sc.Sweep(others, topology="dgx-a100"), nodes=2, on="hgx-h100").time_ps == two
    with pytest.raises(InputError, match="are the same key, topology"):
        sc.predict(others, on="hgx-h100", topology="dgx-a100")
    ranged = sc.Sweep(keys, size={"from": 1024, "to": 2**20, "factor": 32})
    assert [point.scenario.size for point in ranged] == [1024, 32768, 2**20]


P = {"on": "hgx-h100", "size": "1 MiB"}
ROWS = [{"collective": "all_reduce", "ranks": 8 * n, "nodes": n, "size_bytes": 2**20, "time_us": 60} for n in (1, 2)]
ODD: list[tuple[Any, str]] = [
    (lambda: sc.predict(object()), "object is no scenario; give a collective"),  # type: ignore[arg-type]
    (lambda: sc.run("all_reduce", on="hgx-h100", size=float("nan")), "nan is no whole number"),
    (lambda: sc.run("all_reduce", on="hgx-h100", size=float("inf")), "inf is no whole number"),
    (lambda: sc.run("all_reduce", jobs=0, **P), "jobs=0 means nothing; give 1, 2"),
    (lambda: sc.recommend("all_reduce", jobs="x", **P), "jobs='x' means nothing; give 1, 2"),
    (lambda: sc.recommend("all_reduce", among=[], **P), r"among=\[\] names no algorithm; give names"),
    (lambda: sc.recommend("all_reduce", among=3, **P), "among=3 names no algorithm; give names"),
    (lambda: sc.compare(3, on="hgx-h100"), "int is no measured table; give a file"),
    (lambda: sc.build("all_reduce", "ring", 0), "0 is no number of ranks"),
    (lambda: sc.build("all_reduce", "ring", "4"), "'4' is no number of ranks"),  # type: ignore[arg-type]
    (
        lambda: sc.export(sc.build("all_reduce", "ring", 4), "msccl", rank=4),
        "rank= is no option of `export`; did you mean 'ranks'",
    ),
    (lambda: sc.measure("all_reduce", backend="mpi", **P), "backend='mpi' is not known; give 'gloo'"),  # type: ignore[arg-type]
    (lambda: sc.recommend("all_reduce", among="x", **P), "^among=: 'x' cannot run this call"),
    (lambda: sc.compare(ROWS, on="hgx-h100", nods=2), "^nods=:1:1: nods: unknown key 'nods'"),
    (lambda: sc.compare(ROWS, on="hgx-h100", where={"ranks": 3}), r"^where=\{'ranks': '3'\} keeps no row"),
    (lambda: sc.run("all_reduce", **P, algorithm=["ring", "tree"]).plot(x="nodes", group=[]), "filter=.'algorithm': "),
    (lambda: sc.run("all_reduce", **P).where(algoritm="ring"), "no column .*did you mean 'algorithm'"),
    (lambda: sc.run("all_reduce", **P).where(algorithm="tree"), "no row has algorithm tree; there is ring"),
    (lambda: sc.run("all_reduce", on="hgx-h100", size={2**20}), "has no order; give a list"),
    (lambda: sc.run("all_reduce", on="hgx-h100", size=itertools.count(1)), "a count of more than 100000 values"),
    (lambda: sc.Link("25 GB/s"), r"a link has no latency; give it, e.g. Link\('25 GB/s', '1 us'\); 0 for none"),  # type: ignore[call-arg]
    (lambda: sc.Link("25 GB/s", "1 us", latency_ps=3), "`latency` and `latency_ps`; give one of them"),
    (lambda: sc.Scenario("d.yaml"), r"write simcoll.load\('d.yaml'\)"),
    (lambda: sc.run("quickstart", algoritm="ring"), r"algoritm=.*did you mean 'algorithm'"),
    (lambda: sc.run("quickstart", machine="hgx-h100"), r"machine=.*write 'topology'"),
    (lambda: sc.run("quickstart", transport="efa"), r"transport=.*write 'profile: A\+B"),
    (lambda: sc.run("allreduce", on="hgx-h100", size="1 MiB"), "did you mean 'all_reduce'"),
    (
        lambda: sc.run("quickstart", size=np.logspace(3, 4, 4)),
        r"is no whole number; give whole bytes \(convert an array by `.astype\(int\)",
    ),
    (lambda: sc.predict("quickstart", size="1 MiB"), "5 points"),
    (lambda: sc.run(sc.load("quickstart"), size="1 MiB"), "keys change a sweep"),
    *(
        (lambda ask=ask: ask("h100_sxm_nccl-2.27.3.csv"), "the measured machine is missing; add on=")
        for ask in (sc.compare, sc.calibrate)  # diagnose finds the machine in the table
    ),
    *(
        (
            lambda key=key: sc.calibrate(ROWS, on="hgx-h100", **{key: ["x=2"]}),
            "is no mapping of columns to values; write",
        )
        for key in ("fit", "where")
    ),
]


@pytest.mark.parametrize(("ask", "words"), ODD)
def test_odd_arguments_are_named(ask: Any, words: str) -> None:
    """What is not meant is refused as the command line refuses it, with what is wrong and what instead."""
    with pytest.raises(sc.SimcollError, match=words):
        ask()


@pytest.mark.parametrize(
    "as_given", [iter, lambda sizes: (size for size in sizes), lambda sizes: dict.fromkeys(sizes).keys()]
)
def test_what_can_be_gone_through_is_a_list(as_given: Any) -> None:
    """Generators and views are lists of values, at the top and below keys, however often a sweep is asked."""
    sizes = [2**10, 2**20]
    sweep = sc.Sweep("all_reduce", on="hgx-h100", size=as_given(sizes))
    below = sc.Sweep(
        {"collective": "all_reduce", "topology": {"system": "hgx-h100", "nodes": as_given([1, 2])}}, size=8
    )
    assert [point.scenario.nbytes for point in sweep] == sizes
    assert [point.scenario.nbytes for point in sc.Sweep(sweep, algorithm="ring")] == sizes
    assert len(below) == len(sc.Sweep(below, algorithm="ring")) == 2
    assert sc.compare(ROWS, on="hgx-h100", dtype=as_given(["float32"]))["points"]


def _quantities(value: Any) -> Iterator[str]:
    """Kinds of the quantities that a key of the schema has as examples."""
    if isinstance(value, dict):
        yield from (kind for text in value.get("examples", ()) if isinstance(text, str) and (kind := kind_of(text)))
        for part in ("anyOf", "oneOf", "allOf", "items", "additionalProperties"):
            inside = value.get(part, ())
            for below in inside if isinstance(inside, list) else [inside]:
                yield from _quantities(below)


def test_each_quantity_of_a_scenario_may_be_a_number() -> None:
    """A key of a size, a bandwidth or a time takes bytes, B/s or seconds, whichever mapping it stands in."""
    whole = json_schema()
    keys = defaultdict(set)
    for mapping in (whole, *whole["$defs"].values()):
        for key, value in mapping.get("properties", {}).items():
            keys[key] |= set(_quantities(value)) or {None}
    units = {"size": "B", "bandwidth": "B/s", "duration": "s"}
    found = {(key, kind) for key, kinds in keys.items() for kind in kinds if kind in units and key != "gamma"}
    assert {kind for _, kind in found} == set(units)
    for key, kind in found:
        said = spelt({key: 3.0})[key]
        assert parse(said, kind) == parse(f"3 {units[kind]}", kind)
        assert key == "arrivals" or spelt({key: {"from": 2, "to": 8, "factor": 2}})[key]["factor"] == 2
    assert spelt({"arrivals": {1: 5e-6}}) == {"arrivals": {1: "5e-06 s"}}
    assert spelt({"bandwidth": {"value": 10, "spread": 0.2}}) == {"bandwidth": {"value": "10 B/s", "spread": 0.2}}


@pytest.mark.parametrize(
    "sizes",
    [
        np.array([2**10, 2**20]),
        np.logspace(10, 20, 2, base=2),
        [np.int64(2**10), np.float64(2**20)],
        pd.Series([2**10, 2**20]),
        range(2**10, 2**20 + 1, 2**20 - 2**10),
    ],
)
def test_numbers_of_numpy_and_pandas_are_numbers(sizes: Any) -> None:
    """Scalars, arrays and series mean what numbers and lists of Python mean, wherever a number may stand."""
    plain = sc.run("all_reduce", on="hgx-h100", nodes=2, size=[2**10, 2**20], algorithm="ring")
    found = sc.run("all_reduce", on="hgx-h100", nodes=np.int64(2), size=sizes, algorithm="ring", jobs=np.int64(1))
    assert found["time_ps"] == plain["time_ps"]
    assert found.where(size=np.int64(2**10)) == plain.where(size=2**10)
    assert sc.Link(np.int64(25 * 10**9), np.float64(1e-9)) == sc.Link(25 * 10**9, 1e-9)
    kept = [sc.compare("h100_sxm_nccl-2.27.3.csv", on="hgx-h100", where={**KEPT, "ranks": n}) for n in (8, np.int64(8))]
    assert kept[0] == kept[1]


def test_a_graph_goes_everywhere(star: str, tmp_path: Path) -> None:
    """A networkx graph and an algorithm of one's own are run, predicted, explained, recommended and compared."""
    keys = {"collective": "all_reduce", "algorithm": [star, "ring"], "size": "4 MB"}
    topology = sc.Topology.from_graph(square(), name="square")
    for own in (topology, square()):
        rows = sc.run(topology=own, **keys)
        assert rows["status"] == ["ok", "ok"]
        assert rows.where(algorithm="ring")["time_us"] == [6 * (100 + 1)]
    assert rows["topology"] == ["own graph"] * 2
    assert sc.predict(topology=topology, **{**keys, "algorithm": "ring"}).time_ps == 606_000_000
    assert sc.explain(topology=topology, **keys, what_if=False)["points"][1]["time_us"] == 606
    advice = sc.recommend(topology=topology, **{**keys, "algorithm": "ring"}, among=[star, "ring"])
    assert advice["recommendations"][0]["ranges"][0]["algorithm"] == "ring"
    measured = [{"collective": "all_reduce", "ranks": 4, "size_bytes": 4_000_000, "time_us": 606, "algorithm": "ring"}]
    compared = sc.compare(measured, on=topology, where={"algorithm": "ring"}, profile="one-port")
    assert compared["summary"][-1]["mape"] == 0
    assert sc.compare(measured, sc.Sweep(topology=topology, **keys))["points"][0]["error"] == 0


@pytest.mark.parametrize("ask", [sc.run, sc.predict, sc.explain, sc.load])
def test_no_message_names_a_temporary_file(ask: Any) -> None:
    """The file that stands for an object is nobody's: messages of it name the object, and no line."""
    own = sc.Topology.from_graph(square())
    dead = own.with_links([sc.Link(0, 0)] * len(own.links))
    with pytest.raises(sc.SimcollError) as error:
        points = ask({"topology": dead, "collective": "all_reduce", "size": "1 KiB"})
        sc.run(points)
    assert str(error.value).startswith("own graph: links.0.bandwidth: '0 B/s' is no bandwidth; ")


def test_a_schedule_is_an_algorithm() -> None:
    """A schedule as an object runs as the algorithm that it was built by, and keeps its name."""
    keys = {"topology": "hgx-h100", "collective": "all_reduce", "size": "1 MiB", "executor": "msccl"}
    schedule = sc.build("all_reduce", "ring", 8)
    own, ring = sc.run(algorithm=[schedule, "ring"], **keys)
    assert (own["algorithm"], own["time_ps"]) == ("ring", ring["time_ps"])


def test_answers_are_those_of_the_commands() -> None:
    """A function returns what its command prints with --json, and prints what it prints without."""
    where = [word for text in ("ranks=8", "collective=all_reduce", "dtype=float16") for word in ("--where", text)]
    where += ["--where", "size_bytes=65536,1048576,16777216"]
    table = "h100_sxm_nccl-2.27.3.csv"
    asked = [word for text in ("size=1 MiB", "algorithm=ring") for word in ("--set", text)]
    pairs = [
        (sc.diagnose(table, on="hgx-h100", where=KEPT), ["diagnose", table, "--on", "hgx-h100", *where]),
        (sc.compare(table, on="hgx-h100", where=KEPT), ["compare", "system=hgx-h100", table, *where]),
        (sc.explain("quickstart", size="1 MiB", algorithm="ring"), ["explain", "quickstart", *asked]),
    ]
    for answer, words in pairs:
        assert json.loads(json.dumps(answer)) == command(*words, "--json").json
        assert str(answer) == command(*words).out.rstrip("\n")
        assert answer.verdict.split(";")[0].split(",")[0] in command(*words).out
        assert answer.verdict.split()[0] in answer._repr_html_()


@pytest.mark.parametrize(
    "asked",
    [
        {"size": "64 MiB"},
        {"size": "64 MiB", "nodes": 2, "algorithm": "nvls_tree"},
        {"size": "64 MiB", "nodes": 2, "algorithm": "tree", "profile": "ideal"},
        {"size": "64 KiB", "algorithm": "two_shot"},
    ],
)
def test_a_prediction_prints_the_sentence_of_the_command(asked: dict[str, Any]) -> None:
    """Profile, interval, rate, confidence and what binds, of the algorithm by the name that scenarios have for it."""
    words = [word for key, value in asked.items() for word in (f"--{key}", str(value))]
    out = command("predict", "all_reduce", "--on", "hgx-h100", *words).out
    said = str(sc.predict("all_reduce", on="hgx-h100", **asked))
    assert said == " ".join(out.partition("\n#")[0].split())
    assert said.startswith(asked.get("algorithm", "nvls"))
    assert sc.run("all_reduce", on="hgx-h100", **asked).verdict == said
    assert sc.predict("all_reduce", on="hgx-h100", **asked).verdict == said


@pytest.mark.parametrize("source", ["all_reduce", None])
def test_several_points_are_told_the_line_that_answers(source: str | None) -> None:
    """The line in the error of `predict` is Python, and has a row for each point."""
    keys = {"on": "hgx-h100", "size": ["1 MiB", 2**21], "collective": "all_reduce"}
    with pytest.raises(InputError) as told:
        sc.predict(source, **keys)
    rows = eval(str(told.value).partition("write ")[2].strip("`"), {"simcoll": sc})
    assert rows["size_bytes"] == [2**20, 2**21]


def test_results_are_tidy(tmp_path: Path) -> None:
    """Columns, selections, slices, HTML and pictures of rows."""
    rows = sc.run("quickstart", size=["1 MiB", "16 MiB"], algorithm=["ring", "tree", "auto"])
    assert rows["size_bytes"] == [2**20, 2**24] * 3
    assert isinstance(rows[:2], sc.Results) and len(rows.where(asked=["ring", "auto"], size_bytes=2**20)) == 2
    with pytest.raises(KeyError, match="no column"):
        rows["tme"]
    assert "<table" in rows._repr_html_() and rows.verdict in rows._repr_html_()
    assert str(rows).replace("\n  ", " ").startswith(rows.verdict)
    axes = rows.plot(x="size", y="busbw", group="algorithm")
    assert isinstance(axes, Axes) and len(axes.lines) == 3
    axes.figure.savefig(tmp_path / "p.svg")
    with pytest.raises(sc.SimcollError, match=r"rows differ in size_bytes .*too"):
        rows.plot(x="algorithm")
    assert len(rows.plot(x="algorithm", facet="size")) == 2


def test_results_go_where_python_takes_them(tmp_path: Path) -> None:
    """Names of columns are those of the table; a stream gets what a file gets; what is not taken is said in words."""
    rows = sc.run("quickstart", size="1 MiB", algorithm=["ring", "tree"])
    text = io.StringIO()
    rows.to_csv(text)
    rows.to_csv(tmp_path / "r.csv")
    assert text.getvalue() == rows.to_csv() == (tmp_path / "r.csv").read_text()
    assert next(csv.reader(text.getvalue().splitlines())) == rows.columns == list(rows.to_pandas())
    odd: dict[str, Any] = {
        "BytesIO is neither a path nor a text stream; give": lambda: rows.to_csv(io.BytesIO()),
        "names no row and no column; give a number, a slice": lambda: rows[["size_bytes", "time_us"]],
        "takes no axes; leave it out": lambda: rows.plot(ax=None),
    }
    for said, ask in odd.items():
        with pytest.raises(InputError, match=said):
            ask()


@pytest.mark.parametrize(
    ("keys", "column"),
    [
        ({"on": ["hgx-h100", "dgx-a100"]}, "topology"),
        ({"topology": [{"system": "hgx-h100", "nodes": 2}, {"system": "dgx-a100"}]}, "topology"),
        ({"on": "hgx-h100", "nodes": [1, 2]}, "ranks"),
    ],
)
def test_the_advice_on_rows_that_differ_helps(keys: dict[str, Any], column: str) -> None:
    """The column that the message names sets rows apart, and a topology goes before what follows from it."""
    rows = sc.run("all_reduce", algorithm="ring", protocol="Simple", size=["1 MiB", "2 MiB"], **keys)
    with pytest.raises(InputError, match=f"use {column} as group or facet"):
        rows.plot()
    assert rows.plot(group=["algorithm", column])


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        ({"algorithm": "auto"}, ["algorithm=auto"]),
        ({"algorithm": "ring"}, ["algorithm=ring"]),
        ({"size": ["1 MiB", 2**24], "asked": "tree"}, ["size=1 MiB,16777216", "asked=tree"]),
        ({"topology.nodes": 1, "ranks": 8.0, "size": "16 MiB"}, ["topology.nodes=1", "ranks=8", "size=16 MiB"]),
    ],
)
def test_one_selection_at_all_doors(conditions: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    """`where`, `plot` and the command's --filter keep the same rows by the same words."""
    rows = sc.run("quickstart", size=["1 MiB", "16 MiB"], algorithm=["ring", "tree", "auto"])
    kept = rows.where(**{key.replace(".", "__"): value for key, value in conditions.items()})
    assert 0 < len(kept) < len(rows) and kept == rows.where(conditions)
    axes = rows.plot(x="size", filter=conditions, group="asked")
    same = kept.plot(x="size", group="asked")
    assert isinstance(axes, Axes) and isinstance(same, Axes)
    assert 0 < len([*axes.lines, *axes.patches]) == len([*same.lines, *same.patches])
    rows.to_csv(tmp_path / "results.csv")
    filters = [each for text in words for each in ("--filter", text)]
    read = filtered(result_rows.read(tmp_path / "results.csv"), dict(filter_of(text) for text in words))
    assert [row["time_us"] for row in read] == kept["time_us"]
    out = str(tmp_path / "p.svg")
    assert command("plot", str(tmp_path), "--x", "size", "--group", "asked", *filters, "-o", out).out.splitlines()[
        1:
    ] == [out]


def test_one_machine_at_all_doors() -> None:
    """`--on` takes keys of a topology in braces, as Python takes a mapping; with nodes of each of several machines."""
    keys = {"system": "hgx-h100", "fabric": "fat-tree", "oversubscription": 2}
    text, asked = json.dumps(keys), {"size": "1 MiB", "algorithm": "ring"}
    rows = sc.run("all_reduce", on=keys, nodes=[1, 2], **asked)
    assert len(rows) == 2 and rows["time_us"] == sc.run("all_reduce", on=text, nodes=[1, 2], **asked)["time_us"]
    words = ("predict", "all_reduce", "--size", "1 MiB", "--algorithm", "ring", "--nodes", "1,2", "--json", "--on")
    assert [row["time_us"] for row in command(*words, text).json["points"]] == rows["time_us"]
    both = command(*words, f"[hgx-h200, {text}]").json["points"]
    assert [row["time_us"] for row in both][2:] == rows["time_us"] and len(both) == 4
    found = command("diagnose", "h100_sxm_nccl-2.27.3.csv", "--on", text, "--json", "--where", "dtype=float16")
    assert found.json == sc.diagnose("h100_sxm_nccl-2.27.3.csv", on=keys, where={"dtype": "float16"})
    mistaken = command(*words, "{system: hgx-h100, nods: 2}")
    assert "topology.nods: unknown key 'nods'; did you mean 'nodes'?" in mistaken.err


def test_nodes_of_measured_rows(tmp_path: Path) -> None:
    """`nodes` of `compare` and `diagnose` is the option --nodes of the commands, a list in brackets or not."""
    for asked, texts in ((2, ["2"]), ([1, 2], ["1,2", "[1, 2]", "[1,2]"])):
        answer = sc.compare(ROWS, on="hgx-h100", nodes=asked, collective="all_reduce")
        assert len(answer["points"]) == (1 if asked == 2 else 2)
        (tmp_path / "rows.csv").write_text(table(ROWS)[0])
        for text in texts:
            words = ("compare", str(tmp_path / "rows.csv"), "--on", "hgx-h100", "--nodes", text, "--json")
            assert command(*words).json["points"] == answer["points"]
    assert sc.diagnose(ROWS, on="hgx-h100", nodes=2) == sc.diagnose(ROWS[1:], on="hgx-h100")


def test_extras_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pandas or pyarrow the words say what to install."""
    rows = sc.run("quickstart", size="1 MiB", algorithm="ring")
    for name, ask in (("pandas", rows.to_pandas), ("pyarrow", lambda: rows.to_parquet("x.parquet"))):
        monkeypatch.setitem(__import__("sys").modules, name, None)
        with pytest.raises(sc.SimcollError, match="pip install"):
            ask()


@pytest.mark.parametrize("broken", [{"sise": "1 MiB"}, {"topology": "hgx-h10"}, {"size": "1 XB"}])
def test_a_scenario_is_refused_in_the_words_of_a_sweep(broken: dict[str, Any]) -> None:
    """Wrong keys of a `Scenario` are InputErrors, one line each, as those of a `Sweep` without their places; a machine
    may be a word."""
    keys = {"topology": "hgx-h100", "collective": "all_reduce", "size": "1 MiB"}
    assert sc.Scenario(**keys) == sc.Sweep(**keys).points[0].scenario
    with pytest.raises(sc.SimcollError) as ours:
        sc.Scenario(**{**keys, **broken})
    with pytest.raises(sc.SimcollError) as theirs:
        _ = sc.Sweep(**{**keys, **broken}).points
    assert str(ours.value) == re.sub(r"^\w+=:1:1: ", "", str(theirs.value), flags=re.M)


def test_an_output_is_tried_before_the_fit(tmp_path: Path) -> None:
    """What cannot be written is refused before anything else is looked at, and tried without leaving anything."""
    (tmp_path / "file").touch()
    with pytest.raises(sc.SimcollError, match=r"p.yaml: cannot be written: Not a directory"):
        sc.calibrate("no-such-table.csv", on="hgx-h100", output=tmp_path / "file" / "p.yaml")
    with pytest.raises(sc.SimcollError, match=r"no-such-table.csv"):
        sc.calibrate("no-such-table.csv", on="hgx-h100", output=tmp_path / "new" / "p.yaml")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    "more", [{"topology": "nowhere.yaml"}, {"library_version": "2.19"}, {"launch": {"graph": True}}], ids=str
)
def test_wrong_input_is_wrong_at_every_door(more: dict[str, Any]) -> None:
    """What every command refuses as wrong input raises InputError from every function, in the same words, at the key
    that says it; nothing but that key is named."""
    keys = {"topology": "mi300x", "collective": "all_reduce", "size": "1 MiB", **more}
    sets = {key: value for key, value in keys.items() if key != "collective"}
    words = [word for key, value in sets.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    errors = set[str]()
    for ask in (sc.run, sc.predict, sc.explain, sc.recommend):
        with pytest.raises(InputError) as caught:
            ask(keys)
        errors.add(str(caught.value))
        assert len(caught.value.diagnostics) == 1
    (error,) = errors
    assert error.startswith(f"scenario:1:1: {next(iter(more))}")
    for name in ("run", "explain", "recommend"):
        refused = command(name, keys["collective"], *words)
        assert (refused.status, refused.out, len(refused.err.splitlines())) == (2, "", 1)
        place, _, told = refused.err.strip().partition(": ")
        assert place.startswith("--set[") and told == error.removeprefix("scenario:1:1: ")
