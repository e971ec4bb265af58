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
    from simcoll.report import run_plots

    source = results_csv / "results.csv" if results_csv.is_dir() else results_csv
    rows = result_rows.read(source)
    wanted = [run_plots.STEP] if any(row.workload for row in rows) else run_plots.CURVES
    for path in run_plots.write(run_plots.curves(rows, wanted, ()), output or source.parent / "plots"):
        print(path)
