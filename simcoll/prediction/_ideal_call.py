"""Calls as the network could serve them at best: of the ways to run a schedule, the one that is done first.

The ways differ in copies of the schedule, channels of a rank and chunk. What the scenario or its profile gives is left
as it is. Where a way is quicker depends on sizes and links, so each is simulated; the plain way, with one copy, one
channel and whole buffers, is always among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, get_args

from simcoll.config.lru import LruCache
from simcoll.engine.program import bind
from simcoll.formats.schedules import schedule_json
from simcoll.nccl.kernel_costs import CostKind
from simcoll.prediction._plain_call import PlainCall, PlainExecutor
from simcoll.prediction._schedule_source import agents_of, copy_orders, source_of
from simcoll.prediction.placing import arrivals_of, machine_of, served_by
from simcoll.prediction.program_run import makespan_ps
from simcoll.scenario.profile import MOST_COPIES, LinkScale, load_profile
from simcoll.scenario.scenario import Scenario
from simcoll.schedule import registry
from simcoll.schedule.streamed import StreamedSchedule
from simcoll.topology.graph import Topology

_DECIDING: Final = (
    *("collective", "algorithm", "root", "size", "dtype", "weights", "groups", "subgroups", "arrivals"),
    *("model", "profile", "topology"),
)  # keys on which the choice depends, beside the contents of files
PER_PEER: Final = 0  # channels
WHOLE: Final = 0  # a chunk
PIECES: Final = (1, 4, 16, 64, 256)  # of a slot, of which a chunk is one
ABREAST: Final = (1, 2, 4)  # copies in each order: while one waits for a latency, others move
MOST_TRIED: Final = 200_000  # transfers of a way that is tried: some tenths of a second


_CHOSEN: Final[LruCache[dict[str, Any]]] = LruCache(4096, lambda _: 1)


class IdealExecutor(PlainExecutor):
    """Runs calls as the network could serve them at best."""

    def lower(self, scenario: Scenario, topology: Topology | None = None) -> PlainCall:
        """The call of a scenario with the copies, channels and chunk that serve best; raises like `PlainExecutor`."""
        call = super().lower(scenario, topology)
        rated = served_by(call.rated, _beyond_rated(scenario, call.rated))
        network = served_by(rated, self.profile.links)
        said = repr([getattr(scenario, name) for name in _DECIDING])
        key = (said, scenario.contents(), network, call.places)
        chosen = _CHOSEN.get(key, lambda: _quickest(scenario, network, call.places))
        return replace(call, scenario=scenario.model_copy(update=chosen), rated=rated)


def _beyond_rated(scenario: Scenario, rated: Topology) -> dict[str, LinkScale]:
    """Kinds of links of a node over which the machine's own profile has more payload than they are rated for, and the
    share that any of NCCL's protocols reaches by it."""
    machine = machine_of(scenario)
    profile = load_profile(machine.profile) if machine and machine.profile else None
    if profile is None or profile.kernels is None:
        return {}
    blocks = [getattr(profile.kernels, kind) for kind in get_args(CostKind)]
    reach = max(max(block.reach, block.host_reach) for block in blocks)
    ends = zip(rated.links, rated.link_kinds, strict=True)
    inner = {kind for (u, v), kind in ends if rated.node_of(u) == rated.node_of(v) is not None}
    shares = {kind: profile.links.get(kind, LinkScale()).efficiency * reach for kind in inner}
    return {kind: LinkScale(efficiency=share) for kind, share in sorted(shares.items()) if share > 1}


def _quickest(scenario: Scenario, network: Topology, places: tuple[str, ...]) -> dict[str, Any]:
    """The keys `model` and `groups` of the way that is done first; of equals the one that is tried first."""
    ways = list(_ways(scenario.model_copy(update={"faults": (), "proof": "off"}), network, places))
    best = min(ways, key=lambda way: _time_ps(way, network, places)) if len(ways) > 1 else ways[0]
    return {"model": best.model, "groups": best.groups}


def _ways(scenario: Scenario, network: Topology, places: tuple[str, ...]) -> Iterator[Scenario]:
    """The ways that are tried, not to be proved, the plain one first. What is given is left as it is."""
    given = scenario.model, load_profile(scenario.profile).model
    free = {name for name in ("copies", "channels", "chunk") if all(getattr(model, name) is None for model in given)}

    def way(**values: int) -> Scenario:
        own = {name: value for name, value in values.items() if name in free}
        return split.model_copy(update={"model": scenario.model.model_copy(update=own)})

    for groups in _splits(scenario, network, places):
        split = scenario.model_copy(update={"groups": groups})
        plain = way(copies=1, channels=1, chunk=WHOLE)
        source, _ = source_of(plain, network, places)
        yield plain
        counts = {1}
        if "copies" in free and source.n_steps > 1:
            orders = len(copy_orders(scenario, network, places))
            counts = {each * times for each in (1, orders) for times in ABREAST}
        pieces = PIECES if "chunk" in free and source.pipelined else (1,)
        for copies in sorted(counts):
            room = MOST_TRIED // (source.transfers * copies) if copies <= MOST_COPIES else 0
            for parts in sorted({min(room, parts) for parts in pieces} - {0}):
                slot = -(-scenario.nbytes // (source.n_chunks * copies * parts * scenario.itemsize)) * scenario.itemsize
                yield way(copies=copies, channels=PER_PEER, chunk=slot if parts > 1 else WHOLE)


def _splits(scenario: Scenario, network: Topology, places: Sequence[str]) -> list[Any]:
    """Groups to try: as they are, and one of all ranks where neither the scenario nor the network has any."""
    of_file = schedule_json.is_file(scenario.algorithm)
    if of_file or not registry.find(scenario.collective, scenario.algorithm)[0].uses_groups:
        return [scenario.groups]
    return [scenario.groups] if scenario.groups or network.default_groups(places) else [None, 1]


def _time_ps(scenario: Scenario, network: Topology, places: tuple[str, ...]) -> int:
    source, _ = source_of(scenario, network, places)
    schedule = source.schedule() if isinstance(source, StreamedSchedule) else source
    devices = (*places, *agents_of(scenario, network, places)[: source.agents])
    options: dict[str, Any] = {"weights": scenario.weights, "arrivals": arrivals_of(scenario, source.n)}
    params = scenario.params()
    return makespan_ps(bind(schedule, network, devices, params, scenario.nbytes, itemsize=scenario.itemsize, **options))
