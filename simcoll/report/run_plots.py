"""The plots of a run: chosen as the scenario asks, drawn by `plot`, written to a folder."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from simcoll.config import csv_text
from simcoll.config.groups import grouped
from simcoll.config.text_table import wrapped
from simcoll.errors import SimcollError
from simcoll.prediction.result_rows import ResultRow, write_atomically
from simcoll.report import point_plots
from simcoll.scenario.key_types import KeyPlot
from simcoll.scenario.loading import Point
from simcoll.scenario.scenario import Scenario

Named = tuple[str, Any]  # a plot's name, and its figure
CURVES: Final = ("busbw", "latency", "scaling", "crossover")
STEP: Final = "step"  # the one of workloads
OVERLAP: Final = "overlap"  # of the shortest step
_DRAWN: Final = ("collective", "ranks", "nodes", "size_bytes", "time_us", "algorithm", "system")  # of measured rows


def draw(points: Sequence[Point], figures: Sequence[Named], folder: Path, kind: str = "png") -> list[Path]:
    """Write the plots that the scenario asks for, as files of a kind: `figures` are those that `asked` gives."""
    single = point_plots.single(points, _wanted([point.scenario for point in points], point_plots.SINGLE))
    return write([*figures, *single], folder, kind)


def write(figures: Iterable[Named], folder: Path, kind: str = "png") -> list[Path]:
    """Write figures by their names."""
    from simcoll.report.plot import save

    paths = []
    for name, figure in figures:
        paths.append(folder / f"{name}.{kind}")
        save(figure, paths[-1])
    return paths


def _wanted(scenarios: Sequence[Scenario], which: Collection[str]) -> list[str]:
    """Select the plots of `which` that a scenario asks for."""
    asked = dict.fromkeys(plot for scenario in scenarios for plot in scenario.plots)
    return [plot for plot in asked if isinstance(plot, str) and plot in which]


def asked(points: Sequence[Point], rows: Sequence[ResultRow]) -> Iterator[Named]:
    """Name and figure of the curves and maps that the scenarios ask for."""
    scenarios = [point.scenario for point in points]
    alone = [scenario for scenario in scenarios if not scenario.workload]
    yield from curves(rows, _wanted(scenarios, (*CURVES, STEP)), _measured(alone, rows))
    if _wanted(scenarios, [OVERLAP]) and (shortest := point_plots.shortest(points, rows)):
        yield from _drawn(OVERLAP, lambda: point_plots.overlap(shortest))
    for plot in dict.fromkeys(plot for scenario in scenarios for plot in scenario.plots if isinstance(plot, KeyPlot)):
        yield from _drawn(plot.name, functools.partial(over_key, rows, plot))


def _drawn(name: str, draw: Callable[[], Any]) -> Iterator[Named]:
    """Yield a figure by its name, or say on stderr why there is none: no picture makes a run fail."""
    try:
        yield name, draw()
    except (ValueError, SimcollError, MemoryError) as reason:
        print(wrapped(f"{name}: not drawn: {reason}", "  "), file=sys.stderr)


def over_key(rows: Sequence[ResultRow], plot: KeyPlot) -> Any:
    """The figure of a quantity over a key; raises InputError."""
    from simcoll.report.plot.any_key import key_figure
    from simcoll.report.plot.key_columns import filtered

    kept = filtered(rows, {key: listed(value) for key, value in plot.filter.items()})
    return key_figure(kept, plot.x, plot.y, plot.group, plot.facet)


def listed(value: Any) -> list[str]:
    """Values as texts, one or several."""
    return [str(each) for each in value] if isinstance(value, list | tuple) else [str(value)]


def curves(rows: Sequence[ResultRow], wanted: Sequence[str], measured: Sequence[Mapping[str, Any]]) -> Iterator[Named]:
    """Draw curves and maps from rows alone; a line on stderr says why one cannot be drawn."""
    from simcoll.report.plot.curves import scaling_figure
    from simcoll.report.plot.maps import crossover_figure
    from simcoll.report.plot.steps import step_figure

    good = [row for row in rows if row.status == "ok" and row.size_bytes and row.time_us]  # rows with a bandwidth
    figure: dict[str, Callable[[], Any]] = {
        "busbw": lambda: _over_size(good, "busbw", measured),
        "latency": lambda: _over_size(good, "latency", measured),
        "scaling": lambda: scaling_figure(good, measured),
        "crossover": lambda: crossover_figure(good),
        STEP: lambda: step_figure(rows),
    }
    for name in wanted if good else [name for name in wanted if name == STEP]:
        yield from _drawn(name, figure[name])


def _over_size(rows: Sequence[ResultRow], quantity: Literal["busbw", "latency"], measured: Sequence[Any]) -> Any:
    """Curves over the size, or bars where there is but one."""
    from simcoll.report.plot.any_key import key_figure
    from simcoll.report.plot.curves import size_figure
    from simcoll.report.plot.style import COMPETING, SETTINGS, telling

    if measured or len({row.size_bytes for row in rows}) > 1:
        return size_figure(rows, quantity, measured)
    varied = [name for name in ("collective", "ranks", "nodes") if len({row[name] for row in rows}) > 1]
    across = next((name for name in ("nodes", "ranks") if len({row[name] for row in rows}) > 2), "algorithm")
    counted = across != "algorithm"  # a line over the counts, in place of a panel for each
    asked = [{**row, "algorithm": row.asked or row.algorithm} for row in rows]
    apart = [name for name in varied if not counted or name == "collective"]
    groups = [name for name in telling(asked, (*SETTINGS, *COMPETING)) if name not in varied]
    groups = ["algorithm", *groups] if counted else groups
    return key_figure(rows, across, "busbw" if quantity == "busbw" else "time", groups, apart)


def comparison(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """The points of a comparison as a table, and their picture."""
    from simcoll.report.plot import save
    from simcoll.report.plot.curves import compare_figure

    columns = list(document["points"][0])
    rows = ([point[column] for column in columns] for point in document["points"])
    write_atomically(folder / "compare.csv", csv_text.dump(columns, rows))
    save(compare_figure(document["points"]), folder / "compare.png")
    return [folder / "compare.csv", folder / "compare.png"]


def unmatched(scenarios: Sequence[Scenario], rows: Sequence[ResultRow]) -> list[str]:
    """A line for each measured table that was asked for and of which the run covers nothing."""
    notes = []
    for name, having in _tables(scenarios).items():
        if not _measured(having, rows):
            kinds = [f"{collective} {dtype} on {ranks} ranks" for collective, ranks, dtype in _kinds(rows)]
            notes.append(f"{name}: nothing of it is drawn: it has no {', '.join(kinds[:3])}")
    return notes


def _kinds(rows: Sequence[ResultRow]) -> list[tuple[str, int | None, str | None]]:
    """Collective, ranks and dtype that a measured row must share with a row to be drawn beside it."""
    return list(dict.fromkeys((row.collective, row.ranks, row.dtype) for row in rows))


def _tables(scenarios: Sequence[Scenario]) -> dict[str, list[Scenario]]:
    drawn = (scenario for scenario in scenarios if scenario.measured and set(scenario.plots) & set(CURVES))
    return grouped(drawn, lambda scenario: str(scenario.measured))


def _measured(scenarios: Sequence[Scenario], rows: Sequence[ResultRow]) -> list[dict[str, Any]]:
    """The points of the measured tables that the run covers, with their bus bandwidth."""
    from simcoll.formats.measured import find_measured, read_measured
    from simcoll.schedule.collectives import collective

    covered = _kinds(rows)
    points = []
    for name in dict.fromkeys(scenario.measured for scenario in scenarios if scenario.measured):
        for row in read_measured(find_measured(name)):
            if (row.collective, row.ranks, row.dtype) in covered:
                factor = float(collective(row.collective).busbw(row.ranks))
                busbw = row.size_bytes / row.time_us / 1e3 * factor
                points.append({**{name: getattr(row, name) for name in _DRAWN}, "busbw_GBps": busbw})
    return points
