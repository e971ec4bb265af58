"""`simcoll plot`: the pictures of a results.csv again."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("results_csv", metavar="RESULTS", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Folder for the pictures.  [default: plots/ beside]"
)
def plot(results_csv: Path, output: Path | None) -> None:
    """Plot a results.csv again."""
    from simcoll.prediction import result_rows
    from simcoll.report import figures

    source = results_csv / "results.csv" if results_csv.is_dir() else results_csv
    rows = result_rows.read(source)
    wanted = [figures.STEP] if any(row.workload for row in rows) else figures.CURVES
    for path in figures.write(figures.curves(rows, wanted, ()), output or source.parent / "plots"):
        print(path)
