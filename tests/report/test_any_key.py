"""Pictures over any key, of overlap, and as the command line and scenarios ask for them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from command import simcoll
from matplotlib.axes import Axes

import simcoll as sc
from simcoll.errors import BoundError, InputError
from simcoll.prediction.predictions import Prediction
from simcoll.report import run_plots
from simcoll.report.columns import filtered
from simcoll.report.html import points as points_of_page
from simcoll.report.overlap import RankOverlap, union
from simcoll.report.plot.any_key import key_figure
from simcoll.report.plot.steps import overlap_figure

STAR = {"fabric": "fat-tree", "hosts": 8, "link": {"bandwidth": "10 GB/s", "latency": "1 us"}}
KEYS: dict[str, Any] = {
    "topology": {**STAR, "oversubscription": [1, 2, 4], "hosts_per_leaf": [2, 4]},
    "collective": "all_reduce",
    "algorithm": ["ring", "tree"],
    "size": "1 MiB",
}


@pytest.fixture(scope="module")
def rows() -> sc.Results:
    """Twelve points: two algorithms on six trees."""
    return sc.run(KEYS)


def lines(axes: Axes) -> list[list[float]]:
    """Values of the lines of a panel."""
    return [[round(float(y), 6) for y in line.get_ydata()] for line in axes.lines]  # type: ignore[union-attr]


def test_any_swept_key_goes_across(rows: sc.Results) -> None:
    """Lines hold the rows of their group and facet, in the order of the key; titles say what is shared."""
    panels = rows.plot(x="oversubscription", facet="topology.hosts_per_leaf")
    assert isinstance(panels, list)
    for per_leaf, axes in zip((2, 4), panels, strict=True):
        for name, values in zip(("ring", "tree"), lines(axes), strict=True):
            kept = [r for r in rows if r["asked"] == name and r["topology.hosts_per_leaf"] == per_leaf]
            assert values == [
                round(r["time_us"], 6) for r in sorted(kept, key=lambda r: r["topology.oversubscription"])
            ]
        assert axes.get_title(loc="left") == f"hosts per leaf {per_leaf}"
    words = {text.get_text() for text in panels[0].figure.texts}
    assert "Time over oversubscription: all_reduce, 1 MiB, 8 ranks, 8 nodes" in words


def test_no_row_stands_for_another(rows: sc.Results) -> None:
    """Where rows differ in more than was chosen the picture is refused, and says in which key."""
    with pytest.raises(InputError, match=r"differ in topology.hosts_per_leaf too.*filter={"):
        rows.plot(x="oversubscription")
    kept = filtered(rows.rows(), {"hosts_per_leaf": ["2"], "size": ["1 MiB"]})
    (axes,) = key_figure(kept, "oversubscription", "busbw").axes
    assert len(axes.lines) == 2
    with pytest.raises(InputError, match="there is 2"):
        filtered(kept, {"hosts_per_leaf": ["4"]})
    with pytest.raises(InputError, match="did you mean"):
        key_figure(kept, "oversubscriptoin")


def test_a_filter_reads_quantities() -> None:
    """A value is that of a row in whatever unit it is written, and no other kind of quantity."""
    rows = [
        {"algorithm": "ring", "size_bytes": 2**20, "link": link, "wait": "1 us"} for link in ("50 GB/s", "100 GB/s")
    ]
    for text in ("50 GB/s", "50GB/s", "400 Gb/s", "0.05 TB/s"):
        assert filtered(rows, {"link": [text]}) == rows[:1]
    assert filtered(rows, {"wait": ["1000 ns"], "size": ["1024 KiB"]}) == rows
    for key, text in (("link", "50 GiB"), ("wait", "1000")):
        with pytest.raises(InputError, match="no row has"):
            filtered(rows, {key: [text]})


def test_plots_of_a_scenario_and_of_the_command(tmp_path: Path) -> None:
    """`plots` takes a key, and `simcoll plot --x` draws the same later, in other formats."""
    (tmp_path / "s.yaml").write_text(
        "topology: hgx-h100\ncollective: all_reduce\nalgorithm: [ring, tree]\nsize: [1 MiB, 4 MiB]\n"
        "model: {o_send: [0 us, 1 us]}\nprofile: one-port\n"
        "plots: [{x: model.o_send, facet: size}, {x: size, filter: {o_send: 0 us}}, {x: nothing}]\n"
    )
    done = simcoll("run", tmp_path / "s.yaml", "-o", tmp_path / "out")
    assert done.status == 0 and "time-over-nothing: not drawn" in done.err
    drawn = {path.name for path in (tmp_path / "out/plots").iterdir()}
    assert drawn == {"time-over-model.o_send-by-size.png", "time-over-size-o_send-0us.png"}
    again = simcoll("plot", tmp_path / "out", "--x", "o_send", "--facet", "size", "--format", "svg")
    assert again.out.rstrip().endswith("time-over-o_send-by-size.svg")
    assert "<svg" in Path(again.out.splitlines()[-1]).read_text(encoding="utf-8")
    assert "plots.0.xx" in simcoll("run", tmp_path / "s.yaml", "--set", "plots=[{xx: 1}]").err
    assert simcoll("plot", tmp_path / "out", "--x", "o_send").status == 2
    assert simcoll("plot", tmp_path / "out", "--group", "size").status == 2


def test_a_picture_has_the_name_it_is_given(tmp_path: Path) -> None:
    """A file with a suffix of pictures is the one picture, of that kind; of several it is refused, without a folder."""
    words = ["predict", "all_reduce", "--on", "hgx-h100", "--size", "[1 MiB, 4 MiB]", "--algorithm", "[ring, tree]"]
    assert simcoll(*words, "-o", tmp_path / "out").status == 0
    file = tmp_path / "new" / "a.svg"
    assert simcoll("plot", tmp_path / "out", "--x", "size", "-o", file).out.splitlines()[1:] == [str(file)]
    assert "<svg" in file.read_text(encoding="utf-8") and list(file.parent.iterdir()) == [file]
    refused = simcoll("plot", tmp_path / "out", "-o", tmp_path / "b.png")
    assert refused.status == 2 and "is one picture, and there are" in refused.err and "give a folder" in refused.err
    assert not (tmp_path / "b.png").exists()
    for name, asked, said in (
        ("c.gif", [], ".gif is no kind of picture; end a picture's name in .png, .svg or .pdf, or name a folder"),
        ("c.png", ["--format", "pdf"], "contradict each other"),
        ("out/results.csv", [], ".csv is no kind of picture"),
    ):
        wrong = simcoll("plot", tmp_path / "out", "--x", "size", "-o", tmp_path / name, *asked)
        assert wrong.status == 2 and said in wrong.err
        assert not (tmp_path / name).exists() or name.startswith("out")
    (tmp_path / "c.gif").mkdir()
    for folder in ("c.gif", "plots-1.5", "plots.d", "plots.v2"):
        assert simcoll("plot", tmp_path / "out", "--x", "size", "-o", tmp_path / folder).status == 0
        assert list((tmp_path / folder).iterdir())
    for of in (["run", "quickstart"], words):
        wrong = simcoll(*of, "--format", "svg")
        assert (wrong.status, wrong.out) == (2, "")
        assert "--format without -o has nothing to draw; add -o FOLDER" in wrong.err
    for of in (["run", "quickstart"], words, ["compare", "quickstart", "a.csv"]):
        assert "is a folder" in simcoll(*of, "-o", tmp_path / "b.png").err
        assert not (tmp_path / "b.png").exists()


def test_overlap_adds_up() -> None:
    """Computation, exposed communication and idle time are the whole; hidden communication is what both share."""
    rank = RankOverlap("rank 0", 100, union([(0, 40), (30, 50)]), union([(40, 70), (90, 95)]))
    assert (rank.compute_ps, rank.hidden_ps, rank.exposed_ps, rank.idle_ps) == (50, 10, 25, 25)
    said = "compute 50.0%, exposed communication 25.0%, idle 25.0%; 28.6% of communication is hidden"
    assert str(rank) == said
    figure = overlap_figure([rank], "Step")
    assert any(said in text.get_text().replace("\n", " ") for text in figure.texts)
    assert [len(c.get_paths()) for c in figure.axes[0].collections] == [1, 2, 2]


@pytest.mark.parametrize("waits", [[], [13]])
def test_overlap_of_many_ranks_has_the_one_that_is_named(waits: list[int]) -> None:
    """The rank that waits longest, the first of those alike, and as many that wait least, in order."""
    ranks = [RankOverlap(f"rank {r}", 100, ((0, 50),), ((40, 70 if r in waits else 60),)) for r in range(20)]
    figure = overlap_figure(ranks, "Step")
    shown = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    named = f"rank {waits[0]}" if waits else "rank 0"
    assert any(f"{named}: compute" in text.get_text() for text in figure.texts)
    assert shown == [f"rank {r}" for r in sorted({*range(8 - len(waits)), *waits})]


@pytest.mark.parametrize("keys", [{"x": "foo"}, {"x": "oversubscripton"}, {"x": "size", "y": "bandwidth"}])
def test_what_can_be_drawn_is_said(keys: dict[str, Any], rows: sc.Results) -> None:
    """A key that is none is answered with the nearest, and with every key that these rows differ in."""
    with pytest.raises(InputError) as error:
        rows.plot(**keys)
    message = str(error.value)
    assert (
        "differ in algorithm, topology.oversubscription, topology.hosts_per_leaf, and hold e.g. time, busbw" in message
    )
    assert ("did you mean 'topology.oversubscription'?" in message) == (keys["x"] == "oversubscripton")
    for key in ("algorithm", "topology.oversubscription", "topology.hosts_per_leaf"):
        assert rows.plot(x=key, group=[k for k in KEYS["topology"] if k not in STAR and k not in key] + ["algorithm"])


def test_a_file_that_cannot_be_drawn_is_told(tmp_path: Path) -> None:
    """A number that is not finite is refused at its line; a file without rows is said to have none."""
    (tmp_path / "s.yaml").write_text(
        "topology: hgx-h100\ncollective: all_reduce\nalgorithm: ring\nsize: [1 MiB, 4 MiB]\n"
    )
    assert simcoll("run", tmp_path / "s.yaml", "--quiet", "-o", tmp_path).status == 0
    written = tmp_path / "results.csv"
    text = written.read_text()
    first = next(csv.DictReader(text.splitlines()))
    for number in ("inf", "-inf", "nan"):
        written.write_text(text.replace(f",{first['time_us']},", f",{number},", 1))
        done = simcoll("plot", written)
        assert (done.status, f"{written}:2:1: time_us: '{number}' is no finite number" in done.err) == (2, True), (
            done.err
        )
    for line in (text.splitlines()[1] + ",1", text.splitlines()[1].rpartition(",")[0]):  # as of a file that is cut off
        written.write_text(f"{text.splitlines()[0]}\n{line}\n")
        done = simcoll("plot", written)
        assert done.status == 2 and f"{written}:2:1: the row has more or fewer cells than the header" in done.err
    written.write_text(text.splitlines()[0] + "\n")
    done = simcoll("plot", written)
    assert (done.status, done.out) == (2, "") and f"{written} has no rows" in done.err


def test_pictures_and_reports_take_what_the_run_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a run has no times of messages, and they are many, no picture and no page computes them: they are left out
    with a line, and the run ends well."""
    steps = ["--set", "topology.nodes=2", "--set", "workload.bucket_cap=256 MiB"]
    assert "not drawn" not in simcoll("run", "llama3-step", *steps, "--quiet", "-o", tmp_path / "few").err
    for limit in (run_plots, points_of_page):
        monkeypatch.setattr(limit, "SHOWN" if limit is run_plots else "MESSAGES", 1000)
    monkeypatch.setattr(Prediction, "timeline", property(lambda _: pytest.fail("a timeline was made")))
    page = tmp_path / "page.html"
    ran = simcoll("run", "llama3-step", *steps, "--quiet", "-o", tmp_path / "many", "--report", page)
    assert ran.status == 0
    assert [line.partition(":")[0] for line in ran.err.splitlines()] == ["overlap"]
    assert "ddp, hierarchical: " in page.read_text("utf-8") and "more than can be explained" in page.read_text("utf-8")
    drawn = [{path.name for path in (tmp_path / folder / "plots").iterdir()} for folder in ("few", "many")]
    assert drawn == [{"overlap.png", "step.png"}, {"step.png"}]


@pytest.mark.parametrize("error", [MemoryError, BoundError, InputError])
def test_no_picture_makes_a_run_fail(error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a picture raises is said in a line; the others are drawn, and the run ends well."""

    def fails(*_: Any) -> None:
        raise error("a reason")

    monkeypatch.setattr(run_plots, "step_overlap", fails)
    ran = simcoll("run", "llama3-step", "--set", "topology.nodes=1", "--quiet", "-o", tmp_path)
    assert (ran.status, [path.name for path in (tmp_path / "plots").iterdir()]) == (0, ["step.png"])
    assert ran.err == "overlap: not drawn: a reason\n"
