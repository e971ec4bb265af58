"""Costs of NCCL's kernels (the key `kernels` of a profile), and the times of thread blocks with these costs.

A kernel runs one thread block per channel. In LL the receiver polls a flag beside each word, so the block's work sets
the time of a step. In LL128 and Simple the block keeps the link busy, and the link sets the time.
"""

import math
from statistics import NormalDist
from typing import Annotated, Final, Literal, get_args

from pydantic import Field

from simcoll.config.field_types import BandwidthCap, Duration, Share
from simcoll.config.yaml_tree import Model
from simcoll.nccl.protocols import figures
from simcoll.units import PS_PER_S

SPREAD: Final = 1 << 20  # number of bytes that the cost `Kernels.spread` refers to
STORED: Final = 4 << 10  # number of bytes that the cost `store` of LL refers to: a line for each of 512 threads

CostKind = Literal["LL", "LL128", "Simple", "NVLS", "P2P"]


class BlockCosts(Model):
    """Costs of one thread block of a protocol. Messages between nodes have further costs: see `transport`."""

    start: Duration = 0
    """Time between the launch and the first step."""
    hop: Duration = 0
    """Time from when one rank has data until the next rank can go on with them."""
    store: Duration = 0
    """Extra time of a hop in which a block also stores the data in its own output: each hop of all_gather and
    broadcast, every second hop of all_reduce. In LL it is the time for 512 threads with a line each; fewer threads take
    less, in proportion."""
    net: Duration = 0
    """Extra time of a hop between nodes for the thread blocks: fences, and handing data to the proxy and taking data
    from it. The blocks of NVLSTree take the time of Simple."""
    slice: Duration = 0
    """Simple: time of the sender for each slice, in addition to the time to move it."""
    first: BandwidthCap = 0
    """LL: bandwidth of the first line of each thread. All threads go on together, so a line that some threads have
    counts as a line of all. P2P: bandwidth of a block that only sends or only receives."""
    rate: BandwidthCap = 0
    """LL and P2P: bandwidth of one block for all data after the first. NVLS: bandwidth at which a block brings data of
    all heads into buffers, has them reduced, and takes the sums out."""
    both: BandwidthCap = 0
    """P2P: bandwidth of a block that sends and receives at once. It also counts for the blocks of rings with LL128 and
    Simple. Between nodes, where rings have few channels, it may be slower than the links."""
    each: Duration = 0
    """P2P: time of a kernel for each thread block after the first."""
    peer: Duration = 0
    """P2P: time of a kernel to prepare, signal and await the message of each further peer on the node."""
    own: Annotated[Share, Field(le=4)] = 0.0
    """Time that a block spends on its own rank's data, as a share of a step without its hop. A thread block does one
    thing at a time."""
    turn: Annotated[Share, Field(le=4)] = 0.0
    """Simple, in place of `own`: time to load and to store the data of a block once, as a share of a step. In addition
    to the sends, a call takes 2 loads and 3 stores for all_gather, 3 and 2 for reduce_scatter, 4 and 4 for
    all_reduce."""
    load: Annotated[Share, Field(le=1)] = 0.5
    """The part of `turn` that is loading, as a share."""
    spread: Annotated[Share, Field(le=4)] = 0.0
    """P2P: how much the times of blocks differ for chunks after the first. Standard deviation for 1 MiB of messages, as
    a share of the time."""
    saved: Annotated[Share, Field(le=4)] = 0.0
    """Share of `own` that an all_gather in place saves."""
    reach: Annotated[Share, Field(gt=0)] = 1.0
    """Share of the links' bandwidth that data reach."""
    host: Duration = 0
    """Extra time of a hop through the host's memory. In LL each line of a thread takes this time."""
    host_rate: BandwidthCap = 0
    """Bandwidth at which data of a GPU pass through the host's memory. This time is added to the time on the links."""

    @property
    def changed_keys(self) -> list[str]:
        """Return the keys whose value differs from the default."""
        return [key for key, field in type(self).model_fields.items() if getattr(self, key) != field.default]


class Kernels(Model):
    """Costs of NCCL's kernels, by protocol."""

    library: Literal["nccl", "rccl"] = "nccl"
    """The library whose tuner chooses algorithm and protocol."""
    version: str | None = None
    """Release of the library. A scenario may name another."""
    grid: Duration = 0
    """Time by which a launch of very many thread blocks takes longer than a launch of one."""
    spread: Annotated[Share, Field(le=4)] = 0.0
    """How much the times of thread blocks differ. Blocks share links unevenly, and a call ends with the last block. The
    value is the standard deviation for 1 MiB, as a share of the time. The differences grow with the square root of the
    bytes."""
    LL: BlockCosts = BlockCosts.plain()
    """Costs of LL. The receiver waits for flags that come with the data."""
    LL128: BlockCosts = BlockCosts.plain()
    """Costs of LL128, which moves lines of 128 bytes."""
    Simple: BlockCosts = BlockCosts.plain()
    """Costs of Simple, which moves slices, with a fence after each. In Simple, `efficiency` of links counts bytes as
    NCCL counts them, so it may be above 100 %."""
    NVLS: BlockCosts = BlockCosts.plain()
    """Costs of NVLS, in which the switch reduces. A hop moves a chunk for each of eight heads: a block waits for the
    flags of all ranks, and moves the chunk at its `rate`. At the same time the links bring the next chunk, so the
    slower of the two counts. `reach` is the share of the links' bandwidth that loads with reduction and stores with
    multicast reach."""
    P2P: BlockCosts = BlockCosts.plain()
    """Costs of point-to-point messages: all_to_all, gather, scatter, send_recv."""


KINDS: Final[tuple[CostKind, ...]] = get_args(CostKind)


def lines_ps(block: BlockCosts, threads: int, nbytes: int, stores: float = 0.0) -> int:
    """Return a block's time in ps for `nbytes` in LL, as two parts: the first line of each thread, and all other lines.
    `stores`: the share of the data that the block also stores in its own output. A step ends with the last thread. So a
    line that only some threads have takes as long as a line of all threads."""
    line = threads * figures().protocols["LL"].bytes_a_thread
    first = min(nbytes, line) if block.first else 0
    others = -(-(nbytes - first) // line) * line if block.first else nbytes
    stored = block.store * stores * min(nbytes, line) / STORED
    return service(first, block.first) + service(others, block.rate) + round(stored)


def spread_ps(spread: float, blocks: int, moved: float, bandwidth: int, each: float = 1.0) -> int:
    """Return by how many ps the last of `blocks` thread blocks ends after the average one. Each block moves `moved`
    bytes, and `each` blocks share `bandwidth` B/s. `spread` is the standard deviation for 1 MiB, as a share of its
    time.

    A block's deviation grows with the square root of its bytes. The expected maximum of several normal deviates follows
    Blom (Statistical Estimates and Transformed Beta-Variables, 1958).
    """
    if blocks < 2 or not bandwidth:
        return 0
    last = NormalDist().inv_cdf((blocks - 0.375) / (blocks + 0.25))
    return round(spread * last * math.sqrt(moved * SPREAD) * PS_PER_S * each / bandwidth)


def service(nbytes: int, bandwidth: int) -> int:
    """Return the time in ps of `nbytes` at a bandwidth in B/s; a bandwidth of 0 means no limit, hence 0 ps."""
    return -(-nbytes * PS_PER_S // bandwidth) if bandwidth else 0
