"""The key `topology` of scenarios and of topology files: its fields, and checks of their combinations."""

import math
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Discriminator, Field, StrictInt, Tag, field_validator, model_validator

from simcoll import units
from simcoll.config.field_types import Count, OneOf, Share, text
from simcoll.config.yaml_tree import Model
from simcoll.topology import fabrics
from simcoll.topology.fabrics import FABRICS
from simcoll.topology.machine_files import (
    Bandwidth,
    DurationText,
    FabricRouting,
    RouteTable,
    Variant,
    in_place_of,
    quantity,
    shipped_systems,
)
from simcoll.topology.wiring import Link


class Spread(Model):
    """A random bandwidth for each link, drawn evenly from the range `value` ± `spread`."""

    value: Bandwidth
    """Mean bandwidth."""
    spread: Annotated[str, quantity("share"), text("20 %")]
    """Greatest deviation from the mean, as a share of it."""

    @model_validator(mode="after")
    def _leaves_something(self) -> Self:
        if units.parse_exact(self.spread, "share") >= 1:
            raise ValueError(f"a spread of {self.spread!r} leaves links without bandwidth; stay below '100 %'")
        return self


class Cable(Model):
    """The key `link`: the cables that join machines and switches of a fabric."""

    bandwidth: Annotated[
        Annotated[Bandwidth, Tag("<fixed>")] | Annotated[Spread, Tag("<drawn>")],
        Discriminator(lambda value: "<drawn>" if isinstance(value, dict | Spread) else "<fixed>"),
    ]
    """Bandwidth of each direction."""
    latency: DurationText
    """Latency of each direction."""

    @property
    def link(self) -> Link:
        """The link that a cable makes, with the nominal bandwidth, without the random spread."""
        value = self.bandwidth.value if isinstance(self.bandwidth, Spread) else self.bandwidth
        return Link(units.parse(value, "bandwidth"), latency_ps=units.parse(self.latency, "duration"), kind="cable")


class Override(Model):
    """A change of all links whose name matches a pattern."""

    bandwidth: Annotated[str, quantity("bandwidth"), text("20 GB/s")] | None = None
    """New bandwidth; `0 B/s` takes the link down."""
    latency: DurationText | None = None
    """New latency."""

    def changed(self, link: Link) -> Link:
        """Return the link with the bandwidth and latency that this change sets."""
        bandwidth = link.bandwidth if self.bandwidth is None else units.parse(self.bandwidth, "bandwidth")
        latency = link.latency_ps if self.latency is None else units.parse(self.latency, "duration")
        return Link(bandwidth, latency_ps=latency, kind=link.kind)


class PathDraws(Model):
    """Random draws of the routes that hashes choose. They are replications with `variability: {ecmp: …}`."""

    qps_per_connection: Annotated[StrictInt, Field(ge=1, le=128)] = 1
    """Number of queue pairs of a connection, each of which takes a route of its own. A rank has a connection to another
    for each of NCCL's channels that share a NIC."""
    draws: Annotated[StrictInt, Field(ge=1, le=100_000)] = 100
    """Number of draws."""


class TopologySpec(Model):
    """The key `topology`: a shipped system, a topology file, or a fabric of hosts without GPUs."""

    system: Annotated[str, OneOf("shipped system", shipped_systems, instead=in_place_of)] | None = None
    """Name of a shipped system (`simcoll topology list`)."""
    nodes: Count | None = None
    """Number of nodes of the system. Default: 1."""
    gpus: Count | None = None
    """Number of GPUs of a node: the first ones, with their share of the NICs. Default: all of the system."""
    nics: Count | None = None
    """Number of NICs of a node, evenly beside its GPUs. Default: as the system has them."""
    nic_bandwidth: Bandwidth | None = None
    """Rate of a NIC. Default: as the system has it."""
    fabric: Annotated[str, OneOf("fabric", lambda: FABRICS)] | None = None
    """Network that joins the nodes (default `rail-optimised`), or hosts without GPUs."""
    hosts: Count | None = None
    """Number of hosts without GPUs."""
    link: Cable | None = None
    """Bandwidth and latency of the fabric's cables."""
    links: dict[str, Override] = Field(default_factory=dict)
    """Changes of single links, by name. `*` and `?` in a name match any text and any letter."""
    levels: Literal[2, 3] | None = None
    """Number of switch levels of a fat tree."""
    hosts_per_leaf: Count | None = None
    """Number of hosts at a leaf switch. Default: 4."""
    nodes_per_leaf: Count | None = None
    """Number of nodes at a leaf switch. Default: 4 in a fat tree, 32 on rails."""
    leaves_per_pod: Count | None = None
    """Number of leaf switches in a pod, for a fat tree of 3 levels. Default: 4."""
    oversubscription: Annotated[float, Field(ge=1, strict=True, allow_inf_nan=False)] | None = None
    """Bandwidth from a leaf switch down to its hosts, divided by its bandwidth up to the spines. Default: 1."""
    spines: Count | None = None
    """Number of spine switches. Default: 1."""
    dims: Annotated[tuple[Count, ...], Field(min_length=2, max_length=3)] | None = None
    """Lengths of the 2 or 3 sides of a torus."""
    routing: FabricRouting | None = None
    """How messages find their way. `shortest`: by the shortest route; the default inside a node and on fabrics without
    switches. `ecmp`: by one of the equal routes, which a hash of the two ends chooses; the default for hosts behind
    switches. `rails`: over the NIC of the destination's rail; the default for nodes. `own-nics`: over the NIC of each
    end; if they are on different rails, the message crosses from rail to rail. `adaptive`, for fat trees and rails:
    switches spread each message over all equal routes, so that all spines together act like one."""
    spraying: Annotated[Share, Field(gt=0, le=1)] | None = None
    """Share of the bandwidth between switches that `routing: adaptive` reaches. Default: 100 %."""
    ecmp: PathDraws | None = None
    """Random draws of routes, for routing by hashes: `time_us` is the time by one fixed hash, and `time_us_p50` and
    `time_us_p95` are quantiles over the draws."""
    routes: RouteTable = Field(default_factory=dict)
    """Fixed routes: `{"node0.gpu0->node0.gpu5": [node0.gpu0, node0.gpu1, node0.gpu5]}`."""
    file: str | None = None
    """Path of a topology file."""

    @field_validator("file")
    @classmethod
    def _has_a_name(cls, file: str | None) -> str | None:
        if file == "":
            raise ValueError("the path is empty; give the path of a YAML file, or leave out `file`")
        return file

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.spraying is not None and self.routing != "adaptive":
            raise ValueError("'spraying' is what switches reach with routing: adaptive; add that, or leave it out")
        if self.ecmp is not None and self.routing in ("adaptive", "shortest"):
            raise ValueError(f"routing: {self.routing} draws no routes; leave out 'ecmp', or write routing: ecmp")
        if self.file is None:
            check_keys(self, self.system is not None)
        elif self.system is not None:
            problem = f"both 'system' and 'file'; keep one of them, on a command line by --set topology={self.file}"
            raise ValueError(problem)
        return self

    @property
    def title(self) -> str:
        """The name of the topology in results."""
        name = self.system or (Path(self.file).stem if self.file else None)
        if name is None:
            return str(self.fabric)
        fabric = [] if self.fabric in (None, "rail-optimised") else [str(self.fabric)]
        return "/".join([name, *(f"{key}={value}" for key, value in self.variant if value is not None), *fabric])

    @property
    def evenly(self) -> Self:
        """Return the topology whose switches spread each message over all spines: one spine acts like them. Messages
        keep their NICs, which `routing: adaptive` would choose anew."""
        return self.model_copy(update={"spines": 1, "ecmp": None})

    @property
    def variant(self) -> Variant:
        """What differs from the system."""
        return Variant.model_construct(**{key: getattr(self, key) for key in Variant.model_fields})


