"""Plots: what is drawn is what the rows say; pixels are for the eye."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

import simcoll.schedule.algorithms
from simcoll import units
from simcoll.engine import event
from simcoll.engine.binding import bind
from simcoll.engine.program import Program
from simcoll.engine.timeline import Timeline
from simcoll.engine.timing_model import Params
from simcoll.prediction.predict import predict
from simcoll.prediction.result_rows import ResultRow
from simcoll.report import run_plots
from simcoll.report.plot import save
from simcoll.report.plot.any_key import key_figure, scaling_figure, size_figure
from simcoll.report.plot.comparison import compare_figure, residual_figure
from simcoll.report.plot.gantt import gantt_figure
from simcoll.report.plot.maps import crossover_figure
from simcoll.report.plot.steps import step_figure
from simcoll.report.plot.style import look
from simcoll.scenario.scenario_files import load
from simcoll.schedule.registry import ALGORITHMS
from simcoll.topology.graph import Topology
from simcoll.topology.topology_builder import build
from simcoll.topology.topology_keys import TopologySpec
from simcoll.units import format_duration

KIB, MIB, GIB = 2**10, 2**20, 2**30
SIZES = [2**power for power in range(10, 31, 5)]


def row(algorithm: str = "ring", ranks: int = 8, size: int = MIB, **changes: Any) -> dict[str, Any]:
    """A row of results.csv; the time grows with ranks and size, for the tree slowly with ranks and fast with size."""
    steps, factor = (ranks.bit_length(), 2.0) if algorithm == "tree" else (2 * ranks, 1.75)
    time_us = 2.0 * steps + factor * size / 400e3
    where = {"scenario": "s", "topology": "hgx-h100", "collective": "all_reduce", "ranks": ranks, "nodes": 1}
    how = {"algorithm": algorithm, "protocol": "none", "profile": "one-port", "sharing": "fair", "seed": 0}
    bound, busbw = 1.0 + size / 450e3, 1.75 * size / time_us / 1e3
    found = {"size_bytes": size, "time_us": time_us, "lower_bound_us": bound, "busbw_GBps": busbw, "status": "ok"}
    return {**where, **how, **found, "low_us": None, "high_us": None, **changes}


def sweep(*algorithms: str, ranks: tuple[int, ...] = (8,), **changes: Any) -> list[dict[str, Any]]:
    """Rows of all sizes."""
    return [row(a, n, size, **changes) for a in algorithms for n in ranks for size in SIZES]


def lines(axes: Axes) -> dict[str, list[tuple[float, float]]]:
    """The points of each labelled line."""
    return {str(line.get_label()): [(x, y) for x, y in line.get_xydata().tolist()] for line in axes.lines}


def entries(figure: Figure) -> list[str]:
    """What the legend says."""
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def dash_of(line: Line2D) -> object:
    """The dashes of a line as they were asked for."""
    return line._unscaled_dash_pattern  # get_linestyle() says "--" of all of them


def words(figure: Figure) -> str:
    """The headline."""
    return "\n".join(text.get_text() for text in figure.texts)


def ticks(axes: Axes) -> list[str]:
    """The labels of the ticks on the x axis."""
    axes.figure.draw_without_rendering()
    return [label.get_text() for label in axes.get_xticklabels()]


# --- curves ---


@pytest.mark.parametrize(("quantity", "column"), [("latency", "time_us"), ("busbw", "busbw_GBps")])
def test_lines_are_rows(quantity: Any, column: str) -> None:
    """Each algorithm's line holds its rows' sizes and values, in order of size, whatever the order of the rows."""
    rows = sweep("ring", "tree")
    (axes,) = size_figure(rows[::-1], quantity).axes
    for algorithm in ("ring", "tree"):
        expected = [(r["size_bytes"], r[column]) for r in rows if r["algorithm"] == algorithm]
        assert lines(axes)[algorithm] == expected


@pytest.mark.parametrize("size", [8, 1000, 3 * MIB, 16 * GIB])
def test_a_single_size_has_a_tick(size: int) -> None:
    """Whatever the one size, there is a size to read on the axis, and a time."""
    measured = {"collective": "all_reduce", "size_bytes": size, "time_us": 20.0}
    (axes,) = size_figure([row(size=size, time_us=10.0, lower_bound_us=1.0)], "latency", [measured]).axes
    low, high = axes.get_xlim()
    assert any(low <= tick <= high for tick in axes.get_xticks())
    low, high = axes.get_ylim()
    axes.figure.draw_without_rendering()
    times = [(tick, label.get_text()) for tick, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)]
    shown = [(tick, text) for tick, text in times if low <= tick <= high]
    assert shown
    assert all(units.parse(text, "duration") / 1e6 == pytest.approx(tick, rel=1e-3) for tick, text in shown)


def test_only_good_rows_are_drawn() -> None:
    """Refused points leave no mark; with nothing else there is nothing to draw, and the error says so."""
    refused = row("nvls", status="refused: no switch reduces", time_us=None, busbw_GBps=None)
    failed = row("naive", status="failed: not what was promised")
    assert entries(size_figure([*sweep("ring"), refused, failed], "busbw")) == ["ring", "bound"]
    above = [{**found, "lower_bound_us": found["time_us"] / 100} for found in sweep("ring")[-2:]]
    assert entries(size_figure(above, "busbw")) == [], "nothing of the bound is in view"
    for draw in (scaling_figure, crossover_figure, lambda rows: size_figure(rows, "latency")):
        with pytest.raises(ValueError, match="no row has a time"):
            draw([refused, failed])


def test_a_size_of_zero_is_on_no_size_axis() -> None:
    """A barrier without a size is drawn over ranks, not over sizes."""
    rows = [row("dissemination", n, 0, collective="barrier", busbw_GBps=0.0) for n in (2, 4)]
    with pytest.raises(ValueError, match="scaling"):
        size_figure(rows, "latency")
    (axes,) = scaling_figure(rows).axes
    assert lines(axes)["dissemination"] == [(2, rows[0]["time_us"]), (4, rows[1]["time_us"])]


def test_swept_keys_are_told() -> None:
    """A swept key without a column separates lines, maps and scaling, under the last part of its name; one that goes
    with another column is not told twice; two that end alike are told in full."""
    rows = [r for send in ("0 us", "2 us") for r in sweep("ring", "tree", ranks=(4, 8), **{"model.o_send": send})]
    told = ["ring, o send 0 us", "tree, o send 0 us", "ring, o send 2 us", "tree, o send 2 us"]
    assert entries(size_figure(rows, "busbw"))[:4] == entries(scaling_figure(rows))[:4] == told
    maps = [axes.get_title(loc="left") for axes in crossover_figure(rows).axes]
    assert maps == ["all_reduce, o send 0 us", "all_reduce, o send 2 us"]
    named = [{**r, "topology": r["model.o_send"]} for r in rows]
    assert entries(size_figure(named, "busbw"))[:2] == ["ring, 0 us", "tree, 0 us"]
    both = [
        row(**{"topology.link.latency": f"{a} us", "topology.rails.latency": f"{b} us"}) for a in "12" for b in "12"
    ]
    (bars,) = size_figure(both, "busbw").axes
    names = [label.get_text() for label in bars.get_yticklabels()]
    assert names[0] == "topology.link.latency 1 us, topology.rails.latency 1 us"


def test_a_choice_is_one_line() -> None:
    """What was asked for names a line, whatever ran: `auto` is one line over all sizes, beside those that it chose."""
    chosen = [{**r, "asked": "auto"} for r in (*sweep("ring")[:2], *sweep("tree")[2:])]
    for figure in (size_figure([*sweep("ring", "tree"), *chosen], "latency"), size_figure(chosen, "busbw")):
        lines = {line.get_label(): line for line in figure.axes[0].lines}
        assert len(lines["auto"].get_xdata()) == len(sweep("ring")) > 2  # type: ignore[arg-type]  # an array
    assert set(entries(crossover_figure(chosen))) == {"ring", "tree"}


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_lines_can_be_told_apart(count: int) -> None:
    """No two lines look alike; up to four settings share the look of their algorithm and differ in dash."""
    rows = [r for i in range(count) for r in sweep("ring", "tree", **{"model.o_send": f"{i} us"})]
    (axes,) = size_figure(rows, "latency").axes
    drawn = [line for line in axes.lines if "bound" not in str(line.get_label())]
    looks = [(line.get_color(), line.get_marker(), str(dash_of(line))) for line in drawn]
    assert len(set(looks)) == len(looks) == 2 * count
    if count <= 4:
        assert {look[:2] for look in looks} == {look("ring"), look("tree")}


def pixels(figure: Figure) -> Any:
    """The picture as it is seen."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba()).astype(int)


