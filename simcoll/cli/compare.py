"""`simcoll compare`: predictions against a measured table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from simcoll.cli._options import (
    JSON,
    SETS,
    WHERE,
    Number,
    completed,
    measured_on,
    measured_text,
    output_folder,
    with_measured_on,
)
from simcoll.errors import InputError


@click.command()
@click.argument(
    "tables",
    nargs=-1,
    required=True,
    metavar="[SCENARIO|RESULTS.csv|system=NAME] MEASURED.csv|-",
    shell_complete=completed("file", "scenario", "table"),
)
@WHERE
@SETS
@click.option("--max-mape", type=Number(), metavar="X", help="Exit with 1 if the mean error exceeds X percent.")
@output_folder("Folder for compare.csv and the picture.")
@JSON
@with_measured_on
def compare(
    tables: tuple[str, ...],
    topology: str | None,
    where: tuple[str, ...],
    sets: tuple[str, ...],
    max_mape: float | None,
    output: Path | None,
    as_json: bool,
) -> int:
    """Compare predictions with a measured table, or with nccl-tests' text.

    With `--on` (or `system=NAME`, which takes a file, too) all rows are predicted on that machine. `-` reads a pipe.
    Prints the error of each point, errors by region, whether intervals hold, and whether algorithms come in the right
    order.
    """
    from simcoll.accuracy.compare import compared
    from simcoll.report import accuracy_text, run_plots

    if max_mape is not None and not max_mape >= 0:
        raise InputError(f"--max-mape {max_mape:g} is no error in percent", "give a number from 0 on, e.g. 20")
    *given, measured = tables
    predicted = given[0] if given else f"system={measured_on(topology)}"
    if len(given) > 1 or (topology and predicted.startswith("system=") and given):
        raise InputError("more tables than two", "give a prediction and a measured table, or --on and a measured table")
    if given and topology:
        sets = (f"topology={topology}", *sets)
    document = compared(predicted, measured_text(measured), measured, where, sets)
    if output:
        for path in run_plots.comparison(document, output):
            print(path, file=sys.stderr)
    print(json.dumps(document, indent=1) if as_json else accuracy_text.comparison_table(document))
    mape = document["summary"][-1]["mape"]
    if max_mape is not None and mape > max_mape:
        print(f"mean error {mape:.1f} % exceeds {max_mape:g} %", file=sys.stderr)
        return 1
    return 0