_GOES_WITH: Final = {
    "levels": ("fat-tree",),
    "hosts_per_leaf": ("fat-tree",),
    "nodes_per_leaf": ("rail-optimised", "fat-tree"),
    "leaves_per_pod": ("fat-tree",),
    "oversubscription": ("fat-tree", "rail-optimised"),
    "spines": ("fat-tree", "rail-optimised"),
    "dims": ("torus",),
}


def check_keys(spec: TopologySpec, machine: bool) -> None:
    """Raise ValueError for contradictory keys. `machine`: whether nodes are machines, not bare hosts."""
    fabric = spec.fabric or ("rail-optimised" if machine else None)
    if fabric is None:
        raise ValueError(
            "neither 'system' nor 'fabric'; write e.g. system: hgx-h100, or fabric: single-switch with hosts"
        )
    for key, wanted in _GOES_WITH.items():
        if getattr(spec, key) is not None and fabric not in wanted:
            raise ValueError(f"{key!r} works with the fabric {' or '.join(wanted)}, not with {fabric}; leave it out")
    if spec.routing == "adaptive" and fabric not in _GOES_WITH["spines"]:
        raise ValueError(f"adaptive routing works with {' or '.join(_GOES_WITH['spines'])}, not with {fabric}")
    if fabric == "torus" and spec.dims is None:
        raise ValueError("a torus needs 'dims'; add e.g. dims: [4, 4]")
    (_check_cluster if machine else _check_hosts)(spec, fabric)


def _check_cluster(spec: TopologySpec, fabric: str) -> None:
    if spec.hosts_per_leaf is not None:
        raise ValueError("'hosts_per_leaf' is for a fabric of bare hosts; write nodes_per_leaf")
    if fabric in fabrics.DIRECT and spec.link is None and (spec.nodes or 1) > 1:
        raise ValueError(f"a {fabric} of nodes needs 'link'; add link: {{bandwidth: 50 GB/s, latency: 1 us}}")
    if spec.link is not None and isinstance(spec.link.bandwidth, Spread):
        raise ValueError("a spread is for a fabric of bare hosts; change single links with `links`")
    if spec.dims is not None and math.prod(spec.dims) != (spec.nodes or 1):
        raise ValueError(
            f"dims {list(spec.dims)} make {math.prod(spec.dims)} nodes, not {spec.nodes or 1}; let them agree"
        )


def _check_hosts(spec: TopologySpec, fabric: str) -> None:
    for key in ("nodes", "nodes_per_leaf", *Variant.model_fields):
        if getattr(spec, key) is not None:
            cure = f"write {key.replace('nodes', 'hosts')}" if "nodes" in key else "leave it out"
            raise ValueError(f"{key!r} is for a system; {cure}")
    if fabric == "rail-optimised":
        raise ValueError("bare hosts have no rails; choose another fabric, or name a system")
    if spec.hosts is None and spec.dims is None:
        raise ValueError(f"a {fabric} needs 'hosts'; add e.g. hosts: 8")
    if spec.link is None:
        raise ValueError(f"a {fabric} of bare hosts needs 'link'; add link: {{bandwidth: 50 GB/s, latency: 0.5 us}}")
    if spec.dims is not None and spec.hosts not in (None, math.prod(spec.dims)):
        raise ValueError(f"dims {list(spec.dims)} make {math.prod(spec.dims)} hosts, not {spec.hosts}; let them agree")
