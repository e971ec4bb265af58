"""The results of NCCL's graph search on a machine: the number of channels, their speed, the kinds of their paths.

A system's file may store results under the key `nccl`, in rows for one node or several and for a number of GPUs a node.
`stored` returns the matching rows; `nccl.graph_search` computes the rest. Speeds are in GB/s per channel and direction.
"""

import itertools
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import BeforeValidator, Field, StrictInt, model_validator

from simcoll.config.yaml_tree import Model

Path = Literal["LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS"]
GraphPattern = Literal["ring", "balanced_tree", "split_tree", "tree", "nvls", "collnet_direct"]
Level = Literal["LOC", "NVL", "PIX", "PXB", "PHB", "SYS"]  # values of NCCL_P2P_LEVEL
GraphKind = Literal["ring", "tree", "nvls", "collnet_chain", "collnet_direct"]

PATHS: Final[tuple[Path, ...]] = get_args(Path)  # from near to far
Positive = Annotated[StrictInt, Field(ge=1)]
PositiveSpeed = Annotated[float, Field(gt=0, strict=False, allow_inf_nan=False)]


class ChannelGraph(Model):
    """The channels of one kind: their number, speed within a node (`intra`) and between nodes (`inter`), and paths.

    `orders` lists the GPUs of each channel in the order in which the channel visits them; empty if unknown. `nics`: how
    many NICs of a node the channels use; 0 if unknown.
    """

    channels: Positive
    intra: PositiveSpeed
    inter: PositiveSpeed
    pattern: GraphPattern
    type_intra: Path = "NVL"
    type_inter: Path = "PIX"
    same_channels: bool = True
    cross_nic: int = 0
    latency_us: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    nics: int = 0
    orders: tuple[tuple[int, ...], ...] = ()


Graphs = Mapping[GraphKind, ChannelGraph]


def _range(value: object) -> object:
    return (value, value) if isinstance(value, int) else value


_AS_IN_ROWS: Final = ("pattern", "type_intra", "type_inter", "cross_nic", "orders")  # fields of graphs, and of rows


class GraphRow(Model):
    """A row of a system's file: NCCL's search result for a number (or range) of GPUs a node. Default of
    `same_channels`: true, as NCCL first looks for equal channels, but false for NVLS."""

    graph: GraphKind
    nodes: Literal["one", "several"]
    gpus: Annotated[tuple[Positive, Positive], BeforeValidator(_range)]  # a number, or [least, most]
    channels: Positive | None = None
    channels_per_gpu: Positive | None = None
    intra: PositiveSpeed
    inter: PositiveSpeed | None = None
    pattern: GraphPattern
    type_intra: Path = "NVL"
    type_inter: Path = "PIX"
    same_channels: bool | None = None
    cross_nic: int = 0
    orders: tuple[tuple[int, ...], ...] = ()

    @model_validator(mode="after")
    def _says_how_many(self) -> Self:
        if (self.channels is None) == (self.channels_per_gpu is None):
            raise ValueError("a graph has either 'channels' or 'channels_per_gpu'; keep one of them")
        return self

    def of(self, gpus: int) -> ChannelGraph:
        """Return the graph in this row, for nodes with `gpus` GPUs."""
        same: dict[str, Any] = {name: getattr(self, name) for name in _AS_IN_ROWS}
        same["same_channels"] = self.pattern != "nvls" if self.same_channels is None else self.same_channels
        channels = self.channels or (self.channels_per_gpu or 0) * gpus
        inter = self.intra if self.inter is None else self.inter
        return ChannelGraph.model_construct(channels=channels, intra=self.intra, inter=inter, **same)


class GraphSearch(Model):
    """The key `nccl` of a system: the `source` of its rows, and the rows. `p2p_level`: the longest kind of path over
    which GPUs talk directly, if it is not NCCL's default."""

    source: str
    p2p_level: Level | None = None
    graphs: tuple[GraphRow, ...]

    @model_validator(mode="after")
    def _says_each_once(self) -> Self:
        for first, second in itertools.combinations(self.graphs, 2):
            shared = range(max(first.gpus[0], second.gpus[0]), min(first.gpus[1], second.gpus[1]) + 1)
            if (first.graph, first.nodes) == (second.graph, second.nodes) and shared:
                rows = f"two rows for {first.graph} on {first.nodes} node{'s' if first.nodes == 'several' else ''}"
                raise ValueError(f"{rows} with {shared[0]} GPUs; keep one of them")
        return self


def stored(search: GraphSearch | None, gpus: int, nodes: int) -> Graphs | None:
    """Return the graphs that a file stores for `nodes` nodes with `gpus` GPUs each; None if there is no ring."""
    size = "one" if nodes == 1 else "several"
    rows = [row for row in search.graphs if row.nodes == size and row.gpus[0] <= gpus <= row.gpus[1]] if search else []
    graphs: dict[GraphKind, ChannelGraph] = {row.graph: row.of(gpus) for row in rows}
    return graphs if "ring" in graphs else None
