"""How busy each link was."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.model import PS_PER_S
from simcoll.program import Program


class Binding(NamedTuple):
    """The busiest link and the share of the run in which it carried bytes at full rate."""

    link: int
    busy: float


def bytes_carried(program: Program) -> NDArray[np.int64]:
    """Payload bytes over each link, int64 (links,)."""
    carried = np.zeros(len(program.bandwidths), np.int64)
    np.add.at(carried, program.links, program.hop_bytes)
    return carried


def utilisation(program: Program, makespan_ps: int) -> NDArray[np.float64]:
    """Bytes carried over what the link could have carried in the run, float64 (links,); 0 where it is down."""
    capacity = program.bandwidths.astype(float) * makespan_ps / PS_PER_S
    carried = bytes_carried(program).astype(float)
    busy = np.zeros_like(carried)
    np.divide(carried, capacity, out=busy, where=capacity > 0)
    return busy


def binding(program: Program, makespan_ps: int) -> Binding | None:
    """The busiest link, the first of equals; None if no link was used."""
    if not len(program.links) or not makespan_ps:
        return None
    busy = utilisation(program, makespan_ps)
    link = int(busy.argmax())
    return Binding(link, float(busy[link]))
