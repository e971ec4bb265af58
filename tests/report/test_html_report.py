"""The report of a run: whole, by itself, and safe to open."""

from __future__ import annotations

import csv
import functools
import io
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
from command import simcoll

from simcoll.explanation.viewer_trace import Slice, Trace, Track
from simcoll.report.html.points import MOST, timeline

VOID = {"meta", "link", "br", "img", "input", "hr"}
LOADS = {"src", "href", "srcset", "action", "poster", "data", "xlink:href"}
STAR = "topology: {fabric: single-switch, hosts: 4, link: {bandwidth: 10 GB/s, latency: 1 us}}\n"
RUNS = {
    "collective": STAR + "collective: all_reduce\nalgorithm: [ring, naive]\nsize: [1 KiB, 64 KiB]\n",
    "workload": STAR + "workload: {template: ddp, algorithm: ring, first_bucket: same, bucket_cap: [64 KiB, 8 KiB],\n"
    "  layers: [{parameters: 10 KiB, backward: 1 ms, forward: 0.5 ms, times: 3}]}\n",
    "varied": STAR + "collective: broadcast\nalgorithm: [binomial, chain]\nsize: 8 KiB\nreplications: 5\nplots: []\n"
    "variability: {launch_skew: {distribution: lognormal, median: 3 us, sigma: 0.8}}\n",
    "refused": STAR + "collective: all_reduce\nalgorithm: [ring, halving_doubling]\nsize: 1 KiB\nranks: 3\nplots: []\n",
    "as NCCL": "topology: {system: hgx-h100}\nprofile: nccl-hopper\ncollective: all_reduce\nsize: 1 MiB\n",
}  # fmt: skip


class Page(HTMLParser):
    """A page taken apart: what it loads, its scripts, cells and text; fails where elements are not well nested."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.rows: list[list[str]] = []
        self.words: list[str] = []
        self.events: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element opens."""
        found = dict(attrs)
        self.loads += [value or "" for name, value in attrs if name in LOADS]
        self.events += [name for name, _ in attrs if name.startswith("on")]
        self.ids += [found["id"] or ""] if "id" in found else []
        if tag == "script":
            self.scripts.append((found, ""))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """It closes, and is the one that opened last."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Text."""
        if self.open and self.open[-1] == "script":
            self.scripts[-1] = self.scripts[-1][0], self.scripts[-1][1] + data
        elif self.open and self.open[-1] != "style":
            self.words.append(data)
            if {"td", "th"} & set(self.open):
                self.rows[-1][-1] += data


