"""Pictures of one point of a run: its timeline, how busy its links are, and the overlap of a step."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final

from simcoll.config.groups import grouped
from simcoll.config.text_table import remarks_wrapped, wrapped
from simcoll.errors import RefusedError, SimcollError
from simcoll.prediction.result_rows import ResultRow
from simcoll.scenario.loading import Point
from simcoll.scenario.scenario import Scenario

SINGLE: Final = ("timeline", "utilisation")
SMALL: Final = 4000  # transfers: a timeline of more cannot be read
SHOWN: Final = 2_000_000  # messages: to compute the times of more, which the run did without, takes over a second
_NAMED: Final = frozenset({"name", "collective", "algorithm", "size", "workload.template", "workload.algorithm"})
_PLACE: Final = frozenset({"topology.system", "topology.nodes"})  # keys that the name of a machine in a title says


def swept_words(point: Point, place: bool = True) -> list[str]:
    """The values of swept keys at a point, in words, but for the ones that its name has: by them it differs from others
    of its run. Without `place` those are left out that the name of its machine says."""
    from simcoll.report.plot.key_columns import ALIASES, said

    keys = {path: value for path, value in point.varied.items() if path not in _NAMED and (place or path not in _PLACE)}
    columns = {ALIASES.get(path, path): value for path, value in keys.items() if value is not None}
    return [said(column, {column: value}) for column, value in columns.items()]


# --- workloads ---


def shortest(points: Sequence[Point], rows: Sequence[ResultRow]) -> Point | None:
    """The workload with the shortest step; None where rows do not stand beside points."""
    timed = [
        (row.time_ps, place)
        for place, (point, row) in enumerate(zip(points, rows, strict=False))
        if point.scenario.workload and row.status == "ok"
    ]
    return points[min(timed)[1]] if timed and len(points) == len(rows) else None


def overlap(point: Point) -> Any:
    """The figure of computation and communication of a step; raises ValueError where it would take long to make."""
    from simcoll.explanation.explained_run import unheld_messages
    from simcoll.prediction.predict import predict
    from simcoll.report.overlap import overlaps, summary
    from simcoll.report.plot.overlap import overlap_figure

    scenario = point.scenario
    work, once = scenario.workload, {"replications": None, "variability": None}
    prediction = predict(scenario.model_copy(update=once))
    assert work
    if (messages := unheld_messages(prediction)) > SHOWN:
        raise ValueError(f"it needs the times of {messages} messages, which the run did not have to compute")
    words = [work.template, str(getattr(work, "model", "") or ""), prediction.algorithm, f"{prediction.plan.n} ranks"]
    title = ", ".join([*(word for word in words if word and len(word) < 40), *swept_words(point)])
    ranks = overlaps(prediction)
    print(remarks_wrapped("\n".join(summary(prediction, ranks))), file=sys.stderr)
    return overlap_figure(ranks, f"Step of {title}")


# --- single collectives ---


def single(points: Sequence[Point], wanted: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Name and figure of what is wanted of each example on the first machine."""
    if wanted and any(point.scenario.workload for point in points):
        print(f"{', '.join(wanted)}: of single collectives; a workload has overlap, step and --trace", file=sys.stderr)
    alone = [point for point in points if not point.scenario.workload]
    first = place_of(alone[0].scenario) if alone else ""
    chosen = [each for each in examples(points) if place_of(each.scenario) == first] if wanted else []
    others, drawn = len(alone) - len(chosen), 0
    for point in chosen:
        scenario = point.scenario
        name = f"{scenario.collective}-{scenario.algorithm}".translate(str.maketrans("(=,/", "----", ") "))
        try:
            figures = _figures(point, wanted)
        except RefusedError:  # as in the run
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
    """The largest size of each collective and algorithm on each topology and number of ranks."""

    def like(point: Point) -> tuple[str, str, str]:
        return place_of(point.scenario), point.scenario.collective, point.scenario.algorithm

    alike = grouped([point for point in points if not point.scenario.workload], like).values()
    return [max(group, key=lambda point: point.scenario.nbytes) for group in alike]


def by_turns(points: Sequence[Point]) -> list[Point]:
    """One of each topology and number of ranks before the second of any."""
    turns = zip_longest(*grouped(points, lambda point: place_of(point.scenario)).values())
    return [each for turn in turns for each in turn if each]


def place_of(scenario: Scenario) -> str:
    """The topology on which a scenario runs, and its number of ranks."""
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
        channels = prediction.lowered.count if prediction.lowered else 1
        drawn = prediction.program, prediction.timeline, prediction.devices, title, launch_ps, channels
        figures["timeline"] = gantt_figure(*drawn, prediction.fault_windows)
    elif "timeline" in wanted:
        note = f"timeline: not drawn: {ran} has {transfers} transfers, and of more than {SMALL} none could be seen"
        print(wrapped(f"{note}: ask for fewer ranks, or give --trace FILE.json", "  "), file=sys.stderr)
    if "utilisation" in wanted:
        busy = dict(zip(topology.links, prediction.busy.tolist(), strict=True))
        figures["utilisation"] = topology_figure(topology, busy, title)
    return figures
