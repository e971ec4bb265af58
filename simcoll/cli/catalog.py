"""Commands that show what simcoll knows: `simcoll list`, `topology`, `schema`, `show` and `verify`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from simcoll.cli._options import JSON, SETS, Whole, WholeFrom, completed, counts, read_text
from simcoll.errors import InputError

if TYPE_CHECKING:
    from simcoll.schedule.schedule import Schedule


@click.command(name="list")
@click.argument(
    "kind",
    default="algorithms",
    type=click.Choice(["algorithms", "collectives", "topologies", "systems", "scenarios", "profiles"]),
)
def list_(kind: str) -> None:
    """List what simcoll knows."""
    from simcoll.report import catalog_text

    print(catalog_text.listing(kind))


@click.group()
def topology() -> None:
    """List and show topologies."""


@topology.command(name="list")
def topology_list() -> None:
    """List the shipped systems."""
    from simcoll.report import catalog_text

    print(catalog_text.listing("topologies"))


@topology.command(name="show")
@click.argument("name", shell_complete=completed("file", "system"))
@click.option("--nodes", type=Whole(), help="Number of nodes.")
@click.option("--png", type=click.Path(path_type=Path), help="Draw the topology into this picture file.")
@JSON
@SETS
def topology_show(name: str, nodes: int | None, png: Path | None, as_json: bool, sets: tuple[str, ...]) -> None:
    """Show devices, links and bisection bandwidth of a system or a topology file."""
    from simcoll.report import catalog_text
    from simcoll.scenario import scenario_files
    from simcoll.topology import topology_builder

    graph = topology_builder.build(scenario_files.topology_spec(name, nodes, sets))
    if png:
        from simcoll.report.plot import save
        from simcoll.report.plot.topology import topology_figure

        save(topology_figure(graph), png)
        print(f"drawn: {png}", file=sys.stderr)
    description = topology_builder.describe(graph)
    print(json.dumps(description, indent=1) if as_json else catalog_text.topology_text(description))


@click.command()
@click.argument("document", default="scenario", type=click.Choice(["scenario", "results"]))
def schema(document: str) -> None:
    """Print the JSON Schema of scenario files, or of results as JSON."""
    from simcoll.prediction import result_rows
    from simcoll.scenario.scenario import json_schema

    print(json.dumps(result_rows.schema() if document == "results" else json_schema(), indent=1))


@click.command()
@click.argument("name", metavar="COLLECTIVE/ALGORITHM|SCHEDULE.json", shell_complete=completed("file", "schedule"))
@click.option("--ranks", metavar="N[,N…]", help="Number of ranks, or several numbers for a table of counts.")
@click.option("--root", type=Whole(), default=0, show_default=True)
@click.option("--data", is_flag=True, help="Show the data that every rank holds before and after.")
@click.option("--diagram", is_flag=True, help="Draw the transfers of ranks over time.")
@JSON
def show(name: str, ranks: str | None, root: int, data: bool, diagram: bool, as_json: bool) -> None:
    """Show the transfers, counts and data of an algorithm."""
    from simcoll.formats.schedules import schedule_json
    from simcoll.report import schedule_view

    if schedule_json.is_file(name):
        _show_one(schedule_json.read(name), data, diagram, as_json)
        return
    schedule_view.find(name)
    if ranks is None:
        raise InputError(f"{name}: the number of ranks is missing", "add --ranks N, or give a schedule's JSON file")
    numbers = counts(ranks, "--ranks", "ranks", "write e.g. 8 or 2,4,8")
    if not 0 <= root < min(numbers):
        raise InputError(f"--root: there is no rank {root} among {min(numbers)} ranks", f"give 0 … {min(numbers) - 1}")
    if len(numbers) > 1 and (data or diagram):
        raise InputError("--data and --diagram show a schedule of one number of ranks", "give --ranks one number")
    for n in numbers:
        schedule_view.check_length(name, n, root)
    if as_json:
        documents = [schedule_json.dump(schedule_view.build(name, n, root)) for n in numbers]
        print(documents[0] if len(documents) == 1 else f"[{', '.join(documents)}]")
    elif len(numbers) > 1:
        print(schedule_view.count_table(name, schedule_view.count_rows(name, numbers)))
    else:
        _show_one(schedule_view.build(name, numbers[0], root), data, diagram, as_json=False)


def _show_one(schedule: Schedule, data: bool, diagram: bool, as_json: bool) -> None:
    from simcoll.formats.schedules import schedule_json
    from simcoll.report import schedule_view

    if as_json:
        print(schedule_json.dump(schedule))
        return
    print(schedule_view.counts_line(schedule))
    views = [*([schedule_view.data(schedule)] * data), *([schedule_view.diagram(schedule)] * diagram)]
    print("\n\n".join(views) if views else schedule)


@click.command()
@click.argument("name", metavar="[COLLECTIVE/ALGORITHM]", required=False, shell_complete=completed("schedule"))
@click.option("--ranks", default=8, show_default=True, type=WholeFrom(1, 4096))
@click.option("--schedule", type=click.Path(path_type=Path), help="A schedule as `simcoll show --json` prints it.")
@JSON
def verify(name: str | None, ranks: int, schedule: Path | None, as_json: bool) -> int:
    """Prove that schedules do what their collectives promise.

    Without a name, all registered algorithms are proved.
    """
    from simcoll.formats.schedules import schedule_json
    from simcoll.report import schedule_view

    if schedule:
        rows = [schedule_view.verdict_on(schedule_json.parse(read_text(schedule), str(schedule)))]
    else:
        rows = [schedule_view.verdict(pair, ranks) for pair in ([name] if name else schedule_view.every_pair())]
    print(json.dumps({"rows": rows}, indent=1) if as_json else schedule_view.proof_table(rows))
    return 1 if any(row["status"] == "wrong" for row in rows) else 0
