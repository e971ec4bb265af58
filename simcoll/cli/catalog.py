"""Commands that show what simcoll knows: `simcoll list`, `topology`, `schema`, `show` and `verify`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simcoll.cli._options import JSON, SETS, Whole, WholeFrom, completed, counts, read_text
from simcoll.errors import InputError

if TYPE_CHECKING:
    from simcoll.schedule.schedule import Schedule


@click.command(name="list")
@click.argument(
    "kind",
    default="algorithms",
    type=click.Choice(
        [
            *("algorithms", "collectives", "topologies", "systems", "scenarios", "profiles"),
            *("models", "gpus", "templates"),
        ]
    ),
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
@click.option("--groups", metavar="N|LISTS", help="Groups of a hierarchical algorithm: a number, or '[[0,1],[2,3]]'.")
@click.option("--subgroups", metavar="LISTS", help="Groups that each work by themselves: '[[0,1],[2,3]]'.")
@click.option("--data", is_flag=True, help="Show the data that every rank holds before and after.")
@click.option(
    "--values",
    metavar="LISTS|random",
    help="Show the numbers that ranks hold after each step. A list for each rank: '[[1,2,3],[4,5,6],[7,8,9]]'.",
)
@click.option("--op", metavar="NAME", help="Operator of --values: sum, product, min, max, avg, ….  [default: sum]")
@click.option("--step", type=WholeFrom(0), help="Show one step; the first is 0.")
@click.option("--diagram", is_flag=True, help="Draw the transfers of ranks over time.")
@click.option(
    "--animate",
    type=click.Path(path_type=Path),
    metavar="FILE.svg|FILE.gif",
    help="Draw the steps into an animation, with --values, else with random ones.",
)
@JSON
def show(
    name: str,
    ranks: str | None,
    root: int,
    groups: str | None,
    subgroups: str | None,
    data: bool,
    values: str | None,
    op: str | None,
    step: int | None,
    diagram: bool,
    animate: Path | None,
    as_json: bool,
) -> None:
    """Show the transfers, counts and data of an algorithm."""
    from simcoll.formats.schedules import schedule_json
    from simcoll.report import schedule_view
    from simcoll.schedule import values as work

    if op is not None and values is None and animate is None:
        raise InputError("--op is the operator of --values", "add --values random, or leave out --op")

    def shown(schedule: Schedule) -> str:
        """Return what is asked for of a schedule, as text or JSON."""
        if step is not None and step >= schedule.n_steps:
            raise InputError(f"--step: there is no step {step}", f"the schedule has {schedule.n_steps}, the first is 0")
        of_step = schedule if step is None else schedule.only(step)
        operator = work.operator(schedule.collective, op)
        given = "random" if values in (None, "random") else _json(values or "", "--values")
        found = [] if values is None and animate is None else work.worked(schedule, given, op)
        if animate:
            from simcoll.report.plot.animation import animate as draw

            draw(schedule, found, operator, animate)
            print(f"drawn: {animate}", file=sys.stderr)
        if as_json:
            held = work.buffers(schedule, found)[step : None if step is None else step + 2]
            return schedule_json.dump(of_step, **({} if values is None else {"states": held}))
        parts = [schedule_view.data(schedule)] if data else []
        if values is not None:
            parts.append(schedule_view.values(schedule, found, operator, step))
        if diagram:
            parts.append(schedule_view.diagram(of_step))
        return f"{schedule_view.counts_line(schedule)}\n" + ("\n\n".join(parts) or str(of_step))

    if schedule_json.is_file(name):
        for option, value in {"--ranks": ranks, "--root": root, "--groups": groups, "--subgroups": subgroups}.items():
            if value:
                raise InputError(f"{option}: the schedule of {name} has its own", f"leave out {option}")
        print(shown(schedule_json.read(name)))
        return
    schedule_view.find(name)
    if ranks is None:
        raise InputError(f"{name}: the number of ranks is missing", "add --ranks N, or give a schedule's JSON file")
    numbers = counts(ranks, "--ranks", "ranks", "write e.g. 8 or 2,4,8")
    if not 0 <= root < min(numbers):
        raise InputError(f"--root: there is no rank {root} among {min(numbers)} ranks", f"give 0 … {min(numbers) - 1}")
    one = {"--data": data, "--diagram": diagram, "--values": values, "--step": step, "--groups": groups,
           "--subgroups": subgroups, "--animate": animate}  # fmt: skip
    if len(numbers) > 1 and (given := [option for option, value in one.items() if value not in (None, False)]):
        raise InputError(f"{given[0]} is for a schedule of one number of ranks", "give --ranks one number")
    for n in numbers:
        schedule_view.check_length(name, n, root)
    if len(numbers) > 1 and not as_json:
        print(schedule_view.count_table(name, schedule_view.count_rows(name, numbers)))
        return
    parts = {"groups": _groups(groups, "--groups"), "subgroups": _groups(subgroups, "--subgroups")}
    documents = [shown(schedule_view.build(name, n, root, **parts)) for n in numbers]
    print(documents[0] if len(documents) == 1 else f"[{', '.join(documents)}]")


def _json(text: str, option: str) -> Any:
    """Return what the JSON text of an option holds; raises InputError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        said = getattr(error, "msg", "too large or too deep").removesuffix(" at")
        raise InputError(f"{option}: not lists of numbers: {said}", "write e.g. '[[1,2],[3,4]]'") from None


def _groups(text: str | None, option: str) -> Any:
    """Return the groups that an option gives, as keys of scenarios have them; raises InputError."""
    from simcoll.scenario.key_types import groups_of

    try:
        found = groups_of(None if text is None else _json(text, option))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{option}: {error}") from None
    lists = isinstance(found, tuple) and all(isinstance(part, tuple) for part in found)
    if option == "--subgroups" and found is not None and not lists:
        raise InputError(f"{option}: {text} is no list of groups", "write e.g. '[[0,1],[2,3]]'")
    return found


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
