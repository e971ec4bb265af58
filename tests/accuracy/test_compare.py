"""Measured against predicted, and the table in which a terminal shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import foreign
import pytest
from command import simcoll
from hypothesis import given
from hypothesis import strategies as st

from simcoll.accuracy import table_join
from simcoll.accuracy.fit.rows_to_fit import read as rows_to_fit
from simcoll.accuracy.measured_points import RowQuestions
from simcoll.accuracy.scores import intervals, ranking, region_of, regions, summary
from simcoll.accuracy.table_join import JoinedPoint, select
from simcoll.errors import InputError
from simcoll.formats.measured import MeasuredRow, parse_measured


def join(*tables: Any) -> list[JoinedPoint]:
    """The joined points of a measured and a predicted table."""
    found = table_join.pairs(*tables)
    return [point for row, partner in found for point in table_join.answered([row], [[partner]])]


def measured(**columns: object) -> MeasuredRow:
    """A measured row."""
    return MeasuredRow(**{"collective": "all_reduce", "ranks": 8, "size_bytes": 1024, "time_us": 10.0, **columns})


def predicted(**columns: object) -> dict[str, object]:
    """A predicted row, as read from results.csv."""
    return {"collective": "all_reduce", "ranks": "8", "size_bytes": "1024", "time_us": "12.000000", **columns}


def complaints(rows: list[MeasuredRow], predictions: list[dict[str, object]], **where: str) -> list[str]:
    """What is wrong with a comparison, one mistake a line."""
    with pytest.raises(InputError) as caught:
        join(rows, predictions, where)
    return [str(diagnostic) for diagnostic in caught.value.diagnostics]


def test_a_point_says_both_times_and_the_error():
    """The error is predicted/measured − 1; range and confidence are the prediction's."""
    prediction = predicted(low_us="9.5", high_us=15, confidence="calibrated", algorithm="ring", dtype="float32")
    (point,) = join([measured(nodes=1)], [prediction], {})
    assert point.error == pytest.approx(0.2)
    assert (point.measured_us, point.predicted_us, point.low_us, point.high_us) == (10.0, 12.0, 9.5, 15.0)
    assert (point.confidence, point.algorithm, point.dtype, point.nodes) == ("calibrated", "ring", "float32", 1)


@pytest.mark.parametrize("nothing", [None, "", "none", "auto"])
@pytest.mark.parametrize("column", ["algorithm", "protocol", "dtype", "nodes"])
def test_absent_matches_anything(column: str, nothing: object):
    """What one table does not say is no reason to keep two rows apart."""
    value = 2 if column == "nodes" else "x"
    assert len(join([measured(**{column: value})], [predicted(**{column: nothing})], {})) == 1
    assert len(join([measured()], [predicted(**{column: value})], {})) == 1
    assert len(join([measured(**{column: value})], [predicted()], {})) == 1


def test_rows_find_what_was_asked_as_they_say():
    """Of predictions that ran the same, a row that names no algorithm takes that of `auto`, and one that names one the
    prediction asked for by that name; only what was asked for otherwise serves both."""
    auto, ring = (predicted(asked=how, algorithm="ring", time_us=us) for how, us in (("auto", 11), ("ring", 12)))
    for said, us in ((None, 11), ("ring", 12)):
        (point,) = join([measured(algorithm=said)], [auto, ring], {})
        assert point.predicted_us == us
        assert [join([measured(algorithm=said)], [one], {})[0].algorithm for one in (auto, ring)] == ["ring", "ring"]


def test_rows_are_told_apart_by_what_was_asked_for():
    """Two measurements of one call, asked for by its name and by `auto`, have their predictions each, as their column
    `asked` says; what was measured is never a condition to choose by."""
    text = "collective,ranks,size_bytes,time_us,algorithm,asked,jitter\nall_reduce,8,1024,{},ring,{},{}\n"
    rows = [parse_measured(text.format(*cells), "t")[0] for cells in ((10, "auto", 0.4739), (11, "ring", 5.654))]
    auto, ring = (predicted(asked=how, algorithm="ring", time_us=us) for how, us in (("auto", 12), ("ring", 13)))
    assert [point.predicted_us for point in join(rows, [ring, auto], {})] == [12, 13]
    again = parse_measured(text.format(12, "ring", 1.4739), "t")[0]
    assert complaints([rows[1], again], [ring])[0].endswith(", which --where cannot distinguish")


