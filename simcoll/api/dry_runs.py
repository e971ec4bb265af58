"""Dry runs of training scripts: `dryrun` and `torch_estimator`, and what `simcoll dryrun` does."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from simcoll.errors import InputError

if TYPE_CHECKING:
    from simcoll.dry_run.recorder import RankRecord
    from simcoll.dry_run.script import Job
    from simcoll.dry_run.step import Cluster, DryRun
    from simcoll.workload.compute import Kernels


def _torch() -> None:
    if find_spec("torch") is None:
        raise InputError("a dry run needs torch", "install it, e.g. pip install 'simcoll[torch]'")


def dry_run(
    script: str,
    args: Sequence[str] = (),
    *,
    world: int,
    on: str,
    nodes: int | None = None,
    steps: int | None = None,
    all_ranks: bool = False,
    advise: bool = False,
    **computing: Any,
) -> DryRun:
    """Run a script as each rank that differs from others, and return what the ranks do. `advise`: try other keys, too.
    `computing`: see `Cluster`.
    Raises InputError for a script that fails, with its line."""
    _torch()
    from simcoll.dry_run.ranks import record_differing
    from simcoll.dry_run.script import Job
    from simcoll.dry_run.step import Cluster, DryRun
    from simcoll.scenario.scenario_files import topology_spec
    from simcoll.topology.topology_builder import check_nodes

    cluster = Cluster.named(on, **computing)
    local = cluster.ranks_of_node(world, nodes)
    check_nodes(topology_spec(on, world // local))
    job = Job(script, tuple(args), world, local, cluster.told, steps)
    records = record_differing(job, all_ranks)
    found = DryRun(script, world, nodes, _as_compiled(cluster, on, records, **computing), records)
    return replace(found, advice=tuple(advised(found, job))) if advise else found


def _as_compiled(
    cluster: Cluster, on: str, records: Mapping[int, RankRecord], *, kernels: Kernels | None = None, **others: Any
) -> Cluster:
    """Return the cluster with compiled kernels if the script compiles something, and nobody said otherwise."""
    compiled = kernels is None and any(each.compiled for each in records.values())
    return type(cluster).named(on, kernels="compiled", **others) if compiled else cluster


def advised(found: DryRun, job: Job) -> list[str]:
    """Record and simulate a script again with other keys of DDP and FSDP2; return what that changes, in words."""
    from simcoll.dry_run.ranks import record_differing

    calls = [part.call for part in found.step_of(0) if part.call]
    tried: dict[str, Any] = {}
    if sum(call.collective == "all_reduce" and call.nbytes > 2**20 for call in calls) > 1:
        tried["bucket_cap_mb"] = 100
    if any(call.collective == "all_gather" and call.nbytes > 2**10 for call in calls):
        tried["reshard_after_forward"] = False
    lines = []
    for key, value in tried.items():
        other = replace(found, records=record_differing(replace(job, changes=((key, value),)), everyone=False))
        if other.collectives() == found.collectives():
            continue  # the script uses neither
        saved = 1 - other.prediction.time_ps / found.prediction.time_ps
        lines.append(f"{key}={value}: the step is {abs(100 * saved):.1f} % {'faster' if saved > 0 else 'slower'}")
        lines[-1] += f"; {other.fits}" if other.memory else ""
    return lines


@contextlib.contextmanager
def dryrun(*, world: int, on: str, nodes: int | None = None, **computing: Any) -> Iterator[PlannedStep]:
    """Record what runs inside as rank 0 of `world` ranks on the machine `on`, and print what its step would take.

    Use it in place of torchrun, around a script's code, `init_process_group` included:

    >>> with dryrun(world=512, on="hgx-h100") as plan:  # doctest: +SKIP
    ...     train()

    Afterwards `plan.step` is the `DryRun`: `plan.step.prediction`, `plan.step.plan`. A process can make one dry run.
    Raises InputError without torch, and for an unknown machine.
    """
    _torch()
    from simcoll.dry_run.script import recorded, recording
    from simcoll.dry_run.step import Cluster, DryRun
    from simcoll.report.dryrun_text import text

    cluster, made = Cluster.named(on, **computing), PlannedStep()
    with recording(0, world, cluster.ranks_of_node(world, nodes), cluster.told, fake=False):
        yield made
    records = {0: recorded()}
    made.step = DryRun("dryrun", world, nodes, _as_compiled(cluster, on, records, **computing), records)
    print(text(made.step))


class PlannedStep:
    """What `dryrun` gives: `step` is the dry run, once the block has ended."""

    step: DryRun


def torch_estimator(system: str, nodes: int | None = None) -> Callable[[str, int, Sequence[int]], float]:
    """Return a function that gives the seconds of a collective on a machine, for estimators of PyTorch.

    The function takes the collective's name, its bytes as nccl-tests counts them, and the ranks of its group (numbers
    of GPUs, node by node). It raises InputError for an unknown collective.

    >>> seconds = torch_estimator("hgx-h100")
    >>> seconds("all_reduce", 2**30, range(8)) > seconds("all_reduce", 2**20, range(8))
    True
    """
    from simcoll.api.questions import predict
    from simcoll.topology.topology_builder import load_system

    gpus = load_system(system).counts.get("gpu") or 1

    @functools.cache
    def seconds(collective: str, nbytes: int, ranks: tuple[int, ...]) -> float:
        if len(ranks) < 2:
            return 0.0
        machine = {"system": system, "nodes": nodes or max(ranks) // gpus + 1}
        operation = {"name": "call", "collective": collective, "size": nbytes, "ranks": [*ranks]}
        return predict(topology=machine, workload={"operations": [operation]}).time_ps / 1e12

    return lambda collective, nbytes, ranks: seconds(collective, nbytes, tuple(ranks))
