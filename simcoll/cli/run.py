"""`simcoll run` and `simcoll predict`: simulate points, print and write results."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simcoll.cli._options import (
    COLLECTIVE,
    FORMAT,
    JOBS,
    JSON,
    SCENARIO,
    SETS,
    Whole,
    assigned,
    check_format,
    completed,
    output_folder,
    read_text,
    with_keys,
)
from simcoll.cli._terminal import progress
from simcoll.errors import InputError

if TYPE_CHECKING:
    from simcoll.prediction.result_rows import ResultRow
    from simcoll.prediction.sweep import Journal
    from simcoll.report.run_plots import Named
    from simcoll.scenario.scenario_files import Point


@click.command()
@SCENARIO
@output_folder("Folder for `results.csv`, `manifest.json` and `plots/`.")
@SETS
@JOBS
@click.option("--cluster", metavar="ADDRESS", help="Simulate on the workers of this Dask scheduler.")
@click.option("--shard", "share", metavar="I/N", help="Simulate the I-th of N shares only, for job arrays; needs -o.")
@JSON
@click.option("-q", "--quiet", is_flag=True, help="Print no table and no progress.")
@click.option("--trace", type=click.Path(path_type=Path), help="Perfetto trace of a single point: .json, .json.gz.")
@click.option("--report", "page", type=click.Path(path_type=Path), help="Write a report of the run as one HTML file.")
@FORMAT
@with_keys("system", "nodes", "size", "profile", "algorithm")
def run(
    scenario: str,
    output: Path | None,
    sets: tuple[str, ...],
    jobs: int,
    cluster: str | None,
    share: str | None,
    as_json: bool,
    quiet: bool,
    trace: Path | None,
    page: Path | None,
    kind: str,
) -> int:
    """Simulate a scenario (a YAML file, or the name of a shipped one)."""
    from simcoll.prediction import sweep
    from simcoll.prediction.sweep import Journal, Shard
    from simcoll.prediction.workers import check_jobs
    from simcoll.scenario.scenario_files import load

    check_jobs(jobs)
    check_format(output)
    points = load(scenario, sets)
    if cluster is not None and jobs != 1:
        raise InputError("--jobs uses processes of this machine, --cluster those of others", "leave out one of them")
    if trace:
        _check_trace(trace, points)
    if page and page.suffix not in (".html", ".htm"):
        raise InputError(f"--report {page}: the ending of the name is not known", "end its name in .html")
    shard = None if share is None else Shard.parse(share)
    if shard and not output:
        raise InputError("--shard needs a folder that all shards write to", "name it with -o")
    journal = Journal(output, shard) if output else None
    if journal:
        _say_replaced(journal, points)
    if shard and journal and sweep.is_written(journal.folder, points):
        rows, reused = list["ResultRow"](), 0
    else:
        rows, reused = _simulated(points, quiet, jobs=jobs, cluster=cluster, journal=journal, shard=shard)
    whole = _gathered(points, journal, quiet) if shard and journal else rows
    command = _command("run", scenario, sets)
    if journal and whole:
        sweep.write(journal.folder, whole, points, command)
    figures: Sequence[Named] | None = None
    try:
        _show(rows, points, as_json, quiet, reused)  # before the plots, which are slower
    finally:
        if journal and whole:
            figures = _finish(journal, whole, points, quiet, kind)
    if page and whole:
        _write_report(page, whole, points, scenario, command, figures)
    if trace and rows and not _status(rows):
        _write_trace(trace, points[0])
    return _status(rows) if rows or not shard else 0


@click.command()
@COLLECTIVE
@click.option("--ranks", type=Whole(), help="Number of ranks.  [default: all GPUs]")
@click.option(
    "--executor",
    help="nccl, msccl or p2p, for tokens pairwise, deepep or low-latency.  [default: nccl for NCCL's own algorithms, "
    "else msccl; pairwise]",
    shell_complete=completed("executor"),
)
@output_folder("Folder for `results.csv`, `manifest.json` and `plots/`.")
@FORMAT
@SETS
@JSON
@with_keys("system", "nodes", "algorithm", "size", "profile")
def predict(
    collective: str,
    ranks: int | None,
    executor: str | None,
    output: Path | None,
    kind: str,
    sets: tuple[str, ...],
    as_json: bool,
) -> int:
    """Predict one collective without a scenario file."""
    from simcoll.config.yaml_tree import Node
    from simcoll.errors import Place
    from simcoll.prediction import sweep
    from simcoll.prediction.sweep import Journal
    from simcoll.scenario.scenario_files import points_of_call, shipped_scenarios
    from simcoll.topology.machine_files import shipped_systems

    check_format(output)
    if collective in shipped_systems():
        raise InputError(f"{collective} is a system", f"name a collective, and give e.g. all_reduce --on {collective}")
    if collective in shipped_scenarios() or Path(collective).is_file():
        raise InputError(f"{collective} is a scenario, and no collective", f"write simcoll run {collective}")
    of_ranks = assigned("ranks", None if ranks is None else str(ranks), "--ranks")
    sets = (*of_ranks, *assigned("executor", executor, "--executor"), *sets)
    named = assigned("collective", collective, "COLLECTIVE")
    start = Place("predict", 1, 1)
    asked = points_of_call(Node({"name": Node("predict", start)}, start), [*named, *sets])
    journal = Journal(output) if output else None
    if journal:
        _say_replaced(journal, asked)
    rows, reused = _simulated(asked, quiet=False, journal=journal)
    if journal:
        sweep.write(journal.folder, rows, asked, _command("predict", collective, sets))
    try:
        _show(rows, asked, as_json, False, reused)
    finally:
        if journal:
            _finish(journal, rows, asked, False, kind)
    return _status(rows)


def _command(name: str, asked: str, sets: Sequence[str]) -> str:
    """Return a command line that simulates the same points, with every option written as `--set`."""
    return shlex.join(["simcoll", name, asked, *(word for text in sets for word in ("--set", text))])


def _say_replaced(journal: Journal, points: Sequence[Point]) -> None:
    """Say on stderr which command's results in the folder will be replaced; InputError for files of other programs."""
    from simcoll.prediction import result_rows, sweep

    result_rows.check_own(journal.folder / "results.csv")
    if earlier := sweep.replaced(journal.folder, points):
        print(f"{journal.folder}: replaces the results of `{earlier}`, and their pictures", file=sys.stderr)


