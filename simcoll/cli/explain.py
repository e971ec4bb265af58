"""`simcoll explain`: the causes of a point's time, and what would make it faster."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from simcoll.cli._options import JSON, QUIET, SCENARIO_OR_KEYS, SETS, with_keys
from simcoll.cli._terminal import progress
from simcoll.errors import Diagnostic, InputError, RefusedError

if TYPE_CHECKING:
    from simcoll.scenario.scenario_files import Point

MOST_POINTS: Final = 20


@click.command()
@SCENARIO_OR_KEYS
@SETS
@click.option("--no-what-if", is_flag=True, help="Skip the simulations of what would make it faster.")
@JSON
@QUIET
@with_keys("system", "nodes", "size", "profile", "algorithm")
def explain(scenario: str | None, sets: tuple[str, ...], no_what_if: bool, as_json: bool, quiet: bool) -> int:
    """Explain why a scenario, or a collective, takes as long as it does, and what would make it faster.

    For each point it prints the critical path (the chain of waits that determines the end) by cause and by link, and
    the links that limit the time. It then simulates the point with one change at a time, and prints the speed-ups.
    """
    from simcoll.config import text_table
    from simcoll.explanation.explain import SCHEMA, explanation, text
    from simcoll.explanation.explained_run import explained_run
    from simcoll.prediction import sweep
    from simcoll.report.overlap import summary
    from simcoll.report.verdicts import of_explanation, of_several
    from simcoll.scenario.scenario_files import load
    from simcoll.workload.training_keys import TrainingStep

    points = load(scenario, sets)
    if any(isinstance(point.scenario.workload, TrainingStep) for point in points):
        _explain_steps(points, not no_what_if, as_json)
        return 0
    if len(points) > MOST_POINTS:
        mistake = f"{scenario or 'this'} has {len(points)} points, and at most {MOST_POINTS} are explained at once"
        raise InputError(mistake, "narrow it, e.g. --set size='64 MiB' --set algorithm=ring")
    documents: list[dict[str, Any]] = []
    overlap: list[str] = []
    refused: list[tuple[bool, str]] = []  # whether the point was not asked for by name, and why it was refused
    with progress(len(points), lambda index: sweep.in_words(points[index]), quiet) as watch:
        for index, point in enumerate(points):
            watch.begun(index)
            try:
                run = explained_run(point)
                documents.append(explanation(run, not no_what_if))
                overlap += summary(run.ran)
            except RefusedError as error:
                refused.append((point.optional, f"{sweep.in_words(point)}: {sweep.refusal(error, point)}"))
            watch.finished(index)
    shown = [line for optional, line in refused if not optional or not documents]
    if not documents:
        raise InputError(map(Diagnostic.of, dict.fromkeys(shown)))
    for line in shown:
        print(line, file=sys.stderr)
    if as_json:
        print(json.dumps({"schema": SCHEMA, "points": documents}, indent=1))
    else:
        print(text_table.wrapped(of_explanation(documents[0]), "  ") if len(documents) == 1 else of_several(documents))
        print(text_table.remarks_wrapped("\n".join([text(documents), *overlap])))
    return 0


def _explain_steps(points: Sequence[Point], what_if: bool, as_json: bool) -> None:
    """Print the explanations of training steps."""
    from simcoll.explanation.explain import SCHEMA
    from simcoll.explanation.training_advice import explained_step
    from simcoll.report import training_text

    documents = [explained_step(point, what_if) for point in points]
    if as_json:
        print(json.dumps({"schema": SCHEMA, "points": documents}, indent=1))
    else:
        print("\n\n".join(map(training_text.explanation, documents)))
