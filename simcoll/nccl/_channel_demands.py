"""Demands of channels on links: a channel takes its speed from every link of its paths.

Source: NVIDIA/nccl, release 2.30, src/graph/search.cc: the rules, in our own words.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from simcoll.nccl._node_paths import LOC, PIX, PXN, NodePaths
from simcoll.topology.nccl_graphs import GraphPattern

UNIT: Final = 1000  # capacities are counted in thousandths of GB/s, as NCCL rounds them
_TREES: Final = ("balanced_tree", "tree")


@dataclass
class Draft:
    """Channels that a round found, or what it is to look for: `speed` within a node and between nodes, in GB/s."""

    pattern: GraphPattern
    least: int
    most: int
    intra: float = 0.0
    inter: float = 0.0
    type_intra: int = LOC
    type_inter: int = PIX
    cross_nic: int = 0
    same: bool = True
    hops: int = 0
    orders: list[list[int]] = field(default_factory=list)
    nets: list[tuple[int, int]] = field(default_factory=list)

    @property
    def channels(self) -> int:
        """Number of channels found."""
        return len(self.orders)

    def copy(self) -> Draft:
        """A copy that can be changed."""
        return dataclasses.replace(self, orders=list(self.orders), nets=list(self.nets))


class Demand(NamedTuple):
    """Number of links of a path, and how much it takes of each, in thousandths of GB/s."""

    hops: int
    taken: tuple[tuple[int, int], ...]


class Demands:
    """The demands of the paths of a node at the speeds of a draft."""

    def __init__(self, node: NodePaths, draft: Draft):
        self.node, self.draft = node, draft
        self._known: dict[tuple[int, int, float], Demand | None] = {}

    def of(self, src: int, dst: int, times: float = 1) -> Demand | None:
        """The demand of a path, of so many `times` the speed; None where its type is not allowed."""
        key = src, dst, times
        if key not in self._known:
            self._known[key] = self._worked_out(src, dst, times)
        return self._known[key]

    def _worked_out(self, src: int, dst: int, times: float) -> Demand | None:
        node, draft = self.node, self.draft
        intra = {node.kinds[src], node.kinds[dst]} <= {"gpu", "nvs"}
        speed = (draft.intra if intra else draft.inter) * times
        farthest = draft.type_intra if intra else draft.type_inter
        path = node.paths[src, dst]
        if path.type > farthest:
            return None
        if draft.pattern in _TREES and node.paths[dst, src].type > farthest and path.type != PXN:
            return None  # trees send both ways; of what goes by another GPU's NIC, the way back does not count
        return Demand(len(path.links), tuple((link, round(speed * part * UNIT)) for link, part in node.parts(src, dst)))
