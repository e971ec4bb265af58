"""The parameters that a calibration may fit: how they are named, what they cost, between what they lie.

A parameter is fitted as a *cost*, in which times are linear: a duration in ps (`launch`, `o_send`, `o_recv`, `g`), the
time of a byte in ps/B (`gamma`, `channel_bandwidth`), the inverse of an efficiency, a factor of latencies. Those of
links are of a kind of links: `efficiency.cable`; those of NCCL's kernels of a kind of block: `LL.hop`; those of
other ways to launch of the host, or of a graph: `host.launch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from simcoll.accuracy.fit.least_squares import Bounds
from simcoll.config.arrays import Floats
from simcoll.engine.timing_model import PS_PER_S, Params
from simcoll.errors import InputError, did_you_mean
from simcoll.nccl.kernel_costs import Kernels
from simcoll.scenario.profile import HostCosts, LinkScale, Profile

DURATIONS: Final = ("launch", "o_send", "o_recv", "g")
OF_HOST: Final = ("host.launch", "host.message")  # what other ways of launching cost than that of the profile
OF_GRAPH: Final = "graph.launch"
LAUNCHES: Final = (*OF_HOST, OF_GRAPH)
PER_BYTE: Final = ("gamma", "channel_bandwidth")
OF_LINKS: Final = ("efficiency", "latency")
OF_MODEL: Final = (*DURATIONS[1:], *PER_BYTE)  # what engines know of; the others are outside of their rules
OF_CALLS: Final = ("grid", "spread", "net")  # of kernels, whatever their blocks
OF_BLOCKS: Final = {  # of kernels: which are told apart, earlier ones first
    "LL": ("hop", "net_rate", "first", "rate", "own", "net", "net_tree", "host", "host_reach"),
    "LL128": ("hop", "reach", "net", "net_tree", "net_rate", "host", "host_reach"),
    "Simple": ("start", "hop", "slice", "turn", "load", "net", "net_tree", "net_rate", "host", "host_reach"),
    "NVLS": ("start", "hop", "reach", "net", "net_rate"),
    "P2P": ("start", "hop", "rate", "first", "both", "each", "reach", "net", "host", "host_reach"),
}
_AS: Final = {
    "grid": "launch",
    "spread": "own",
    "hop": "launch",
    "net": "launch",
    "net_tree": "launch",
    "slice": "launch",
    "start": "launch",
    "turn": "own",
    "saved": "own",
    "each": "launch",
    "first": "channel_bandwidth",
    "rate": "channel_bandwidth",
    "net_rate": "channel_bandwidth",
    "both": "channel_bandwidth",
    "reach": "efficiency",
    "host": "launch",
    "host_reach": "efficiency",
}
MOST_COSTLY: Final = {"efficiency": 1e3, "latency": 1e4}  # of links; the topology is not that wrong
SLOW: Final = 10**9  # B/s at which small messages may be brought to NICs
MOST_OWN: Final = 4.0  # as `Block` has it
LEAST_COSTLY: Final = {"efficiency": 0.5}  # beyond, the schedule is not the one that ran


@dataclass(frozen=True)
class ParameterSetting:
    """What a calibration changes: parameters of the model, the launch (ps), what becomes of links by kind, what kernels
    cost, and what other ways of launching cost; `graph` (ps) is the launch in a CUDA graph, by default the same."""

    params: Mapping[str, int] = field(default_factory=dict)
    launch: int = 0
    links: Mapping[str, LinkScale] = field(default_factory=dict)
    kernels: Kernels | None = None
    host: HostCosts = field(default_factory=HostCosts)
    graph: int | None = None

    @classmethod
    def of(cls, profile: Profile, params: Mapping[str, int] | None = None) -> ParameterSetting:
        """What a profile says, with parameters of the model."""
        graph = profile.graph.launch if profile.graph else None
        own = profile.launch, profile.links, profile.kernels
        return cls(params or {}, *own, profile.host or HostCosts(), graph)

    def of_launch(self, graph: bool) -> int:
        """The launch, in a CUDA graph or not."""
        return self.graph if graph and self.graph is not None else self.launch

    def at(self, costs: Mapping[str, float]) -> ParameterSetting:
        """With these costs of some parameters."""
        links, params, launch, kernels = dict(self.links), dict(self.params), self.launch, self.kernels
        host, graph = self.host, self.graph
        for name, cost in costs.items():
            what, _, kind = name.partition(".")
            if name == OF_GRAPH:
                graph = round(cost)
            elif name in OF_HOST:
                host = host.model_copy(update={kind: round(cost)})
            elif of_kernels(name):
                kernels = _changed(kernels, name, cost)
            elif kind:
                value = 1 / cost if what == "efficiency" else cost
                links[kind] = links.get(kind, LinkScale()).model_copy(update={what: value})
            elif name == "launch":
                launch = round(cost)
            else:
                params[name] = round(cost) if name in DURATIONS else _rate(cost)
        return ParameterSetting(params, launch, links, kernels, host, graph)


def of_kernels(name: str) -> bool:
    """Whether a parameter is one of NCCL's kernels."""
    return name in OF_CALLS or name.partition(".")[0] in OF_BLOCKS


def _family(name: str) -> str:
    """The parameter whose units and limits it shares."""
    if name in LAUNCHES:
        return "launch"
    what, _, kind = name.partition(".")
    return _AS.get(kind if what in OF_BLOCKS else what, kind if what in OF_BLOCKS else what)


def _changed(kernels: Kernels | None, name: str, cost: float) -> Kernels:
    """Kernels with another cost of a parameter."""
    found = kernels or Kernels()
    family, (what, _, key) = _family(name), name.partition(".")
    values = {"own": cost, "load": cost, "efficiency": 1 / cost if cost else 1.0, "launch": round(cost)}
    value = values.get(family, _rate(cost))
    changed = {key: value} if key else {}
    update = {what: getattr(found, what).model_copy(update=changed)} if key else {name: value}
    return found.model_copy(update=update)


