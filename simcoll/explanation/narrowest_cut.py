"""The cut of a network that bounds a collective: which devices lie on one side, and which links carry all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from simcoll.prediction.synthesized import network_of
from simcoll.scenario.scenario import Scenario
from simcoll.synthesis.bounds import BY_CUT, Bound, by_cut
from simcoll.synthesis.flow_graph import FlowGraph
from simcoll.topology.graph import Topology

MOST_NAMED: Final = 8
MOST_SEARCHED: Final = 20_000  # links times ranks, up to which the search takes some tenths of a second
HALF: Final = {"all_reduce": "all_gather"}  # what ends with the other one, whose cut it has to cross, too


def narrowest_cut(scenario: Scenario) -> dict[str, Any] | None:
    """Return the cut that bounds a collective's throughput, or that of the all_gather which ends an all_reduce: its
    devices, links, bandwidth and words. None for other collectives, and for networks that are large or have several
    ranks on a device."""
    name = HALF.get(scenario.collective, scenario.collective)
    if name not in BY_CUT or scenario.weights or scenario.subgroups:
        return None
    topology, places = network_of(scenario)
    if len(topology.links) * len(places) > MOST_SEARCHED or len(set(places)) < len(places) or len(places) < 2:
        return None
    bound = by_cut(name, FlowGraph.of(topology, places), scenario.root)
    return {
        "of": name,
        "devices": list(bound.devices),
        "links": list(bound.links),
        "bound_GBps": bound.gbps,
        "text": cut_text(bound, topology, places),
    }


def cut_text(bound: Bound, topology: Topology, places: Sequence[str]) -> str:
    """Return in words what crosses a cut: the smaller side, and the links between the sides."""
    way, side = smaller_side(bound, topology)
    ranks = sum(place in side for place in places)
    rates = Counter(topology.link(*name.split("->")).bandwidth for name in bound.links)
    widths = " and ".join(
        f"{count} link{'s' * (count > 1)} of {rate / 1e9:.6g} GB/s" for rate, count in sorted(rates.items())
    )
    named = some(list(_by_nodes(side, topology)))
    return f"all that goes {way} {{{named}}} ({ranks} of {len(places)} ranks) crosses {widths}: {some(bound.links)}"


def smaller_side(bound: Bound, topology: Topology) -> tuple[str, list[str]]:
    """Return the way of the data that cross a cut, and the devices on its smaller side."""
    inside = set(bound.devices)
    outside = [device for device in topology.kinds if device not in inside]
    return ("out of", list(bound.devices)) if len(inside) <= len(outside) else ("into", outside)


def _by_nodes(devices: Sequence[str], topology: Topology) -> Iterator[str]:
    """Yield the names of nodes that are among the devices as a whole, and those of all other devices."""
    there, whole = set(devices), set[int | None]()
    for node, members in topology.members.items():
        if node is not None and len(members) > 1 and there.issuperset(members):
            whole.add(node)
            yield f"node {node}"
    yield from (device for device in devices if topology.node_of(device) not in whole)


def some(names: Sequence[str]) -> str:
    """Return names as a list, of which a long one is cut short.

    >>> some("abcdefghij")
    'a, b, c, d, e, f, g, h, and 2 more'
    """
    more = len(names) - MOST_NAMED
    return ", ".join([*names[:MOST_NAMED], *([f"and {more} more"] if more > 0 else [])])
