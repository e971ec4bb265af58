"""The command line. stdout holds the result, stderr everything else.

Exit status: 0 good; 1 the answer is no or the run failed; 2 wrong input; 130 interrupted. Every command is one or two
library calls; heavy modules are imported inside the commands, so that `simcoll --help` is quick.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from simcoll import __version__
from simcoll.errors import InputError, SimcollError

if TYPE_CHECKING:
    from simcoll.scenario import Point

SETS = click.option("--set", "sets", multiple=True, metavar="PATH=VALUE", help="Override a key of the scenario; YAML.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    try:
        with cli.make_context("simcoll", list(sys.argv[1:] if argv is None else argv)) as context:
            status = cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as done:  # --help, --version
        return done.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return 130
    except SimcollError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    except MemoryError:
        print("not enough memory; take fewer ranks, larger chunks or fewer channels", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `simcoll … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status if isinstance(status, int) else 0


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="simcoll")
def cli() -> None:
    """Simulate collective algorithms on GPU clusters: how long, how fast, and which link binds.

    Start with `simcoll run quickstart`.
    """


# --- run, predict -------------------------------------------------------------------------------------------------


@cli.command()
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


@cli.command()
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


# --- show, verify, list, topology, schema -----------------------------------------------------------------------------


@cli.command()
@click.argument("name", metavar="COLLECTIVE/ALGORITHM")
@click.option("--ranks", required=True, metavar="N[,N…]", help="Number of ranks, or several for a table of counts.")
@click.option("--root", default=0, show_default=True)
@click.option("--data", is_flag=True, help="What every rank holds before and after.")
@click.option("--diagram", is_flag=True, help="A space-time picture.")
@JSON
def show(name: str, ranks: str, root: int, data: bool, diagram: bool, as_json: bool) -> None:
    """Show what an algorithm does: transfers, counts, data before and after."""
    from simcoll import cheatsheet, report

    numbers = _rank_counts(ranks)
    if not 0 <= root < min(numbers):
        raise InputError(f"--root: there is no rank {root} among {min(numbers)} ranks", f"give 0 … {min(numbers) - 1}")
    if len(numbers) > 1 and (data or diagram):
        raise InputError("--data and --diagram show one number of ranks", "give one to --ranks")
    for n in numbers:
        cheatsheet.check_length(name, n, root)
    if as_json:
        documents = [cheatsheet.document(cheatsheet.build(name, n, root)) for n in numbers]
        print(documents[0] if len(documents) == 1 else f"[{', '.join(documents)}]")
    elif len(numbers) > 1:
        print(report.count_table(name, cheatsheet.count_rows(name, numbers)))
    elif data or diagram:
        schedule = cheatsheet.build(name, numbers[0], root)
        print("\n\n".join([*([cheatsheet.data(schedule)] * data), *([cheatsheet.diagram(schedule)] * diagram)]))
    else:
        schedule = cheatsheet.build(name, numbers[0], root)
        print(schedule)
        print(report.counts_line(schedule))


def _rank_counts(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [0]
    if not all(n > 0 for n in numbers):
        raise InputError(f"--ranks: {text!r} is no number of ranks", "write e.g. 8 or 2,4,8")
    return numbers


@cli.command()
@click.argument("name", metavar="[COLLECTIVE/ALGORITHM]", required=False)
@click.option("--ranks", default=8, show_default=True, type=click.IntRange(1, 4096))
@click.option("--schedule", type=click.Path(path_type=Path), help="A schedule as `simcoll show --json` prints it.")
@JSON
def verify(name: str | None, ranks: int, schedule: Path | None, as_json: bool) -> int:
    """Prove that schedules do what their collectives promise; all of them if none is named."""
    from simcoll import cheatsheet, report

    if schedule:
        rows = [cheatsheet.verdict_on(cheatsheet.parse(_text(schedule), str(schedule)))]
    else:
        rows = [cheatsheet.verdict(pair, ranks) for pair in ([name] if name else cheatsheet.every_pair())]
    print(json.dumps({"rows": rows}, indent=1) if as_json else report.proof_table(rows))
    return 1 if any(row["status"] == "wrong" for row in rows) else 0


def _text(path: Path) -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}", "give the path of a file") from None


@cli.command(name="list")
@click.argument(
    "what",
    default="algorithms",
    type=click.Choice(["algorithms", "collectives", "topologies", "scenarios", "profiles"]),
)
def list_(what: str) -> None:
    """List what simcoll knows."""
    from simcoll import report

    print(report.listing(what))


@cli.group()
def topology() -> None:
    """List and show topologies."""


@topology.command(name="list")
def topology_list() -> None:
    """List the shipped systems."""
    from simcoll import report

    print(report.listing("topologies"))


@topology.command(name="show")
@click.argument("name")
@click.option("--nodes", type=int, help="Number of nodes.")
@click.option("--png", type=click.Path(path_type=Path), help="Draw it into this file.")
@JSON
@SETS
def topology_show(name: str, nodes: int | None, png: Path | None, as_json: bool, sets: tuple[str, ...]) -> None:
    """Devices, links and bisection bandwidth of a system or a topology file."""
    from simcoll import report, scenario, systems

    found = systems.build(scenario.topology_spec(name, nodes, sets))
    if png:
        from simcoll.plot import save
        from simcoll.plot.topology import topology_figure

        save(topology_figure(found), png)
        print(f"drawn: {png}", file=sys.stderr)
    told = systems.describe(found)
    print(json.dumps(told, indent=1) if as_json else report.topology_text(told))


@cli.command()
def schema() -> None:
    """Print the JSON Schema of scenario files, for editors."""
    from simcoll import report

    print(json.dumps(report.schema(), indent=1))


# --- plot, compare ------------------------------------------------------------------------------------------------


@cli.command()
@click.argument("results_csv", metavar="RESULTS", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Folder for the pictures.  [default: plots/ beside]"
)
def plot(results_csv: Path, output: Path | None) -> None:
    """Plot a results.csv again."""
    from simcoll import pictures, results

    source = results_csv / "results.csv" if results_csv.is_dir() else results_csv
    for path in pictures.curves(results.read(source), pictures.CURVES, output or source.parent / "plots", ()):
        print(path)


@cli.command()
@click.argument("predicted", metavar="SCENARIO|RESULTS.csv|system=NAME")
@click.argument("measured", metavar="MEASURED.csv|-")
@click.option("--where", multiple=True, metavar="COL=VALUE", help="Keep only these rows of both tables.")
@SETS
@click.option("--max-mape", type=float, metavar="X", help="Exit with 1 if the mean error exceeds X percent.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder for compare.csv and the picture.")
@JSON
def compare(
    predicted: str,
    measured: str,
    where: tuple[str, ...],
    sets: tuple[str, ...],
    max_mape: float | None,
    output: Path | None,
    as_json: bool,
) -> int:
    """Compare predictions with a measured table, or with what nccl-tests printed (`-` reads a pipe)."""
    from simcoll import pictures, report
    from simcoll.compare import compared

    document = compared(predicted, _measured_text(measured), measured, where, sets)
    if output:
        for path in pictures.comparison(document, output):
            print(path, file=sys.stderr)
    print(json.dumps(document, indent=1) if as_json else report.comparison_table(document))
    mape = document["summary"][-1]["mape"]
    if max_mape is not None and mape > max_mape:
        print(f"mean error {mape:.1f} % exceeds {max_mape:g} %", file=sys.stderr)
        return 1
    return 0


def _measured_text(name: str) -> str:
    if name == "-":
        stream: IO[bytes] = sys.stdin.buffer
        return stream.read().decode("utf-8-sig", errors="replace")
    from simcoll.formats.measured import find_measured

    return _text(find_measured(name))
