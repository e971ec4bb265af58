"""Predict rows of clusters by simple methods, as rivals of simcoll: a textbook fit, PyTorch, another table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simcoll import units
from simcoll.accuracy.studies.baselines import on_logarithms
from simcoll.formats.measured import MeasuredRow
from simcoll.scenario.scenario_files import Point
from simcoll.schedule.collectives import collective
from simcoll.topology.topology_builder import load_system


def from_few_nodes(fitted: Sequence[MeasuredRow], asked: MeasuredRow) -> float | None:
    """Return a time (us) by a latency for each round and a bandwidth, fitted to rows of the same collective.

    As in textbooks, the rounds grow with the ranks as in a ring, and bytes are counted as for `busbw`. None for fewer
    than two rows.
    """
    rows = [row for row in fitted if row.collective == asked.collective]
    if len(rows) < 2:
        return None
    factor = collective(asked.collective).busbw
    times = np.array([row.time_us for row in rows])
    rounds = np.array([row.ranks - 1 for row in rows], float)
    volumes = np.array([float(factor(row.ranks)) * row.size_bytes for row in rows])
    columns = np.stack([1 / times, rounds / times, volumes / times], axis=1)
    (launch, latency, slope), *_ = np.linalg.lstsq(columns, np.ones(len(rows)), rcond=None)
    volume = float(factor(asked.ranks)) * asked.size_bytes
    return float(max(launch + latency * (asked.ranks - 1) + slope * volume, 1e-3))


def at_size(rows: Sequence[MeasuredRow], size: int) -> float | None:
    """Return a series' time (us) at a size, interpolated or extrapolated linearly in logarithms of size and time."""
    known = [(float(row.size_bytes), row.time_us) for row in rows if row.size_bytes]
    return on_logarithms(known, size) if size else None


def pytorch(asked: MeasuredRow, point: Point) -> float | None:
    """Return the time (us) that PyTorch's compiler estimates (`torch._inductor.comm_analysis`), with the rated
    bandwidths of the system in its configuration. None without torch, and for calls that PyTorch does not estimate."""
    if asked.collective not in ("all_reduce", "all_gather", "reduce_scatter"):
        return None
    try:
        from torch._inductor import comm_analysis, config
    except Exception:  # torch is optional, and its inner modules come and go
        return None
    system = load_system(point.scenario.topology.system or "")
    rates = [units.parse(rule.bandwidth, "bandwidth") for rule in system.links if rule.kind in ("nvlink", "pcie")]
    outer = units.parse(system.nic.rate, "bandwidth") if system.nic else 0
    kind = getattr(comm_analysis.NCCL_COLL, asked.collective.upper())
    try:
        with config.patch(intra_node_bw=max(rates, default=0) / 1e9, inter_node_bw=outer / 1e9):
            estimate = comm_analysis.estimate_nccl_collective_runtime_impl(asked.size_bytes, asked.ranks, kind)
    except Exception:  # as above
        return None
    return 1e3 * float(estimate) or None
