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
    from simcoll import pictures, results

    source = results_csv / "results.csv" if results_csv.is_dir() else results_csv
    rows = results.read(source)
    wanted = [pictures.STEP] if any(row.get("workload") for row in rows) else pictures.CURVES
    for path in pictures.write(pictures.curves(rows, wanted, ()), output or source.parent / "plots"):
        print(path)