@pytest.mark.thorough
@pytest.mark.parametrize("others", [(), ("tree",)], ids=["one algorithm", "two"])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_equal_lines_of_one_algorithm_are_seen(count: int, others: tuple[str, ...]) -> None:
    """What makes no difference is a line for each value all the same: none could be taken away unseen."""
    key = "topology.oversubscription"
    rows = [each for value in range(count) for each in sweep("ring", *others, **{key: value})]
    by_key = key_figure(rows, "size", "busbw", group=["algorithm", key])
    for figure in (size_figure(rows, "busbw"), size_figure(rows, "latency"), by_key):
        seen = pixels(figure)
        for line in figure.axes[0].lines:
            if line.get_label() != "bound":
                line.set_visible(False)
                assert (abs(pixels(figure) - seen).max(axis=2) > 60).sum() > 500, (line.get_label(), count)
                line.set_visible(True)


@pytest.mark.parametrize("drawn", [lambda rows: size_figure(rows, "latency"), lambda rows: key_figure(rows, "size")])
def test_what_nobody_measured_is_marked(drawn: Callable[[list[dict[str, Any]]], Figure]) -> None:
    """A modelled line beside fitted ones is dashed and says so, in the colour of its algorithm; alone it is as any."""
    fitted, modelled = sweep("ring", confidence="calibrated"), sweep("two_shot", confidence="modelled")
    figure = drawn([*fitted, *modelled])
    lines = dict(zip(["ring", "two_shot, modelled"], figure.axes[0].lines, strict=False))
    assert entries(figure)[:2] == [*lines]
    assert len({str(dash_of(line)) for line in lines.values()}) == 2
    assert to_hex(lines["two_shot, modelled"].get_color()) == to_hex(look("two_shot").color)
    alone = drawn([*modelled, *sweep("ring", confidence="modelled")])
    assert entries(alone)[:2] == ["two_shot", "ring"]
    assert len({str(dash_of(line)) for line in alone.axes[0].lines[:2]}) == 1


