"""Rows of results: nothing that is swept is lost, nothing that is written is read back otherwise."""

from __future__ import annotations

import csv
import json
import pickle
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from command import simcoll as command
from hypothesis import given, settings
from hypothesis import strategies as st

import simcoll
from simcoll.prediction import result_rows
from simcoll.prediction.result_rows import COLUMNS, KINDS, TEXTS, UNITS, ResultRow

KEYS = {
    "topology": {
        "fabric": "single-switch",
        "hosts": 4,
        "link": {"bandwidth": ["25 GB/s", "50 GB/s"], "latency": "1 us"},
    },
    "collective": "all_reduce",
    "algorithm": ["ring", "naive"],
    "size": ["4 KiB", "1 MiB"],
    "model": {"o_send": ["0 us", "2 us"], "sharing": ["fair", "fifo"]},
}
VALUES = {
    str: st.text("abc, \"'\n;é=+-@1", min_size=1),
    int: st.integers(0, 2**60),
    float: st.integers(0, 10**15).map(lambda millionths: millionths / 1e6),  # what six decimals hold
    bool: st.booleans(),
    dict: st.dictionaries(st.sampled_from(["jitter", "skew"]), st.floats(0, 1)),
}
FIELDS: dict[str, Any] = {column: st.none() | VALUES[kind] for column, kind in KINDS.items()}
SETTINGS = st.dictionaries(st.sampled_from(["model.o_send", "launch.graph"]), st.text("ab 1", min_size=1))
ROWS = st.builds(ResultRow, **{**FIELDS, "collective": VALUES[str], "status": VALUES[str]}, settings=SETTINGS)


def plain(row: ResultRow) -> dict[str, Any]:
    """The columns that say something."""
    return {column: value for column, value in row.items() if value is not None}


@settings(max_examples=40)
@given(rows=st.lists(ROWS, max_size=4))
def test_every_row_is_read_back_as_it_was_written(
    rows: list[ResultRow], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """results.csv holds every public column of every row, whatever stands in it; so does the document."""
    path = tmp_path_factory.mktemp("rows") / "results.csv"
    path.write_bytes(result_rows.to_csv(rows).encode())
    assert [plain(row) for row in result_rows.read(path)] == [plain(row) for row in rows]
    assert json.loads(result_rows.document(rows))["points"] == [dict(row) for row in rows]


@settings(max_examples=40)
@given(row=ROWS, time_ps=st.integers(0, 2**60), marks=st.tuples(*[st.booleans()] * 3))
def test_a_row_survives_the_journal_and_other_processes(row: ResultRow, time_ps: int, marks: tuple[bool, ...]) -> None:
    """Public columns and marks alike: a row is made again from its record, and from its pickle."""
    names = ("left_out", "wrong_input", "passing")
    marked = ResultRow.of({**row, "time_ps": time_ps, **dict(zip(names, marks, strict=True))})
    assert ResultRow.of(json.loads(json.dumps(marked.record()))) == marked
    assert pickle.loads(pickle.dumps(marked)) == marked
    assert list(marked) == [*COLUMNS, *row.settings]


def test_every_column_says_what_it_holds() -> None:
    """Each public field has a meaning, and the unit that its name ends with."""
    assert [each.name for each in fields(ResultRow) if each.metadata] == list(COLUMNS)
    assert all(TEXTS.values())
    assert {column for column in COLUMNS if UNITS[column] == "us"} == {c for c in COLUMNS if "_us" in c}
    assert {column for column in COLUMNS if UNITS[column] == "GB/s"} == {c for c in COLUMNS if c.endswith("_GBps")}


@pytest.mark.parametrize(
    "change", [{"ranks": "eight"}, {"time_us": "fast"}, {"in_place": 1}, {"colour": "red"}, {"slowdown_shares": 0.5}]
)
def test_the_schema_of_results_tells_good_from_bad(change: dict[str, Any]) -> None:
    """What `run --json` prints is valid under `simcoll schema results`; a wrong kind or an unknown column is not."""
    validator = jsonschema.Draft202012Validator(command("schema", "results").json)
    validator.check_schema(validator.schema)
    sizes = ["size=[1 KiB, 1 MiB]", "model.o_send=[1 us, 2 us]", "ranks=[4, 99]"]
    document = command("run", "quickstart", *(word for text in sizes for word in ("--set", text)), "--json").json
    assert {row["status"].partition(":")[0] for row in document["points"]} == {"ok", "refused"}
    validator.validate(document)
    document["points"][0] |= change
    assert not validator.is_valid(document)


def test_what_is_swept_has_a_column() -> None:
    """Every row of a sweep differs from every other in what was asked, not only in what came out."""
    rows = simcoll.run(simcoll.load(KEYS))
    asked = ("collective", "algorithm", "size_bytes", "sharing", "topology.link.bandwidth", "model.o_send")
    assert len(rows) == len({tuple(row[column] for column in asked) for row in rows}) == 32
    assert result_rows.swept(rows) == ["topology.link.bandwidth", "model.o_send", "model.sharing"]


def test_fixed_columns_come_first(tmp_path: Path) -> None:
    """The columns everyone relies on keep their order; those of swept keys stand behind, and are read back."""
    rows = simcoll.run(simcoll.load(KEYS))
    rows.to_csv(tmp_path / "results.csv")
    with (tmp_path / "results.csv").open(newline="") as file:
        head = next(csv.reader(file))
    assert tuple(head[: len(COLUMNS)]) == COLUMNS
    assert head[len(COLUMNS) :] == ["topology.link.bandwidth", "model.o_send", "model.sharing"]
    again = result_rows.read(tmp_path / "results.csv")
    assert [row["model.o_send"] for row in again] == [row["model.o_send"] for row in rows]
    assert [round((row.time_us or 0) * 1e6) for row in again] == [row["time_ps"] for row in rows]


def test_what_does_not_vary_has_none() -> None:
    """A scenario without such a sweep has the fixed columns only."""
    assert result_rows.swept(simcoll.run(simcoll.load({**KEYS, "model": {}, "topology": {"system": "hgx-h100"}}))) == []


def test_links_and_devices_stay(tmp_path: Path) -> None:
    """What is there as a link, and leads to a file or a device, is written to and not replaced, whatever writes it."""
    target, link = tmp_path / "target", tmp_path / "link.svg"
    target.touch()
    link.symlink_to(target)
    assert command("predict", "all_reduce", "--on", "hgx-h100", "--size", "[1 MiB, 2 MiB]", "-o", tmp_path).status == 0
    for words in (["export", "hgx-h100", "--to", "graphviz"], ["plot", tmp_path, "--x", "size"]):
        target.write_text("")
        assert command(*words, "-o", link).status == 0
        assert link.is_symlink() and target.read_text("utf-8").strip()
