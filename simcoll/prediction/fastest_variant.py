"""Find the fastest way in which a network could run a call, by simulating many variants of it: the bound `at best`.
Variants differ in the number of copies of the schedule, channels per rank, chunk size, and in how transfers share
links. Keys that the scenario or its profile sets keep their values. The plain variant (one copy, one channel, whole
buffers) is always tried. If a machine measured above its rated bandwidth, the plain variant also runs on rated links:
on faster links, messages may meet and be slower."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.config.grouping import grouped
from simcoll.config.numpy_helpers import Numbers, distinct, numbers_of, sorted_out
from simcoll.engine.binding import written_out
from simcoll.engine.link_usage import connected_flows
from simcoll.engine.program import Program
from simcoll.engine.run import Policy, StreamedProgram, makespan_ps, run
from simcoll.engine.timing_model import NEVER, PS_PER_S, Index
from simcoll.errors import TopologyError
from simcoll.formats.schedules import schedule_json
from simcoll.nccl import algorithm_names
from simcoll.prediction.lowered_call import PlainCall, PlainExecutor
from simcoll.prediction.nccl_calls import alike
from simcoll.prediction.placed_topology import beyond_rated, served_by, with_rates
from simcoll.prediction.schedules import agents_of, copy_orders, first_orders, program_of, source_of
from simcoll.scenario.profile import MOST_COPIES, CostSetting, ModelSpec, load_profile
from simcoll.scenario.scenario import Scenario
from simcoll.schedule import registry
from simcoll.schedule.schedule import AnySchedule, Schedule
from simcoll.topology.graph import Topology
from simcoll.units import format_size

PER_PEER: Final = 0  # value of `channels`: one for each peer
WHOLE: Final = 0  # value of `chunk`: whole messages
PIECES: Final = (1, 4, 16, 64, 256, 1024)  # numbers of chunks in a slot
ABREAST: Final = (1, 2, 4)  # copies with one rank order: while one waits for a latency, others send
LOOPS: Final = 64  # most chunks if steps do not pipeline but routes through GPUs do, as in the msccl executor
MOST_LOOPED: Final = 20_000  # most transfers of such a variant with several copies
MOST_TRIED: Final = 200_000  # most transfers of a variant: it runs for some tenths of a second
MOST_SOLVED: Final = 10_000_000  # most flow rates of a variant whose chunks share links: it runs for some seconds
MOST_OF_LONG: Final = 1_500_000  # most transfers of a variant of a long call, where links decide the time
# as in NCCL's kernels: links serve whole messages, few of which wait, so trees send up only what comes down
IN_TURN: Final = {"sharing": "fifo", "channels_by": "step", "channels": 0, "slots": 0, "chunk": WHOLE}
# as few copies of a schedule of trees want it: whole messages, on each port of a rank one after the other
BY_PORT: Final[dict[str, Any]] = {"sharing": "fifo", "channels_by": "port", "channels": 1, "chunk": WHOLE}
MOST_WHOLE: Final = 32  # most copies that are run side by side; if there are more, one stands for all


class _RatedAndShown(NamedTuple):
    """The links of one machine: `rated` has their rated bandwidths, `shown` the higher ones that were measured."""

    rated: Topology
    shown: Topology


class _Variant(NamedTuple):
    """One way to run a call: its schedule, its values of the keys `model` and `groups`, and whether links have only
    their rated bandwidths. `alike` is the number of equal copies for which the one simulated copy stands."""

    algorithm: str
    model: ModelSpec
    groups: Any
    alike: int = 1
    as_rated: bool = False

    def call(self, scenario: Scenario, links: _RatedAndShown, places: tuple[str, ...], costs: CostSetting) -> PlainCall:
        """Return the scenario's call, run as this variant."""
        rated = links.rated if self.as_rated else links.shown
        own = {"algorithm": self.algorithm, "model": self.model, "groups": self.groups}
        asked = scenario.model_copy(update=own)
        params = asked.params()
        chosen = {  # result columns named after keys of `model`
            "chosen.copies": asked.copies if self.alike == 1 else self.alike,
            "chosen.channels": params.channels or "per peer",
            "chosen.chunk": format_size(params.chunk) if params.chunk else "whole",
        }
        kind = PlainCall if self.alike == 1 else RepresentativeCopy
        return kind(
            scenario=asked,
            rated=rated,
            places=places,
            costs=costs,
            algorithm=scenario.algorithm,
            chosen=chosen,
            count=self.alike,
        )