@pytest.mark.parametrize(
    ("column", "one", "other"),
    [("collective", "all_reduce", "reduce"), ("ranks", 8, 4), ("size_bytes", 1024, 1025), ("nodes", 1, 2),
     ("dtype", "float32", "float16"), ("algorithm", "ring", "tree"), ("protocol", "LL", "Simple")],
)  # fmt: skip
def test_rows_that_differ_do_not_match(column: str, one: object, other: object):
    """Rows that differ in a column both have are no pair; a measured row without partner is left out."""
    rows = [measured(**{column: one}), measured(**{column: other})]
    (point,) = join(rows, [predicted(**{column: str(one)})], {})
    assert getattr(point, column) == one
    assert len(select(rows, {})) == 2


def test_spellings_match():
    """Both tables are compared in one vocabulary."""
    row = parse_measured("collective,ranks,size_bytes,time_us,dtype,protocol\nAllReduce,8,1024,10,half,simple", "t")[0]
    assert join([row], [predicted(collective="all_reduce", dtype="float16", protocol="Simple")], {})


def test_refused_predictions_do_not_count():
    """A predicted row that was refused or has no time is no partner."""
    refused = [predicted(status="needs a power of two"), predicted(time_us=""), predicted(time_us=None)]
    assert join([measured()], refused, {}) == []
    assert len(join([measured()], [*refused, predicted(status="ok")], {})) == 1


def test_two_predictions_for_a_measured_row():
    """The complaint names the columns in which they differ, and a --where that helps; times are no such column."""
    predictions = [predicted(algorithm=a, protocol="LL", time_us=t, steps=t) for a, t in (("ring", 1), ("tree", 2))]
    (complaint,) = complaints([measured(), measured(size_bytes=1024, nodes=1)], predictions)[:1]
    assert complaint == (
        "2 predicted rows match this measured row and differ in algorithm (ring, tree); "
        "choose, e.g. with --where algorithm=ring"
    )
    assert join([measured()], predictions, {"algorithm": "tree"})[0].predicted_us == 2


def test_two_measurements_for_a_prediction():
    """Measured rows that a prediction cannot tell apart are an error too, located at the second of them."""
    text = "collective,ranks,size_bytes,time_us,table\nall_reduce,8,1024,10,a\nall_reduce,8,1024,11,b"
    rows = parse_measured(text, "m.csv")
    assert complaints(rows, [predicted()]) == [
        "m.csv:3:19: 2 measured rows match one predicted row and differ in table (a, b); "
        "choose, e.g. with --where table=a"
    ]
    assert join(rows, [predicted()], {"table": "b"})[0].measured_us == 11


def test_where_prefers_what_is_said():
    """COL=VALUE keeps the rows that say so; where no row of a table does, those that leave it open."""
    open_row, ring, tree = measured(), measured(algorithm="ring"), measured(algorithm="tree")
    assert select([open_row, ring, tree], {"algorithm": "Ring"}) == [ring]
    assert select([open_row, tree], {"algorithm": "ring"}) == [open_row]
    assert select([open_row, tree], {"algorithm": "auto"}) == [open_row]
    assert select([tree], {"algorithm": "ring"}) == []
    assert select([tree], {"engine": "fast"}) == [tree]
    assert select([open_row, ring, tree], {"algorithm": "ring, tree"}) == [ring, tree]
    assert select([open_row, tree], {"algorithm": "ring,naive"}) == [open_row]


