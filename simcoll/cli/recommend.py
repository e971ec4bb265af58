"""`simcoll recommend`: the best algorithm, protocol and settings by size."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simcoll.cli._options import JOBS, JSON, QUIET, SCENARIO_OR_KEYS, SETS, with_keys
from simcoll.cli._terminal import progress
from simcoll.errors import InputError

if TYPE_CHECKING:
    from simcoll.explanation.recommendation import Recommendation


@click.command()
@SCENARIO_OR_KEYS
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write: JSON, or the format of --to.")
@click.option("--to", type=click.Choice(["json", "nccl-tuner"]), help="Write CSV of NCCL's example tuner plugin.")
@click.option("--among", metavar="NAMES", multiple=True, help="Choose among these algorithms only, e.g. 'ring,tree'.")
@SETS
@JOBS
@JSON
@QUIET
@with_keys("system", "nodes", "size", "profile")
def recommend(
    scenario: str | None,
    output: Path | None,
    to: str | None,
    among: tuple[str, ...],
    sets: tuple[str, ...],
    jobs: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Recommend the best algorithm, protocol and settings for a scenario, or a collective, by ranges of sizes.

    From the smallest to the largest size, all algorithms that can run are simulated. Bisection finds the sizes at
    which the best changes. For a workload, the algorithm and the bucket size are recommended. For a step of the
    template `training`, parallelism, micro batch, recomputation and schedule are recommended.
    """
    from simcoll.config.input_files import ImportLog
    from simcoll.explanation.recommendation import SCHEMA, recommendations
    from simcoll.explanation.training_advice import StepSearch
    from simcoll.prediction import result_rows
    from simcoll.prediction.workers import check_jobs
    from simcoll.report import training_text
    from simcoll.report.exports import nccl_tables
    from simcoll.report.recommendation_text import text
    from simcoll.scenario.scenario_files import load
    from simcoll.workload.training_keys import TrainingStep

    check_jobs(jobs)
    if to and not output:
        raise InputError("--to needs a file to write", "name it with -o")
    names = [name.strip() for names in among for name in names.split(",")] if among else None
    points = load(scenario, sets)
    if isinstance(points[0].scenario.workload, TrainingStep):
        found = {"schema": SCHEMA, **StepSearch(points[0], names).document()}
        if output:
            result_rows.write_atomically(output, json.dumps(found, indent=1) + "\n")
        print(json.dumps(found, indent=1) if as_json else training_text.recommendation(found))
        return
    asked = recommendations(points, names)
    _simulate(asked, jobs, quiet)
    document: dict[str, Any] = {"schema": SCHEMA, "recommendations": [each.document() for each in asked]}
    notes = ImportLog()
    if output:
        written = json.dumps(document, indent=1) + "\n"
        if to == "nccl-tuner":
            written = nccl_tables.tuner([row for each in asked for row in each.rows()], notes)
        result_rows.write_atomically(output, written)
    print(json.dumps(document, indent=1) if as_json else text(document["recommendations"], asked))
    if output and not quiet:
        print(f"{notes}\n{output}".strip(), file=sys.stderr)


def _simulate(asked: Sequence[Recommendation], jobs: int, quiet: bool) -> None:
    total = sum(len(each.sizes) * len(each.of) for each in asked)
    with progress(total, lambda _: "", quiet) as watch:

        def done() -> None:
            watch.finished(len(watch.done))
            watch.total = max(watch.total, len(watch.done))  # the length of a bisection is not known in advance

        for each in asked:
            each.simulate(jobs, done)
