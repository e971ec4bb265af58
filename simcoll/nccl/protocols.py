"""NCCL's protocols LL, LL128 and Simple: their buffers, steps, chunks and threads (`protocols.yaml`).

Each connection of a channel has one buffer of 8 steps. An algorithm sends a chunk at a time; the receiver may use each
slice of the chunk as it arrives. Sizes are in bytes. Sizes of buffers include flags, sizes of data do not.
"""

import functools
from collections.abc import Mapping
from typing import Final, Literal

from simcoll.config import yaml_tree
from simcoll.config.yaml_tree import Model
from simcoll.nccl.algorithm_names import TunedCollective
from simcoll.nccl.tuner_constants import FIGURES, numbers
from simcoll.schedule.names import NcclAlgorithm, Protocol


class Wire(Model):
    """A protocol's format: `data_bytes` of each `line_bytes` are data, the rest flags; chunks: multiples of
    `grain_bytes`."""

    line_bytes: int
    data_bytes: int
    buffer_bytes: int
    grain_bytes: int
    threads: int
    bytes_a_thread: int
    moved_a_thread: int

    @property
    def efficiency(self) -> float:
        """The share of data in the bytes on the wire."""
        return self.data_bytes / self.line_bytes


class BufferSteps(Model):
    """The number of steps of the buffer that a chunk takes, and that a slice takes."""

    chunk: int
    slice: int


class SlowRing(Model):
    """The number of threads for rings whose channels have at most `below_GBps`."""

    below_GBps: float  # noqa: N815
    threads: int


class Threads(Model):
    """Rules for the number of threads of a channel, in addition to the rules of each protocol."""

    slow_ring: SlowRing
    simple_ring_extra: int
    least: int
    others: int


class LeastTraffic(Model):
    """The least traffic in bytes for which NCCL uses a channel; `former` applies before release `before`. Bytes of LL
    count `of_LL` times."""

    bytes: int
    of_LL: int  # noqa: N815
    before: str
    former: int


class MessageRule(Model):
    """A rule for splitting point-to-point messages into parts of `least_bytes` to `most_bytes`, sent with LL up to
    `LL_bytes` per channel. The first row whose conditions match applies."""

    chunk_bytes: int
    least_bytes: int
    most_bytes: int
    LL_bytes: int
    grain_bytes: int = 4096
    rounds: bool = False  # whether blocks serve peers one after the other instead of at once
    nvlink: bool | None = None
    nodes: Literal["one", "several"] | None = None
    before: str | None = None


class NVLink(Model):
    """The speed of one NVLink, for GPUs from a compute capability on."""

    from_capability: int
    GBps: float


class HalvedChunks(Model):
    """The rule for smaller chunks of trees, for releases before `before`: rows of (chunks per level, least bytes), as
    in `tree_LL128`."""

    before: str
    halved: tuple[tuple[int, int], ...]


class Protocols(Model):
    """The contents of `protocols.yaml`."""

    steps: int
    protocols: Mapping[Protocol, Wire]
    simple_ring_steps: Mapping[TunedCollective, BufferSteps]
    tree_LL128: tuple[tuple[int, int], ...]  # noqa: N815
    tree_Simple: HalvedChunks  # noqa: N815
    pat: Mapping[str, int]
    threads: Threads
    least_traffic: LeastTraffic
    messages: tuple[MessageRule, ...]
    nvlinks: tuple[NVLink, ...]
    network_GBps_a_channel: float  # noqa: N815


_ONE: Final = BufferSteps.model_construct(chunk=1, slice=1)


@functools.cache  # reading and checking the file takes 60 ms, and each simulated call needs it
def figures() -> Protocols:
    """Return the contents of `protocols.yaml`."""
    return yaml_tree.validate(Protocols, [yaml_tree.read(FIGURES / "protocols.yaml", "protocols.yaml")])[0]


def nvlink_GBps(capability: int) -> float:  # noqa: N802
    """Return the GB/s of one NVLink and direction that NCCL counts for GPUs of a compute capability, e.g. 90."""
    return next(row.GBps for row in figures().nvlinks if capability >= row.from_capability)