@pytest.mark.parametrize("x", ["size", "algorithm", "executor"])
def test_bars_that_nobody_measured_are_marked(x: str) -> None:
    """Each modelled bar beside fitted ones says so at its number, whatever else its row or its series holds; alone it
    is as any."""
    names = ["ring", "tree"]
    fitted = [row(name, executor="nccl", confidence="calibrated") for name in names]
    modelled = [row(name, executor="p2p", confidence="modelled", time_us=80.0) for name in names]
    for rows, marked in (([*fitted, *modelled], 2), (modelled, 0)):
        group = {"size": ["algorithm", "executor"], "algorithm": ["executor"], "executor": ["algorithm"]}[x]
        (axes,) = key_figure(rows, x, group=group).axes
        numbers = [text.get_text() for text in axes.texts if "µs" in text.get_text()]
        assert len(numbers) == len(rows)
        assert [text for text in numbers if "modelled" in text] == ["80 µs, modelled"] * marked


def test_the_bound_is_the_least_of_all() -> None:
    """The dashed line is the least lower bound at each size; as a bandwidth, what that time would mean."""
    rows = [*sweep("ring"), row("tree", lower_bound_us=1.5)]
    (latency,), (busbw,) = (size_figure(rows, quantity).axes for quantity in ("latency", "busbw"))
    name = "bound"
    assert dict(lines(latency)[name])[MIB] == 1.5
    assert dict(lines(busbw)[name])[MIB] == pytest.approx(rows[-1]["busbw_GBps"] * rows[-1]["time_us"] / 1.5)
    assert dict(lines(latency)[name])[KIB] == rows[0]["lower_bound_us"]


