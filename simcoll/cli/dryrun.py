"""`simcoll dryrun`: predict the step of a PyTorch script without GPUs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from simcoll.cli._options import JSON, WholeFrom, completed
from simcoll.errors import InputError

if TYPE_CHECKING:
    from simcoll.workload.compute import Kernels


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True})
@click.argument("script", metavar="SCRIPT.py", type=click.Path(path_type=Path))
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS…]")
@click.option("--world", type=WholeFrom(1), required=True, help="Number of ranks.")
@click.option(
    "--on", "system", required=True, metavar="SYSTEM",
    help="Machine: a shipped system, a file, or keys of a topology in braces.",
    shell_complete=completed("file", "system"),
)  # fmt: skip
@click.option("--nodes", type=WholeFrom(1), help="Number of nodes.  [default: as many as hold the ranks]")
@click.option("--steps", type=WholeFrom(1), help="Stop the script after N steps of its optimizer.")
@click.option("--all-ranks", is_flag=True, help="Record every rank, and list the collectives of each.")
@click.option("--gpu", help="GPU that computes.  [default: the machine's]")
@click.option(
    "--kernels",
    type=click.Choice(["eager", "compiled"]),
    help="How PyTorch runs kernels.  [default: eager; compiled if the script calls torch.compile]",
)
@click.option("--attention", metavar="NAME", help="Kernel of attention.  [default: flash2]")
@click.option("--cuda-graphs", is_flag=True, help="Launch kernels by CUDA graphs.")
@click.option("--advise", is_flag=True, help="Try larger buckets of DDP, and FSDP2 without resharding, too.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Scenario of the step to write (YAML).")
@JSON
def dryrun(
    script: Path,
    args: tuple[str, ...],
    world: int,
    system: str,
    nodes: int | None,
    steps: int | None,
    all_ranks: bool,
    gpu: str | None,
    kernels: Kernels | None,
    attention: str | None,
    cuda_graphs: bool,
    advise: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Run a PyTorch training script without GPUs and without other ranks, and predict its step on a cluster.

    The script runs as it is, as under torchrun. Collectives are recorded and answered at once. Tensors that are large
    have no memory. Needs torch: pip install 'simcoll[torch]'.
    """
    from simcoll.api.dry_runs import dry_run
    from simcoll.prediction import result_rows
    from simcoll.report.dryrun_text import text

    if output and output.suffix not in (".yaml", ".yml"):
        raise InputError(f"{output}: wrong ending for a scenario", "end its name in .yaml")
    found = dry_run(
        str(script), args, world=world, on=system, nodes=nodes, steps=steps, all_ranks=all_ranks, gpu=gpu,
        advise=advise, kernels=kernels, attention=attention, cuda_graphs=cuda_graphs,
    )  # fmt: skip
    for line in found.notes:
        print(line, file=sys.stderr)
    if output:
        result_rows.write_atomically(output, found.plan)
        print(output, file=sys.stderr)
    if not as_json:
        print(text(found))
        return
    document = found.document(all_ranks)
    if document["status"] != "ok":
        print(f"not simulated: {document['status']}", file=sys.stderr)
    print(json.dumps(document))