def step_bytes(protocol: Protocol, buffer: int | None = None) -> int:
    """Return the data bytes of one buffer step. `buffer`: the size of Simple's buffer if the user sets it
    (NCCL_BUFFSIZE).

    >>> [step_bytes(protocol) for protocol in ("LL", "LL128", "Simple")]
    [32768, 576000, 524288]
    """
    wire = figures().protocols[protocol]
    held = buffer if buffer and protocol == "Simple" else wire.buffer_bytes
    return held // figures().steps // wire.line_bytes * wire.data_bytes


def most_channels(collective: TunedCollective, protocol: Protocol, nbytes: int, version: str | None) -> int:
    """Return how many channels a call of `nbytes` (the largest buffer of a rank) can give at least the least traffic.

    >>> [most_channels("all_reduce", protocol, 256 << 10, None) for protocol in ("LL", "LL128")]
    [64, 16]
    """
    rule = figures().least_traffic
    least = rule.former if version and numbers(version) < numbers(rule.before) else rule.bytes
    each = (2 if collective == "all_reduce" else 1) * (rule.of_LL if protocol == "LL" else 1)
    return max(1, nbytes * each // least)


def _steps(collective: TunedCollective, algorithm: NcclAlgorithm, protocol: Protocol) -> BufferSteps:
    ring = algorithm == "ring" and protocol == "Simple"
    return figures().simple_ring_steps.get(collective, _ONE) if ring else _ONE


def chunk_bytes(
    collective: TunedCollective, algorithm: NcclAlgorithm, protocol: Protocol, buffer: int | None = None
) -> int:
    """Return the bytes of a chunk, before any reduction for small calls; `buffer` as in `step_bytes`.

    >>> chunk_bytes("all_reduce", "ring", "Simple"), chunk_bytes("all_reduce", "tree", "Simple")
    (2097152, 524288)
    """
    return _steps(collective, algorithm, protocol).chunk * step_bytes(protocol, buffer)


def tree_chunk_bytes(
    protocol: Protocol, share: int, nodes: int, gpus: int, version: str | None = None, buffer: int | None = None
) -> int:
    """Return the bytes of a tree's chunk if a channel moves `share` bytes; deeper trees have smaller chunks. `version`:
    a release, default the newest.

    Numbers of chunks and of tree levels between nodes are rounded down; a chunk is a multiple of `grain_bytes`.

    >>> tree_chunk_bytes("LL128", 64 << 20, 2, 8), tree_chunk_bytes("LL128", 512 << 10, 2, 8)
    (576000, 71040)
    >>> tree_chunk_bytes("Simple", 1 << 20, 4, 4), tree_chunk_bytes("Simple", 1 << 20, 4, 4, "2.22")
    (524288, 65536)
    """
    chunk, deep, halved = step_bytes(protocol, buffer), 0.0, figures().tree_LL128
    doublings = nodes.bit_length() - 1  # of one node to all of them
    if protocol == "LL128":
        deep = (1 + doublings + 0.1 * gpus) / gpus
    elif protocol == "Simple" and version and numbers(version) < numbers(figures().tree_Simple.before):
        deep, halved = gpus - 1 + doublings, figures().tree_Simple.halved
    for times, least in halved:
        while chunk > least and share // chunk < times * deep:
            chunk //= 2
    grain = figures().protocols[protocol].grain_bytes
    return chunk // grain * grain or chunk


def pat_chunk_bytes(share: int, gathers: bool, buffer: int | None = None) -> int:
    """Return the bytes of PAT's chunk if a channel moves `share` bytes. `gathers`: for all_gather, else for
    reduce_scatter. With too few chunks in the share, chunks are halved, down to `least_bytes`.

    >>> pat_chunk_bytes(64 << 20, True), pat_chunk_bytes(4 << 20, True)
    (524288, 131072)
    """
    chunk = step_bytes("Simple", buffer)
    rule = figures().pat
    while chunk > rule["least_bytes"] and chunk * rule["all_gather" if gathers else "reduce_scatter"] > share:
        chunk //= 2
    return chunk


def slice_bytes(
    collective: TunedCollective, algorithm: NcclAlgorithm, protocol: Protocol, buffer: int | None = None
) -> int:
    """Return the bytes of a slice: the part of a chunk that its receiver may use before the rest arrives."""
    return _steps(collective, algorithm, protocol).slice * step_bytes(protocol, buffer)
