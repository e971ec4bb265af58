"""Name the parameters that a calibration may fit, with their costs, limits and units.

A parameter is fitted as a *cost*, in which times are linear: a duration in ps (`launch`, `o_send`, `o_recv`, `g`), the
time of a byte in ps/B (`gamma`, `channel_bandwidth`), the inverse of an efficiency, or a factor of latencies. A name
with a dot tells what the parameter belongs to: a kind of links (`efficiency.cable`), a kind of block of NCCL's kernels
(`LL.hop`), or a way of launching (`host.launch`, `graph.launch`). Others belong to messages between nodes
(`transport.proxy`), or to kernels that read peers' memory (`pull.load`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from simcoll.accuracy.fit.least_squares import Bounds
from simcoll.config.numpy_helpers import Floats
from simcoll.engine.timing_model import PS_PER_S, Params
from simcoll.errors import InputError, did_you_mean
from simcoll.nccl.kernel_costs import Kernels
from simcoll.nccl.transports_between_nodes import Transport
from simcoll.scenario.profile import CostSetting, CudaGraphCosts, HostCosts, LinkScale, Profile, PullCosts

DURATIONS: Final = ("launch", "o_send", "o_recv", "g")
BY_SIZE: Final = ("host.channel", "host.block")  # calls with few channels do not show these
OF_HOST: Final = ("host.launch", "host.message", *BY_SIZE)  # costs if one process launches for several GPUs
OF_GRAPH: Final = ("graph.launch", "graph.upload")
LAUNCHES: Final = (*OF_HOST, *OF_GRAPH)
OF_PULL: Final = ("pull.launch", "pull.flag", "pull.load", "pull.reach")  # costs of kernels that read peers' memory
BESIDE: Final = (*LAUNCHES, *OF_PULL)  # these have their own records of fits in a profile
PER_BYTE: Final = ("gamma", "channel_bandwidth")
OF_LINKS: Final = ("efficiency", "latency")
OF_MODEL: Final = (*DURATIONS[1:], *PER_BYTE)  # used by engines; others change links or are added to engines' times
OF_CALLS: Final = ("grid", "spread")  # costs of kernels, whatever their blocks
OF_BLOCKS: Final = {  # costs of kernels' blocks; of two with the same effect the earlier one is fitted
    "LL": ("hop", "first", "rate", "own", "store", "net", "host", "host_rate"),
    "LL128": ("hop", "reach", "net", "host", "host_rate"),
    "Simple": ("start", "hop", "slice", "turn", "load", "store", "net", "host", "host_rate"),
    "NVLS": ("start", "hop", "rate", "reach"),
    "P2P": ("start", "hop", "rate", "first", "both", "peer", "each", "reach", "spread", "net", "host", "host_rate"),
}
TRANSPORT: Final = "transport"
OF_TRANSPORT: Final = tuple(  # costs of messages between nodes
    f"{TRANSPORT}.{key}"
    for key in ("latency", "connection", "proxy", "operation", "flush", "staging", "unexpected", "congestion")
)
_AS: Final = {  # a parameter of blocks or transports -> the parameter whose unit and limits it shares
    **dict.fromkeys(("own", "spread", "turn", "saved", "congestion"), "own"),
    **dict.fromkeys(("load",), "load"),
    **dict.fromkeys(("grid", "hop", "net", "slice", "start", "each", "peer", "host", "store"), "launch"),
    **dict.fromkeys(("latency", "proxy", "operation", "flush", "unexpected"), "launch"),
    **dict.fromkeys(("first", "rate", "both", "connection", "staging", "host_rate"), "channel_bandwidth"),
    "reach": "efficiency",
}
_OF_CALLS: Final = {"grid": "launch", "spread": "own"}
MOST_COSTLY: Final = {"efficiency": 1e3, "latency": 1e4}  # largest costs of links; no topology file is that wrong
SLOW: Final = 10**9  # B/s at which hosts copy messages for NICs: the order of `staging`
MOST_OWN: Final = 4.0  # the largest `own` that `BlockCosts` allows
# Costs of every call of NCCL on any machine, besides the hops of its blocks: the host launches it, a proxy's thread
# hands messages over, and they go from host to host. Other costs may be zero: a grid, a flush (Hopper has none), the
# launch of a call inside a graph.
_ALWAYS: Final = ("launch", "transport.proxy", "transport.latency")
LEAST_COSTLY: Final = {"efficiency": 0.5}  # twice the rated bandwidth: beyond, another schedule has run


def with_costs(setting: CostSetting, costs: Mapping[str, float]) -> CostSetting:
    """Return the setting with the parameters in `costs` changed to these costs."""
    if setting.graph is None and not costs.keys().isdisjoint(OF_GRAPH):
        setting = replace(setting, graph=_like_other_calls(setting.launch))
    for name, cost in costs.items():
        key, _, kind = name.partition(".")
        value = _value(name, cost)
        if name == "launch":
            setting = replace(setting, launch=value)
        elif name in OF_MODEL:
            setting = replace(setting, params={**setting.params, name: value})
        else:
            owner, attribute = _owner(name, setting)
            owner = owner.model_copy(update={attribute: value})
            if key in OF_LINKS:
                setting = replace(setting, links={**setting.links, kind: owner})
            elif key in OF_BLOCKS:
                kernels = setting.kernels or Kernels()
                setting = replace(setting, kernels=kernels.model_copy(update={key: owner}))
            else:
                setting = replace(setting, **{"kernels" if name in OF_CALLS else key: owner})
    return setting


def cost(name: str, profile: Profile, params: Params) -> float:
    """Return the cost of a parameter before a fit, from the profile or `params`."""
    if name == "launch":
        return float(profile.launch)
    value = getattr(params, name) if name in OF_MODEL else getattr(*_owner(name, profile))
    above = {"channel_bandwidth": PS_PER_S, "gamma": PS_PER_S, "efficiency": 1.0}.get(family(name))
    return above / value if above and value else float(value)


def _owner(name: str, of: Profile | CostSetting) -> tuple[Any, str]:
    """Return the part of a profile that has a parameter, and the parameter's attribute there; a missing part is made
    with its defaults."""
    key, _, kind = name.partition(".")
    if key in OF_LINKS:
        return of.links.get(kind, LinkScale()), key
    if of_kernels(name):
        kernels = of.kernels or Kernels()
        return (getattr(kernels, key), kind) if kind else (kernels, key)
    if key == "graph":
        return of.graph or _like_other_calls(of.launch), kind
    return getattr(of, key) or {"host": HostCosts, "pull": PullCosts, TRANSPORT: Transport}[key](), kind


def _like_other_calls(launch: int) -> CudaGraphCosts:
    """Return costs of a CUDA graph whose launch takes as long as that of other calls (`launch`, ps)."""
    return CudaGraphCosts.model_construct(launch=launch)


def _value(name: str, cost: float) -> Any:
    """Convert a cost to the profile's value: a share, a factor, a time in ps, or a rate in B/s."""
    unit_of = family(name)
    if unit_of in DURATIONS:
        return round(cost)
    if unit_of == "efficiency":
        return 1 / cost if cost else 1.0
    return cost if unit_of in ("own", "load", "latency") else _rate(cost)