def _simulated(points: Sequence[Point], quiet: bool, **options: Any) -> tuple[list[ResultRow], int]:
    """Simulate points; return their rows, and how many rows came from an earlier run. `options`: see `sweep.sweep`."""
    from simcoll.prediction import sweep

    finished, reused = {}, 0
    in_turn = options.get("jobs", 1) == 1 and not options.get("cluster")
    with progress(len(points), lambda index: sweep.in_words(points[index]), quiet, in_turn) as watch:
        for index, row, again in sweep.sweep(points, begun=watch.begun, replicated=watch.replicated, **options):
            finished[index] = row
            reused += again
            watch.finished(index)
    rows = sweep.ordered(finished)
    sweep.check_answerable(rows)
    return rows, reused


def _gathered(points: Sequence[Point], journal: Journal, quiet: bool) -> list[ResultRow] | None:
    """Return the rows of all shards; None if rows are still missing, or if another shard has written the results."""
    from simcoll.prediction import sweep

    logged = sweep.logged(points, journal)
    missing = len(points) - len(logged)
    if sweep.is_written(journal.folder, points):
        if missing:  # the other shards dropped their logs: this one's log is useless
            journal.drop()
        note = (
            f"{journal.folder / 'results.csv'} holds all {len(points)} points; remove it to have them simulated again"
        )
    elif missing:
        note = f"{missing} of {len(points)} points are missing: the last shard to finish writes results.csv"
    else:
        return sweep.ordered(logged)
    if not quiet:
        print(note, file=sys.stderr)
    return None


