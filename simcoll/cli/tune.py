"""`simcoll tune`: latencies and bandwidths that NCCL's tuner assumes for a system, and its choices."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from simcoll.cli._options import (
    A_SYSTEM,
    JSON,
    SETS,
    WholeFrom,
    assigned,
    completed,
    counts,
    listed,
    unbracketed,
)
from simcoll.errors import InputError, Place, RefusedError

if TYPE_CHECKING:
    from simcoll.nccl.tuner import TunerTable
    from simcoll.scenario.scenario import Scenario

SCHEMA: Final = "simcoll.tune/1"
SIMULATED: Final = 512  # bytes: least size for which regret is shown; two float16 for each of many ranks
DTYPE: Final = "float16"  # of simulated calls
KEYS: Final = ("env", "library_version", "topology")  # keys of a scenario that --set reaches
SIZES: Final = tuple(2**exponent for exponent in range(3, 34))


@click.command()
@click.argument("system", required=False, shell_complete=completed("file", "system"))
@click.option("--on", metavar="SYSTEM", help="Another way to give SYSTEM.", shell_complete=completed("file", "system"))
@click.option("--nodes", metavar="N[,N…]", help="Number of nodes, or several.  [default: 1, or all nodes of a file]")
@click.option("--ranks", type=WholeFrom(2), help="Number of ranks, equally many on each node.  [default: all GPUs]")
@click.option("--version", help="Release of the library, e.g. 2.27.  [default: 2.30, or RCCL's 2.21]")
@click.option("--algo", metavar="TEXT", help="Value of `NCCL_ALGO`, e.g. 'ring,tree' or 'allreduce:^nvls'.")
@click.option("--proto", metavar="TEXT", help="Value of `NCCL_PROTO`, e.g. '^LL128'.")
@click.option(
    "--graph",
    "graph_file",
    type=click.Path(path_type=Path),
    help="NCCL's graph file, instead of stored or searched graphs.",
)
@click.option("--profile", help="Profile to simulate NCCL's choices and the best ones with; shows NCCL's regret.")
@SETS
@JSON
def tune(
    system: str | None,
    on: str | None,
    nodes: str | None,
    ranks: int | None,
    version: str | None,
    algo: str | None,
    proto: str | None,
    graph_file: Path | None,
    profile: str | None,
    sets: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print the costs that NCCL's tuner computes on a system, and its choices.

    SYSTEM is a shipped system or a topology file. The first table shows latency and bandwidth of each pair of algorithm
    and protocol, as NCCL assumes them. The second table shows, for sizes from 8 B to 8 GiB, the pair that NCCL takes,
    and the time that NCCL expects, in us. With --profile a third table, from 512 B on, shows simulated times: of NCCL's
    choice, of the best pair, and how much longer NCCL's choice takes (the regret). --set accepts the keys of a scenario
    that the tuner reads: env, library_version, and keys of the topology.
    """
    from simcoll.config import text_table
    from simcoll.nccl import communicator, graph_search, graph_xml, tuner
    from simcoll.nccl.tuner_constants import newer_chip
    from simcoll.report.verdicts import of_tuner
    from simcoll.topology import nccl_graphs, topology_builder

    if (system is None) == (on is None):
        raise InputError("`simcoll tune` takes exactly one system", f"name it: simcoll tune {A_SYSTEM}")
    machine = str(system or on)
    _check(profile, graph_file)
    counts(unbracketed(nodes or "1"), "--nodes", "nodes", "give 1, 2, …, or several: '[1, 2]'")
    machines = (*assigned("topology", machine, "--on"), *assigned("topology.nodes", nodes and listed(nodes), "--nodes"))
    filters = (*assigned("env.NCCL_ALGO", algo, "--algo"), *assigned("env.NCCL_PROTO", proto, "--proto"))
    release = assigned("library_version", version, "--version")
    scenarios = _scenarios((*machines, *release, *filters, *sets))
    graphs = graph_xml.read(graph_file) if graph_file else None
    documents, texts = list[dict[str, Any]](), list[str]()
    for scenario in scenarios:
        spec, env = scenario.topology, scenario.env
        count = topology_builder.nodes_of(spec)
        file = topology_builder.described(spec) or topology_builder.load_system(spec.title)  # an error
        of = graphs.gpus * count if graphs and ranks is None else ranks
        settings = env.search(file, scenario.library_version)
        found = communicator.communicator(file, count, of, graphs.graphs if graphs else None, settings)
        comm = env.applied(found)
        table = tuner.table(comm, scenario.library_version, env.selection)
        if not table.entries:
            raise InputError("--algo and --proto exclude all pairs of algorithm and protocol", "allow more of them")
        held = file.nccl if nccl_graphs.stored(file.nccl, comm.gpus, comm.nodes) == comm.graphs else None
        source = str(graph_file) if graph_file else held.source if held else graph_search.SOURCES[comm.library]
        rows = _regrets(scenario, table, profile) if profile else []
        document = _document(file.name, source, table)
        document["note"] = document["note"] or newer_chip(file.gpu.generation if file.gpu else "", comm.library)
        documents.append(document | ({"regret": rows} if profile else {}))
        if not as_json:
            texts += [text_table.remarks_wrapped(_text(file.name, source, table))]
            texts += [_regret_text(rows, profile)] if profile else []
    if as_json:
        several = {"schema": SCHEMA, "nodes": documents}
        print(json.dumps(documents[0] if len(documents) == 1 else several, indent=1))
    else:
        print("\n".join([text_table.wrapped(of_tuner(documents), "  "), *texts]))