class _Load:
    """The work and the link load of a variant, counted with `whole` messages: their chunks would take equal routes."""

    def __init__(self, whole: Callable[[], Program]):
        self._whole = whole  # not kept: it may be long
        bound = whole()
        carried, bandwidths = bound.carried, np.resize(bound.bandwidths, len(bound.carried))
        used = (carried > 0) & (bandwidths > 0)
        self.need_ps = int((carried[used] * (PS_PER_S / bandwidths[used])).max(initial=0))
        self._messages, self._slot = len(bound), int(bound.sizes.max(initial=1))
        self._flows = connected_flows(bound) if bound.params.sharing == "fair" else 0

    def solved(self, chunk: int) -> int:
        """Estimate how many flow rates the `fair` engine computes for chunks of `chunk` bytes: the product of connected
        flows, times at which whole messages are sent, and chunks of a message. It is 0 for whole messages (chunk 0)."""
        pieces = -(-self._slot // chunk) if chunk else 0
        most = self._messages * self._flows * pieces
        return most if most <= MOST_SOLVED else self._instants * self._flows * pieces

    @cached_property
    def _instants(self) -> int:
        return len(distinct(run(self._whole(), Policy(keep="times")).timeline.sent))


class FastestVariantExecutor(PlainExecutor):
    """The executor that runs each call as its fastest variant on the network."""

    def lower(
        self, scenario: Scenario, topology: Topology | None = None, costs: CostSetting | None = None
    ) -> PlainCall:
        """Return the scenario's call with the best copies, channels and chunk size; raises like `PlainExecutor`."""
        call = super().lower(scenario, topology, costs)
        links = _RatedAndShown(call.rated, served_by(call.rated, beyond_rated(scenario, call.rated)))
        network = served_by(links.shown, self.profile.links)
        return _quickest(scenario, links, network, call.places).call(scenario, links, call.places, call.costs)


def _quickest(scenario: Scenario, links: _RatedAndShown, network: Topology, places: tuple[str, ...]) -> _Variant:
    """Return the variant that ends first; of equally fast variants the first in the list.

    Variants are simulated in the order of the time that their busiest link needs: if links are the bottleneck, the
    first variant is nearly the best. A variant is skipped if its busiest link needs longer than the best time so far,
    or if the engine would compute too many flow rates. A simulation stops when it exceeds the best time so far.
    """
    asked = scenario.model_copy(update={"faults": (), "proof": "off"})
    ways = list(_variants(asked, network, places, links.rated is not links.shown))
    if len(ways) == 1:
        return ways[0]
    costs = CostSetting.of(load_profile(scenario.profile))
    loads = dict[tuple[Any, ...], _Load]()

    def program(way: _Variant) -> StreamedProgram:
        call = way.call(asked, links, places, costs)
        return program_of(call.point, call.network, places)[0]

    def load(way: _Variant) -> _Load:
        own = way.model
        key = way.algorithm, str(way.groups), own.copies, own.channels, own.sharing, way[3:]  # without the chunk
        if key not in loads:
            loads[key] = _Load(lambda: program(way._replace(model=own.model_copy(update={"chunk": WHOLE}))).bind())
        return loads[key]

    def need_ps(way: _Variant) -> int:
        """Return the time that the busiest link needs; NEVER if a pair of ranks that exchange data has no route."""
        try:
            return load(way).need_ps
        except TopologyError:
            return NEVER

    best: tuple[int, int] | None = None  # time in ps and place in the list
    needs = sorted((need_ps(way), number) for number, way in enumerate(ways))
    for number, way in [(number, ways[number]) for need, number in needs if need < NEVER or need == needs[0][0]]:
        asks = load(way)
        if best is None or (asks.need_ps <= best[0] and asks.solved(way.model.chunk or WHOLE) <= MOST_SOLVED):
            took = makespan_ps(program(way), until=best[0] if best else NEVER), number
            best = took if best is None else min(best, took)
    assert best
    return ways[best[1]]


def _variants(scenario: Scenario, network: Topology, places: tuple[str, ...], more_shown: bool) -> Iterator[_Variant]:
    """Yield the variants to try, the plain variant first; with `more_shown`, next the plain variant on rated links.
    Schedules are not proved here, and keys that the scenario sets keep their values."""
    given = scenario.model, load_profile(scenario.profile).model
    free = {name for name in ModelSpec.model_fields if all(getattr(model, name) is None for model in given)}
    alone = not (scenario.weights or scenario.subgroups or scenario.arrivals)  # copies differ where ranks or links do
    alone = alone and _equal_links(network)

    def way(alike: int = 1, **values: object) -> _Variant:
        own = {name: value for name, value in values.items() if name in free}
        return _Variant(split.algorithm, split.model.model_copy(update=own), split.groups, alike)

    def chunk(source: AnySchedule, parts: int) -> int:
        """Return the bytes of a piece if each chunk of the schedule is cut into `parts` pieces."""
        return -(-scenario.nbytes // (source.n_chunks * parts * scenario.itemsize)) * scenario.itemsize

    def of_long_call(source: AnySchedule, copies: int) -> Iterator[_Variant]:
        """Yield more variants if messages last at least a quarter of a latency, so that links decide the time."""
        latent = _on_the_way(network, places)
        parts = min(MOST_OF_LONG // source.transfers, 4 * chunk(source, copies) // latent)
        if parts > 1 and source.pipelined and free.issuperset(IN_TURN):
            for pieces in sorted({min(max(PIECES), parts), parts}):  # finer is not always sooner
                piece = chunk(source, copies * pieces)
                own = {**IN_TURN, "channels": source.n_steps, "slots": 1 - -latent // piece, "chunk": piece}
                yield way(copies, copies=1, **own)
            finest = min(MOST_OF_LONG // (source.transfers * copies), 4 * chunk(source, copies) // latent)
            if finest > max(1, MOST_TRIED // (source.transfers * copies)):  # over many ranks a pipeline fills slowly
                yield way(copies=copies, channels=PER_PEER, chunk=chunk(source, copies * finest))
        elif parts and source.transfers * copies > MOST_TRIED:
            alike = copies if source.transfers * copies > MOST_OF_LONG else 1
            yield way(alike, copies=copies // alike, channels=PER_PEER, chunk=WHOLE)

    asked = [scenario.model_copy(update={"algorithm": name}) for name in _schedules(scenario)]
    for split in [split for each in asked for split in _splits(each, network, places)]:
        plain = way(copies=1, channels=1, chunk=WHOLE)
        source = source_of(split.model_copy(update={"model": plain.model}), network, places).source
        yield plain
        if more_shown:
            yield plain._replace(as_rated=True)
        if schedule_json.is_file(split.algorithm) and free.issuperset(BY_PORT):
            yield way(copies=1, **BY_PORT)
        if not source.transfers:  # one rank: no way differs
            continue
        counts = {1}
        if "copies" in free and source.n_steps > 1:
            orders = len(copy_orders(split, network, places))
            counts = {each * times for each in (1, orders) for times in ABREAST}
        finest = 1 if "chunk" not in free else max(PIECES) if source.pipelined else LOOPS
        pieces = [parts for parts in PIECES if parts <= finest]
        for copies in sorted(counts):
            alike = copies if alone and (copies > MOST_WHOLE or source.transfers * copies > MOST_TRIED) else 1
            whole = copies // alike
            room = MOST_TRIED // (source.transfers * whole) if copies <= MOST_COPIES else 0
            if copies > 1 and not source.pipelined:
                room = min(room, max(1, MOST_LOOPED // (source.transfers * whole)))
            if whole == 1 and copies <= MOST_COPIES:
                room = max(1, room)  # it has as many messages as the plain way, which is run anyhow
            for parts in sorted({min(room, parts) for parts in pieces} - {0}):
                slot = chunk(source, copies * parts)
                yield way(alike, copies=whole, channels=PER_PEER, chunk=slot if parts > 1 else WHOLE)
        if alone and "copies" in free:
            yield from of_long_call(source, len(copy_orders(split, network, places)))


def _equal_links(network: Topology) -> bool:
    """Whether all links between devices of the same kinds have equal bandwidths and latencies; of links between
    switches, those at the same places of the fabric. Only then does one copy of a schedule stand for copies with ranks
    in other orders."""
    kinds = network.of_ends(numbers_of(network.kinds.values()))
    places = np.where(network.trunks, alike(network), -1)
    first, number = sorted_out(numbers_of(network.link_kinds), *kinds.T, places)
    return all((column == column[first][number]).all() for column in (network.bandwidths, network.latencies))


def _on_the_way(network: Topology, places: Sequence[str]) -> int:
    """Return the bytes in flight on the full route from the first rank to the last: bandwidth times latency. Without
    such a route return the least that any route may have."""
    try:
        route = list(network.route(places[0], places[-1]))
    except TopologyError:
        route = [int(np.argmin(network.latencies * (network.bandwidths / PS_PER_S)))]
    seconds = int(network.latencies[route].sum()) / PS_PER_S
    return max(1, round(seconds * int(network.bandwidths[route].min())))


def _schedules(scenario: Scenario) -> list[str]:
    """Return the names of the requested schedule, and of the one that NCCL runs by this name if it differs (`tree`)."""
    called = algorithm_names.names(scenario.collective).get(scenario.algorithm)
    ran = algorithm_names.SCHEDULES[called, scenario.collective] if called else scenario.algorithm
    return list(dict.fromkeys([scenario.algorithm, ran]))


def _splits(scenario: Scenario, network: Topology, places: Sequence[str]) -> list[Scenario]:
    """Return the scenario; also the scenario with one group of all ranks if it and the network define no groups."""
    of_file = schedule_json.is_file(scenario.algorithm)
    if of_file or not registry.find(scenario.collective, scenario.algorithm)[0].uses_groups:
        return [scenario]
    if scenario.groups or network.default_groups(places):
        return [scenario]
    return [scenario, scenario.model_copy(update={"groups": 1})]


@dataclass(frozen=True, eq=False, kw_only=True)
class RepresentativeCopy(PlainCall):
    """One simulated copy of a schedule, which stands for `count` equal copies that run at the same time."""

    whole: ClassVar[bool] = False

    @property
    def point(self) -> Scenario:
        """Return the scenario of the one simulated copy, with this copy's share of the bytes."""
        grain = len(self.places) * self.scenario.itemsize
        share = max(1, -(-self.scenario.nbytes // (self.count * grain))) * grain
        return super().point.model_copy(update={"size": share})

    @property
    def network(self) -> Topology:
        """Return the topology with the bandwidths that the one simulated copy gets."""
        return with_rates(self.rated, self.bandwidths, self.latencies)

    @property
    def bandwidths(self) -> Index:
        """Return the simulated copy's share of each link's bandwidth, int64 (links,), in B/s."""
        shared: Index = np.rint(super().bandwidths * self._shares).astype(np.int64)
        return np.maximum(shared, np.minimum(super().bandwidths, 1))

    @property
    def capacities(self) -> NDArray[np.float64]:
        """Return, for each link, the B/s of all copies: the simulated copy's B/s times `count`, float64 (links,)."""
        capacities: NDArray[np.float64] = super().bandwidths * self._shares * self.count
        return capacities

    def rails(self, used: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Return, for each link number in `used`, it and similar links of other copies, dealt out evenly."""
        turns = {sort: cycle(links) for sort, links in grouped(used, self._sorts.__getitem__).items()}
        found = {link: [link] for link in used}
        for link, sort in enumerate(self._sorts):
            if link not in found and sort in turns:
                found[next(turns[sort])].append(link)
        return {link: tuple(links) for link, links in found.items()}

    @cached_property
    def _sorts(self) -> list[int]:
        found: list[int] = alike(self.rated).tolist()
        return found

    @cached_property
    def nics(self) -> int:
        """Return how many NICs of a node all copies use for each NIC that the simulated copy uses."""
        kinds, links = self.rated.kinds, self.rated.links
        mine, of_all = (np.flatnonzero(brought).tolist() for brought in (self._brought, self._brought_by_all))
        one = Counter(self._sorts[link] for link in mine if kinds[links[link][0]] == "nic")
        every = Counter(self._sorts[link] for link in {*mine, *of_all})
        return max(1, min([self.count, *(every[sort] // used for sort, used in one.items())]))

    @property
    def rail_shares(self) -> NDArray[np.float64]:
        """Return, for each link, the share that one NIC's copies get while all copies use it, float64 (links,)."""
        shares: NDArray[np.float64] = np.minimum(1.0, self._shares * max(1.0, self.count / self.nics))
        return shares

    @cached_property
    def _brought(self) -> Numbers:
        """Return the number of chunks that the simulated copy sends over each link, int64 (links,)."""
        return self._brings(range(len(self.places)))

    @cached_property
    def _brought_by_all(self) -> Numbers:
        """Return the number of chunks that all copies send over each link, int64 (links,)."""
        orders = Counter(first_orders(self.scenario, self.rated, self.places, self.count))
        found = np.zeros(len(self.rated.links), np.int64)
        for order, count in orders.items():
            found += count * self._brings(order)
        return found

    def _brings(self, order: Sequence[int]) -> Numbers:
        """Return the number of chunks that a copy with this rank order sends over each link, int64 (links,)."""
        schedule, (src, dst, chunks) = self._sent
        devices = (*self.places, *agents_of(self.scenario, self.rated, self.places)[: schedule.agents])
        played = [*order, *range(len(order), schedule.participants)]  # as in `in_copies`
        hop, links = self.rated.routes([devices[one] for one in played], src, dst)
        brought = np.zeros(len(self.rated.links), np.int64)
        np.add.at(brought, links, np.repeat(chunks, np.diff(hop)))
        return brought

    @cached_property
    def _sent(self) -> tuple[Schedule, tuple[Numbers, Numbers, Numbers]]:
        """Return the schedule, and for each pair of ranks that communicate: sender, receiver, number of chunks."""
        schedule = written_out(source_of(self.scenario, self.rated, self.places).source)
        apart = schedule.src != schedule.dst
        pairs = schedule.src[apart].astype(np.int64) * schedule.participants + schedule.dst[apart]
        pairs, number = np.unique(pairs, return_inverse=True)
        chunks = np.bincount(number, schedule.count[apart]).astype(np.int64)
        return schedule, (*np.divmod(pairs, schedule.participants), chunks)

    @cached_property
    def _shares(self) -> NDArray[np.float64]:
        """Return, for each link, one copy's share of it, float64 (links,). In a class of similar links this is the
        chunks of the copy on its busiest link over the chunks of all copies on theirs. Copies spread evenly over equal
        trunks (links between switches), but all copies of one NIC take one trunk."""
        columns = self._brought.tolist(), self._brought_by_all.tolist(), self.rated.trunks.tolist()
        of_sort: dict[int, list[tuple[int, int, bool]]] = defaultdict(list)
        for sort, *of_link in zip(self._sorts, *columns, strict=True):
            of_sort[sort].append(tuple(of_link))
        shares = {sort: self._share(links) for sort, links in of_sort.items()}
        return np.array([shares[sort] for sort in self._sorts])

    def _share(self, links: Sequence[tuple[int, int, bool]]) -> float:
        """Return one copy's share in a class of similar links. Each link is given as: chunks of this copy, chunks of
        all copies, whether the link is a trunk (joins two switches)."""
        brought, by_all, trunks = zip(*links, strict=True)
        most: float = max(by_all)
        if trunks[0]:
            most = sum(brought) * self.count / min(len(links), self.nics * sum(map(bool, brought)) or 1)
        return min(1.0, max(brought) / most) if most and any(brought) else 1.0