def test_bands_hold_the_error_bar() -> None:
    """Where rows have an error bar a band spans it, in time and in bandwidth; without one there is no band."""
    rows = [{**r, "low_us": r["time_us"] / 2, "high_us": r["time_us"] * 2} for r in sweep("ring")]
    for quantity, column in (("latency", "time_us"), ("busbw", "busbw_GBps")):
        (axes,) = size_figure(rows, quantity).axes
        (band,) = axes.collections
        heights = {y for x, y in band.get_paths()[0].vertices.tolist() if x == MIB}
        value = next(r[column] for r in rows if r["size_bytes"] == MIB)
        assert sorted(heights) == pytest.approx([value / 2, value * 2])
    assert not size_figure(sweep("ring"), "busbw").axes[0].collections


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("x", ["sizes", "size", "algorithm"])
def test_the_legend_says_what_intervals_are(x: str, count: int) -> None:
    """Bands, bars at points and whiskers have an entry once, of what share they hold; all of them are on the axes."""
    rows = [{**r, "low_us": 1e-3 * r["time_us"], "high_us": 1e3 * r["time_us"], "time_us_p95": r["time_us"]}
            | {"time_us_p95_low": 0.5 * r["time_us"], "time_us_p95_high": 2 * r["time_us"]}
            for name in ("ring", "tree", "naive", "nvls")[:count] for r in sweep(name)]  # fmt: skip
    if x == "sizes":
        assert entries(size_figure(rows, "latency")).count("90 % interval") == 1
        assert "90 % interval" not in entries(size_figure(sweep("ring", "tree"), "latency"))
    rows = rows if x == "sizes" else [r for r in rows if r["size_bytes"] == MIB]
    across = x.removesuffix("s")
    figure = key_figure(rows, across)
    assert entries(figure).count("90 % interval") == 1
    low, high = figure.axes[0].get_ylim() if x == "sizes" else figure.axes[0].get_xlim()
    assert high > max(r["high_us"] for r in rows) and low < min(r["low_us"] for r in rows)
    assert entries(key_figure(rows, across, "time_us_p95"))[-1] == "95 % interval"
    assert "interval" not in "".join(entries(key_figure(rows, across, "lower_bound_us")))
    runs = [{**r, "replications": 20, "time_us_p95": 3 * r["time_us"]} for r in rows]
    figure = key_figure(runs, across)
    assert entries(figure).count("up to 95 % of runs") == 1 and "interval" not in "".join(entries(figure))
    low, high = figure.axes[0].get_ylim() if x == "sizes" else figure.axes[0].get_xlim()
    assert max(r["time_us_p95"] for r in runs) < high < max(r["high_us"] for r in runs)


SWEEPS = {
    "powers": [2**i for i in range(9, 35)],
    "few": [64 * KIB, 64 * MIB],
    "odd": [6 * KIB * 4**i for i in range(9)],
    "decimal": [10**i for i in range(3, 10)],
    "linear": [i * MIB for i in range(1, 65)],
    "mixed": [6 * KIB, 48 * KIB, 3 * MIB, 100_000_000],
}


TIGHT = [("powers", 12), ("few", 1), *((name, 3) for name in SWEEPS)]  # labels are many, or long, or few


@pytest.mark.parametrize(
    ("name", "count"),
    [
        pytest.param(name, count, marks=() if (name, count) in TIGHT else pytest.mark.long)
        for name in SWEEPS
        for count in (1, 3, 12)
    ],
)
def test_ticks_do_not_touch(name: str, count: int) -> None:
    """However wide the panels, sizes on the axis stand apart, and at least two can be read; odd ones at their place."""
    figure = size_figure([row(ranks=n, size=size) for n in range(2, count + 2) for size in SWEEPS[name]], "busbw")
    figure.draw_without_rendering()
    axes = figure.axes[-1]
    low, high = axes.get_xlim()
    at = zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
    shown = [(tick, text.get_window_extent()) for tick, text in at if low <= tick <= high]
    assert len(shown) >= 2
    assert all(left.x1 + 3 < right.x0 for (_, left), (_, right) in itertools.pairwise(shown))
    assert name != "odd" or {tick for tick, _ in shown} <= set(SWEEPS["odd"])