def _scenarios(options: Sequence[str]) -> list[Scenario]:
    """Return a scenario of a call for each number of nodes; raises InputError for keys that the tuner ignores."""
    from simcoll.config.yaml_tree import located, sources
    from simcoll.scenario.scenario_files import points

    for text, source in sources(options):
        key = text.partition("=")[0].partition(".")[0].strip()
        if key not in KEYS:
            raise InputError(f"{source}: the tuner does not know {key!r}", f"set {', '.join(KEYS[:-1])} or {KEYS[-1]}")
    call = {"name": "tune", "collective": "all_reduce", "size": "8 B"}
    return [point.scenario for point in points(located(call, Place("--set", 1, 1)), options)]


def _check(profile: str | None, graph_file: Path | None) -> None:
    from simcoll.prediction.lowered_call import library

    if profile and graph_file:
        raise InputError("--profile simulates with the graphs of the system's file", "leave out --graph")
    try:
        runs = library(profile) if profile else None
    except ValueError as error:
        raise InputError(f"--profile: {error}") from None
    if runs and runs.tunable:
        raise InputError(f"--profile: {profile} has no NCCL kernels", "name one that has, e.g. nccl-hopper")


def _regrets(scenario: Scenario, table: TunerTable, profile: str) -> list[dict[str, Any]]:
    """Simulate NCCL's choice and all pairs of algorithm and protocol; return a row for each collective and size.

    `regret` is how much longer NCCL's choice takes than the best pair, as a share. Rows cover the collectives to which
    the profile was fitted; points whose choice is not modelled are left out.
    """
    from simcoll.nccl.algorithm_names import COLLECTIVES, names
    from simcoll.prediction.predict import predict
    from simcoll.scenario.key_types import Placement
    from simcoll.scenario.profile import load_profile

    comm, rows = table.communicator, []
    release = {"library_version": table.constants.release} if comm.library == "nccl" else {}
    call = {"placement": Placement(per_node=comm.gpus), "ranks": comm.ranks, "dtype": DTYPE, "profile": profile}
    fitted = load_profile(profile).calibration
    covered = {series.collective for series in fitted.covers} if fitted else set(COLLECTIVES)
    for collective, size in itertools.product(COLLECTIVES, SIZES):
        choice = table.choose(collective, size) if collective in covered and size >= SIMULATED else None
        if choice is None or choice.algorithm not in names(collective):
            continue
        sized = {**call, **release, "collective": collective, "size": size}
        pair = {"algorithm": choice.algorithm, "protocol": choice.protocol}
        try:
            own = predict(scenario.model_copy(update={**sized, **pair}))
        except RefusedError:  # not modelled
            continue
        best = predict(scenario.model_copy(update={**sized, "algorithm": "best", "protocol": "auto"}))
        own_us, best_us = own.time_ps / 1e6, best.time_ps / 1e6
        rows.append({
            "collective": collective,
            "size_bytes": size,
            **pair,
            "time_us": own_us,
            "best_algorithm": best.algorithm,
            "best_protocol": best.protocol,
            "best_us": best_us,
            "regret": own_us / best_us - 1,
        })  # fmt: skip
    if not rows:
        raise InputError("simcoll can simulate no algorithm that NCCL chooses here", "leave out --profile")
    return rows


