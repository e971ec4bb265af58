"""`simcoll list`, `simcoll topology` and `simcoll schema`: what there is to choose from."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from simcoll.cli._options import JSON, SETS, Whole, completed


@click.command(name="list")
@click.argument(
    "kind",
    default="algorithms",
    type=click.Choice(["algorithms", "collectives", "topologies", "scenarios", "profiles", "costs"]),
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
@click.option("--png", type=click.Path(path_type=Path), help="Draw it into this file.")
@JSON
@SETS
def topology_show(name: str, nodes: int | None, png: Path | None, as_json: bool, sets: tuple[str, ...]) -> None:
    """Devices, links and bisection bandwidth of a system or a topology file."""
    from simcoll.report import catalog_text
    from simcoll.scenario import loading
    from simcoll.topology import systems

    graph = systems.build(loading.topology_spec(name, nodes, sets))
    if png:
        from simcoll.report.plot import save
        from simcoll.report.plot.topology import topology_figure

        save(topology_figure(graph), png)
        print(f"drawn: {png}", file=sys.stderr)
    description = systems.describe(graph)
    print(json.dumps(description, indent=1) if as_json else catalog_text.topology_text(description))


@click.command()
@click.argument("document", default="scenario", type=click.Choice(["scenario", "results"]))
def schema(document: str) -> None:
    """Print the JSON Schema of scenario files, or of results as JSON."""
    from simcoll.prediction import result_rows
    from simcoll.scenario.scenario import json_schema

    print(json.dumps(result_rows.schema() if document == "results" else json_schema(), indent=1))