def reported(folder: Path, text: str, *more: str, status: int = 0) -> str:
    """The report of a scenario."""
    (folder / "scenario.yaml").write_text(text)
    done = simcoll("run", folder / "scenario.yaml", "--report", folder / "report.html", "-o", folder, "--quiet", *more)
    assert done.status == status, done.err
    return (folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder with the report of a run, and what else it writes; each of RUNS runs once."""

    @functools.cache
    def made(name: str) -> Path:
        folder = tmp_path_factory.mktemp("report")
        reported(folder, RUNS[name])
        return folder

    return made


@pytest.mark.parametrize("name", RUNS)
def test_it_is_whole_and_by_itself(name: str, folder_of: Callable[[str], Path]) -> None:
    """It is well nested HTML; all that it loads lies within it; it holds every row, every prediction with its label,
    the scenario, and where the time goes; and pictures are well formed."""
    folder = folder_of(name)
    text = (folder / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert all(address.startswith(("data:", "#")) for address in page.loads)
    assert not re.search(r"url\(|@import", text.partition("</style>")[0])
    assert "default-src 'none'" in text
    assert len(set(page.ids)) == len(page.ids)
    for address in page.loads:
        if address.startswith("#"):
            assert address[1:] in page.ids
        if address.startswith("data:image/svg+xml,"):
            ElementTree.fromstring(unquote(address.partition(",")[2]))
    words = "".join(page.words)
    written = (folder / "results.csv").read_text()
    assert written in words
    assert RUNS[name] in words
    rows = list(csv.DictReader(io.StringIO(written)))
    told = page.rows[1 : 1 + len(rows)]
    for row, cells in zip(rows, told, strict=True):
        assert {row["algorithm"], row["ranks"], row["status"]} <= set(cells)
        if row["status"] == "ok":
            assert row["confidence"] or "uncalibrated" in cells
            assert any(cell and abs(number(cell) / float(row["time_us"]) - 1) < 1e-3 for cell in cells)


@pytest.mark.parametrize(("key", "counts"), [("ranks", [2, 4]), ("topology.hosts", list(range(2, 11)))])
def test_each_number_of_ranks_is_in_the_report(key: str, counts: list[int], tmp_path: Path) -> None:
    """At its largest size; one of each before the second algorithm of any. Where there are too many, the page names
    each for which there is no room."""
    path, page = tmp_path / "counts.yaml", tmp_path / "report.html"
    text = STAR + "collective: all_reduce\nalgorithm: [ring, naive]\nplots: []\nsize: [1 KiB, 8 KiB]\n"
    path.write_text(text, encoding="utf-8")
    assert simcoll("run", path, "--set", f"{key}={counts}", "-o", tmp_path / "out", "--report", page).status == 0
    words = page.read_text(encoding="utf-8")
    shown = [int(ranks) for ranks in re.findall(r"<summary>all_reduce, \w+, 8 KiB, (\d+) ranks", words)]
    every = {(ran, n) for ran in ("ring", "naive") for n in counts}
    closely = re.findall(r"<summary>all_reduce, (\w+), 8 KiB, (?:hosts )?(\d+)", words)
    named = [(ran, n) for some, n in re.findall(r"by ([\w, ]+) at (?:hosts )?(\d+)", words) for ran in some.split(", ")]
    assert sorted((ran, int(n)) for ran, n in [*closely, *named]) == sorted(every)
    assert len(shown) == min(MOST, 2 * len(counts))
    assert not named or len(set(shown)) == MOST
    assert f"{2 * len(counts)} more points of the run" in words


def test_the_same_run_gives_the_same_page(folder_of: Callable[[str], Path]) -> None:
    """To the last byte."""
    text = (folder_of("varied") / "report.html").read_text(encoding="utf-8")
    assert reported(folder_of("varied"), RUNS["varied"]) == text


def number(text: str) -> float:
    """What a cell holds; NaN if that is no number."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


@pytest.mark.parametrize("name", ["collective", "workload", "as NCCL"])
def test_timelines_hold_the_run(name: str, folder_of: Callable[[str], Path]) -> None:
    """Each timeline ends when its point does, and its critical path covers it without a gap."""
    text = (folder_of(name) / "report.html").read_text(encoding="utf-8")
    data = [json.loads(script) for attrs, script in Page(text).scripts if attrs.get("type") == "application/json"]
    rows = list(csv.DictReader(io.StringIO((folder_of(name) / "results.csv").read_text())))
    times = {round(float(row["time_us"]) * 1e6) for row in rows}
    assert data
    for one in data:
        assert one["end"] in times
        path = one["tracks"][0]
        assert path["p"] == "critical path"
        assert set(path["s"][::6]) == {0}
        assert sum(path["s"][1::6]) == one["end"]
        for track in one["tracks"]:
            assert all(after >= 0 for after in track["s"][::6])
            assert sum(track["s"][::6]) + sum(track["s"][1::6]) <= one["end"]


def test_what_a_scenario_says_cannot_run(tmp_path: Path) -> None:
    """Nothing of a scenario becomes an element, a script or an attribute, wherever it stands."""
    evil = '</title></script></pre><script>alert(1)</script><img src=x onerror="alert(2)">&amp;'
    link = {"from": "gpu*", "to": f"x{evil}0", "bandwidth": "1 GB/s", "latency": "1 us", "kind": evil}
    machine = {"name": evil, "devices": {"gpu": 3, f"x{evil}": 1}, "links": [link]}
    (tmp_path / "machine.yaml").write_text(json.dumps(machine))
    what = "collective: all_reduce\nalgorithm: ring\nsize: 1 KiB\nplots: busbw\n"
    own = f"name: {json.dumps(evil)}\n# {evil}\ntopology: {{file: {tmp_path / 'machine.yaml'}}}\n{what}"
    page = Page(reported(tmp_path, own, "--set", f"name={json.dumps(evil)}"))
    plain = Page(reported(tmp_path, STAR + what))
    assert page.events == []
    assert len(page.scripts) == len(plain.scripts)
    assert len(page.loads) == len(plain.loads)
    assert evil in "".join(page.words)


@pytest.mark.parametrize(("name", "complaint"), [("report.pdf", "end its name in .html"), ("no/r.html", "")])
def test_where_it_is_written(name: str, complaint: str, tmp_path: Path) -> None:
    """A name that is no page's is refused before anything runs; folders are made."""
    (tmp_path / "scenario.yaml").write_text(RUNS["refused"])
    done = simcoll("run", tmp_path / "scenario.yaml", "--report", tmp_path / name, "--quiet")
    assert (done.status == 2) == bool(complaint)
    assert complaint in done.err
    assert (tmp_path / name).exists() == (not complaint)


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_works_in_a_browser(scheme: Any, chromium: Any, folder_of: Callable[[str], Path]) -> None:
    """In a real browser tables sort both ways, timelines zoom, move and tell what is under the mouse or chosen by keys,
    and nothing is complained of."""
    with chromium.new_page(color_scheme=scheme) as page:
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto((folder_of("collective") / "report.html").as_uri())
        times = "[...document.querySelector('table.sortable').tBodies[0].rows].map(row => +row.cells[3].dataset.value)"
        head = page.locator("table.sortable >> nth=0").get_by_role("button", name="time")
        head.click()
        assert page.evaluate(times) == sorted(page.evaluate(times))
        head.click()
        assert page.evaluate(times) == sorted(page.evaluate(times), reverse=True)
        view = "[timelines[0].from, timelines[0].to]"
        whole = page.evaluate(view)
        page.get_by_label("zoom in").first.click()
        assert width(page.evaluate(view)) == pytest.approx(width(whole) / 2)
        page.locator("canvas.lanes").first.focus()
        page.keyboard.press("ArrowRight")
        assert page.evaluate(view)[0] > whole[0] + width(whole) / 4
        page.keyboard.press("0")
        assert page.evaluate(view) == whole
        page.keyboard.press("ArrowDown")
        page.keyboard.press(".")
        assert "from" in page.locator(".readout").first.inner_text()
        box = page.locator("canvas.lanes").first.bounding_box()
        page.mouse.move(box["x"] + 250, box["y"] + 27)
        assert "ncclDevKernel_AllReduce" in page.locator("#tip").inner_text()
        page.mouse.down()
        page.mouse.move(box["x"] + 300, box["y"] + 27)
        page.mouse.up()
        for fold in page.locator("details.point summary").all():
            fold.click()
        assert complaints == []


def width(view: list[float]) -> float:
    """How much time it shows."""
    return view[1] - view[0]


def test_what_is_too_large_is_cut() -> None:
    """As much of a trace is shown as there is room for: first links go, then transfers, then the last ranks."""
    ranks = [f"rank {rank}" for rank in range(3)]
    kinds = {"stream": "kernel", "channel 0": "send", "receives": "receive"}
    args = {"chunk": 0, "bytes": 8, "step": 0}
    tracks = [
        Track(rank, name, [Slice(at, at + 1, "it", kind, args) for at in range(10)])
        for rank in ranks
        for name, kind in kinds.items()
    ]
    tracks.append(Track("links", "a->b", [Slice(at, at + 1, "it", "link", args) for at in range(10)]))
    trace = Trace(tracks, [], [], {}, ranks)
    shown = {}
    for most in (100, 99, 90, 89, 30, 29, 10, 9):
        data, note = timeline(trace, [], most)
        shown[most] = len(data["tracks"]) - 1, bool(note)  # and the path's
    assert shown == {
        100: (10, False), 99: (9, True), 90: (9, True), 89: (3, True),
        30: (3, True), 29: (2, True), 10: (1, True), 9: (0, True),
    }  # fmt: skip