def test_one_number_of_ranks_does_not_scale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Time over a single number of ranks is refused with a cure; a run goes on to its next plot and says so."""
    with pytest.raises(ValueError, match=r"all rows have 8 ranks.*sweep ranks"):
        scaling_figure(sweep("ring", "tree"))
    drawn = run_plots.curves([ResultRow.of(each) for each in sweep("ring")], ("scaling", "busbw"), ())
    assert run_plots.write(drawn, tmp_path) == [tmp_path / "busbw.png"]
    assert not (tmp_path / "scaling.png").exists()
    assert capsys.readouterr().err.startswith("scaling: not drawn: all rows have 8 ranks")


def test_scaling_takes_three_sizes() -> None:
    """Panels for the smallest, the middle and the largest size; lines hold time over ranks."""
    rows = sweep("ring", "tree", ranks=(2, 4, 8, 16))
    figure = scaling_figure(rows)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["1 KiB", "1 MiB", "1 GiB"]
    last = figure.axes[2]
    assert lines(last)["tree"] == [
        (r["ranks"], r["time_us"]) for r in rows if r["algorithm"] == "tree" and r["size_bytes"] == GIB
    ]
    assert (last.get_xscale(), ticks(last)) == ("log", ["2", "4", "8", "16"])


def points() -> list[dict[str, Any]]:
    """Predictions a fifth too low."""
    rows = [{**r, "predicted_us": r["time_us"], "measured_us": r["time_us"] * 1.25} for r in sweep("ring", "tree")]
    return [{**r, "error": r["predicted_us"] / r["measured_us"] - 1} for r in rows]


def test_comparison_shows_both_and_the_error() -> None:
    """Prediction as a line, measurement as markers, the error below in percent."""
    ring = [point for point in points() if point["algorithm"] == "ring"]
    above, below = compare_figure(ring).axes
    assert lines(above)["ring"] == [(p["size_bytes"], p["predicted_us"]) for p in ring]
    assert lines(above)["measured"] == [(p["size_bytes"], p["measured_us"]) for p in ring]
    assert [y for _, y in lines(below)["ring"]] == pytest.approx([-20.0] * len(ring))
    assert (above.get_ylabel(), below.get_ylabel(), below.get_yscale()) == ("time", "error (%)", "linear")


def test_every_step_is_drawn() -> None:
    """A step of a bucket size that is no size (`none`) stands apart, in the line's colour, and no line leads to it; it
    may be the shortest."""
    caps = {"none": 5.0, "1 MiB": 9.0, "25 MiB": 6.0}
    swept = {"workload": "ddp", "compute_us": 4.0, "exposed_us": 1.0}
    rows = [row(step_us=step, **swept, **{"workload.bucket_cap": cap}) for cap, step in caps.items()]
    figure = step_figure(rows)
    drawn = [line.get_xydata().tolist() for line in figure.axes[0].lines]
    assert [[MIB, 9.0], [25 * MIB, 6.0]] in drawn
    apart = [points[0] for points in drawn if len(points) == 1]
    assert {y for _, y in apart} == {5.0, 4.0} and all(x < MIB for x, _ in apart)
    figure.canvas.draw()
    assert {tick.get_text() for tick in figure.axes[0].get_xticklabels()} == {"none", "1 MiB", "25 MiB"}
    assert "shortest: ring at bucket cap none" in words(figure)


def test_a_bar_of_a_plan_has_its_name() -> None:
    """Calls of a plan have algorithms of their own: its bar has the scenario's name, or what sets it apart."""
    step = {"workload": "operations", "compute_us": 4.0, "exposed_us": 0.0, "waiting_us": 1.0, "step_us": 5.0}
    rows = [row(**{**step, "scenario": "recorded-step", "algorithm": "auto", "nodes": nodes}) for nodes in (1, 2)]
    for several, expected in ((rows[:1], ["scenario recorded-step"]), (rows, ["1 node", "2 nodes"])):
        figure = step_figure(several)
        figure.canvas.draw()
        assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == expected


def left_over() -> list[dict[str, Any]]:
    """What a fit leaves; the smallest size was fitted, and one row is far out."""
    found = [{**point, "fitted": point["size_bytes"] == points()[0]["size_bytes"]} for point in points()]
    return [*found, *({**row, "error": 0.1} for row in found * 20), {**found[0], "error": 9.0}]


# --- looks ---


def specs(collective: str) -> list[str]:
    """Every algorithm, and every value of its options."""
    found = []
    for name, entry in ALGORITHMS[collective].items():
        found += [name, *(f"{name}({key}={value})" for key, values in entry.options.items() for value in values)]
    return found


@pytest.mark.parametrize("collective", sorted(ALGORITHMS))
def test_no_two_algorithms_look_alike(collective: str) -> None:
    """Algorithms differ in colour, within a collective in marker too; variants differ at least in one of the two."""
    assert simcoll.schedule.algorithms.__all__
    for name, other in itertools.combinations(sorted({name for table in ALGORITHMS.values() for name in table}), 2):
        assert look(name).color != look(other).color
    for a, b in itertools.combinations(specs(collective), 2):
        assert look(a) != look(b)
        if "(" not in a + b:
            assert look(a).color != look(b).color
            assert look(a).marker != look(b).marker


# --- maps ---


def cells(axes: Axes) -> dict[tuple[float, float], str]:
    """Colour by column and row."""
    return {(p.get_x() + 0.5, p.get_y() + 0.5): to_hex(p.get_facecolor()) for p in axes.patches}