def of_kernels(name: str) -> bool:
    """Return whether a parameter is a cost of NCCL's kernels."""
    return name in OF_CALLS or name.partition(".")[0] in OF_BLOCKS


def family(name: str) -> str:
    """Return the parameter with the same unit and limits: `launch` for times, `channel_bandwidth` for rates,
    `efficiency` for shares of links.
    """
    if name in OF_PULL:
        return "efficiency" if name == "pull.reach" else "launch"
    if name in LAUNCHES:
        return "launch"
    key, _, kind = name.partition(".")
    return _AS[kind] if key == TRANSPORT or key in OF_BLOCKS else _OF_CALLS.get(key, key)


def _rate(cost: float) -> int:
    """Convert ps/B to B/s; 0, which means no limit, if that is faster than any link."""
    return round(PS_PER_S / cost) if cost * 10**15 > PS_PER_S else 0


def candidates(kinds: Iterable[str], reduces: bool, kernels: bool = False) -> list[str]:
    """Return the parameters to fit if the user names none. If two have the same effect, the earlier one is fitted."""
    kinds = list(kinds)
    if kernels:
        through = "pcie" in kinds  # then some transfers may go through the host's memory
        blocks = [name for name in BLOCKS if through or name.partition(".")[2] not in ("host", "host_rate")]
        return [*(f"efficiency.{kind}" for kind in kinds), "launch", *OF_CALLS, *blocks, *OF_TRANSPORT]
    of_links = [f"latency.{kind}" for kind in kinds]
    return [f"efficiency.{kind}" for kind in kinds] + ["launch", *of_links, "o_send", "o_recv"] + ["gamma"] * reduces


