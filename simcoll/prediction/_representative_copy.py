"""One copy of a schedule that stands for many side by side, where all of them would be too many to run.

Copies go in orders that use links of a sort as evenly as can be. Each has an equal share of every link that it uses,
that of the link which all together use most, and all end at the same time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from simcoll.config.arrays import Numbers
from simcoll.engine.binding import written_out
from simcoll.engine.timing_model import Index
from simcoll.prediction._channel_wires import alike
from simcoll.prediction._plain_call import PlainCall
from simcoll.prediction._schedule_source import agents_of, first_orders, source_of
from simcoll.scenario.profile import CostSetting
from simcoll.scenario.scenario import Scenario
from simcoll.schedule.ir import Schedule
from simcoll.topology.graph import Topology
from simcoll.units import format_size


@dataclass(frozen=True, eq=False)
class RepresentativeCopy(PlainCall):
    """One of `copies` that do the same at the same time; `named`: the algorithm that was asked for."""

    whole: ClassVar[bool] = False
    copies: int
    named: str

    @property
    def algorithm(self) -> str:
        """The algorithm that was asked for, of which the best schedule is run."""
        return self.named

    @property
    def chosen(self) -> dict[str, object]:
        """Copies, channels and chunk."""
        return {**chosen_of(self.scenario), "chosen.copies": self.copies}

    @property
    def count(self) -> int:
        """Number of copies."""
        return self.copies

    def point(self, costs: CostSetting) -> Scenario:
        """The point of one copy, with its share of the bytes."""
        grain = len(self.places) * self.scenario.itemsize
        share = max(1, -(-self.scenario.nbytes // (self.copies * grain))) * grain
        return super().point(costs).model_copy(update={"size": share})

    def network(self, costs: CostSetting) -> Topology:
        """Links with the share of one copy."""
        return self.rated.with_rates(self.bandwidths(costs), self.latencies(costs))

    def bandwidths(self, costs: CostSetting) -> Index:
        """Share of a copy in each link, int64 (links,), in B/s."""
        shared: Index = np.rint(super().bandwidths(costs) * self._shares).astype(np.int64)
        return np.maximum(shared, np.minimum(super().bandwidths(costs), 1))

    def capacities(self, costs: CostSetting) -> NDArray[np.float64]:
        """B/s that serve what all copies would carry over the links of the one that is run."""
        capacities: NDArray[np.float64] = super().bandwidths(costs) * self._shares * self.copies
        return capacities

    def rails(self, used: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """The other links of a sort go to those that the copy uses in turn: other copies use them so."""
        mine = set(used)
        of_sort: dict[int, list[int]] = defaultdict(list)
        for link in used:
            of_sort[self._sorts[link]].append(link)
        found = {link: [link] for link in used}
        others: dict[int, list[int]] = defaultdict(list)
        for link, sort in enumerate(self._sorts):
            if link not in mine and sort in of_sort:
                others[sort].append(link)
        for sort, links in others.items():
            for link, own in zip(links, cycle(of_sort[sort]), strict=False):
                found[own].append(link)
        return {link: tuple(links) for link, links in found.items()}

    @cached_property
    def _sorts(self) -> list[int]:
        found: list[int] = alike(self.rated).tolist()
        return found

    @cached_property
    def nics(self) -> int:
        """NICs of each node by which the copies go, for one by which the one that is run goes."""
        kinds, links = self.rated.kinds, self.rated.links
        mine, of_all = (np.flatnonzero(brought).tolist() for brought in (self._brought, self._brought_by_all))
        one = Counter(self._sorts[link] for link in mine if kinds[links[link][0]] == "nic")
        every = Counter(self._sorts[link] for link in {*mine, *of_all})
        return max(1, min([self.copies, *(every[sort] // used for sort, used in one.items())]))

    @property
    def rail_shares(self) -> NDArray[np.float64]:
        """Share that the copies by one NIC have of each link on which those of all meet, float64 (links,)."""
        shares: NDArray[np.float64] = np.minimum(1.0, self._shares * max(1.0, self.copies / self.nics))
        return shares

    @cached_property
    def _brought(self) -> Numbers:
        """Chunks that the copy that is run brings over each link, int64 (links,)."""
        return self._brings(range(len(self.places)))

    @cached_property
    def _brought_by_all(self) -> Numbers:
        """Chunks that all copies bring over each link, int64 (links,)."""
        orders = Counter(first_orders(self.scenario, self.rated, self.places, self.copies))
        found = np.zeros(len(self.rated.links), np.int64)
        for order, count in orders.items():
            found += count * self._brings(order)
        return found

    def _brings(self, order: Sequence[int]) -> Numbers:
        """Chunks that a copy whose ranks are in some order brings over each link, int64 (links,)."""
        schedule, (src, dst, chunks) = self._sent
        devices = (*self.places, *agents_of(self.scenario, self.rated, self.places)[: schedule.agents])
        played = [*order, *range(len(order), schedule.participants)]  # as in `in_copies`
        hop, links = self.rated.routes([devices[one] for one in played], src, dst)
        brought = np.zeros(len(self.rated.links), np.int64)
        np.add.at(brought, links, np.repeat(chunks, np.diff(hop)))
        return brought

    @cached_property
    def _sent(self) -> tuple[Schedule, tuple[Numbers, Numbers, Numbers]]:
        """The schedule, and how many chunks go in it from whom to whom."""
        schedule = written_out(source_of(self.scenario, self.rated, self.places)[0])
        pairs = schedule.src.astype(np.int64) * schedule.participants + schedule.dst
        pairs, chunks = np.unique(pairs[schedule.src != schedule.dst], return_counts=True)
        return schedule, (*np.divmod(pairs, schedule.participants), chunks)

    @cached_property
    def _shares(self) -> NDArray[np.float64]:
        """Share of a copy in each link, float64 (links,): its chunks of the link of a sort that it uses most, of those
        that all copies bring over the link that they use most. Over equal trunks copies spread evenly, and all by one
        NIC take one of them."""
        columns = self._brought.tolist(), self._brought_by_all.tolist(), self.rated.trunks.tolist()
        of_sort: dict[int, list[tuple[int, int, bool]]] = defaultdict(list)
        for sort, *of_link in zip(self._sorts, *columns, strict=True):
            of_sort[sort].append(tuple(of_link))
        shares = {sort: self._share(links) for sort, links in of_sort.items()}
        return np.array([shares[sort] for sort in self._sorts])

    def _share(self, links: Sequence[tuple[int, int, bool]]) -> float:
        """Share in links of a sort: of each the chunks that a copy brings, those that all bring, and whether it is a
        trunk."""
        brought, by_all, trunks = zip(*links, strict=True)
        most: float = max(by_all)
        if trunks[0]:
            most = sum(brought) * self.copies / min(len(links), self.nics * sum(map(bool, brought)) or 1)
        return min(1.0, max(brought) / most) if most and any(brought) else 1.0


def chosen_of(scenario: Scenario) -> dict[str, object]:
    """The way in which a schedule is played, by keys of `model`, as columns of results."""
    params = scenario.params()
    return {
        "chosen.copies": scenario.copies,
        "chosen.channels": params.channels or "per peer",
        "chosen.chunk": format_size(params.chunk) if params.chunk else "whole",
    }
