"""The scenario's key `faults`: links that fail, slow down or carry other traffic, and their effect on a program."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StrictInt, model_validator

from simcoll.config.field_types import Duration, Share
from simcoll.config.yaml_tree import Model
from simcoll.engine.link_changes import LinkChanges
from simcoll.engine.program import Program, ProgramRoutes
from simcoll.engine.timing_model import NEVER, NONE
from simcoll.errors import did_you_mean, wrong
from simcoll.scenario.variability import matching
from simcoll.topology.graph import Topology
from simcoll.topology.routing import Route, Router
from simcoll.units import format_duration

MS: Final = 10**9
TIMEOUT: Final = 600_000 * MS  # torch.distributed aborts NCCL's collectives after 10 minutes
MOST_OUTAGES: Final = 1_000  # of one flapping link: the engines process each outage
_KEYS: Final = {  # kind -> (required keys, optional keys)
    "down": ((), ("until", "on_failure", "detection", "timeout")),
    "slow": (("factor",), ("until",)),
    "flap": (("down_for", "period"), ("until", "times", "on_failure", "detection", "timeout")),
    "background": (("share",), ("until",)),
}


class Fault(Model):
    """A fault of all links whose name matches the pattern `link`, from the time `at` on."""

    link: str
    """Name of a link, as `simcoll topology show` prints it. `*` and `?` match any text and any letter."""
    kind: Literal["down", "slow", "flap", "background"]
    """`down`: the links carry nothing. `slow`: their bandwidth is divided by `factor`. `flap`: they are down for
    `down_for` in every `period`. `background`: other traffic takes the `share` of their bandwidth at all times."""
    at: Duration
    """Time at which the fault begins, from the start of the run."""
    until: Duration | None = None
    """Time at which the fault ends. Default: never."""
    factor: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    """For `slow`: the number by which the bandwidth is divided."""
    share: Annotated[Share, Field(gt=0, lt=1)] | None = None
    """For `background`: the share of the bandwidth that other traffic takes."""
    down_for: Annotated[Duration, Field(gt=0)] | None = None
    """For `flap`: the length of each outage."""
    period: Annotated[Duration, Field(gt=0)] | None = None
    """For `flap`: the time from the beginning of one outage to the beginning of the next."""
    times: Annotated[StrictInt, Field(ge=1, le=MOST_OUTAGES)] | None = None
    """For `flap`: the number of outages."""
    on_failure: Literal["reroute", "fail"] = "fail"
    """`fail`: the run fails when a transfer has waited for the time `timeout`, as with NCCL. `reroute`: when the fault
    is detected, transfers take another route."""
    detection: Duration = MS
    """Time until a fault is detected. The default is an assumption: measure the time on your machine."""
    timeout: Annotated[Duration, Field(gt=0)] = TIMEOUT
    """Longest time that a transfer waits for a link. The default is the time after which torch aborts NCCL's
    collectives."""
    probability: Annotated[Share, Field(ge=0, le=1)] = 1.0
    """Probability of the fault in each replication."""

    @model_validator(mode="after")
    def _its_own_keys(self) -> Self:
        needed, allowed = _KEYS[self.kind]
        missing = [key for key in needed if getattr(self, key) is None]
        if missing:
            raise ValueError(f"{self.kind} needs {' and '.join(missing)}; add them")
        own = {"link", "kind", "at", "probability", *needed, *allowed}
        for key in sorted(self.model_fields_set - own):
            if getattr(self, key) is not None:
                raise ValueError(f"{self.kind} takes no {key}; leave it out")
        if "detection" in self.model_fields_set and self.on_failure != "reroute":
            raise ValueError("`detection` needs `on_failure: reroute`; add that, or leave out `detection`")
        if self.until is not None and self.until <= self.at:
            raise ValueError("`until` must be later than `at`; swap the two times, or leave out `until`")
        return self

    @model_validator(mode="after")
    def _comes_back_in_time(self) -> Self:
        if self.kind == "flap":
            if (self.until is None) == (self.times is None):
                raise ValueError("a flap takes either `until` or `times`; write one of the two")
            if (self.down_for or 0) >= (self.period or 0):
                raise ValueError("`down_for` must be less than `period`; for a link that stays down write `kind: down`")
            if self.until is not None and (self.until - self.at) // (self.period or 1) >= MOST_OUTAGES:
                raise ValueError(f"more than {MOST_OUTAGES} outages; write an earlier `until` or a longer `period`")
        longest = self.down_for or (self.until - self.at if self.until is not None and self.kind == "down" else 0)
        if self.on_failure == "fail" and longest > self.timeout:
            raise ValueError("the link recovers after `timeout`; leave out `until`, or write a longer `timeout`")
        return self

    def outages(self) -> Iterator[tuple[int, int]]:
        """Yield the begin and end in ps of each time span in which the links are down."""
        if self.kind == "down":
            yield self.at, NEVER if self.until is None else self.until
        elif self.kind == "flap":
            assert self.period
            assert self.down_for
            count = self.times or -(-((self.until or 0) - self.at) // self.period)
            for start in range(self.at, self.at + count * self.period, self.period):
                yield start, min(start + self.down_for, self.until or NEVER)

    @property
    def effect(self) -> str:
        """A short description of the fault for reports.

        >>> Fault.model_validate({"link": "*", "kind": "slow", "at": "1 us", "factor": 2}).effect
        'slow: 50 % of the rate'
        """
        if self.kind == "flap":
            times = [format_duration(time) for time in (self.down_for or 0, self.period or 0)]
            return f"flaps: down for {times[0]} in every {times[1]}"
        if self.kind == "slow":
            return f"slow: {100 * self.left:.3g} % of the rate"
        return self.kind if self.share is None else f"other traffic: {100 * self.share:.3g} % of the rate"

    @property
    def lasting(self) -> bool:
        """Whether the fault only reduces the bandwidth of links, during the whole run."""
        return self.kind in ("slow", "background") and self.at == 0 and self.until is None

    @property
    def left(self) -> float:
        """The share of the bandwidth that links keep during the fault."""
        return 1 / self.factor if self.factor else 1 - (self.share or 0.0)


def fit_together(faults: Sequence[Fault], replications: int | None, buckets: int, calls_of: str) -> None:
    """Raise ValueError if faults contradict the rest of the scenario. `calls_of`: the profile of a workload's calls of
    NCCL."""
    if replications is None and any(fault.probability < 1 for fault in faults):
        raise ValueError("faults with a `probability` need replications; add e.g. `replications: 200`")
    if calls_of and not all(fault.lasting for fault in faults):
        problem = f"with the kernels of {calls_of!r}, faults of a workload are links that are slow in the whole run"
        cure = "write `kind: slow` or `background` with `at: 0 us` and no `until`, or `profile: one-port`"
        raise ValueError(f"{problem}; {cure}")
    if buckets > 1:
        raise ValueError("faults and a collective in buckets cannot be combined; leave out `faults` or `buckets`")


class FaultWindow(NamedTuple):
    """A time span in which a fault affects `links` (the names that match the pattern `link`). `begin` and `end` are in
    ps from the start of the run; `end` is NEVER if the fault lasts."""

    kind: str
    effect: str
    link: str
    links: frozenset[str]
    begin: int
    end: int


def windows(faults: Sequence[Fault], names: Sequence[str]) -> list[FaultWindow]:
    """Return the time spans of each fault with its links. `names`: all links. Raises InputError for an unknown link."""
    found = []
    for fault in faults:
        links = frozenset(names[link] for link in _links(fault, names))
        spans = list(fault.outages()) or [(fault.at, NEVER if fault.until is None else fault.until)]
        found += [FaultWindow(fault.kind, fault.effect, fault.link, links, *span) for span in spans]
    return found


def weakened(topology: Topology, faults: Sequence[Fault]) -> Topology:
    """Return the topology with the bandwidths reduced by lasting faults. Raises InputError for an unknown link."""
    left = np.ones(len(topology.links))
    for fault in faults:
        left[_links(fault, topology.link_names)] *= fault.left
    return with_less(topology, left)


def with_less(topology: Topology, left: NDArray[np.float64]) -> Topology:
    """Return the topology with each bandwidth multiplied by `left`, float64 (links,). Links that keep any
    share have at least 1 B/s."""
    rates = np.rint(topology.bandwidths * left).astype(np.int64)
    least = np.where(left > 0, np.minimum(topology.bandwidths, 1), 0)
    return topology.with_rates(np.maximum(rates, least), topology.latencies)


class _Outage(NamedTuple):
    """A time span in ps in which a link is down. `noticed`: the time at which routes change because of it, or NEVER."""

    link: int
    start: int
    until: int
    noticed: int


class ChangingLinks(NamedTuple):
    """How a program's links follow from those of a `machine`, which faults name. `rates` returns the program's B/s,
    int64 (links,), if each of the machine's links keeps the share `left` of its bandwidth, (links of the machine,).
    `rails` holds the routes of the channels of each NIC, one of which the program runs: all share links equally."""

    machine: Topology
    rates: Callable[[NDArray[np.float64]], NDArray[np.int64]]
    rails: Sequence[Sequence[Route]]


def struck(
    program: Program, topology: Topology, faults: Sequence[Fault], began: int = 0, links: ChangingLinks | None = None
) -> Program:
    """Return the program with the changes of links that faults cause. The program begins `began` ps after the time from
    which the faults count. `topology` has its links; `links` is for calls whose rates are not those of the topology.
    Raises InputError for an unknown link."""
    if not faults:
        return program

    def scaled(left: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the bandwidths of all views: topology's links come first in each."""
        factors = np.append(left, np.ones(program.servers - len(left)))
        wide = program.bandwidths.reshape(-1, program.servers) * factors
        return np.where(wide > 0, np.maximum(1, np.rint(wide)), 0).astype(np.int64).ravel()

    machine, rates, rails = links or ChangingLinks(topology, scaled, ())
    number = {name: link for link, name in enumerate(program.link_names[: program.servers])}
    outages: list[_Outage] = []
    weak: list[tuple[int, int, float, list[int]]] = []  # from, until, remaining share, links
    timeouts: dict[int, int] = {}
    for fault in faults:
        hit = _links(fault, machine.link_names)
        for link in hit:
            for start, until in fault.outages():
                noticed_at = start + fault.detection if fault.on_failure == "reroute" else NEVER
                outages.append(_Outage(link, start - began, until - began, noticed_at - began))
                timeouts[link] = min(timeouts.get(link, NEVER), fault.timeout)
        if fault.left < 1:
            until = NEVER if fault.until is None else fault.until
            weak.append((fault.at - began, until - began, fault.left, hit))
    names = machine.link_names
    noticed = [
        outage._replace(link=number[names[outage.link]])
        for outage in outages
        if max(0, outage.noticed) < outage.until and names[outage.link] in number
    ]
    notices = sorted({max(0, outage.noticed) for outage in noticed})
    crowded = _crowded(topology, rails, noticed, notices) if rails and notices else None
    spans = [*((outage.start, outage.until, 0.0, [outage.link]) for outage in outages), *weak]
    rows, before = list[tuple[int, int, int, int]](), program.bandwidths
    for time in sorted({*notices, *(max(0, time) for span in spans for time in span[:2] if time < NEVER // 2)}):
        left = np.ones(len(names))
        for start, until, share, hit in spans:
            left[hit] *= share if start <= time < until else 1.0
        now = rates(left)
        if crowded is not None:
            shared = np.rint(now * crowded[np.searchsorted(notices, time, side="right")]).astype(np.int64)
            now = np.maximum(shared, np.minimum(now, 1))
        rows += [(time, NONE, link, int(now[link])) for link in np.flatnonzero(now != before).tolist()]
        before = now
    rows += [
        (when, turn, link, 0)
        for turn, when in enumerate(notices, 1)
        for outage in noticed
        if max(0, outage.noticed) == when
        for link in _views(program, outage.link)
    ]
    at, turn, changed, bandwidth = np.array(sorted(set(rows)), np.int64).reshape(-1, 4).T
    routes, part, force = _around(program, topology, noticed, notices)
    dead = [(number[names[link]], timeout) for link, timeout in timeouts.items() if names[link] in number]
    patience = {view: timeout for link, timeout in dead for view in _views(program, link)}
    changes = LinkChanges(at, changed, bandwidth, turn, force, patience, began)
    return replace(program, routes=routes, part=part, changes=changes)


def _links(fault: Fault, names: Sequence[str]) -> list[int]:
    links = matching(fault.link, names)
    if not links:
        raise wrong("faults", f"no link is called {fault.link!r}", did_you_mean(fault.link, names))
    return links


def _views(program: Program, link: int) -> range:
    """Return the numbers of all views of a link. Each call of a program has a view: a copy with its own bandwidth."""
    return range(link, len(program.bandwidths), program.servers)


def _around(
    program: Program, topology: Topology, outages: Sequence[_Outage], notices: Sequence[int]
) -> tuple[ProgramRoutes, NDArray[Any] | None, NDArray[np.int32]]:
    """Find detours around dead links, at each time in `notices` at which outages are detected. Returns the program's
    routes followed by the detours, the operation of each route, and a table as `_detoured` does."""
    src, dst, hop, links = program.routes
    ways = [links[a:b].tolist() for a, b in zip(hop[:-1].tolist(), hop[1:].tolist(), strict=True)]
    ways, way_of, force = _detoured(topology, ways, src != dst, program.servers, outages, notices)
    hop = np.cumsum([0, *map(len, ways)]).astype(np.int32)
    every = np.array([link for way in ways for link in way], np.int32)
    return (
        ProgramRoutes(src[way_of], dst[way_of], hop, every),
        None if program.part is None else program.part[way_of],
        force,
    )


def _detoured(
    topology: Topology,
    ways: list[list[int]],
    moved: Sequence[bool] | NDArray[np.bool_],
    servers: int,
    outages: Sequence[_Outage],
    notices: Sequence[int],
) -> tuple[list[list[int]], list[int], NDArray[np.int32]]:
    """Return the routes `ways` followed by detours, for each the number of the route that it began as, and a table
    (notices + 1, routes): row i holds for each route the number of the route that replaces it after notice i. A
    replaced route is not used again. Only routes that are `moved` change. A view has `servers` links."""
    ways, way_of = list(ways), list(range(len(ways)))
    force = np.tile(np.arange(len(ways), dtype=np.int32), (len(notices) + 1, 1))
    known: dict[frozenset[int], _Detours] = {}
    made: dict[tuple[int, Route], int] = {}
    for turn, when in enumerate(notices, 1):
        force[turn] = force[turn - 1]
        fresh = {outage.link for outage in outages if max(0, outage.noticed) == when}
        dead = frozenset(outage.link for outage in outages if max(0, outage.noticed) <= when < outage.until)
        if dead not in known:
            known[dead] = _Detours(topology, dead)
        for way, now in enumerate(force[turn].tolist()):
            if not moved[way] or not fresh.intersection(link % servers for link in ways[now]):
                continue
            view, ends = ways[way][0] // servers, [link % servers for link in ways[way]]
            route = known[dead].route(ends)
            if route is not None:
                route = tuple(link + view * servers for link in route)
                if (way, route) not in made:
                    made[way, route] = len(ways)
                    ways.append(list(route))
                    way_of.append(way)
                force[turn, way] = made[way, route]
    return ways, way_of, force


def _crowded(
    topology: Topology, rails: Sequence[Sequence[Route]], outages: Sequence[_Outage], notices: Sequence[int]
) -> NDArray[np.float64]:
    """Return the share of its rate that each link keeps for a channel after each notice, float64 (notices + 1, links):
    channels of more NICs than before may use it, because they go around dead links."""
    ways = [list(route) for routes in rails for route in routes]
    of_rail = [rail for rail, routes in enumerate(rails) for _ in routes]
    ways, _, force = _detoured(topology, ways, [True] * len(ways), len(topology.links), outages, notices)
    users = np.zeros((len(notices) + 1, len(rails), len(topology.links)), np.int64)
    for turn, taken in enumerate(force.tolist()):
        for rail, way in zip(of_rail, taken, strict=True):
            users[turn, rail, ways[way]] = 1
    load = users.sum(axis=1)
    first: NDArray[np.int64] = np.maximum(1, load[0])
    found: NDArray[np.float64] = first / np.maximum(first, load)
    return found


class _Detours:
    """Finds routes around the `dead` links, by the topology's routing policy."""

    def __init__(self, topology: Topology, dead: frozenset[int]):
        self.topology = topology
        self.alive = [link for link in range(len(topology.links)) if link not in dead]
        ends = [topology.links[link] for link in self.alive]
        nodes = {device: topology.node_of(device) for device in topology.kinds}
        widths = [int(topology.bandwidths[link]) for link in self.alive]
        self.router = Router(ends, topology.routing, topology.kinds, nodes, widths)
        self.known: dict[tuple[str, str], Route | None] = {}

    def route(self, before: Sequence[int]) -> Route | None:
        """Return a detour between the ends of the route `before`; None if there is none."""
        if max(before) >= len(self.topology.links):  # a simulated link that represents several links
            return None
        src, dst = self.topology.links[before[0]][0], self.topology.links[before[-1]][1]
        if (src, dst) not in self.known:
            detour = self.router.route(src, dst)
            self.known[src, dst] = None if detour is None else tuple(self.alive[link] for link in detour)
        return self.known[src, dst]
