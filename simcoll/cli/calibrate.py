"""`simcoll calibrate`: a profile fitted to measured tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from simcoll.cli._options import JSON, SETS, WHERE, Whole, completed, measured_on, with_measured_on
from simcoll.cli._progress import Lines
from simcoll.errors import InputError


@click.command()
@click.argument("measured", nargs=-1, required=True, metavar="MEASURED.csv…", shell_complete=completed("file", "table"))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The profile (YAML).")
@WHERE
@click.option(
    "--fit", multiple=True, metavar="COL=V,V", help="Fit these rows, score the others.  [default: every second size]"
)
@click.option("--free", metavar="NAME,NAME", help="Parameters to fit.  [default: those that the rows determine]")
@SETS
@click.option("--seed", type=Whole(), default=0, show_default=True, help="Of the bootstrap.")
@JSON
@with_measured_on
def calibrate(
    measured: tuple[str, ...],
    topology: str | None,
    output: Path,
    where: tuple[str, ...],
    fit: tuple[str, ...],
    free: str | None,
    sets: tuple[str, ...],
    seed: int,
    as_json: bool,
) -> int:
    """Fit parameters of the model to measured tables, and write a profile.

    Rows that are not fitted are scored. The residuals are drawn into a picture beside the profile.
    """
    from simcoll.accuracy.fit import calibrate as fits
    from simcoll.prediction import result_rows
    from simcoll.report import accuracy_text
    from simcoll.report.plot import save
    from simcoll.report.plot.curves import residual_figure

    if output.suffix not in (".yaml", ".yml"):
        raise InputError(f"{output}: a profile is a YAML file", "give a name that ends with .yaml")
    result_rows.check_writable(output)
    names = [name.strip() for name in free.split(",")] if free else []
    fitted = fits.calibrate(
        measured, measured_on(topology), name=output.stem, where=where, fit=fit, free=names, sets=sets, seed=seed,
        tell=Lines(),
    )  # fmt: skip
    result_rows.write_atomically(output, fitted.text)
    print(output, file=sys.stderr)
    picture = output.with_name(f"{output.stem}-residuals.png")
    try:
        save(residual_figure(fitted.document["points"]), picture)
    except ValueError as reason:
        print(f"{picture}: not drawn: {reason}", file=sys.stderr)
    else:
        print(picture, file=sys.stderr)
    print(json.dumps(fitted.document, indent=1) if as_json else accuracy_text.calibration_table(fitted.document))
    return 0