def test_cells_have_the_winners_colour() -> None:
    """Each cell has the colour of the fastest algorithm there; in it stands how much longer the next takes."""
    times = {"naive": (90, 90, 900, 90), "ring": (10, 10, 10, 10), "tree": (5, 13, 500, 1000)}
    places = [(2, KIB), (2, MIB), (4, KIB), (4, MIB)]
    rows = [row(name, *places[i], time_us=float(times[name][i])) for name in times for i in range(4)]
    figure = crossover_figure(rows)
    (axes,) = figure.axes
    ring, tree = look("ring").color.lower(), look("tree").color.lower()
    assert cells(axes) == {(0, 0): tree, (1, 0): ring, (0, 1): ring, (1, 1): ring}
    assert {text.get_position(): text.get_text() for text in axes.texts} == {
        (0, 0): "2.0×",
        (1, 0): "1.3×",
        (0, 1): "50×",
        (1, 1): "9.0×",
    }
    assert ([t.get_text() for t in axes.get_xticklabels()], axes.get_ylabel()) == (["1 KiB", "1 MiB"], "ranks")
    assert sorted(entries(figure)) == ["ring", "tree"]


def test_protocols_compete_and_settings_do_not() -> None:
    """The faster protocol wins its cell under its own name; another way of sharing links is another map."""
    rows = [row(protocol="LL", time_us=5.0), row(protocol="Simple", time_us=6.0)]
    assert entries(crossover_figure(rows)) == ["ring, LL"]
    rows = [row(a, **{"model.sharing": s}) for a in ("ring", "tree") for s in ("fair", "fifo")]
    assert [axes.get_title(loc="left") for axes in crossover_figure(rows).axes] == [
        "all_reduce, sharing fair",
        "all_reduce, sharing fifo",
    ]


# --- timelines ---


def run(collective: str, algorithm: str, n: int, **params: Any) -> tuple[Topology, Program, Timeline]:
    """A megabyte on a star."""
    link = {"bandwidth": "50 GB/s", "latency": "0.25 us"}
    star = build(TopologySpec.model_validate({"fabric": "single-switch", "hosts": n, "link": link}))
    schedule = simcoll.schedule.algorithms.build(collective, algorithm, n)
    program = bind(schedule, star, star.ranks, Params(**params), MIB)
    return star, program, event.run(program)


def picture(collective: str, algorithm: str, n: int, **params: Any) -> tuple[Figure, Program, Timeline]:
    """The same, and its picture."""
    star, program, timeline = run(collective, algorithm, n, **params)
    return gantt_figure(program, timeline, star.ranks), program, timeline


def bars(axes: Axes, name: str) -> list[tuple[float, float, float, float]]:
    """Left, right, top and bottom of each bar."""
    found = next(c for c in axes.collections if c.get_gid() == name)
    corners = [path.vertices for path in found.get_paths()]
    return [(v[:, 0].min(), v[:, 0].max(), v[:, 1].min(), v[:, 1].max()) for v in corners]


def intervals(*columns: np.ndarray) -> list[list[float]]:
    """Sorted, in µs."""
    return sorted((np.stack(columns, axis=1) / 1e6).tolist())


@pytest.mark.parametrize("sharing", ["fair", "fifo"])
def test_bars_are_the_timeline(sharing: str) -> None:
    """Thick bars of ranks go from start to sent, thin ones from arrive to end, bars of links cover a hop."""
    figure, _, timeline = picture("all_reduce", "ring", 4, sharing=sharing, o_send=10**5, o_recv=2 * 10**5)
    ranks, links = figure.axes
    drawn = [
        sorted([a, b] for a, b, *_ in bars(*at)) for at in ((ranks, "sends"), (ranks, "receives"), (links, "links"))
    ]
    assert drawn[0] == intervals(timeline.start, timeline.sent)
    assert drawn[1] == intervals(timeline.arrive, timeline.end)
    assert drawn[2] == intervals(timeline.hop_begin, timeline.hop_end)
    assert links.get_xlabel() == "time"
    assert [label.get_text() for label in ranks.get_yticklabels()] == [
        f"{r}  host{r} → {(r + 1) % 4}" for r in range(4)
    ]