def test_what_no_row_says_is_told(tmp_path: Path):
    """Rows that do not say a column of --where are of its value, which a warning counts at each door; where they do say
    it there is none."""
    (tmp_path / "m.csv").write_text(
        "collective,ranks,size_bytes,time_us,dtype\nall_reduce,8,65536,20,half\nall_reduce,8,1048576,27,half\n"
    )
    silent = {"library_version=2.21": "taken to be 2.21", "protocol=LL,LL128": "kept all the same"}
    for words in (["compare", f"{tmp_path}/m.csv"], ["diagnose", f"{tmp_path}/m.csv"]):
        for where, meant in {**silent, "dtype=float16": "", "algorithm=auto": ""}.items():
            found = simcoll(*words, "--on", "hgx-h100", "--where", where, "--json").json["warnings"]
            expected = f"2 of 2 rows do not say {where.partition('=')[0]}: {meant}"
            assert found == ([expected] if meant else [])
    _, _, notes = rows_to_fit([tmp_path / "m.csv"], {"library_version": "2.21"})
    assert notes == ["2 of 2 rows do not say library_version: taken to be 2.21"]


def test_where_is_checked():
    """An unknown column or an impossible value is an error."""
    assert complaints([measured()], [predicted()], algoritm="ring") == [
        "--where: no column 'algoritm'; did you mean 'algorithm'?"
    ]
    assert complaints([measured()], [predicted()], ranks="many") == [
        "--where ranks: 'many' is not a number; write e.g. 8"
    ]


def test_hosts_of_a_rack_share_its_nvlink_domain(tmp_path: Path):
    """Trays are hosts in a log, and one node of a rack: 64 GPUs on 16 trays are predicted as 64 on one node, and 72 on
    each of two racks stay so. Braces say how many racks there are."""
    table = "collective,ranks,nodes,dtype,size_bytes,time_us\nall_reduce,{},{},float32,1073741824,3000\n"

    def told(on: str, ranks: int, nodes: int) -> tuple[float, bool]:
        (tmp_path / "t.csv").write_text(table.format(ranks, nodes))
        done = simcoll("compare", tmp_path / "t.csv", "--on", on, "--json").json
        return done["points"][0]["predicted_us"], any("NVLink domain" in line for line in done["warnings"])

    on = "gb200-nvl72"
    rack = simcoll("predict", "all_reduce", "--on", on, "--ranks", 64, "--size", "1 GiB", "--json").json["points"][0]
    assert told(on, 64, 16) == (rack["time_us"], True) and told(on, 64, 1) == (rack["time_us"], False)
    assert told(on, 144, 36) == (told(on, 144, 2)[0], True)
    assert told("{system: gb200-nvl72, nodes: 2}", 64, 16)[0] != rack["time_us"]
    assert told("hgx-h100", 16, 2)[1] is False


def test_nodes_of_braces_are_those_of_rows_without_nodes(tmp_path: Path):
    """A row without nodes is of the nodes that the machine is given with; a row with nodes is of its own."""
    times = set[float]()
    for on, nodes in (("{system: hgx-h100, nodes: 2}", ""), ("hgx-h100", "2"), ("{system: hgx-h100, nodes: 4}", "2")):
        row = f"all_reduce,16,{nodes},float32,1073741824,5000"
        (tmp_path / "t.csv").write_text(f"collective,ranks,nodes,dtype,size_bytes,time_us\n{row}\n")
        done = simcoll("compare", tmp_path / "t.csv", "--on", on, "--json")
        times.add(done.json["points"][0]["predicted_us"])
    assert len(times) == 1


def test_where_that_keeps_no_row_is_told():
    """With the filter that did it and the values that there are before it, whatever reads the table: `compare` with a
    scenario or a system, `calibrate`, `diagnose`."""
    table, where = "h100_sxm_nccl-2.27.3.csv", ["--where", "collective=all_reduce", "--where", "ranks=6"]
    on = ["--topology", "hgx-h100"]
    for words in (
        ["compare", "system=hgx-h100", table],
        ["compare", "quickstart", table],
        ["calibrate", table, *on, "-o", "never.yaml"],
        ["diagnose", table, *on],
    ):
        found = simcoll(*words, *where)
        assert (found.status, found.out) == (2, "")
        assert found.err == f"--where ranks=6 keeps no row of {table}; ranks is 2, 4, 8 there\n"
    many = simcoll("diagnose", table, *on, "--where", "size_bytes=3").err
    assert "; size_bytes is 512, 1024, " in many and ", …, 536870912 there" in many and len(many) < 200


