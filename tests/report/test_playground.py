"""The playground of the pages: its times are those of the engines, and it answers when something is chosen."""

from __future__ import annotations

import runpy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser
import pytest
from networks import full_mesh, makespan

import simcoll as sc
from simcoll.schedule.registry import ALGORITHMS
from simcoll.topology.graph import Link

DOCS = Path(__file__).parents[2] / "docs"
RANKS = (2, 3, 8)
LATENCY_PS, BANDWIDTH = 1_000_000, 50 * 10**9
PAGE = """<!doctype html><meta charset=utf-8><title>playground</title><link rel=icon href=data:,>
<div id=simcoll-playground></div><div id=simcoll-gallery></div>
<script defer src=playground-data.js></script><script defer src=playground.js></script>"""
TIMES = """([collective, name, ranks, nbytes, latency, bandwidth]) => {
  const entry = SIMCOLL[collective].algorithms[name], form = entry.forms[ranks] ?? null;
  return [replay(entry.schedules[ranks], nbytes, latency, bandwidth).time, closed(form, nbytes, latency, bandwidth)];
}"""


@pytest.fixture
def page(chromium: Any, tmp_path: Path) -> Iterator[Any]:
    """The playground and the gallery in a browser that fails for whatever it complains of."""
    data = runpy.run_path(str(DOCS / "playground_data.py"))
    (tmp_path / "playground-data.js").write_text(data["script"](RANKS), encoding="utf-8")
    (tmp_path / "page.html").write_text(PAGE, encoding="utf-8")
    shutil.copy(DOCS / "_static/playground.js", tmp_path)
    complaints: list[str] = []
    with chromium.new_page() as page:
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.set_default_timeout(browser.PATIENCE_MS)
        page.goto((tmp_path / "page.html").as_uri())
        yield page
        assert complaints == []


@pytest.mark.browser
def test_times_are_those_of_the_engine(page: Any) -> None:
    """On a full mesh the page takes each schedule as long as the engine does, and its closed form agrees with both."""
    asked = [(c, a.name) for c, entries in ALGORITHMS.items() for a in entries.values() if not a.needs_agent]
    priced = 0
    for ranks in RANKS:
        mesh = full_mesh(ranks, Link(BANDWIDTH, latency_ps=LATENCY_PS))
        equal = [12 * ranks * ranks * each for each in (1, 5000)]  # every algorithm cuts these into equal chunks
        for nbytes in (*equal, 4, 44, 2**18, 2**26):
            for collective, name in asked:
                found, formed = page.evaluate(TIMES, [collective, name, ranks, nbytes, LATENCY_PS, BANDWIDTH])
                took = makespan(f"{collective}/{name}", mesh, nbytes, itemsize=4, sharing="fair")
                assert found == took, (collective, name, ranks, nbytes)
                assert nbytes not in equal or formed in (None, found), (collective, name, ranks, nbytes)
                priced += formed is not None
    assert priced > 100


@pytest.mark.browser
def test_a_size_is_that_of_a_scenario(page: Any) -> None:
    """At every collective the page says of the size in its list what a scenario says of it; a barrier has none."""
    choose, size = page.get_by_label("Collective"), page.get_by_label("size", exact=True)
    page.get_by_label("latency (us)").fill("0")  # which counts, too
    for collective in ALGORITHMS:
        choose.select_option(collective)
        shown = dict(page.evaluate(SHOWN))
        assert size.is_disabled() == (collective == "barrier")
        sized = {} if collective == "barrier" else {"size": int(size.input_value())}
        link = {"bandwidth": "50 GB/s", "latency": "0 us"}
        mesh = {"fabric": "full-mesh", "hosts": 8, "link": link}
        rows = sc.run(collective=collective, algorithm="all", topology=mesh, profile="one-port", **sized)
        for row in rows:
            if row["algorithm"] in shown:
                assert shown[row["algorithm"]] == pytest.approx(row["time_us"] * 1e6, abs=1), (collective, row)
        assert {row["algorithm"] for row in rows} & set(shown)


SHOWN = """Object.entries(SIMCOLL[document.getElementById("playground-collective").value].algorithms).map(([name]) =>
  [name, Number([...document.querySelectorAll("#simcoll-playground tbody tr")]
    .find(row => row.cells[0].textContent === name).cells[5].dataset.ps)])"""
