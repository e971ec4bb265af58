"""One copy of a schedule that stands for many side by side, where all of them would be too many to run.

Copies go in orders that use links of a sort evenly. So each has an equal share of every link that it uses, and all end
at the same time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from functools import cached_property
from itertools import cycle
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from simcoll.dataclass import dataclass
from simcoll.engine.binding import written_out
from simcoll.engine.timing_model import Index
from simcoll.prediction._channel_wires import alike
from simcoll.prediction._plain_call import PlainCall
from simcoll.prediction._schedule_source import agents_of, source_of
from simcoll.scenario.profile import CostSetting
from simcoll.scenario.scenario import Scenario
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
        return {**chosen_of(self.scenario), "model.copies": self.copies}

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
        of_sort: dict[Hashable, list[int]] = defaultdict(list)
        for link in used:
            of_sort[self._sorts[link]].append(link)
        found = {link: [link] for link in used}
        others: dict[Hashable, list[int]] = defaultdict(list)
        for link, sort in enumerate(self._sorts):
            if link not in mine and sort in of_sort:
                others[sort].append(link)
        for sort, links in others.items():
            for link, own in zip(links, cycle(of_sort[sort]), strict=False):
                found[own].append(link)
        return {link: tuple(links) for link, links in found.items()}

    @cached_property
    def _sorts(self) -> tuple[Hashable, ...]:
        return alike(self.rated)

    @cached_property
    def nics(self) -> int:
        """NICs of each node by which the copies go, for one by which the one that is run goes."""
        kinds, links = self.rated.kinds, self.rated.links
        leaving = Counter(self._sorts[link] for link in self._brought if kinds[links[link][0]] == "nic")
        each = Counter(self._sorts)
        return max(1, min([self.copies, *(each[sort] // used for sort, used in leaving.items())]))

    @property
    def rail_shares(self) -> NDArray[np.float64]:
        """Share that the copies by one NIC have of each link on which those of all meet, float64 (links,)."""
        shares: NDArray[np.float64] = np.minimum(1.0, self._shares * max(1.0, self.copies / self.nics))
        return shares

    @cached_property
    def _brought(self) -> Counter[int]:
        """Chunks that the copy that is run brings over each link."""
        source, _ = source_of(self.scenario, self.rated, self.places)
        schedule = written_out(source)
        devices = (*self.places, *agents_of(self.scenario, self.rated, self.places)[: source.agents])
        sent = Counter(zip(schedule.src.tolist(), schedule.dst.tolist(), strict=True))
        brought: Counter[int] = Counter()
        for (u, v), chunks in sent.items():
            for link in self.rated.route(devices[u], devices[v]) if u != v else ():
                brought[link] += chunks
        return brought

    @cached_property
    def _shares(self) -> NDArray[np.float64]:
        """Share of a copy in each link, float64 (links,): all copies together bring each link of a sort as much, and a
        copy the link that it uses most in the same time. All copies by one NIC take one of equal trunks."""
        each, of_sort, most = Counter(self._sorts), Counter[Hashable](), Counter[Hashable]()
        used, trunk = Counter(self._sorts[link] for link in self._brought), self.rated.trunks
        for link, chunks in self._brought.items():
            sort = self._sorts[link]
            of_sort[sort] += chunks
            most[sort] = max(most[sort], chunks)
            if trunk[link]:
                each[sort] = min(each[sort], self.nics * used[sort])
        shares = {sort: min(1.0, each[sort] * most[sort] / (of_sort[sort] * self.copies)) for sort in of_sort}
        return np.array([shares.get(sort, 1.0) for sort in self._sorts])


def chosen_of(scenario: Scenario) -> dict[str, object]:
    """The keys of `model` that decide how a schedule is played, with their values."""
    params = scenario.params()
    return {
        "model.copies": scenario.copies,
        "model.channels": params.channels or "per peer",
        "model.chunk": format_size(params.chunk) if params.chunk else "whole",
    }
