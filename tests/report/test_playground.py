"""The playground of the pages: its times are those of the engines, and it answers when something is chosen."""

from __future__ import annotations

import json
import re
import runpy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser
import pytest
from command import simcoll
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
OFFERED = "Object.keys(SIMCOLL)"
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


@pytest.mark.thorough
@pytest.mark.browser
def test_times_are_those_of_the_engine(page: Any) -> None:
    """On a full mesh the page takes each schedule as long as the engine does, and its closed form agrees with both."""
    asked = [(c, a.name) for c in page.evaluate(OFFERED) for a in ALGORITHMS[c].values() if not a.needs_agent]
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


@pytest.mark.thorough
@pytest.mark.browser
def test_a_size_is_that_of_a_scenario(page: Any) -> None:
    """At every collective the page says of the size in its list what a scenario says of it; a barrier has none."""
    choose, size = page.get_by_label("Collective"), page.get_by_label("size", exact=True)
    page.get_by_label("latency (us)").fill("0")  # which counts, too
    for collective in page.evaluate(OFFERED):
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


STEPPED = [  # the collective and algorithm, ranks, operator
    *(f"all_reduce/{name}" for name in ("naive", "ring", "tree", "all_pairs", "recursive_doubling", "swing")),
    *(f"all_reduce/{name}" for name in ("hierarchical", "hierarchical_leader", "double_binary_tree", "two_shot")),
    "all_gather/ring", "all_gather/bruck", "reduce_scatter/ring", "reduce_scatter/pat", "all_to_all/bruck",
    "broadcast/scatter_allgather", "reduce/chain", "gather/binomial", "scatter/binomial", "send_recv/direct",
    "barrier/dissemination",
]  # fmt: skip
CLICK = "name => document.querySelector(`.stepper [aria-label=${name}]`).click()"
ROWS = """[...document.querySelectorAll("section.step[data-name='NAME'] tbody tr")].map(row =>
  [...row.cells].map(cell => cell.textContent).join(" ").split(/ +/).filter(Boolean).join(" "))"""


@pytest.mark.browser
def test_steps_are_those_of_show(page: Any) -> None:
    """A step forward and a step back show what `show --values` prints of the step, also beside another algorithm."""
    beside = page.locator("#playground-beside")
    for number, pair in enumerate(STEPPED):
        collective, _, name = pair.partition("/")
        ranks = 8 if "hierarchical" in name else 3
        page.get_by_label("Collective").select_option(collective)
        page.get_by_label("ranks", exact=True).select_option(str(ranks))
        page.get_by_role("button", name=name, exact=True).click()
        offered = page.evaluate("[...document.getElementById('playground-op').options].map(each => each.value)")
        chosen = offered[number % len(offered)] if offered else None
        if chosen:
            page.locator("#playground-op").select_option(chosen)
        names = page.evaluate("[...document.getElementById('playground-beside').options].map(each => each.value)")
        if len(names) > 1:
            beside.select_option(names[1 + number % (len(names) - 1)])
        values = page.evaluate(f"counted(SIMCOLL.{collective}.algorithms.{name}.schedules[{ranks}], {ranks})")
        if any(not row for row in values):  # only the root hands in something
            values = [row for row in values if row]
        printed = _printed(pair, ranks, json.dumps(values), chosen)
        rows = ROWS.replace("NAME", name)
        page.evaluate(CLICK, "first")
        for position, block in enumerate(printed):
            assert page.evaluate(rows) == block, (pair, chosen, position)
            page.evaluate(CLICK, "forward")
        page.evaluate(CLICK, "first")
        for _ in printed[1:]:
            page.evaluate(CLICK, "forward")
        for position, block in reversed([*enumerate(printed)]):
            assert page.evaluate(rows) == block, (pair, chosen, position)
            page.evaluate(CLICK, "back")


def _printed(pair: str, ranks: int, values: str, op: str | None) -> list[list[str]]:
    """The rows that `show --values` prints before all, after each step and at the end, words with one space between."""
    found = simcoll("show", pair, "--ranks", ranks, "--values", values, *(["--op", op] if op else []))
    lines = [line for line in found.out.splitlines()[3:] if not line.startswith("#")]
    rows = [" ".join(re.sub(r"^ *(before|step \d+|end)", "", line).split()) for line in lines]
    return [rows[at : at + ranks] for at in range(0, len(rows), ranks)]


SHOWN = """Object.entries(SIMCOLL[document.getElementById("playground-collective").value].algorithms).map(([name]) =>
  [name, Number([...document.querySelectorAll("#simcoll-playground tbody tr")]
    .find(row => row.cells[0].textContent === name).cells[5].dataset.ps)])"""
