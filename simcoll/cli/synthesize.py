"""`simcoll synthesize`: the best schedule for a network, with proof."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from simcoll.cli._options import COLLECTIVE, JSON, QUIET, SETS, WholeFrom, assigned, with_keys
from simcoll.errors import InputError


@click.command()
@COLLECTIVE
@click.option("--ranks", type=WholeFrom(2), help="Number of ranks.  [default: all GPUs or hosts]")
@click.option("--root", type=WholeFrom(0), help="Root of a rooted collective.  [default: 0]")
@click.option(
    "--max-trees", type=WholeFrom(1), help="Most trees of a root.  [default: as many as the optimum needs, up to 512]"
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Schedule to write: JSON, or the format of --to.")
@click.option("--to", type=click.Choice(["json", "msccl"]), default="json", show_default=True, help="Format of -o.")
@click.option(
    "--png", type=click.Path(path_type=Path), help="Draw the trees of a root and the cut into this picture file."
)
@SETS
@JSON
@QUIET
@with_keys("system", "nodes", "size", "profile")
def synthesize(
    collective: str,
    ranks: int | None,
    root: int | None,
    max_trees: int | None,
    output: Path | None,
    to: str,
    png: Path | None,
    sets: tuple[str, ...],
    as_json: bool,
    quiet: bool,
) -> None:
    """Make a schedule for a network, with the bound of its throughput and the proof of both.

    Trees or paths use the links as the bound allows. Of schedules with few steps and with full bandwidth the one is
    taken that ends first at --size (default: 1 GiB), simulated under the profile (default: ideal). With
    --to msccl no switch adds, and links beside the network's own routes are left idle: MSCCL's XML can say neither.
    """
    from simcoll.explanation.synthesis import of_keys
    from simcoll.prediction import result_rows
    from simcoll.report import exports
    from simcoll.report.synthesis_text import text

    if to != "json" and not output:
        raise InputError("--to needs a file to write", "name it with -o")
    own = [
        *assigned("ranks", None if ranks is None else str(ranks), "--ranks"),
        *assigned("root", None if root is None else str(root), "--root"),
    ]
    answer = of_keys(collective, (*own, *sets), max_trees or 0, served=to != "msccl")
    if png:
        from simcoll.report.plot import save
        from simcoll.report.plot.trees import trees_figure

        save(trees_figure(answer), png)
        print(f"drawn: {png}", file=sys.stderr)
    if output:
        result_rows.write_atomically(output, exports.of_schedule(answer.schedule, to))
    print(json.dumps(answer.document(), indent=1) if as_json else text(answer))
    if output and not quiet:
        print(output, file=sys.stderr)
