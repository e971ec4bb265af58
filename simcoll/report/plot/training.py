"""Draw the timeline of a training step: a lane for each stage of the pipeline."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from simcoll.prediction.summary_sentence import of_training
from simcoll.prediction.training_step import TrainingPrediction
from simcoll.report.plot.style import dress, finish, frame, name_axis, time_ticks
from simcoll.workload.training_plan import COMPUTE, EXCHANGES, PARTS, SHARDS

MOST_STAGES: Final = 16  # stages in a picture
_COLOURS: Final = {  # Paul Tol's, told apart without red and green
    "forward": "#88CCEE",
    "backward": "#4477AA",
    "weights": "#44AA99",
    "optimizer": "#AA4499",
    "exchange": "#CC3311",
    "bubble": "#FFFFFF",
    "wait": "#DDCC77",
    "data parallel": "#BBBBBB",
}
_WORDS: Final = {
    "forward": "forward",
    "backward": "backward",
    "weights": "gradients of weights",
    "optimizer": "optimizer",
    "exchange": "exposed communication",
    "bubble": "bubble",
    "wait": "waiting for a slower stage",
    "data parallel": "gradients and parameters, hidden or not",
}
_EXCHANGED: Final = [number for number, name in enumerate(PARTS) if name in EXCHANGES]

Span = tuple[float, float]  # begin and duration, in us


def step_figure(found: TrainingPrediction) -> Figure:
    """Return the timeline of a step. In a lane, the red part of a pass's height is its share of exposed exchanges;
    a red gap waits for an exchange, of this stage or another; white hatched is the bubble, yellow is waiting for a
    slower stage. The thin lane below is data parallelism."""
    timed, stages = found.timed, found.planner.stages
    shown = [*range(stages)] if stages <= MOST_STAGES else [*range(MOST_STAGES // 2), *range(stages - 8, stages)]
    figure = frame(10.0, 0.9 + 0.5 * len(shown))
    axes = figure.subplots()
    axes.set_xlim(0, timed.time_ps / 1e6)
    used: dict[str, Patch] = {}
    for place, stage in enumerate(shown):
        _lane(axes, found, stage, place, used)
    dress(axes)
    axes.grid(False, axis="y")
    axes.set_yticks(range(len(shown)), [f"stage {stage}" for stage in shown])
    axes.set_ylim(len(shown) - 0.45, -0.5)
    axes.locator_params(axis="x", nbins=8)
    time_ticks(axes.xaxis)
    name_axis(axes.xaxis, "time")
    spec, p = found.step, found.step.parallel
    degrees = " × ".join(f"{name} {value}" for name, value in (
        ("tp", p.tp), ("cp", p.cp), ("ep", p.ep), ("pp", p.pp), ("dp", found.planner.dp)) if value > 1)  # fmt: skip
    verdict = of_training({**found.facts, "step_us": found.time_us})
    title = f"{degrees or 'one GPU'}, {found.planner.passes} micro batches of {spec.batch.micro}, {spec.schedule.kind}"
    finish(
        figure, f"Training step: {title}", verdict, {word: used[kind] for kind, word in _WORDS.items() if kind in used}
    )
    return figure


def _lane(axes: Axes, found: TrainingPrediction, stage: int, place: int, used: dict[str, Patch]) -> None:
    timed, passes, below = found.timed, defaultdict[tuple[str, float], list[Span]](list), list[Span]()
    for number, each in enumerate(timed.plan.operations):
        span = timed.starts[number] / 1e6, each.took / 1e6
        if each.stage != stage or not each.took:
            continue
        if each.stream == SHARDS:
            below.append(span)
        elif each.stream == COMPUTE:
            exchanged = sum(each.costs[part] for part in _EXCHANGED) / each.took
            passes[each.kind if each.kind in _COLOURS else "exchange", round(exchanged, 3)].append(span)
    for (kind, exchanged), spans in passes.items():
        _draw(axes, spans, place - 0.36, 0.6, kind, used)
        if exchanged and kind != "exchange":
            _draw(axes, spans, place - 0.36 + 0.6 * (1 - exchanged), 0.6 * exchanged, "exchange", used)
    gaps = defaultdict[str, list[Span]](list)
    for gap in timed.gaps(stage):
        cause = gap.cause if gap.cause in ("bubble", "wait") else "exchange"
        gaps[cause].append((gap.start / 1e6, (gap.end - gap.start) / 1e6))
    for cause, spans in gaps.items():
        _draw(axes, spans, place - 0.36, 0.6, cause, used)
    _draw(axes, below, place + 0.27, 0.12, "data parallel", used)


def _draw(axes: Axes, spans: list[Span], low: float, height: float, kind: str, used: dict[str, Patch]) -> None:
    if not spans:
        return
    look: dict[str, Any] = {"linewidth": 0.0, "edgecolor": "#999999", "hatch": "////"} if kind == "bubble" else {}
    least = axes.get_xlim()[1] / 300  # narrower spans would be all edge
    edges: dict[str, Any] = (
        {} if look else {"edgecolor": "white", "linewidths": [0.2 * (width > least) for _, width in spans]}
    )
    axes.broken_barh(spans, (low, height), facecolor=_COLOURS[kind], **look, **edges)
    used.setdefault(kind, Patch(facecolor=_COLOURS[kind], **look))