def test_time_counts_from_the_call() -> None:
    """What a launch takes stands before the bars and is part of the time; one channel of several is said to be one."""
    star, program, timeline = run("all_reduce", "ring", 4)
    figure = gantt_figure(program, timeline, star.ranks, launch_ps=3 * 10**6, channels=16)
    end_ps = 3 * 10**6 + timeline.makespan_ps
    for axes, name, times in (
        (0, "sends", (timeline.start, timeline.sent)),
        (1, "links", (timeline.hop_begin, timeline.hop_end)),
    ):
        drawn = sorted([a, b] for a, b, *_ in bars(figure.axes[axes], name))
        assert drawn == intervals(*(time + 3 * 10**6 for time in times))
        assert figure.axes[axes].get_xlim()[1] >= end_ps / 1e6
    assert f"{format_duration(end_ps).replace('us', 'µs')}, of which launch 3 µs" in words(figure)
    assert "one channel of 16" in words(figure)
    assert "launch" in entries(figure)


STRUCK = """\
topology: {fabric: single-switch, hosts: 4, link: {bandwidth: 50 GB/s, latency: 0.5 us}}
collective: all_reduce
algorithm: ring
size: 4 MiB
arrivals: {1: 30 us}
faults:
- {link: "host3->switch", at: 50 us, until: 130 us, kind: slow, factor: 2}
- {link: "host*->switch", at: 100 us, until: 120 us, kind: down}
- {link: "switch->host2", at: 140 us, kind: background, share: 0.3}
- {link: "host0->switch", at: 60 us, kind: flap, down_for: 5 us, period: 20 us, times: 2}
- {link: "switch->host1", at: 1 s, kind: slow, factor: 4}
"""


def marked(axes: Axes) -> set[tuple[str, float, float]]:
    """Lane, begin and end (µs) of each mark of what disturbs; it covers all of its lane."""
    lanes = {tick: label.get_text() for tick, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)}
    return {
        (lanes[patch.get_y() + patch.get_height() / 2], patch.get_x(), round(patch.get_x() + patch.get_width(), 9))
        for patch in axes.patches
        if str(patch.get_gid()).startswith("disturbed") and isinstance(patch, Rectangle)
    }


@pytest.mark.parametrize("profile", ["one-port", "nccl-hopper"])
def test_faults_are_marked_where_and_while_they_act(profile: str, tmp_path: Path) -> None:
    """Each window of a fault stands on the lanes of its links, from its begin to its end or that of the run, and the
    legend names it; a rank that comes late is marked until it is there. What changes nothing is noted."""
    path = tmp_path / "struck.yaml"
    if profile == "one-port":
        path.write_text(STRUCK, encoding="utf-8")
        windows = {("host3->switch", 50, 130), ("host0->switch", 60, 65), ("host0->switch", 80, 85)}
        windows |= {(f"host{host}->switch", 100, 120) for host in range(4)} | {("switch->host2", 140, None)}
        late, names = {("1  host1 → 2", 0, 30)}, {"rank not there yet", "fault, slow: 50 % of the rate", "fault, down"}
        names |= {"fault, other traffic: 30 % of the rate", "fault, flaps: down for 5 µs in every 20 µs"}
        noted = "after its end: switch->host1 slow: 25 % of the rate"
    else:  # of whose calls links are slow from the begin to the end
        fault = '{link: "node0.gpu3->*", at: 0 us, kind: slow, factor: 2}'
        path.write_text(
            f"topology: hgx-h100\ncollective: all_reduce\nalgorithm: ring\nsize: 1 MiB\nfaults: [{fault}]\n"
        )
        windows, late = {("node0.gpu3->node0.nvswitch0", 0, None)}, set()
        names, noted = {"fault, slow: 50 % of the rate"}, "8 ranks"
    (point,) = load(str(path))
    end = round(predict(point).time_ps / 1e6, 9)
    (figure,) = dict(run_plots.single_figures([point], ["timeline"])).values()
    ranks, links = figure.axes
    assert marked(links) == {(lane, begin, end if until is None else until) for lane, begin, until in windows}
    assert marked(ranks) == late
    assert {entry for entry in entries(figure) if "chunk" not in entry and entry != "launch"} == names
    assert noted in words(figure).replace("\n", " ")


def test_every_bar_is_seen() -> None:
    """In the middle of each bar is the colour of its chunk, and not of an edge, however short the bar is."""
    star, program, timeline = run("all_reduce", "ring", 4, o_send=10**7, o_recv=10**9)
    figure = gantt_figure(program, timeline, star.ranks)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())
    for axes, name in ((figure.axes[0], "sends"), (figure.axes[1], "links")):
        for a, b, top, bottom in bars(axes, name):
            x, y = axes.transData.transform(((a + b) / 2, top + (bottom - top) / 4))
            near = pixels[len(pixels) - 1 - int(y), int(x) - 1 : int(x) + 2, :3].astype(int)
            assert (near.max(axis=1) - near.min(axis=1)).max() > 60, (name, a, b)  # a hue: neither white nor grey