def named(names: Sequence[str], kinds: Sequence[str]) -> list[str]:
    """Return the parameters that a user names; `efficiency` and `latency` stand for every kind of links.

    Raises InputError for a name that is no parameter.
    """
    of_links = (f"{key}.{kind}" for key in OF_LINKS for kind in kinds)
    known = [*DURATIONS, *PER_BYTE, *BESIDE, *OF_CALLS, *BLOCKS, *OF_TRANSPORT, *of_links]
    parameters: list[str] = []
    for name in names:
        meant = [f"{name}.{kind}" for kind in kinds] if name in OF_LINKS else [name]
        if not meant or not set(meant) <= set(known):
            raise InputError(f"--free: {name!r} is no parameter", did_you_mean(name, [*known, *OF_LINKS]))
        parameters += meant
    return list(dict.fromkeys(parameters))


BLOCKS: Final = tuple(f"{kind}.{key}" for kind, keys in OF_BLOCKS.items() for key in keys)


def bounds(names: Sequence[str], measured_ps: Floats, fastest: int) -> Bounds:
    """Return limits and scales of the costs.

    The longest measured time limits durations and times of a byte. The scale of a duration is the shortest measured
    time; of a byte, its time at `fastest` (B/s; to NICs: SLOW); of a share, 1.
    """
    longest, shortest = float(measured_ps.max()), float(measured_ps.min())
    limits = {
        **dict.fromkeys(DURATIONS, (0.0, longest, shortest)),
        **dict.fromkeys(PER_BYTE, (0.0, longest, PS_PER_S / fastest)),
        **{key: (LEAST_COSTLY.get(key, 0.0), MOST_COSTLY[key], 1.0) for key in OF_LINKS},
        "own": (0.0, MOST_OWN, 1.0),
        "load": (0.0, 1.0, 1.0),
    }
    to_nics = (0.0, longest, PS_PER_S / SLOW)
    limits["pull.reach"] = (1.0, *limits["efficiency"][1:])  # loads are never quicker than the links
    rows = [
        to_nics if name in ("transport.staging", "transport.connection") else limits.get(name, limits[family(name)])
        for name in names
    ]
    return Bounds(*np.array(rows).reshape(-1, 3).T)


def text(name: str, cost: float) -> str:
    """Return a cost as profiles write it; durations are whole ps.

    >>> text("o_send", 1.5e6), text("efficiency.cable", 1.25), text("gamma", 1.3), text("channel_bandwidth", 0)
    ('1.5 us', '80 %', '1.3 ps/B', 'none')
    >>> text("o_send", 1e-4)
    '0 us'
    """
    unit_of = family(name)
    if unit_of in DURATIONS:
        return f"{round(cost) / 1e6:.6g} us"
    if unit_of in (*OF_LINKS, "own", "load"):
        return f"{100 * (1 / cost if unit_of == 'efficiency' else cost):.6g} %"
    if not _rate(cost):
        return "none"
    return f"{cost:.6g} ps/B" if unit_of == "gamma" else f"{PS_PER_S / cost / 1e9:.6g} GB/s"


def cost_of(name: str, text: str) -> float:
    """Return the cost that a profile writes as `text`.

    >>> cost_of("o_send", "1.5 us"), cost_of("efficiency.cable", "80 %"), cost_of("LL.rate", "none")
    (1500000.0, 1.25, 0.0)
    """
    of_unit = {"us": 1e6, "%": 0.01, "ps/B": 1.0, "GB/s": 1e9, "none": 0.0}
    number, _, unit = text.rpartition(" ")
    value = float(number or 0) * of_unit[unit]
    if unit == "GB/s":
        return PS_PER_S / value if value else 0.0
    return 1 / value if unit == "%" and family(name) == "efficiency" and value else value


def always(name: str) -> bool:
    """Return whether every call has this cost, so that a fit must not make it zero."""
    return name in _ALWAYS or name.endswith(".hop")


def falls(name: str) -> bool:
    """Return whether a profile's number falls as the cost rises, e.g. a bandwidth."""
    return family(name) in ("efficiency", "channel_bandwidth")


def described(name: str, cost: float, ends: Sequence[float]) -> dict[str, object]:
    """Return a parameter's `value`, `low` and `high` as numbers in `unit`; None stands for no limit."""
    texts = [text(name, number) for number in (cost, *ends)]
    unit = next((shown.partition(" ")[2] for shown in texts if shown != "none"), "")
    value, low, high = (None if shown == "none" else float(shown.partition(" ")[0]) for shown in texts)
    return {"name": name, "value": value, "low": low, "high": high, "unit": unit}
