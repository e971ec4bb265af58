"""The plots of a run: the scenario chooses them, `plot` draws them, and this module writes them to a folder."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from simcoll.config import text_table
from simcoll.config.grouping import grouped
from simcoll.config.text_table import remarks_wrapped, wrapped
from simcoll.errors import RefusedError, SimcollError
from simcoll.prediction.result_rows import ResultRow, write_atomically
from simcoll.scenario.key_types import KeyPlot
from simcoll.scenario.scenario import Scenario
from simcoll.scenario.scenario_files import Point

Named = tuple[str, Any]  # name and figure of a plot
CURVES: Final = ("busbw", "latency", "scaling", "crossover")
STEP: Final = "step"  # of workloads
OVERLAP: Final = "overlap"  # of the shortest step
SINGLE: Final = ("timeline", "utilisation")  # of one collective
SMALL: Final = 4000  # transfers: a timeline of more cannot be read
SHOWN: Final = 2_000_000  # messages: computing the times of more, if the run did not, takes over a second
_NAMED: Final = frozenset({"name", "collective", "algorithm", "size", "workload.template", "workload.algorithm"})
_PLACE: Final = frozenset({"topology.system", "topology.nodes"})  # keys that are part of a machine's name in a title
_DRAWN: Final = ("collective", "ranks", "nodes", "size_bytes", "time_us", "algorithm", "system")  # of measured rows


def draw(points: Sequence[Point], figures: Sequence[Named], folder: Path, kind: str = "png") -> list[Path]:
    """Write plots as files: `figures` (from `asked`) and wanted pictures of single points. Return the paths."""
    singles = single_figures(points, _wanted([point.scenario for point in points], SINGLE))
    return write([*figures, *singles], folder, kind)


def write(figures: Iterable[Named], folder: Path, kind: str = "png") -> list[Path]:
    """Write each figure to a file that has the figure's name; return the paths."""
    from simcoll.report.plot import save

    paths = []
    for name, figure in figures:
        paths.append(folder / f"{name}.{kind}")
        save(figure, paths[-1])
    return paths


def _wanted(scenarios: Sequence[Scenario], which: Collection[str]) -> list[str]:
    """Return those plot names of `which` that at least one of the scenarios asks for."""
    asked = dict.fromkeys(plot for scenario in scenarios for plot in scenario.plots)
    return [plot for plot in asked if isinstance(plot, str) and plot in which]


def asked(points: Sequence[Point], rows: Sequence[ResultRow]) -> Iterator[Named]:
    """Yield the names and figures of those curves and maps that the scenarios ask for."""
    scenarios = [point.scenario for point in points]
    alone = [scenario for scenario in scenarios if not scenario.workload]
    measured = [point for points in _measured(alone, rows).values() for point in points]
    yield from curves(rows, _wanted(scenarios, (*CURVES, STEP)), measured)
    if _wanted(scenarios, [OVERLAP]) and (shortest := shortest_step(points, rows)):
        yield from _drawn(OVERLAP, lambda: step_overlap(shortest))
    for plot in dict.fromkeys(plot for scenario in scenarios for plot in scenario.plots if isinstance(plot, KeyPlot)):
        yield from _drawn(plot.name, functools.partial(over_key, rows, plot))


def _drawn(name: str, draw: Callable[[], Any]) -> Iterator[Named]:
    """Yield a figure with its name. If it cannot be drawn, say why on stderr: no picture makes a run fail."""
    try:
        yield name, draw()
    except (ValueError, SimcollError, MemoryError) as reason:
        print(wrapped(f"{name}: not drawn: {reason}", "  "), file=sys.stderr)


def over_key(rows: Sequence[ResultRow], plot: KeyPlot) -> Any:
    """Return the figure of one quantity over one key, as `plot` describes it; raises InputError."""
    from simcoll.report.columns import filtered
    from simcoll.report.plot.any_key import key_figure

    kept = filtered(rows, {key: listed(value) for key, value in plot.filter.items()})
    return key_figure(kept, plot.x, plot.y, plot.group, plot.facet)


def listed(value: Any) -> list[str]:
    """Return one value, or each of several values, as a list of texts."""
    return [str(each) for each in value] if isinstance(value, list | tuple) else [str(value)]


def curves(rows: Sequence[ResultRow], wanted: Sequence[str], measured: Sequence[Mapping[str, Any]]) -> Iterator[Named]:
    """Yield names and figures of the `wanted` curves and maps; if one cannot be drawn, a line on stderr says why."""
    from simcoll.report.plot.any_key import scaling_figure, size_figure
    from simcoll.report.plot.maps import crossover_figure
    from simcoll.report.plot.steps import step_figure

    good = [row for row in rows if row.status == "ok" and row.size_bytes and row.time_us]  # rows with a bandwidth
    figure: dict[str, Callable[[], Any]] = {
        "busbw": lambda: size_figure(good, "busbw", measured),
        "latency": lambda: size_figure(good, "latency", measured),
        "scaling": lambda: scaling_figure(good, measured),
        "crossover": lambda: crossover_figure(good),
        STEP: lambda: step_figure(rows),
    }
    for name in wanted if good else [name for name in wanted if name == STEP]:
        yield from _drawn(name, figure[name])


