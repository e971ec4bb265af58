"""The scripts of examples/: each runs, prints its answer, and leaves its file."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import ROOT

from docs import notebook
from simcoll.schedule import algorithms  # which fill the registry
from simcoll.schedule.registry import ALGORITHMS

LEAVES = {
    "own_algorithm": ("own_algorithm.png", "Fastest"),
    "own_topology": ("", "halving_doubling takes "),
    "paper_figure": ("paper_figure.pdf", ""),
    "read_a_log": ("", "Off: all_reduce on 8"),
    "ddp_step": ("ddp_step.svg", "best bucket: "),
    "msccl_schedule": ("all_reduce.xml", "thread blocks"),
}


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Algorithms that a script registers are gone after it."""
    assert algorithms.ring
    before = set(ALGORITHMS["all_reduce"])
    yield
    for name in set(ALGORITHMS["all_reduce"]) - before:
        del ALGORITHMS["all_reduce"][name]


def test_every_example_is_tried() -> None:
    """There are six, and the figure of a paper takes at most 25 lines."""
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(LEAVES)
    assert len((ROOT / "examples/paper_figure.py").read_text(encoding="utf-8").splitlines()) <= 25


@pytest.mark.parametrize("name", LEAVES)
def test_examples(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script runs in an empty folder."""
    monkeypatch.chdir(tmp_path)
    file, said = LEAVES[name]
    runpy.run_path(str(ROOT / f"examples/{name}.py"))
    assert said in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ([file] if file else [])


def test_the_notebook_shows_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell of the notebook runs, and ends with what shows itself: schedules, animations, a table, a plot, an
    explanation. It is stored without outputs, and the page that shows it has them."""
    monkeypatch.chdir(tmp_path)
    file = ROOT / "examples/collectives.ipynb"
    cells = [cell for cell in notebook.ran(file) if cell.kind == "code"]
    assert all(cell.shown for cell in cells)
    shown = "".join(cell.shown for cell in cells)
    assert shown.count("data:image/svg+xml") == 3 and "<table" in shown and "all_reduce/ring: 3 ranks" in shown
    assert "<pre>True</pre>" in shown
    stored = json.loads(file.read_text("utf-8"))["cells"]
    assert not any(cell.get("outputs") for cell in stored)
    assert "examples/collectives.ipynb" in (ROOT / "docs/notebook.md").read_text("utf-8")
