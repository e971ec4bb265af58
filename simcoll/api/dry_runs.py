"""Dry runs of training scripts: `dryrun` and `torch_estimator`, and what `simcoll dryrun` does."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from simcoll.errors import InputError

if TYPE_CHECKING:
    from simcoll.dry_run.step import DryRun


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
    **computing: Any,
) -> DryRun:
    """Run a script as each rank that differs from others, and return what the ranks do. `computing`: see `Cluster`.
    Raises InputError for a script that fails, with its line."""
    _torch()
    from simcoll.dry_run.ranks import record_differing
    from simcoll.dry_run.script import Job
    from simcoll.dry_run.step import Cluster, DryRun

    cluster = Cluster.named(on, **computing)
    local = -(-world // nodes) if nodes else cluster.gpus
    job = Job(script, tuple(args), world, local, steps)
    return DryRun(script, world, nodes, cluster, record_differing(job, all_ranks))
