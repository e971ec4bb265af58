"""The scenario's key `faults`: links that fail, slow down or carry other traffic, and their effect on a program."""

from collections.abc import Iterator, Sequence
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
from simcoll.scenario.profile import Profile
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


def fit_together(faults: Sequence[Fault], replications: int | None, profile: Profile, buckets: int) -> None:
    """Raise ValueError if faults contradict the rest of the scenario."""
    if replications is None and any(fault.probability < 1 for fault in faults):
        raise ValueError("faults with a `probability` need replications; add e.g. `replications: 200`")
    other = "or take a profile without kernels, e.g. `profile: one-port`"
    if profile.as_nccl and not all(fault.lasting for fault in faults):
        problem = f"with the kernels of {profile.name!r}, a fault can only be a link that is slow in the whole run"
        raise ValueError(f"{problem}; write `kind: slow` or `background` with `at: 0 us` and no `until`, {other}")
    if profile.as_nccl and replications:
        problem = f"with the kernels of {profile.name!r}, faults are the same in all replications"
        cure = "leave out `replications`, or write `variability: {slow_links: …}` instead of `faults`"
        raise ValueError(f"{problem}; {cure}, {other}")
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
    """Return the topology with each bandwidth multiplied by `left`, float64 (links,). Links that are up keep at least 1
    B/s."""
    rates = np.rint(topology.bandwidths * left).astype(np.int64)
    return topology.with_rates(np.maximum(rates, np.minimum(topology.bandwidths, 1)), topology.latencies)


class _Outage(NamedTuple):
    """A time span in ps in which a link is down. `noticed`: the time at which routes change because of it, or NEVER."""

    link: int
    start: int
    until: int
    noticed: int


def struck(program: Program, topology: Topology, faults: Sequence[Fault], began: int = 0) -> Program:
    """Return the program with the changes of links that faults cause. The program begins `began` ps after the time from
    which the faults count. Raises InputError for an unknown link."""
    if not faults:
        return program
    outages: list[_Outage] = []
    weak: dict[int, list[tuple[int, int, float]]] = {}  # link -> (from, until, remaining share)
    timeouts: dict[int, int] = {}
    for fault in faults:
        for link in _links(fault, topology.link_names):
            for start, until in fault.outages():
                noticed_at = start + fault.detection if fault.on_failure == "reroute" else NEVER
                outages.append(_Outage(link, start - began, until - began, noticed_at - began))
                timeouts[link] = min(timeouts.get(link, NEVER), fault.timeout)
            if fault.left < 1:
                until = NEVER if fault.until is None else fault.until
                weak.setdefault(link, []).append((fault.at - began, until - began, fault.left))
    rows = _bandwidths(program, outages, weak)
    noticed = [outage for outage in outages if max(0, outage.noticed) < outage.until]
    notices = sorted({max(0, outage.noticed) for outage in noticed})
    rows += [
        (when, turn, link, 0)
        for turn, when in enumerate(notices, 1)
        for outage in noticed
        if max(0, outage.noticed) == when
        for link in _views(program, outage.link)
    ]
    at, turn, links, bandwidth = np.array(sorted(set(rows)), np.int64).reshape(-1, 4).T
    routes, part, force = _around(program, topology, noticed, notices)
    patience = {view: timeout for link, timeout in timeouts.items() for view in _views(program, link)}
    changes = LinkChanges(at, links, bandwidth, turn, force, patience)
    return replace(program, routes=routes, part=part, changes=changes)


def _links(fault: Fault, names: Sequence[str]) -> list[int]:
    links = matching(fault.link, names)
    if not links:
        raise wrong("faults", f"no link is called {fault.link!r}", did_you_mean(fault.link, names))
    return links


def _views(program: Program, link: int) -> range:
    """Return the numbers of all views of a link. Each call of a program has a view: a copy with its own bandwidth."""
    return range(link, len(program.bandwidths), program.servers)


def _bandwidths(
    program: Program, outages: Sequence[_Outage], weak: dict[int, list[tuple[int, int, float]]]
) -> list[tuple[int, int, int, int]]:
    """Return every change of a bandwidth as (time in ps, NONE, link, B/s). If faults of a link coincide, their factors
    multiply."""
    rows = []
    down: dict[int, list[tuple[int, int]]] = {}
    for outage in outages:
        down.setdefault(outage.link, []).append((outage.start, outage.until))
    for view in (view for link in {*down, *weak} for view in _views(program, link)):
        rated, link = int(program.bandwidths[view]), view % program.servers
        before = rated
        spans = [*down.get(link, []), *(span[:2] for span in weak.get(link, []))]
        for time in sorted({max(0, time) for span in spans for time in span if time < NEVER // 2}):
            share = float(not any(start <= time < until for start, until in down.get(link, [])))
            for start, until, left in weak.get(link, []):
                share *= left if start <= time < until else 1.0
            after = max(1, round(rated * share)) if rated and share else 0
            if after != before:
                rows.append((time, NONE, view, after))
            before = after
    return rows


def _around(
    program: Program, topology: Topology, outages: Sequence[_Outage], notices: Sequence[int]
) -> tuple[ProgramRoutes, NDArray[Any] | None, NDArray[np.int32]]:
    """Find detours around dead links, at each time in `notices` at which outages are detected. Returns the program's
    routes followed by the detours, the operation of each route, and a table (notices + 1, routes): row i holds for each
    route the number of the route that replaces it after notice i. A replaced route is not used again."""
    src, dst, hop, links = program.routes
    ways = [links[a:b].tolist() for a, b in zip(hop[:-1].tolist(), hop[1:].tolist(), strict=True)]
    way_of = list(range(len(ways)))
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
            if src[way] == dst[way] or not fresh.intersection(link % program.servers for link in ways[now]):
                continue
            view, ends = ways[way][0] // program.servers, [link % program.servers for link in ways[way]]
            route = known[dead].route(ends)
            if route is not None:
                route = tuple(link + view * program.servers for link in route)
                if (way, route) not in made:
                    made[way, route] = len(ways)
                    ways.append(list(route))
                    way_of.append(way)
                force[turn, way] = made[way, route]
    hop = np.cumsum([0, *map(len, ways)]).astype(np.int32)
    every = np.array([link for way in ways for link in way], np.int32)
    return (
        ProgramRoutes(src[way_of], dst[way_of], hop, every),
        None if program.part is None else program.part[way_of],
        force,
    )


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
