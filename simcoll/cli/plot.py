"""`simcoll plot`: pictures of a results.csv: a run's pictures again, or a quantity over any key."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

from simcoll.cli._options import FORMAT, OF_FILES, PICTURES
from simcoll.errors import InputError


@click.command()
@click.argument("results_csv", metavar="RESULTS", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Folder for the pictures, or the file of a single one (.png, .svg, .pdf).  [default: plots/ beside]",
)
@click.option("--x", metavar="KEY", help="Column or swept key of the x axis: size, topology.oversubscription, …")
@click.option("--y", metavar="KEY", default="time", show_default=True, help="Column of the y axis: time, busbw, …")
@click.option("--group", multiple=True, metavar="KEY", help="Key whose values get a line each.  [default: algorithm]")
@click.option("--facet", multiple=True, metavar="KEY", help="Key whose values get a panel each.")
@click.option("--filter", "filters", multiple=True, metavar="KEY=V,V", help="Plot only rows with these values.")
@FORMAT
def plot(
    results_csv: Path,
    output: Path | None,
    x: str | None,
    y: str,
    group: tuple[str, ...],
    facet: tuple[str, ...],
    filters: tuple[str, ...],
    kind: str,
) -> None:
    """Plot a results.csv again.

    With --x, draw one picture: a quantity over any column or swept key.
    """
    from simcoll.prediction import result_rows
    from simcoll.report import run_plots
    from simcoll.report.columns import filtered
    from simcoll.report.verdicts import of_pictures
    from simcoll.scenario.key_types import KeyPlot

    source = results_csv / "results.csv" if results_csv.is_dir() else results_csv
    conditions = dict(map(filter_of, filters))
    every = result_rows.read(source)
    if not every:
        raise InputError(f"{source} has no rows", "give a results.csv that holds results: `simcoll run … -o FOLDER`")
    rows = filtered(every, conditions)
    single = output is not None and _is_picture(output)
    said = click.get_current_context().get_parameter_source("kind") is ParameterSource.COMMANDLINE
    if output and single and said and output.suffix[1:].lower() != kind:
        raise InputError(f"-o {output} and --format {kind} contradict each other", "leave out one of them")
    if x is not None:
        asked = KeyPlot(x=x, y=y, group=group or None, facet=facet)
        name = KeyPlot(x=x, y=y, facet=facet, filter={key: "-".join(values) for key, values in conditions.items()}).name
        figures = [(name, run_plots.over_key(rows, asked))]
    elif group or facet:
        raise InputError("--group and --facet need --x", "name the horizontal axis, e.g. --x size")
    else:
        wanted = [run_plots.STEP] if any(row["workload"] for row in rows) else run_plots.CURVES
        figures = list(run_plots.curves(rows, wanted, ()))
    if output and single:
        if len(figures) != 1:
            named = f": {', '.join(name for name, _ in figures)}" if figures else ""
            raise InputError(
                f"{output} is one picture, and there are {len(figures)}{named}", "give a folder, or --x KEY"
            )
        figures, kind = [(output.stem, figures[0][1])], output.suffix[1:]
    folder = output.parent if output and single else output or source.parent / "plots"
    print(of_pictures([name for name, _ in figures], len(rows)))
    for path in run_plots.write(figures, folder, kind):
        print(path)


def _is_picture(output: Path) -> bool:
    """Return whether `-o` names a picture, not a folder; raises InputError if it can be neither."""
    if output.is_dir():
        return False
    if output.suffix[1:].lower() in PICTURES:
        return True
    if output.suffix.lower() in OF_FILES or output.exists():
        what = f"{output.suffix} is no kind of picture" if output.suffix else "it exists and is no folder"
        cure = "end a picture's name in .png, .svg or .pdf, or name a folder (one with such an ending has to exist)"
        raise InputError(f"-o {output}: {what}", cure)
    return False


def filter_of(text: str) -> tuple[str, list[str]]:
    """Return column and values of `--filter KEY=V,V`; raises InputError."""
    from simcoll.config.yaml_tree import condition

    key, values = condition(text, "--filter")
    if not values:
        raise InputError(f"--filter {text!r} names no value", "write e.g. --filter nodes=2,4")
    return key, [value.strip() for value in values.split(",")]
