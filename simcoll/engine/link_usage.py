"""Compute the utilisation of links in a run."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.engine.program import Program
from simcoll.engine.timeline import Totals
from simcoll.engine.timing_model import PS_PER_S


class Binding(NamedTuple):
    """The busiest link, and its utilisation: the share of the run in which it carried bytes at full rate."""

    link: int
    busy: float


def utilisation(program: Program, makespan_ps: int) -> NDArray[np.float64]:
    """Return the utilisation of each link in a run (0 to 1), float64 (links,); 0 for a link that is down."""
    return busy(program.carried, program.bandwidths * kept(program, makespan_ps), makespan_ps)


def kept(program: Program, makespan_ps: int) -> NDArray[np.float64]:
    """Return the mean bandwidth of each link as a share of its bandwidth at the start, float64 (links,): 1 without
    faults."""
    shares = np.ones(len(program.bandwidths))
    for link, share in (program.changes.kept(program.bandwidths, makespan_ps) if program.changes else {}).items():
        shares[link] = share
    return shares


def busy(carried: NDArray[np.int64], bandwidths: NDArray[Any], makespan_ps: int) -> NDArray[np.float64]:
    """Return each link's utilisation: the bytes `carried` over the bytes it could carry in the run; 0 if it is down."""
    capacity = bandwidths.astype(float) * makespan_ps / PS_PER_S
    found = np.zeros(len(carried))
    np.divide(carried.astype(float), capacity, out=found, where=capacity > 0)
    return found


def binding(totals: Totals, bandwidths: NDArray[Any], makespan_ps: int) -> Binding | None:
    """Return the busiest link (of equally busy ones the first); None if no link carried bytes."""
    if not totals.carried.any() or not makespan_ps:
        return None
    shares = busy(totals.carried, bandwidths, makespan_ps)
    link = int(shares.argmax())
    return Binding(link, float(shares[link]))


def connected_flows(program: Program) -> int:
    """Return the number of routes in the largest set connected by shared links; `fair` solves their rates together."""
    from scipy.sparse import coo_array  # loaded here, as it takes 0.1 s
    from scipy.sparse.csgraph import connected_components

    (_, _, hop, links), used = program.routes, np.zeros(len(program.routes.src), np.bool_)
    used[program.way] = True
    way = np.repeat(np.arange(len(used)), np.diff(hop))
    ends = np.stack((way, len(used) + links))[:, used[way]].astype(np.int32)  # the only integers of old scipy's csgraph
    places = len(used) + len(program.bandwidths)
    shares = coo_array((np.ones(ends.shape[1]), tuple(ends)), (places, places))
    _, label = connected_components(shares, directed=False)
    return int(np.bincount(label[: len(used)][used]).max(initial=0))