def _pair(row: dict[str, Any], which: str = "") -> str:
    return f"{row[f'{which}algorithm']}/{row[f'{which}protocol']}"


def _regret_text(rows: list[dict[str, Any]], profile: str) -> str:
    from simcoll.config import text_table

    shown = [
        {**row, "chosen": _pair(row), "best": _pair(row, "best_"), "regret": f"{100 * row['regret']:.1f} %"}
        for row in rows
    ]
    table = text_table.render(["collective", "size_bytes", "chosen", "time_us", "best", "best_us", "regret"], shown)
    share = [row["regret"] for row in rows]
    mean, worst = 100 * math.fsum(share) / len(share), 100 * max(share)
    regret = f"regret of NCCL's choice: mean {mean:.1f} %, worst {worst:.1f} %"
    head = f"# simulated with {profile}, {len(rows)} points: {regret}"
    return f"\n{head}\n{table}"


def _document(name: str, source: str, table: TunerTable) -> dict[str, Any]:
    from simcoll.nccl.tuner_constants import newer_than_known

    comm = table.communicator
    return {
        "schema": SCHEMA,
        "system": name,
        "library": comm.library,
        "version": table.constants.release,
        "note": newer_than_known(table.constants.release, comm.library),
        "ranks": comm.ranks,
        "nodes": comm.nodes,
        "channels": comm.channels,
        "nvls_channels": comm.nvls_channels(table.constants),
        "graphs_source": source,
        "graphs": {kind: graph.model_dump() for kind, graph in comm.graphs.items()},
        "table": _table(table),
        "choice": _choices(table),
    }


def _table(table: TunerTable) -> list[dict[str, Any]]:
    return [
        {"collective": collective, "algorithm": algorithm, "protocol": protocol, **vars(entry)}
        for (collective, algorithm, protocol), entry in table.entries.items()
    ]


def _choices(table: TunerTable) -> list[dict[str, Any]]:
    from simcoll.nccl.algorithm_names import COLLECTIVES

    chosen = ((collective, size, table.choose(collective, size)) for collective in COLLECTIVES for size in SIZES)
    return [
        {"collective": collective, "size_bytes": size, **vars(choice)}
        for collective, size, choice in chosen
        if choice is not None
    ]


def _text(name: str, source: str, tuned: TunerTable) -> str:
    from simcoll import __version__
    from simcoll.config import text_table
    from simcoll.nccl.algorithm_names import COLLECTIVES

    comm = tuned.communicator
    where = f"{comm.ranks} ranks on {comm.nodes} node{'s' if comm.nodes > 1 else ''}"
    lines = [
        f"# simcoll {__version__}: tune",
        f"# {name}   {comm.library.upper()} {tuned.constants.release}   {where}",
        f"# graphs: {source}",
        *(
            f"#   {kind}: {graph.channels} channels of {graph.intra:g} GB/s within a node, {graph.inter:g} between"
            f"   {graph.pattern}   {graph.type_intra}/{graph.type_inter}"
            for kind, graph in comm.graphs.items()
        ),
        f"# channels of kernels: {comm.channels}   of NVLS: {comm.nvls_channels(tuned.constants) or '-'}",
        "# what NCCL reckons with, without the launch of kernels; bandwidth: of the largest buffer of a rank",
    ]
    size = itemgetter("size_bytes")
    rows = [
        {"size_bytes": of_size, **{c["collective"]: _cell(c) for c in choices}}
        for of_size, choices in itertools.groupby(sorted(_choices(tuned), key=size), size)
    ]
    table = _table(tuned)
    served = [collective for collective in reversed(COLLECTIVES) if any(collective in row for row in rows)]
    return "\n".join(
        [*lines, text_table.render(list(table[0]), table), "", text_table.render(["size_bytes", *served], rows)]
    )


def _cell(choice: dict[str, Any]) -> str:
    time = choice["time_us"]
    return f"{_pair(choice)} " + (f"{time:.0f}" if time >= 1000 else f"{time:.4g}")