def comparison(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the points of a comparison to the folder, as a table and as a picture; return the paths."""
    from simcoll.report.plot import save
    from simcoll.report.plot.comparison import compare_figure

    columns = list(document["points"][0])
    rows = ([point[column] for column in columns] for point in document["points"])
    write_atomically(folder / "compare.csv", text_table.csv_text(columns, rows))
    save(compare_figure(document["points"]), folder / "compare.png")
    return [folder / "compare.csv", folder / "compare.png"]


def recorded(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the picture of recorded calls and ranks, if the document of a diagnosis has any; return its path."""
    from simcoll.report.plot import save
    from simcoll.report.plot.recorded import recorded_figure

    drawn = document.get("recorded", {"calls": [], "ranks": []})
    if drawn["calls"] or drawn["ranks"]:
        save(recorded_figure(drawn), folder / "recorded.png")
        return [folder / "recorded.png"]
    return []


def unmatched(scenarios: Sequence[Scenario], rows: Sequence[ResultRow]) -> list[str]:
    """Return a note for each measured table in the scenarios that has no row matching the run's points."""
    kinds = [f"{collective} {dtype} on {ranks} ranks" for collective, ranks, dtype in dict.fromkeys(map(_kind, rows))]
    what = ", ".join(kinds[:3])
    tables = _measured(scenarios, rows)
    return [f"{name}: nothing of it is drawn: it has no {what}" for name, points in tables.items() if not points]


def _kind(row: Any) -> tuple[str, int | None, str | None]:
    """Return collective, ranks and dtype; a measured row is drawn only with predicted rows that share all three."""
    return row.collective, row.ranks, row.dtype


def _measured(scenarios: Sequence[Scenario], rows: Sequence[ResultRow]) -> dict[str, list[dict[str, Any]]]:
    """Return, for each measured table that the scenarios name, its points that match rows of the run, with their bus
    bandwidth."""
    from simcoll.formats.measured import find_measured, read_measured
    from simcoll.schedule.collectives import collective

    covered, tables = set(map(_kind, rows)), dict[str, list[dict[str, Any]]]()
    for name in [str(each.measured) for each in scenarios if each.measured and set(each.plots) & set(CURVES)]:
        if name in tables:
            continue
        tables[name] = []
        for row in read_measured(find_measured(name)):
            if _kind(row) in covered:
                factor = float(collective(row.collective).busbw(row.ranks))
                columns = {column: getattr(row, column) for column in _DRAWN}
                tables[name].append({**columns, "busbw_GBps": row.size_bytes / row.time_us / 1e3 * factor})
    return tables


def swept_words(point: Point, place: bool = True) -> list[str]:
    """Return the values of a point's swept keys in words, except those in the point's name. Without `place`, keys that
    the machine's name tells are left out, too."""
    from simcoll.report.columns import ALIASES, said

    keys = {path: value for path, value in point.varied.items() if path not in _NAMED and (place or path not in _PLACE)}
    columns = {ALIASES.get(path, path): value for path, value in keys.items() if value is not None}
    return [said(column, {column: value}) for column, value in columns.items()]


# --- workloads ---


def shortest_step(points: Sequence[Point], rows: Sequence[ResultRow]) -> Point | None:
    """Return the point of the workload with the shortest step; None if there is not one row for each point."""
    timed = [
        (row.time_ps, place)
        for place, (point, row) in enumerate(zip(points, rows, strict=False))
        if point.scenario.workload and row.status == "ok"
    ]
    return points[min(timed)[1]] if timed and len(points) == len(rows) else None


def step_overlap(point: Point) -> Any:
    """Return the figure of a step's computation and communication; raises ValueError if computing it takes too long."""
    from simcoll.explanation.explained_run import unheld_messages
    from simcoll.prediction.predict import predict
    from simcoll.prediction.predictions import StepPrediction
    from simcoll.prediction.training_step import TrainingPrediction
    from simcoll.report.overlap import overlaps, summary
    from simcoll.report.plot.steps import overlap_figure

    scenario = point.scenario
    work, once = scenario.workload, {"replications": None, "variability": None}
    prediction = predict(scenario.model_copy(update=once))
    assert work
    if isinstance(prediction, TrainingPrediction):
        from simcoll.report.plot.training import step_figure

        return step_figure(prediction)
    if (messages := unheld_messages(prediction)) > SHOWN:
        raise ValueError(f"it needs the times of {messages} messages, and the run computed totals only")
    words = [work.template, str(getattr(work, "model", "") or ""), prediction.algorithm, f"{prediction.n} ranks"]
    title = ", ".join([*(word for word in words if word and len(word) < 40), *swept_words(point)])
    assert isinstance(prediction, StepPrediction)
    ranks = overlaps(prediction)
    print(remarks_wrapped("\n".join(summary(prediction, ranks))), file=sys.stderr)
    return overlap_figure(ranks, f"Step of {title}")


# --- single collectives ---


def single_figures(points: Sequence[Point], wanted: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield the names and figures of the `wanted` pictures of single points, for each example on the first machine."""
    if wanted and any(point.scenario.workload for point in points):
        print(
            f"{', '.join(wanted)}: for single collectives; a workload has `overlap`, `step`, --trace",
            file=sys.stderr,
        )
    alone = [point for point in points if not point.scenario.workload]
    first = place_of(alone[0].scenario) if alone else ""
    chosen = [each for each in examples(points) if place_of(each.scenario) == first] if wanted else []
    others, drawn = len(alone) - len(chosen), 0
    for point in chosen:
        scenario = point.scenario
        name = f"{scenario.collective}-{scenario.algorithm}".translate(str.maketrans("(=,/", "----", ") "))
        try:
            figures = _figures(point, wanted)
        except RefusedError:  # the run reports it
            continue
        except SimcollError as reason:
            print(wrapped(f"{name}: not drawn: {reason}", "  "), file=sys.stderr)
            continue
        drawn += len(figures)
        yield from ((f"{kind}-{name}", figure) for kind, figure in figures.items())
    if drawn and others:
        note = f"{', '.join(wanted)}: of the largest size, on the first topology; {others} more points have none"
        print(wrapped(f"{note} of their own: narrow the run with --set for another", "  "), file=sys.stderr)


def examples(points: Sequence[Point]) -> list[Point]:
    """Return the largest size's point of each collective and algorithm on each topology and number of ranks."""

    def like(point: Point) -> tuple[str, str, str]:
        return place_of(point.scenario), point.scenario.collective, point.scenario.algorithm

    alike = grouped([point for point in points if not point.scenario.workload], like).values()
    return [max(group, key=lambda point: point.scenario.nbytes) for group in alike]


def by_turns(points: Sequence[Point]) -> list[Point]:
    """Return points in turn: the first of each topology and number of ranks, then the second of each, and so on."""
    turns = zip_longest(*grouped(points, lambda point: place_of(point.scenario)).values())
    return [each for turn in turns for each in turn if each]


def place_of(scenario: Scenario) -> str:
    """Return a key that is equal for scenarios with the same topology and number of ranks."""
    return repr((scenario.topology, scenario.ranks))


def _figures(point: Point, wanted: Sequence[str]) -> dict[str, Any]:
    from simcoll.prediction.predict import predict
    from simcoll.report.plot.gantt import gantt_figure
    from simcoll.report.plot.topology import topology_figure
    from simcoll.units import short_size

    scenario = point.scenario
    prediction = predict(scenario)
    topology, transfers = prediction.topology, prediction.run.totals.messages
    several = topology.nodes > 1 or "topology.nodes" in point.varied
    nodes = f"{topology.nodes} × " if several and scenario.topology.system else ""
    ran = (
        prediction.algorithm
        if scenario.algorithm == prediction.algorithm
        else f"{scenario.algorithm} ({prediction.algorithm})"
    )
    named = [scenario.collective, ran, short_size(scenario.nbytes), f"{nodes}{topology.name}"]
    title = ", ".join([*named, *swept_words(point, place=False)])
    figures: dict[str, Any] = {}
    if "timeline" in wanted and scenario.measure.buckets > 1 and not scenario.measure.async_op:
        note = "timeline: not drawn: buckets one after another are several calls; draw one: --set measure.buckets=1"
        print(wrapped(note, "  "), file=sys.stderr)
    elif "timeline" in wanted and transfers <= SMALL and (transfers := len(prediction.program)) <= SMALL:
        launch_ps = prediction.waited_ps + prediction.launch_ps
        channels = prediction.planned[0].lowered.count
        drawn = prediction.program, prediction.timeline, prediction.devices, title, launch_ps, channels
        figures["timeline"] = gantt_figure(*drawn, prediction.fault_windows)
    elif "timeline" in wanted:
        note = f"timeline: not drawn: {ran} has {transfers} transfers, and of more than {SMALL} none could be seen"
        print(wrapped(f"{note}: ask for fewer ranks, or give --trace FILE.json", "  "), file=sys.stderr)
    if "utilisation" in wanted:
        busy = dict(zip(topology.links, prediction.busy.tolist(), strict=True))
        figures["utilisation"] = topology_figure(topology, busy, title)
    return figures
