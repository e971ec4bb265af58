"""`simcoll measure` and `simcoll lab`: run the points of a scenario for real."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from simcoll.cli._options import QUIET, SCENARIO, SETS, TIMEOUT, Number, check_timeout, counts, with_keys
from simcoll.cli._terminal import Lines
from simcoll.errors import InputError, MeasureError

if TYPE_CHECKING:
    from simcoll.measurement.torch_backend.support import Backend

OUTPUT: Final = click.option("-o", "--output", type=click.Path(path_type=Path), help="Measured table to write (CSV).")
SHOWN: Final = (
    *("size_bytes", "collective", "workload", "bucket_cap", "harness", "algorithm", "protocol", "ranks", "dtype", "op"),
    *("buckets", "async_op"),
    *("time_us", "compute_us", "exposed_us", "spread", "runs", "of_library"),
)


@click.command()
@SCENARIO
@click.option("--ranks", metavar="N[,N…]", help="Number of ranks, or several numbers.  [default: the scenario's]")
@click.option("--backend", type=click.Choice(["gloo", "nccl"]), default="gloo", show_default=True)
@OUTPUT
@SETS
@click.option("--dry-run", is_flag=True, help="Print the transfers of every rank, and run nothing.")
@TIMEOUT
@click.option("--prefix", default="", metavar="WORDS", help="Prefix of every rank's command; {rank} is its number.")
@click.option(
    "--limit",
    type=Number(),
    metavar="SECONDS",
    help="Longest time that one launch may take.  [default: none; 300 with --one-gpu]",
)
@click.option("--one-gpu", is_flag=True, help="Run all NCCL ranks on one GPU, as hosts joined by NCCL's sockets.")
@click.option("--gpu", is_flag=True, help="With `compute`: measure on this machine's GPU.")
@QUIET
@with_keys("system", "nodes", "size")
def measure(
    scenario: str,
    ranks: str | None,
    backend: Backend,
    output: Path | None,
    sets: tuple[str, ...],
    dry_run: bool,
    timeout: float,
    prefix: str,
    limit: float | None,
    one_gpu: bool,
    gpu: bool,
    quiet: bool,
) -> int:
    """Run a scenario for real, over gloo or NCCL, and write a measured table.

    `simcoll measure compute --gpu -o gemm.csv` measures single matrix products on a GPU instead, and attention into
    `gemm-attention.csv`.

    It uses torch.distributed, on this machine or as a rank that torchrun or Slurm started. It prints a table; with `-o`
    it also writes a measured table for `simcoll compare`. If it is killed, start it again: it continues with the
    missing rows.
    """
    from simcoll.measurement import real_run as real
    from simcoll.measurement.cases_of_points import dry_run as rehearsed
    from simcoll.measurement.launcher import LOCAL, ONE_GPU_S, on_one_gpu
    from simcoll.scenario.scenario_files import load

    if scenario == "compute":
        return _measure_compute(gpu, output)
    _check(timeout, output)
    if limit is not None and not limit > 0:
        raise InputError(f"--limit {limit:g} is no time to run", "give seconds above 0")
    if one_gpu and backend != "nccl":
        raise InputError("--one-gpu works with NCCL only", "add --backend nccl")
    points = load(scenario, (*sets, *_ranks(ranks)))
    member = real.is_member()
    if dry_run:
        if member and real.membership()[0]:
            return 0  # one rank prints it for all
        lines = list(rehearsed(points, backend, _to_stderr))
        print("\n".join([f"Nothing was run: {len(lines)} lines of what every rank would do.", *lines]))
        return 0
    tell = (lambda line: None) if quiet else Lines()
    log = real.log_beside(output) if output else None
    if member:
        try:
            rows = real.join(points, backend=backend, timeout_s=timeout, tell=tell, log=log)
        except MeasureError as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(error.exit_status)  # an orderly exit would wait for ranks that are gone
        if rows is None:
            return 0
    else:
        words = shlex.split(prefix)
        launcher = replace(
            on_one_gpu() if one_gpu else LOCAL,
            prefix=lambda rank: [word.replace("{rank}", str(rank)) for word in words],
        )
        bound = limit or (ONE_GPU_S if one_gpu else math.inf)
        rows = real.run(points, launcher, backend=backend, timeout_s=timeout, limit_s=bound, tell=tell, log=log)
    _show(rows, output, backend)
    return 0


def _measure_compute(gpu: bool, output: Path | None) -> int:
    """Measure products and attention on a GPU, and write a table of each."""
    if not gpu or output is None:
        raise InputError("measure compute: needs a GPU and a file", "write simcoll measure compute --gpu -o gemm.csv")
    _check(1, output)
    try:
        from simcoll.measurement.torch_backend import compute_times
    except ImportError:
        raise InputError(
            "measure compute: torch is missing", "install it, e.g. pip install 'simcoll[validate]'"
        ) from None
    from simcoll.config import text_table

    device, name = compute_times.first_gpu()
    attention = output.with_name(f"{output.stem}-attention{output.suffix}")
    for path, made in ((output, compute_times.gemms(device)), (attention, compute_times.attentions(device))):
        rows = list(made)
        path.write_text(text_table.csv_text(list(rows[0]), (row.values() for row in rows)), "utf-8")
        print(f"{path}: {len(rows)} times on {name}")
    return 0


@click.command()
@SCENARIO
@OUTPUT
@SETS
@TIMEOUT
@QUIET
@with_keys("system", "nodes", "size")
def lab(scenario: str, output: Path | None, sets: tuple[str, ...], timeout: float, quiet: bool) -> int:
    """Run a scenario for real between hosts made on this machine, with links as slow as it says.

    Needs Linux and root. Hosts and switches are network namespaces; ranks communicate with gloo over TCP. It supports
    topologies of hosts without GPUs: single-switch, fat-tree with one spine, ring, torus, full-mesh. It prints a table;
    with `-o` it also writes a measured table for `simcoll compare`.
    """
    from simcoll.measurement import network_lab as laboratory
    from simcoll.measurement import real_run as real
    from simcoll.scenario.scenario_files import load

    _check(timeout, output)
    tell = (lambda line: None) if quiet else Lines()
    log = real.log_beside(output) if output else None
    _show(laboratory.run(load(scenario, sets), timeout_s=timeout, tell=tell, log=log), output, "gloo")
    return 0


def _show(rows: Sequence[dict[str, object]], output: Path | None, backend: Backend) -> None:
    """Print measured rows, and write them to `output` if given."""
    from simcoll.config import text_table
    from simcoll.measurement import real_run as real
    from simcoll.report.verdicts import of_measured

    if output:
        real.write(output, rows, backend)
        real.log_beside(output).drop()
        print(output, file=sys.stderr)
    print(text_table.wrapped(of_measured(rows), "  "))
    table = real.beside_library(rows)
    print(text_table.render([column for column in SHOWN if any(made.get(column) is not None for made in table)], table))


def _ranks(text: str | None) -> list[str]:
    """Return the option `--ranks` as an assignment to the scenario; empty without the option."""
    if text is None:
        return []
    numbers = counts(text, "--ranks", "ranks", "write e.g. 2 or 2,4")
    return [f"ranks={numbers if len(numbers) > 1 else numbers[0]}"]


def _check(timeout: float, output: Path | None) -> None:
    """Raise InputError for a wrong time-out or output before a long run, not after it."""
    check_timeout(timeout)
    if output and output.is_dir():
        raise InputError(f"{output}: is a folder", "give the name of a file to write, e.g. measured.csv")


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)