def test_predictions_are_checked():
    """A predicted row without a key or with a broken number, and a table without times, are errors, each told once."""
    broken = [predicted(ranks="x", collective=None), predicted(ranks="x", collective=None)]
    assert complaints([measured()], broken) == [
        "collective: predicted row: is missing; write a value",
        "ranks: predicted row: 'x' is not a number; write e.g. 8",
    ]
    assert complaints([measured()], [{"collective": "all_reduce"}]) == [
        "the predictions have no column 'time_us'; give the results.csv of simcoll run"
    ]


def points(errors: list[float], collective: str = "all_reduce") -> list[JoinedPoint]:
    """Points of given errors."""
    rows = [measured(size_bytes=i, collective=collective, time_us=100.0) for i in range(len(errors))]
    predictions = [predicted(size_bytes=i, collective=collective, time_us=100 * (1 + e)) for i, e in enumerate(errors)]
    return join(rows, predictions, {})


@pytest.mark.parametrize("kind", ["nccl-tests", "csv"])
def test_mistakes_of_a_row_stand_at_the_row(kind: str, tmp_path: Path):
    """A value that no scenario takes is refused at the line of the log or table that says it."""
    file = tmp_path / kind
    text = (
        foreign.TESTS
        if kind == "nccl-tests"
        else "dtype,ranks,nodes,collective,size_bytes,time_us\nfloat,2,1,all_reduce,8,5\n"
    )
    lines = text.splitlines()
    line = max(number for number, text in enumerate(lines, 1) if " float " in text or text.startswith("float,"))
    lines[line - 1] = lines[line - 1].replace("float", "fl0at")
    file.write_text("\n".join(lines), encoding="utf-8")
    found = simcoll("compare", file, "--on", "hgx-h100")
    assert (
        found.status == 2 and found.err.startswith(f"{file}:{line}:") and "dtype: 'fl0at' is no dtype; did" in found.err
    )


def test_summary():
    """Per collective and ranks, then over all points: mape, median, p95 of |error| and mean error, in percent."""
    first, second, last = summary(points([0.1, -0.3, 0.2]) + points([0.5], "broadcast"))
    assert first == {"collective": "all_reduce", "ranks": 8, "points": 3, "mape": pytest.approx(20),
                     "median": pytest.approx(20), "p95": pytest.approx(29), "bias": pytest.approx(0)}  # fmt: skip
    assert (second["collective"], second["points"], second["mape"]) == ("broadcast", 1, pytest.approx(50))
    assert (last["collective"], last["ranks"], last["points"]) == ("all", None, 4)
    assert last["mape"] == pytest.approx(27.5)
    assert summary([]) == []


@given(st.lists(st.floats(-0.9, 9), min_size=1, max_size=20))
def test_bounds_of_the_summary(errors: list[float]):
    """|bias| never exceeds mape, and the median never the 95th percentile."""
    row = summary(points(errors))[-1]
    assert abs(row["bias"]) <= row["mape"] + 1e-9
    assert row["median"] <= row["p95"] + 1e-9


# --- regions, intervals, ranking ---


def pairs(*found: tuple[float, float], **columns: Any) -> list[JoinedPoint]:
    """Points of measured and predicted times, at sizes 1, 2, 4, … KiB unless `columns` say otherwise; a list has one
    value for each. `low_us` and `high_us` are the prediction's."""
    rows, predictions = [], []
    for i, (time, guess) in enumerate(found):
        its = {name: value[i] if isinstance(value, list) else value for name, value in columns.items()}
        its = {"size_bytes": 1024 * 2**i, **its}
        rows.append(measured(**{name: v for name, v in its.items() if not name.endswith("_us")}, time_us=time))
        predictions.append(predicted(**its, time_us=guess))
    return join(rows, predictions, {})


def test_regions_follow_what_was_measured():
    """Below twice the shortest time: latency; from half the best bandwidth on: bandwidth; neither or both: middle."""
    found = pairs((10, 10), (15, 15), (25, 20), (30, 15), (60, 60), size_bytes=[1000, 2000, 4000, 40000, 90000])
    region = region_of(found)
    assert [region(p) for p in found] == [*["latency-bound"] * 2, "middle", *["bandwidth-bound"] * 2]
    assert [(row["region"], row["points"]) for row in regions(found)] == [
        ("latency-bound", 2), ("middle", 1), ("bandwidth-bound", 2)
    ]  # fmt: skip
    assert regions(found)[1]["mape"] == pytest.approx(20)
    alone = pairs((10, 10))
    assert region_of(alone)(alone[0]) == "middle"