def _show(rows: list[ResultRow], points: Sequence[Point], as_json: bool, quiet: bool, reused: int) -> None:
    from simcoll.prediction import result_rows
    from simcoll.report.result_tables import run_table, step_table, varied_table

    if as_json:
        print(result_rows.document(rows, reused), flush=True)
    elif not quiet:
        table = step_table if rows and rows[0].workload else run_table
        print(table(rows, points), flush=True)
        if varied := varied_table(rows):
            print(varied, flush=True)
    for reason in dict.fromkeys(row.status for row in rows if row.status.startswith("failed")):
        print(reason, file=sys.stderr)


def _check_trace(file: Path, points: Sequence[Point]) -> None:
    """Raise InputError, before anything runs, if the points cannot be traced."""
    if not file.name.endswith((".json", ".json.gz")):
        raise InputError(f"--trace {file}: the ending of the name is not known", "end its name in .json or .json.gz")
    if len(points) > 1:
        keys = sorted({key for point in points for key in point.varied})
        mistake = f"--trace shows one point, and there are {len(points)}"
        raise InputError(mistake, "choose one: " + " ".join(f"--set {key}=…" for key in keys))


def _write_trace(file: Path, point: Point) -> None:
    """Write one trace file, or one for each rank if the name contains `{rank}`."""
    from simcoll.prediction.result_rows import write_atomically
    from simcoll.report.exports import chrome_trace
    from simcoll.report.point_trace import trace_of

    apart = "{rank}" in file.name
    trace = trace_of(point, transfers=not apart)
    for rank in range(len(trace.ranks)) if apart else (None,):
        text = chrome_trace.dump(trace, rank)
        path = file.with_name(file.name.replace("{rank}", str(rank)))
        write_atomically(path, chrome_trace.packed(text) if file.suffix == ".gz" else text)


def _write_report(
    file: Path,
    rows: list[ResultRow],
    points: Sequence[Point],
    scenario: str,
    command: str,
    figures: Sequence[Named] | None,
) -> None:
    """Write the HTML report. `figures` are those drawn before: drawing again would repeat their notes."""
    from simcoll.prediction.result_rows import write_atomically
    from simcoll.report import run_plots
    from simcoll.report.html import report
    from simcoll.scenario.scenario_files import find_scenario, names_collective

    asked_by_name = names_collective(scenario)
    text = f"collective: {scenario}\n" if asked_by_name else read_text(find_scenario(scenario))
    drawn = run_plots.asked(points, rows) if figures is None else figures
    write_atomically(file, report(rows, points, drawn, text, command))


def _status(rows: list[ResultRow]) -> int:
    """Return exit status 0 if there is a result and no point failed, else 1."""
    kinds = {row.status.partition(":")[0] for row in rows}
    return 1 if "failed" in kinds or "ok" not in kinds else 0


def _finish(
    journal: Journal, rows: list[ResultRow], points: Sequence[Point], quiet: bool, kind: str
) -> Sequence[Named]:
    """Draw plots, then remove the logs, so that a run killed before can go on. Return the figures of the rows."""
    from simcoll.report import run_plots

    scenarios = [point.scenario for point in points]
    for note in run_plots.unmatched(scenarios, rows):
        print(note, file=sys.stderr)
    plots = journal.folder / "plots"
    figures = list(run_plots.asked(points, rows))
    drawn = run_plots.draw(points, figures, plots, kind)
    journal.drop()
    if not quiet:
        pictures = f" and {len(drawn)} plot{'s' * (len(drawn) != 1)} in {plots}" if drawn else ""
        print(f"{journal.folder / 'results.csv'}{pictures}", file=sys.stderr)
    return figures
