"""Turn points with a workload into tasks for real ranks: data-parallel training steps, and small programs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from simcoll.errors import RefusedError
from simcoll.measurement._rank_messages import TaskResult, WorkTask
from simcoll.measurement.torch_backend.support import FLOATS, Backend, widths
from simcoll.prediction.placed_topology import placed, topology_of
from simcoll.scenario.loading import Point
from simcoll.scenario.scenario import Scenario
from simcoll.schedule.names import WORKLOAD
from simcoll.units import format_size
from simcoll.workload.workload_keys import Composition, Ddp

EVEN: Final = ("scatter", "gather")  # programs in which every rank has an equal part
COPIES: Final = 8  # of a workload's bytes that a rank keeps, about: parameters and gradients, with and without buckets


def work_task(point: Point, backend: Backend) -> tuple[WorkTask, dict[str, object]]:
    """Return the task of a point with a workload, and the columns of its row that do not depend on the run.

    Raises RefusedError for workloads that are only simulated, InputError for wrong input.
    """
    scenario, measure = point.scenario, point.scenario.measure
    topology = topology_of(scenario)
    places = placed(scenario, topology)
    spec: Any = scenario.workload
    if why_not := _refusal(scenario, backend, len(places)):
        raise RefusedError(f"{spec.template}: {why_not}")
    nbytes = sum(layer.nbytes for layer in spec.timed(scenario.itemsize)) if isinstance(spec, Ddp) else spec.size
    others = [f"{key}={value}" for key, value in point.swept.items()]
    title = ", ".join([spec.template, f"{len(places)} ranks", f"{nbytes} B {scenario.dtype}", *others])
    task = WorkTask(
        title=title,
        spec=spec,
        ranks=len(places),
        nbytes=COPIES * nbytes,
        dtype=scenario.dtype,
        itemsize=scenario.itemsize,
        compute=measure.compute,
        warmup=measure.warmup,
        repeats=max(1, -(-measure.repeats // measure.launches)),
        verify=measure.verify,
    )
    columns: dict[str, object] = {
        "system": topology.name,
        "collective": WORKLOAD,
        "ranks": len(places),
        "nodes": len({topology.node_of(place) for place in places}),
        "dtype": scenario.dtype,
        "harness": "library",
        "size_bytes": 0,
        "launches": measure.launches,
        "backend": backend,
        "workload": spec.template,
        "compute": measure.compute,
        **point.swept,
    }
    if isinstance(spec, Ddp):
        columns["bucket_cap"] = format_size(spec.bucket_cap) if spec.bucket_cap else "none"
    return task, columns


def _refusal(scenario: Scenario, backend: Backend, ranks: int) -> str | None:
    """Return the reason why a workload cannot be run for real, with a cure; None if it can."""
    spec = scenario.workload
    if not isinstance(spec, Ddp | Composition):
        return "is simulated only; take ddp, mean, softmax, argmax, scatter, gather or broadcast"
    if backend != "gloo":
        return "is run over gloo only; take --backend gloo"
    if scenario.dtype not in FLOATS:
        return f"has no gradients of {scenario.dtype}; take dtype: float32"
    if isinstance(spec, Composition):
        if spec.template in EVEN and spec.size // scenario.itemsize % ranks:
            return f"{spec.size} B are no {ranks} equal blocks; take a size of ranks × whole elements"
        return None
    if spec.layers is None:
        return "a named model is not built here; give layers"
    if not spec.overlap:
        return "torch sends buckets beside the backward pass; leave overlap out"
    if any(layer.parameters < scenario.itemsize for layer in spec.layers):
        return "a layer without parameters has no gradient; leave it out"
    elements = [layer.nbytes // scenario.itemsize for layer in spec.timed(scenario.itemsize)]
    if scenario.measure.compute == "real" and not widths(elements):
        return "its layers make no chain of matrices; write powers of two, or measure.compute: sleep"
    return None


def computed_us(outcomes: Sequence[TaskResult]) -> list[float]:
    """Return the time of each computation without messages, in us: medians over runs.

    A computation lasts from the last rank's end of the one before it to the last rank's end of it.
    """
    ends = np.median(np.array([run for outcome in outcomes for run in outcome.alone]), axis=0) / 1e3
    return [float(b - a) for a, b in pairwise([0.0, *ends])]


def work_row(outcomes: Sequence[TaskResult], time_us: float) -> dict[str, object]:
    """Return the columns of a workload's row that depend on the run.

    `computed_us` lists, for ddp, the forward pass, the backward pass of each layer in the order of the layers, and the
    optimizer; for small programs each local part.
    """
    parts = computed_us(outcomes)
    counts = statistics.mode(outcome.buckets for outcome in outcomes)
    return {
        "compute_us": math.fsum(parts),
        "exposed_us": time_us - math.fsum(parts),
        "computed_us": " ".join(f"{part:.1f}" for part in parts),
        **({} if counts is None else {"buckets": counts}),
    }