def test_regions_are_of_each_series():
    """What is short for one rank count may be long for another."""
    few, many = pairs((10, 10), (100, 100), ranks=2), pairs((100, 100), (101, 101), ranks=8, size_bytes=[1, 4])
    region = region_of([*few, *many])
    assert [region(p) for p in many] == ["latency-bound", "middle"]


def test_intervals_are_counted():
    """The share of measured times in their interval, and the mean width of it; points without one do not count."""
    found = pairs((10, 10), (10, 10), (30, 20), low_us=[9, 11, None], high_us=[11, 12, None])
    assert intervals(found) == {"points": 2, "coverage": 50, "width": pytest.approx(15)}
    assert intervals(points([0.1])) is None


def rivals(times: dict[str, tuple[float, float]], size: int = 1024) -> list[JoinedPoint]:
    """Algorithms at one point: measured and predicted times."""
    found = [((time, guess), name) for name, (time, guess) in times.items()]
    return pairs(*(its for its, _ in found), algorithm=[name for _, name in found], size_bytes=size)


def test_ranking():
    """Kendall's tau and the share of clear pairs in order; regret is what the advised algorithm takes longer."""
    right = rivals({"ring": (10, 1), "tree": (20, 2), "naive": (30, 3)})
    assert ranking(right) == {
        "groups": 1, "tau": 1, "pairs": 3, "in_order": 100, "regret_mean": 0, "regret_worst": 0
    }  # fmt: skip
    wrong = rivals({"ring": (10, 3), "tree": (20, 2), "naive": (30, 1)}, size=2048)
    found = ranking([*right, *wrong])
    assert found is not None
    assert (found["groups"], found["tau"], found["in_order"]) == (2, 0, 50)
    assert (found["regret_mean"], found["regret_worst"]) == (pytest.approx(100), pytest.approx(200))


def test_ranking_ignores_what_is_level():
    """Measured times within 5 % of each other are in no order; one algorithm alone, or none named, is not ranked."""
    found = ranking(rivals({"ring": (10, 2), "tree": (10.4, 1)}))
    assert found is not None
    assert (found["pairs"], found["in_order"], found["tau"]) == (0, None, -1)
    assert found["regret_worst"] == pytest.approx(4)
    assert ranking(points([0.1, 0.2])) is None


@given(st.lists(st.tuples(st.floats(1, 1e6), st.floats(1, 1e6)), min_size=2, max_size=8))
def test_bounds_of_the_ranking(times: list[tuple[float, float]]):
    """Tau lies between −1 and 1, regret is never below 0, and predictions that are the measured times have none."""
    names = [f"algorithm{i}" for i in range(len(times))]
    found = ranking(rivals(dict(zip(names, times, strict=True))))
    perfect = ranking(rivals({name: (time, time) for name, (time, _) in zip(names, times, strict=True)}))
    assert found is not None and perfect is not None
    assert -1 <= found["tau"] <= 1
    assert 0 <= found["regret_mean"] <= found["regret_worst"]
    assert perfect["regret_worst"] == 0
    assert perfect["in_order"] in (100, None)


def test_each_size_is_asked_by_itself():
    """Rows that differ only in size have points that do; a size of no whole elements is refused with its place."""
    rows = parse_measured(
        "collective,ranks,size_bytes,time_us\n" + "".join(f"all_reduce,8,{n},9\n" for n in (64, 4096, 66)), "t"
    )
    asking = RowQuestions("hgx-h100")
    (first,), (second,) = map(asking.points, rows[:2])
    (alone,) = RowQuestions("hgx-h100").points(rows[1])
    assert (first.scenario.size, second) == (64, alone)
    with pytest.raises(InputError, match=r"t:4:.*66 B is not a whole number of float32"):
        asking.points(rows[2])
