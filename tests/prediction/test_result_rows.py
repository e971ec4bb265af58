"""Rows of results: nothing that is swept is lost, nothing that is written is read back otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

import simcoll
from simcoll.prediction import result_rows
from simcoll.prediction.result_rows import COLUMNS

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


def test_what_is_swept_has_a_column() -> None:
    """Every row of a sweep differs from every other in what was asked, not only in what came out."""
    rows = simcoll.run(simcoll.load(KEYS))
    asked = ("collective", "algorithm", "size_bytes", "sharing", "topology.link.bandwidth", "model.o_send")
    assert len(rows) == len({tuple(row[column] for column in asked) for row in rows}) == 32
    assert result_rows.swept(rows) == ["topology.link.bandwidth", "model.o_send"]


def test_fixed_columns_come_first(tmp_path: Path) -> None:
    """The columns everyone relies on keep their order; those of swept keys stand behind, and are read back."""
    rows = simcoll.run(simcoll.load(KEYS))
    rows.to_csv(tmp_path / "results.csv")
    head = (tmp_path / "results.csv").read_text().splitlines()[0].split(",")
    assert tuple(head[: len(COLUMNS)]) == COLUMNS
    assert head[len(COLUMNS) :] == ["topology.link.bandwidth", "model.o_send"]
    again = result_rows.read(tmp_path / "results.csv")
    assert [row["model.o_send"] for row in again] == [row["model.o_send"] for row in rows]
    assert [round(row["time_us"] * 1e6) for row in again] == [row["time_ps"] for row in rows]


def test_what_does_not_vary_has_none() -> None:
    """A scenario without such a sweep has the fixed columns only."""
    assert result_rows.swept(simcoll.run(simcoll.load({**KEYS, "model": {}, "topology": {"system": "hgx-h100"}}))) == []


def test_parquet_holds_the_same_rows(tmp_path: Path) -> None:
    """A Parquet file gives the rows back; without pyarrow the error says what to install."""
    rows = simcoll.run(simcoll.load({**KEYS, "model": {}}))
    try:
        from pyarrow import parquet
    except ImportError:
        with pytest.raises(simcoll.SimcollError, match=r"simcoll\[parquet\]"):
            rows.to_parquet(tmp_path / "rows.parquet")
        return
    rows.to_parquet(tmp_path / "rows.parquet")
    again = parquet.read_table(tmp_path / "rows.parquet").to_pylist()
    assert [row["time_us"] for row in again] == [row["time_us"] for row in rows]
