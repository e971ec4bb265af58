"""`simcoll run` and `simcoll predict`: points simulated, told and written."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simcoll.commands.options import JSON, SETS
from simcoll.errors import InputError

if TYPE_CHECKING:
    from simcoll.scenario import Point


@click.command()
@click.argument("scenario")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder for results.csv, manifest.json, plots/.")
@SETS
@click.option(
    "--jobs", default=1, show_default=True, metavar="N", help="Points simulated at the same time; -1: all cores."
)
@JSON
@click.option("--quiet", is_flag=True, help="No table, no progress.")
def run(scenario: str, output: Path | None, sets: tuple[str, ...], jobs: int, as_json: bool, quiet: bool) -> int:
    """Simulate a scenario (a YAML file, or the name of a shipped one)."""
    from simcoll.scenario import load

    points = load(scenario, sets)
    if jobs < 1 and jobs != -1:
        raise InputError(f"--jobs {jobs} means nothing", "give 1, 2, … or -1 for all cores")
    rows, reused = _swept(points, jobs, output, quiet or as_json)
    if output:
        from simcoll import sweep

        command = ["simcoll", "run", scenario, *(word for text in sets for word in ("--set", text))]
        sweep.write(output, rows, points, shlex.join(command))
        pictures = _plot(points, rows, output / "plots")
        if not quiet:
            print(f"{output / 'results.csv'} and {len(pictures)} plots in {output / 'plots'}", file=sys.stderr)
    return _show_rows(rows, points, as_json, quiet, reused)


@click.command()
@click.argument("collective")
@click.option("--on", "system", required=True, help="A shipped system, or a topology's YAML file.")
@click.option("--nodes", type=int, help="Number of nodes.")
@click.option("--ranks", type=int, help="Number of ranks.  [default: all GPUs]")
@click.option("--size", required=True, help="e.g. '64 MiB'; a list '[1 MiB, 64 MiB]' and a range work as in a file.")
@click.option("--algorithm", default="auto", show_default=True, help="A name, a list, auto or all.")
@SETS
@JSON
def predict(
    collective: str,
    system: str,
    nodes: int | None,
    ranks: int | None,
    size: str,
    algorithm: str,
    sets: tuple[str, ...],
    as_json: bool,
) -> int:
    """Predict one collective without a scenario file."""
    from simcoll.config import Node, parse
    from simcoll.errors import Place
    from simcoll.scenario import points

    def given(value: Any, option: str) -> Node:
        return parse(value, option) if isinstance(value, str) else Node(value, Place(option, 1, 1))

    kind = "file" if Path(system).suffix in (".yaml", ".yml") else "system"
    topology = {kind: given(system, "--on")} | ({"nodes": given(nodes, "--nodes")} if nodes is not None else {})
    keys = {
        "name": given("predict", "predict"),
        "topology": Node(topology, Place("--on", 1, 1)),
        "collective": given(collective, "COLLECTIVE"),
        "algorithm": given(algorithm, "--algorithm"),
        "size": given(size, "--size"),
    } | ({"ranks": given(ranks, "--ranks")} if ranks is not None else {})
    found = points(Node(keys, Place("predict", 1, 1)), sets)
    rows, _ = _swept(found, 1, None, True)
    return _show_rows(rows, found, as_json, False, 0)


def _swept(points: Sequence[Point], jobs: int, output: Path | None, quiet: bool) -> tuple[list[dict[str, Any]], int]:
    from simcoll import sweep

    found, reused = {}, 0
    with _progress(len(points), quiet) as advance:
        for index, row, again in sweep.sweep(points, jobs, output / sweep.LOG if output else None):
            found[index] = row
            reused += again
            advance()
    rows = sweep.ordered(found)
    wrong = [row["status"] for row in rows if row.get("wrong_input")]
    if wrong and len(wrong) == len(rows):
        raise InputError("\n".join(dict.fromkeys(reason.removeprefix("failed: ") for reason in wrong)))
    return rows, reused


@contextmanager
def _progress(total: int, quiet: bool) -> Iterator[Callable[[], None]]:
    """A bar on a terminal, a line every ten seconds elsewhere, nothing for what is done in a blink."""
    if quiet or not sys.stderr.isatty():
        yield _ticker(total, quiet)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=total)
        yield lambda: bar.advance(task)


def _ticker(total: int, quiet: bool) -> Callable[[], None]:
    import time

    done, told = 0, time.monotonic()

    def advance() -> None:
        nonlocal done, told
        done += 1
        if not quiet and time.monotonic() - told > 10:
            told = time.monotonic()
            print(f"{done} of {total} points", file=sys.stderr)

    return advance


def _show_rows(rows: Sequence[dict[str, Any]], points: Sequence[Point], as_json: bool, quiet: bool, reused: int) -> int:
    from simcoll import report, results

    if as_json:
        print(results.document(rows, reused))
    elif not quiet:
        print(report.run_table(rows, [point.scenario for point in points]))
    failed = [row["status"] for row in rows if str(row["status"]).startswith("failed")]
    for reason in dict.fromkeys(failed):
        print(reason, file=sys.stderr)
    return 1 if failed or not any(row["status"] == "ok" for row in rows) else 0


def _plot(points: Sequence[Point], rows: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    from simcoll import pictures

    scenarios = [point.scenario for point in points]
    for note in pictures.unmatched(scenarios, rows):
        print(note, file=sys.stderr)
    return pictures.draw(scenarios, rows, folder)