@pytest.mark.parametrize("case", [("all_reduce", "naive", 6), ("all_reduce", "tree", 8), ("all_to_all", "direct", 5)])
def test_no_bar_hides_another(case: tuple[str, str, int]) -> None:
    """What overlaps in time on a link, or on the channels of a rank, by more than a pixel lies in rows of its own."""
    figure, _, timeline = picture(*case, chunk=2**18, channels=2, o_recv=10**6)
    pixel = timeline.makespan_ps / 1e6 / 1000
    for axes in figure.axes[:2]:
        every = [bar for c in axes.collections if c.get_gid() for bar in bars(axes, c.get_gid())]
        for (a, b, top, bottom), (c, d, above, below) in itertools.combinations(every, 2):
            assert min(b, d) - max(a, c) <= pixel or min(bottom, below) - max(top, above) < 1e-9


def test_large_runs_are_refused_and_many_links_are_cut() -> None:
    """More than 4,000 transfers are refused with a cure; of more than 64 links or ranks 32 remain, and it is said."""
    star, program, timeline = run("all_gather", "direct", 65)
    with pytest.raises(ValueError, match=r"4,160 transfers.*fewer ranks"):
        gantt_figure(program, timeline, star.ranks)
    figure, *_ = picture("broadcast", "naive", 66)
    for kind in ("ranks", "links"):
        assert f"32 of 66 {kind}: of each time the busiest" in words(figure).replace("\n", " ")
    lanes = [label.get_text() for label in figure.axes[1].get_yticklabels()]
    assert (len(lanes), lanes[0]) == (32, "host0->switch")


def test_links_that_are_left_out_leave_no_phase_empty() -> None:
    """While ranks send, a drawn link carries data, whichever kind of link is the busiest of all."""
    keys = {"topology.nodes": 2, "collective": "all_reduce", "algorithm": "hierarchical", "size": "64 MiB"}
    (point,) = load(None, ["topology.system=hgx-h100", "profile=one-port", *(f"{k}={v}" for k, v in keys.items())])
    (figure,) = dict(run_plots.single_figures([point], ["timeline"])).values()
    ranks, links = figure.axes[:2]
    assert "32 of 128 links" in words(figure)
    at = np.linspace(0, ranks.get_xlim()[1], 1000)
    drawn = (bars(ranks, "sends"), bars(links, "links"))
    working = [np.any([(left < at) & (at < right) for left, right, *_ in each], axis=0) for each in drawn]
    assert working[0].sum() > 900 and (working[0] & ~working[1]).sum() < 10


# --- files ---

FIGURES = {
    "busbw": lambda: size_figure(sweep("ring", "tree", ranks=(2, 4, 8, 16)), "busbw", [row(system="lab")]),
    "latency": lambda: size_figure([row(size=100)], "latency"),
    "crowded": lambda: size_figure(sweep(*specs("all_reduce")), "latency"),
    "scaling": lambda: scaling_figure(sweep("ring", "tree", ranks=(2, 3, 100))),
    "comparison": lambda: compare_figure(points()),
    "residuals": lambda: residual_figure(left_over()),
    "one row": lambda: crossover_figure(sweep("ring", "tree")),
    "crossover": lambda: crossover_figure(sweep("ring", "tree", ranks=(2, 4, 8, 16))),
    "timeline": lambda: picture("all_reduce", "ring", 8, o_recv=10**6)[0],
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", FIGURES)
def test_saved_whole(name: str, tmp_path: Path) -> None:
    """A figure is written, into a folder that need not exist, and nothing of it lies outside the page."""
    figure = FIGURES[name]()
    save(figure, tmp_path / "plots" / f"{name}.png")
    assert (tmp_path / "plots" / f"{name}.png").stat().st_size > 5000
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(box.x0, box.y0, width - box.x1, height - box.y1) > -0.01
    headline = min(text.get_window_extent().y0 for text in figure.texts)
    legend = max((legend.get_window_extent().y1 for legend in figure.legends), default=0)
    for axes in figure.axes:
        place = axes.get_tightbbox()
        assert legend < place.y0 < place.y1 < headline