def _of_kernels(name: str, kernels: Kernels) -> float:
    what, _, key = name.partition(".")
    value = getattr(getattr(kernels, what), key) if key else getattr(kernels, what)
    if value is None and key == "net_tree":
        return _of_kernels(f"{what}.net", kernels)
    if value is None:  # what hops between nodes take, where nothing says it
        return 0.0
    above = {"channel_bandwidth": PS_PER_S, "efficiency": 1.0}.get(_family(name))
    return above / value if above and value else float(value)


def cost(name: str, profile: Profile, params: Params) -> float:
    """What a parameter costs before anything is fitted."""
    what, _, kind = name.partition(".")
    if name == OF_GRAPH:
        return float(profile.graph.launch if profile.graph else profile.launch)
    if name in OF_HOST:
        return float(getattr(profile.host or HostCosts(), kind))
    if of_kernels(name):
        return _of_kernels(name, profile.kernels or Kernels())
    if kind:
        scale = profile.links.get(kind, LinkScale())
        return 1 / scale.efficiency if what == "efficiency" else scale.latency
    value = profile.launch if name == "launch" else getattr(params, name)
    return float(value) if name in DURATIONS else PS_PER_S / value if value else 0.0


def _rate(cost: float) -> int:
    """B/s of so many ps/B; 0, which is no limit, where it would be beyond all links."""
    return round(PS_PER_S / cost) if cost * 10**15 > PS_PER_S else 0


def candidates(kinds: Iterable[str], reduces: bool, kernels: bool = False) -> list[str]:
    """What is fitted unless something else is asked for; of two that the rows cannot tell apart the first is."""
    kinds = list(kinds)
    if kernels:
        through = "pcie" in kinds  # then some may go through the host's memory
        blocks = [name for name in BLOCKS if through or name.partition(".")[2] not in ("host", "host_reach")]
        return [*(f"efficiency.{kind}" for kind in kinds), "launch", *OF_CALLS, *blocks]
    of_links = [f"latency.{kind}" for kind in kinds]
    return [f"efficiency.{kind}" for kind in kinds] + ["launch", *of_links, "o_send", "o_recv"] + ["gamma"] * reduces


def named(names: Sequence[str], kinds: Sequence[str]) -> list[str]:
    """The parameters that a user names; `efficiency` and `latency` alone are of every kind. Raises InputError."""
    of_links = (f"{what}.{kind}" for what in OF_LINKS for kind in kinds)
    known = [*DURATIONS, *PER_BYTE, *LAUNCHES, *OF_CALLS, *BLOCKS, *of_links]
    found: list[str] = []
    for name in names:
        these = [f"{name}.{kind}" for kind in kinds] if name in OF_LINKS else [name]
        unknown = [one for one in these if one not in known]
        if unknown or not these:
            raise InputError(f"--free: {name!r} is no parameter", did_you_mean(name, [*known, *OF_LINKS]))
        found += these
    return list(dict.fromkeys(found))


BLOCKS: Final = tuple(f"{kind}.{key}" for kind, keys in OF_BLOCKS.items() for key in keys)


def bounds(names: Sequence[str], measured_ps: Floats, fastest: int) -> Bounds:
    """Between what costs lie. No duration is longer than the longest time, no byte slower than that for one byte; a
    change counts when it is of the order of the shortest time, of the `fastest` link's B/s (to NICs: of SLOW), or of
    1."""
    longest, shortest = float(measured_ps.max()), float(measured_ps.min())
    limits = {
        **dict.fromkeys(DURATIONS, (0.0, longest, shortest)),
        **dict.fromkeys(PER_BYTE, (0.0, longest, PS_PER_S / fastest)),
        **{what: (LEAST_COSTLY.get(what, 0.0), MOST_COSTLY[what], 1.0) for what in OF_LINKS},
        "own": (0.0, MOST_OWN, 1.0),
        "load": (0.0, 1.0, 1.0),
    }
    to_nics = (0.0, longest, PS_PER_S / SLOW)
    found = [to_nics if name.endswith(".net_rate") else limits[_family(name)] for name in names]
    return Bounds(*np.array(found).reshape(-1, 3).T)


def text(name: str, cost: float) -> str:
    """A cost as a profile says it; durations are whole ps.

    >>> text("o_send", 1.5e6), text("efficiency.cable", 1.25), text("gamma", 1.3), text("channel_bandwidth", 0)
    ('1.5 us', '80 %', '1.3 ps/B', 'none')
    >>> text("o_send", 1e-4)
    '0 us'
    """
    what = _family(name)
    if what in DURATIONS:
        return f"{round(cost) / 1e6:.6g} us"
    if what in (*OF_LINKS, "own", "load"):
        return f"{100 * (1 / cost if what == 'efficiency' else cost):.6g} %"
    if not _rate(cost):
        return "none"
    return f"{cost:.6g} ps/B" if what == "gamma" else f"{PS_PER_S / cost / 1e9:.6g} GB/s"


def falls(name: str) -> bool:
    """Whether what is shown falls as the cost rises."""
    return _family(name) in ("efficiency", "channel_bandwidth")


def told(name: str, cost: float, ends: Sequence[float]) -> dict[str, object]:
    """A parameter in numbers: `value`, `low` and `high` in `unit`."""
    texts = [text(name, one) for one in (cost, *ends)]
    unit = next((one.partition(" ")[2] for one in texts if one != "none"), "")
    value, low, high = (None if one == "none" else float(one.partition(" ")[0]) for one in texts)
    return {"name": name, "value": value, "low": low, "high": high, "unit": unit}
