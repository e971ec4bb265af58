"""One call as NCCL runs it: the sizes of its chunks, slices and messages, and the time of each part.

All channels of a call do the same work at the same time. So one channel is simulated for all that find equal links,
with its share of the data; where two trees share the data, a pair of channels is simulated. "The simulated channel"
means this channel or pair. Kernels are described by the costs of a thread block (`kernel_costs`), not by their
instructions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal

from simcoll.nccl import p2p_messages, symmetric_kernels
from simcoll.nccl.algorithm_names import SCHEDULES
from simcoll.nccl.communicator import Communicator
from simcoll.nccl.kernel_costs import BlockCosts, CostKind, Kernels, lines_ps, service, spread_ps
from simcoll.nccl.protocols import chunk_bytes, figures, pat_chunk_bytes, slice_bytes, step_bytes, tree_chunk_bytes
from simcoll.nccl.symmetric_kernels import SYMMETRIC
from simcoll.nccl.transports_between_nodes import FLUSHED, Transport
from simcoll.schedule.names import NcclAlgorithm, Protocol
from simcoll.units import PS_PER_S

HEADS: Final = 8  # number of heads for which the cost `hop` of NVLS is given: a block serves the heads in turn
# Number of loads, stores and sends of a ring of two ranks for each block of data in Simple. all_gather copies and
# sends, then receives; reduce_scatter sends, then reduces; all_reduce sends, then reduces, copies and sends, then
# receives.
_ENDS: Final = {"all_gather": (2, 3, 1), "reduce_scatter": (3, 2, 1), "all_reduce": (4, 4, 2)}
# Share of steps in which a block also stores the data that it sends on: in an all_reduce, only those after the
# reduction.
_STORES: Final = {"all_gather": 1.0, "broadcast": 1.0, "all_reduce": 0.5}


SLICE: Final = 32 << 10  # bytes of the smallest slice in Simple
LL_SLICE: Final = 64  # bytes (eight lines); smaller steps have one slice
LL_SLICES: Final = 8  # slices of a step over PCIe, where ranks pass on each line as it arrives
# Bytes that a rank of a chain passes on at a time in Simple: by nccl-tests on A100; V100 pass on whole chunks.
CHAIN_PIECE: Final = 16 << 10
MOST_CHAIN_PIECES: Final = 1024  # most pieces of a chain's data in the simulation
MOST_PIECES: Final = 64  # most pieces of a channel's share of a tree's chain, or of a message
MOST_LOADED: Final = 256  # most pieces of a symmetric kernel, whose threads load and store at the same time
MOST_MESSAGES: Final = 4096  # most pieces that a rank sends to all peers
P2P_PIECE: Final = 4 << 10  # bytes; NCCL aligns the parts of a message to it
RING_ACCESSES: Final = 3 / 4  # loads and stores of a ring's block, beside those of a block that sends and receives
NVLS_CHUNK: Final = 128 << 10  # bytes; the default of NCCL_NVLS_CHUNKSIZE
# (count, bytes): below `count` chunks per channel and head, a chunk has at most so many bytes.
_NVLS_LESS: Final[tuple[tuple[int, int], ...]] = ((64, 64 << 10), (8, 32 << 10), (2, 16 << 10))
_NVLS_TREE_LESS: Final[tuple[tuple[int, int], ...]] = ((32, 256 << 10), (16, 128 << 10), (4, 64 << 10), (1, 32 << 10))


@dataclass(frozen=True)
class NcclCall:
    """A collective of `nbytes` (the largest buffer of a rank) on `channels` of `threads` each.

    `limited`: the user's settings change the number of channels. `staged`: some ranks of a node send through the host's
    memory. `version`: release of the tuner that chose the call. `registered`: a symmetric kernel; all its blocks count
    as one channel. `copied_us`: its time in us without data if copy engines run it, else 0. `looped`: one of many calls
    (`calls`, if known) in a row; a rank begins the next when it is done. `by_itself`: NCCL's free choice has this
    algorithm and protocol."""

    communicator: Communicator
    collective: str
    algorithm: NcclAlgorithm | Literal["p2p"]
    protocol: Protocol
    nbytes: int
    itemsize: int
    channels: int
    threads: int
    nics: float = 1.0
    in_place: bool = False
    parts: p2p_messages.MessageParts | None = None
    staged: bool = False
    version: str | None = None
    limited: bool = False
    registered: bool = False
    copied_us: float = 0.0
    looped: bool = False
    calls: int | None = None
    by_itself: bool = field(default=True, compare=False)

    @cached_property
    def kind(self) -> CostKind:
        """The field of `Kernels` (costs by protocol or kernel) with the costs of this call, e.g. `LL` or `NVLS`."""
        return "P2P" if self.algorithm == "p2p" else "NVLS" if self.algorithm.startswith("nvls") else self.protocol

    @property
    def schedule(self) -> str:
        """The name of the algorithm in simcoll's registry that simulates the call."""
        return SCHEDULES[self.algorithm, self.collective]

    @property
    def name(self) -> str:
        """Name of the algorithm in scenarios, results and tables, see `names`. Symmetric kernels have their own."""
        if self.registered:
            return symmetric_kernels.COPY_ENGINES if self.copied_us else SYMMETRIC
        return self.schedule if self.algorithm == "p2p" else self.algorithm

    @cached_property
    def alike(self) -> int:
        """Number of channels, or of pairs of channels, that work alike in parallel; one of them is simulated.

        Trees over several nodes have pairs: two trees, one for each channel. On one node all channels are equal chains,
        so a single channel is simulated (NCCL's src/graph/connect.cc copies the channels, from memory). In LL the
        block, not the link, limits the speed. So a single channel is simulated too, with half of its data on each tree.
        """
        two = self.communicator.nodes > 1 and self.protocol != "LL"
        paired = self.algorithm == "nvls_tree" or (self.algorithm == "tree" and two)
        return max(1, self.channels // 2) if paired else self.channels

    @cached_property
    def share(self) -> int:
        """Bytes of the buffer that the simulated channel (or pair) moves, rounded up to equal parts per rank."""
        halves = self.schedule == "chain_tree" and self.communicator.nodes > 1  # not for blocks, as many are empty
        one = self.collective == "send_recv"  # message, of any number of elements
        grain = (2 if halves else 1 if one else self.communicator.ranks) * self.itemsize
        return max(1, -(-self.nbytes // (self.alike * grain))) * grain

    @property
    def piece(self) -> int:
        """Bytes of `share` that belong to one rank's block; for send_recv and NVLS, the whole share."""
        whole = self.kind == "NVLS" or self.collective == "send_recv"
        return self.share if whole else self.share // self.communicator.ranks

    @cached_property
    def step(self) -> int:
        """Bytes of one transfer, at most a chunk: a block of `share` in a ring, all in a chain, half in a tree."""
        parts = {"chain": 1, "chain_tree": min(2, self.communicator.nodes)}.get(self.schedule, self.communicator.ranks)
        return min(self.share // parts, self.chunk)

    @cached_property
    def chunk(self) -> int:
        """Greatest number of bytes in a chunk; 0 if all data are one chunk."""
        if self.algorithm == "p2p":
            return 0
        buffer = self.communicator.buffer_bytes
        if self.algorithm == "tree":
            each, comm = self.nbytes // self.channels, self.communicator
            return tree_chunk_bytes(self.protocol, each, comm.nodes, comm.gpus, self.version, buffer)
        if self.algorithm == "pat":
            return pat_chunk_bytes(self.share, self.collective == "all_gather", buffer)
        if self.kind != "NVLS":
            return chunk_bytes(self.collective, self.algorithm, self.protocol, buffer)  # type: ignore[arg-type]  # no p2p
        heads, chunk, less = self.heads, NVLS_CHUNK, _NVLS_LESS
        if self.algorithm == "nvls_tree":
            chunk, less = (NVLS_CHUNK // 2 if self.communicator.nodes >= 4 else NVLS_CHUNK), _NVLS_TREE_LESS
        chunk = min(chunk, step_bytes("Simple", buffer))
        for times, most in less:
            if self.nbytes < times * self.channels * heads * chunk:
                chunk = min(chunk, most)
        return chunk * (heads if self.schedule == "nvls" and self.collective == "all_reduce" else 1)

    @cached_property
    def slices(self) -> int:
        """Number of slices in a ring's chunk; the next rank may use each slice as soon as it arrives."""
        if self.schedule == "ring" and self.by_lines:
            return 1 if self.step <= LL_SLICE else LL_SLICES
        if self.schedule != "ring" or self.step <= SLICE:
            return 1
        key = self.collective, self.algorithm, self.protocol, self.communicator.buffer_bytes
        return self.chunk // slice_bytes(*key)  # type: ignore[arg-type]  # a ring's, so no p2p

    @property
    def steps(self) -> int:
        """Number of steps of a tree over several nodes, up and down together: the steps between nodes, and the steps
        within nodes along chains (tree) or to and from the switches (NVLSTree)."""
        comm = self.communicator
        return 2 * ((comm.nodes - 1).bit_length() + (2 if self.schedule == "nvls_tree" else comm.gpus - 1))

    @property
    def slots(self) -> int:
        """Greatest number of messages in flight on a connection: the buffer's steps divided by those of a slice."""
        key = self.collective, self.algorithm, self.protocol
        return figures().steps * step_bytes(self.protocol) // slice_bytes(*key)  # type: ignore[arg-type]  # no messages

    @property
    def message(self) -> int:
        """Bytes of data that a channel gives to a NIC at a time. In LL one tree carries a channel's whole share. Within
        a node GPUs may pass on single lines, but a NIC gets a full step of the buffer."""
        if self.schedule == "chain_tree" and self.protocol == "LL":
            return min(self.share, self.chunk)
        if self.schedule == "nvls_tree":
            return min(self.share // (2 * self.heads), self.chunk)
        return self.step // (1 if self.by_lines else self.slices)

    @property
    def aggregation(self) -> int:
        """Greatest number of blocks in a message of PAT: the blocks in a buffer step, times the steps."""
        comm, count = self.communicator, 1
        most, step = max(1, (1 << (comm.ranks - 1).bit_length()) // 2), step_bytes("Simple", comm.buffer_bytes)
        while count < most and step // (max(1, self.step) * count) >= 2:
            count *= 2
        return min(most, count * figures().steps)

    @property
    def options(self) -> str:
        """The options of the schedule, e.g. `(slices=2)`, or an empty text."""
        if self.schedule == "pat":
            return f"(aggregation={self.aggregation})"
        if self.collective == "all_to_all" and self.communicator.nodes > 1:
            return "(order=groups)"
        if self.schedule == "nvls_tree" and self.heads < self.communicator.gpus:
            return f"(heads={self.heads})"
        return f"(slices={self.slices})" if self.slices > 1 else ""

    @cached_property
    def handed(self) -> int:
        """Greatest number of bytes that a rank passes on at a time; 0 if it passes on everything at once. With flags
        beside the data (LL, LL128) these are the bytes that the threads move at once."""
        if self.algorithm == "p2p":  # messages to all peers run at once, and alternate chunk by chunk
            pieces = max(1, min(MOST_PIECES, MOST_MESSAGES // self.communicator.ranks))
            return max(P2P_PIECE, -(-self.piece // (pieces * self.itemsize)) * self.itemsize)
        if self.registered:
            return -(-self.share // (MOST_LOADED * self.itemsize)) * self.itemsize
        if self.schedule == "ring":
            return self.chunk // self.slices
        if self.in_loop and self.calls and self.protocol == "Simple":  # whole chunks fill the chain, once for all calls
            whole = min(self.chunk, self.share) or self.share
            return max(-(-whole // (self.calls * self.itemsize)) * self.itemsize, self.share // MOST_CHAIN_PIECES)
        if self.schedule == "chain" and self.protocol == "Simple" and self.communicator.capability >= 80:
            return min(self.chunk, max(CHAIN_PIECE, self.share // MOST_CHAIN_PIECES))
        if self.protocol == "Simple" or self.schedule not in ("chain", "chain_tree"):
            return self.chunk
        most = MOST_CHAIN_PIECES if self.schedule == "chain" else 2 * MOST_PIECES
        return min(self.chunk, max(self.moved, self.share // most))

    @property
    def in_loop(self) -> bool:
        """Whether the call is a chain in a loop of calls that overlap: a rank begins the next call when it is done."""
        return self.looped and self.schedule == "chain"

    @property
    def by_lines(self) -> bool:
        """Whether the call uses LL over PCIe: slow links limit it, and ranks pass on each line as it arrives."""
        return self.kind == "LL" and self.communicator.graphs["ring"].type_intra in ("PIX", "PXB", "PHB", "SYS")

    @property
    def heads(self) -> int:
        """Number of GPUs per node that collect the sums of NVLS (its heads)."""
        return len(self.communicator.heads)

    @property
    def moved(self) -> int:
        """Bytes that all threads of a block together move at once."""
        return self.threads * figures().protocols[self.protocol].moved_a_thread

    @property
    def stay(self) -> float:
        """Share of a ring's channels in which the busiest GPU sends to its own node; in the others it sends to another.
        With fewer NICs than GPUs, channels leave a node beside NICs only: other GPUs send to their own node in all."""
        comm = self.communicator
        leave = self.schedule == "ring" and comm.nodes > 1 and 1 < comm.gpus <= self.nics
        return (comm.gpus - 1) / comm.gpus if leave else 1.0

    @property
    def rails(self) -> float:
        """Number of NICs of a node that share the data of the simulated channel (or pair)."""
        return 1.0 if self.kind in ("NVLS", "P2P") else max(1.0, min(self.nics, self.alike))

    @property
    def on_wire(self) -> int:
        """Bytes of a message between nodes, flags included."""
        return self._with_flags(self.sent)

    @property
    def rounds(self) -> int:
        """Number of chunks of a ring, one per round; a last smaller chunk counts as one."""
        return -(-self.piece // self.chunk) or 1

    @property
    def mean_on_wire(self) -> int:
        """Mean bytes of a message between nodes over all rounds of a ring, flags included."""
        if self.schedule != "ring" or not self.step:
            return self.on_wire
        return self._with_flags(max(1, self.sent * self.piece // (self.rounds * self.step)))

    def _with_flags(self, nbytes: int) -> int:
        line = figures().protocols[self.protocol]
        return nbytes * line.line_bytes // line.data_bytes

    @property
    def sent(self) -> int:
        """Bytes of data in a message between nodes, without flags."""
        return self.parts.sent if self.parts else max(1, self.message)

    @property
    def blocks(self) -> float:
        """Number of thread blocks in the simulated channel (1) or pair of channels (2)."""
        return self.channels / self.alike

    @property
    def block_moves(self) -> float:
        """Bytes that one thread block sends in all steps together."""
        comm = self.communicator
        steps = comm.ring_steps(self.collective) / comm.ranks  # type: ignore[arg-type]  # messages have none
        return self.share / self.blocks * (steps if self.schedule == "ring" else 1.0)

    # --- times from the costs of a profile ---

    def params(self, costs: Kernels, uneven: float = 1.0) -> dict[str, Any]:
        """Return the engines' timing parameters; links are FIFO, as NICs. Other messages are smaller by `uneven`."""
        return {"sharing": "fifo", **self._own_params(costs, uneven)}

    def _own_params(self, costs: Kernels, uneven: float) -> dict[str, Any]:
        if self.registered:
            return {}
        block = self.block(costs)
        if self.schedule == "nvls_tree":
            # separate warps load, reduce, send up, send down and multicast, each one chunk after another
            # a rank's connection with its switch stands for one connection, with its own buffer, for each head; of more
            # than eight heads, messages wait for the others' turns
            slots = figures().steps * (-(-self.heads // HEADS)) ** 2
            return {"channels": self.steps, "channels_by": "step", "slots": slots}
        if self.kind == "NVLS":
            # sums of all heads move together, blocks of all_gather and reduce_scatter one by one
            at_once = self.heads if self.collective == "all_reduce" else 1
            # links transfer the next data while the block works on the last
            return {"o_recv": block.hop * at_once // HEADS, "gamma": block.rate}
        if self.kind == "P2P":
            # one channel for each peer: several transfers of a rank run at once
            return {"channels": 0, "channel_bandwidth": self._message_rate(block, uneven), **self._credits}
        tree, by_step = self.schedule == "chain_tree", {}
        if tree and self.communicator.nodes > 1:
            # separate threads send up and send down, one chunk after another
            by_step = {"channels": self.steps, "channels_by": "step"}
        if tree and self.kind != "LL":
            # buffers of a connection, whose steps hold one chunk each; within a node, of a rank's two connections with
            # its neighbour, up and down
            held = figures().steps * -(-self.message // self.handed)
            credits = {"slots": held} if by_step else {"channels": 2 * figures().steps, "slots": 1}
            return {"o_send": block.slice, **by_step, **credits}
        pieces = self.slices if self.schedule == "ring" else -(-self.step // self.handed)
        slice_ps = 0 if self.schedule in ("chain", "pat") else block.slice  # a message of PAT has only one slice
        taken = round(self._handled(block, self.step) * self._split) // pieces
        return {"o_send": slice_ps, "o_recv": taken, **by_step}

    def launch_ps(self, costs: Kernels, launch: int, bandwidth: int) -> int:
        """Return the time in ps of the call in addition to its steps. A channel has `bandwidth` B/s of the links.
        `launch`: the time of the launch in ps."""
        if self.registered:
            if self.copied_us:
                return round(self.copied_us * 1e6)
            hops = symmetric_kernels.EXCHANGE if self.protocol == "LL" else symmetric_kernels.BARRIERS
            return launch + hops * costs.LL.hop
        block = self.block(costs)
        wide = self.wide_ps(costs)
        others = block.peer * (0 if self.collective == "send_recv" else max(0, self.communicator.gpus - 2))
        if self.parts and self.protocol == "LL":
            return launch + wide + others + block.hop + service(self.parts.part, block.rate)
        if self.parts:  # copying out is a chunk behind what arrives
            out = service(self.parts.first, block.first) + self._copied_ps(block)
            beside = block.each * (self.parts.blocks - 1) + block.start
            return launch + wide + others + beside + out + self.spread_ps(costs, bandwidth)
        step = self._handled(block, self.piece) if self.kind == "LL" else service(self.piece, bandwidth)
        return launch + wide + block.start + round(self._own(block) * step) + self.spread_ps(costs, bandwidth)

    def wide_ps(self, costs: Kernels) -> int:
        """Return the extra time in ps to launch all blocks instead of one; 0 for symmetric kernels."""
        blocks = self.parts.blocks if self.parts else self.channels
        return 0 if self.registered else costs.grid - costs.grid // blocks

    def _own(self, block: BlockCosts) -> float:
        """Return the time that a rank works on its own block of the buffer, as a multiple of the time of a step."""
        if self.kind == "NVLS" or self.collective in ("send_recv", "broadcast", "reduce"):
            return 0.0
        own = block.own
        if self.kind == "Simple":
            loads, stores, sent = _ENDS[self.collective]
            own = block.turn * (loads * block.load + stores * (1 - block.load)) - sent
        saved = block.saved if self.in_place and self.collective == "all_gather" else 0.0
        return max(0.0, own - saved)

    def spread_ps(self, costs: Kernels, bandwidth: int) -> int:
        """Return by how many ps the last thread block ends after the average one. A channel has `bandwidth` B/s of the
        links.

        Blocks end at different times if they wait for whole slices or chunks, e.g. for all but the first chunk of a
        message within a node. Between nodes proxies set the pace. With one peer at a time a block sends as evenly as it
        receives.
        """
        if parts := self.parts:
            peers = 1 if self.collective == "send_recv" else self.communicator.ranks - 1
            if parts.protocol == "LL" or parts.rounds or self.communicator.nodes > 1:
                return 0
            blocks = min(parts.most, parts.channels * peers)
            moved = (parts.part - parts.first) * parts.channels * peers / blocks
            most = peers * self._message_rate(costs.P2P)
            return spread_ps(costs.P2P.spread, blocks, moved, min(most or bandwidth, bandwidth) // blocks)
        if self.kind != "Simple":
            return 0
        return spread_ps(costs.spread, self.channels, self.block_moves, bandwidth, self.blocks)

    def late_ps(self, costs: Kernels, each: int, bandwidth: int) -> int:
        """Return by how many ps a call ends later because its blocks begin `each` ps apart. A channel has `bandwidth`
        B/s of links.

        Early blocks of Simple and NVLS have the links to themselves and move data faster, up to the limit of a block.
        So the call ends no later if the last block can catch up. Blocks of LL and LL128 do not depend on the links:
        they are no faster when alone.
        """
        if not each or self.registered:
            return 0
        if self.parts:
            return each * (self.parts.blocks - 1)
        if self.kind in ("LL", "LL128"):
            return each * (self.channels - 1)
        on_links = service(round(self.block_moves * self.blocks), bandwidth)
        alone = service(round(self.block_moves), costs.P2P.first)
        return max(0, each * (self.channels - 1) - max(0, on_links - alone))

    def share_of_links(self, costs: Kernels, bandwidth: float, outer: bool, host: bool = False) -> float:
        """Return the share that one channel gets of links of `bandwidth` B/s. The links are within a node, lead to the
        `host` if data are staged there, or lead to the network (`outer`), where rings use `nics` links. If links limit
        a call, its channels share the bandwidth that all of them together reach. Blocks of LL seldom need this much:
        then each has the links to itself."""
        reach = self.block(costs).reach
        wire = 1.0 if self.kind in ("NVLS", "P2P") else figures().protocols[self.protocol].efficiency
        if host:
            return wire / (1 if self.kind == "P2P" else self.alike)
        if outer and self.kind == "NVLS":  # every channel has all heads, each with its share of its NIC by the search
            return min(1.0, self.nics / self.heads) / self.alike
        if outer:
            return wire * min(1.0, self.nics / self.alike)
        if self.collective == "send_recv" or (self.parts and self.parts.rounds):  # no two ranks send to one rank
            return 1.0
        if self.copied_us:  # copies use the links as kernels of rings do, not as loads through the switch
            return 1.0
        if self.registered and self.protocol == "LL":  # every GPU gets the data of all, and as many flags
            return reach / (2 * (self.communicator.ranks if self.collective == "all_reduce" else 1))
        if self.kind == "NVLS" and self.collective == "all_reduce":  # each head's result goes there and back again
            reach *= self.heads / (self.heads + 1)
        if self.kind == "P2P":
            return reach
        shared = reach * wire / (self.alike * self.stay)
        by_blocks = self.kind == "LL" and not self.by_lines and self._in_ll(costs) <= shared * bandwidth
        return reach if by_blocks else shared

    def _in_ll(self, costs: Kernels) -> float:
        """Return the B/s of data that a channel's blocks pass on in LL at most."""
        return self.step * PS_PER_S / max(1, self.hop_ps(costs) + self._handled(self.block(costs), self.step))

    def by_host(self, costs: Kernels, bandwidth: float) -> float:
        """Return the effective B/s of the links to the host, which have `bandwidth` B/s, if data are staged in the
        host's memory. A GPU that both sends and receives alternates between writing and reading, which is slower. If
        one of two GPUs only sends and the other only receives, the links keep their bandwidth."""
        one_way = self.communicator.ranks == 2 and self.collective in ("broadcast", "reduce", "gather", "scatter")
        rate = 0 if one_way else self.block(costs).host_rate
        return bandwidth * rate / (bandwidth + rate) if rate else bandwidth

    def most(self, costs: Kernels, host: bool) -> float:
        """Return the most B/s that the simulated channel (or pair) can move; infinity for no limit. In LL over PCIe the
        limit is the speed of a block alone; through the `host`'s memory each thread waits for one line at a time. If
        the user limits the number of channels, it is a channel's speed in NCCL's graph search."""
        if self.registered:
            of = self.communicator, self.collective, self.version
            copied = symmetric_kernels.copied_GBps(of[0], of[2]) if self.copied_us else math.inf
            return min(copied, symmetric_kernels.most_GBps(*of, self.protocol)) * 1e9
        block = self.block(costs)
        if not self.by_lines:
            return self._searched if self.limited and self.kind != "LL" else math.inf
        if host and block.host:
            return self.moved * PS_PER_S / block.host
        return block.rate or math.inf

    def handed_on(self, costs: Kernels) -> float:
        """Return the B/s at which blocks of a ring or chain over several nodes pass data on; infinity for no limit.
        Such blocks receive and send at once, as for messages. A message is loaded and stored twice, by its sender and
        by its receiver; a ring's block in Simple reads its buffer and its own data, and stores once, or loads once and
        stores twice. Flags of LL128 use a part of the rate. On one node there is no limit: the many channels fill the
        links, whose measured `reach` includes the blocks' work."""
        through = self.schedule == "ring" or (self.schedule == "chain" and self.communicator.ranks > 2)
        chained = through and self.communicator.nodes > 1
        limited = (chained and self.kind in ("LL128", "Simple")) or self.schedule == "nvls_tree"
        return self._block_rate(costs) * self.blocks if limited else math.inf

    def _block_rate(self, costs: Kernels) -> float:
        """Return the B/s at which a block of a ring or tree in LL128 or Simple loads and stores; infinity if unknown.
        A block of NVLSTree copies its data into buffers and sums out of them, as often as that of a message."""
        accesses = RING_ACCESSES if self.kind == "Simple" else 1.0
        return costs.P2P.both / accesses * figures().protocols[self.protocol].efficiency or math.inf

    @property
    def _searched(self) -> float:
        """Speed in B/s of the simulated channel (or pair) according to NCCL's graph search."""
        graph = self.communicator.graph(self.algorithm)  # type: ignore[arg-type]  # messages are never limited
        wire = figures().protocols[self.protocol].efficiency
        return graph.intra * 1e9 * wire * self.channels / self.alike if graph else math.inf

    def net_ps(self, costs: Kernels, transport: Transport) -> int:
        """Return the time in ps of a hop between nodes for a message of mean size, without the work of the proxies."""
        block: BlockCosts = getattr(costs, self.protocol)
        return block.net + transport.hop_ps(self.mean_on_wire)

    def filled_ps(self, costs: Kernels) -> int:
        """Return the time in ps to fill a message for the NIC, for a proxy sends full steps of the buffer. With flags
        beside the data a block writes each line as it comes, so only what follows the first piece that ranks pass on
        counts. In Simple a block begins when a slice has come."""
        if self.kind in ("NVLS", "P2P"):
            return 0
        rest = self.message if self.kind == "Simple" else max(0, self.message - self.handed)
        return self._handled(self.block(costs), rest) or round(rest * PS_PER_S / self._block_rate(costs))

    def handled_ps(self, transport: Transport, bandwidth: float) -> tuple[float, float]:
        """Return by how many ps a message between nodes arrives later because proxies handle it before the NIC sends it
        and after it has arrived: the NIC's part and the proxies' part. A channel has `bandwidth` B/s of the NIC. The
        engine lets a message pass at the rate of the slower of proxy and NIC, as if both worked on it at once, which
        holds for many messages in a row. So the time of the faster one is added."""
        if self.kind == "P2P":
            return 0.0, 0.0
        wire = self.sent * PS_PER_S / bandwidth if bandwidth else 0.0
        beside = (2 - self._both) * self._in_turn * transport.proxy
        proxied = self.proxy_ps(transport) * self.sent
        return (wire, beside) if wire < proxied else (0.0, proxied + beside)

    def proxy_ps(self, transport: Transport) -> float:
        """Return the time in ps that a GPU's proxy needs per byte of the simulated channel's data. It includes the
        messages of all channels that the proxy serves, and both sends and receives if there are both."""
        p2p, nvls = self.algorithm == "p2p", self.kind == "NVLS"
        in_host = self.protocol == "LL" and not p2p  # measured sends and receives were not copied
        moved: float = transport.staged_ps(self.on_wire, in_host=in_host)
        read_back = self.protocol == "Simple" and self.communicator.capability < FLUSHED
        moved += transport.seen_in_ps(self.on_wire, read_back=read_back)
        if not (p2p or nvls):
            moved += transport.late_ps(self.on_wire, max(1.0, self.block_moves / self.sent), self.slots)
        # each channel of NVLS has a head on every GPU; others are shared out among the GPUs near NICs
        channels = 1.0 if p2p else self.alike if nvls else max(1.0, self.alike / self.nics)
        once = transport.taken_up_ps(self.on_wire) / self.parts.part if self.parts and self.parts.part else 0.0
        return (self._in_turn * self._both * transport.proxy + channels * moved) / self.sent + once

    @property
    def _both(self) -> int:
        """2 if a proxy sends and receives, 1 if another GPU's proxy receives, or if a root only sends or receives."""
        if self.algorithm == "p2p":
            return 1 if self.collective in ("gather", "scatter") else 2
        return 1 if self.schedule in ("ring", "chain") and self.communicator.gpus > 1 else 2

    @property
    def _in_turn(self) -> float:
        """Number of messages that a proxy handles one after the other for each message of the simulated channel. A
        round of the proxy serves all waiting messages: with NVLS those of all channels, which wait for the same ranks;
        point to point those of the peers that a block serves at once."""
        if self.algorithm == "p2p":
            return 1 / self._served
        return 1.0 if self.kind == "NVLS" else max(1.0, self.alike / self.nics)

    @property
    def _served(self) -> int:
        """Number of point-to-point messages that a proxy serves in one round. It receives several only over one
        connection: with PXN, one connection carries the messages of all GPUs of a node (NCCL's
        src/transport/net.cc)."""
        peers = max(1, self.far_peers) * (self.parts.channels if self.parts else 1)
        return min(p2p_messages.AT_ONCE if self.communicator.pxn else 1, peers)

    @property
    def far_peers(self) -> int:
        """Number of ranks on other nodes to which a rank sends point-to-point messages."""
        return 1 if self.collective == "send_recv" else self.communicator.ranks - self.communicator.gpus

    def leg_ps(self, costs: Kernels) -> int:
        """Return the extra time in ps on each of the four links within nodes that NVLSTree uses; 0 for other
        algorithms. It has two parts: the blocks' time for a chunk of all heads, and the time by which such a hop
        exceeds a hop between nodes. A block serves eight heads at once; of more heads, each waits for the others on
        every link. To and from the switch a block waits for flags of all heads, on the other two for one head."""
        if self.schedule != "nvls_tree":
            return 0
        waits = costs.NVLS.hop * (self.heads - HEADS) // (2 * HEADS)  # two links of four
        return waits + service(self.message * self.heads, costs.NVLS.rate) * self.heads // (4 * HEADS)

    def hop_ps(self, costs: Kernels) -> int:
        """Return the time of a hop in ps: from when one rank has data until the next rank can go on, without the
        block's work on the data. In a loop of chain calls the first ranks are calls ahead of the last, so all hops but
        one overlap. The overlapped hops count once for all calls of the loop."""
        block = self.block(costs)
        hop = block.hop + round(block.store * self._stores if self.kind == "Simple" else 0)
        if not self.in_loop:
            return hop
        others = self.communicator.ranks - 2
        return (hop + (hop * others // self.calls if self.calls else 0)) // (others + 1)

    @property
    def _stores(self) -> float:
        """Share of the steps in which a block stores the data for the next rank and also in its own output."""
        return _STORES.get(self.collective, 0.0)

    def block(self, costs: Kernels) -> BlockCosts:
        """Return the costs of one thread block of the call."""
        block: BlockCosts = getattr(costs, self.kind)
        return block

    def _message_rate(self, block: BlockCosts, uneven: float = 1.0) -> int:
        """Return the B/s of a message limited only by blocks (between nodes, blocks and proxies); 0 for no limit. Other
        messages of these blocks are smaller by `uneven`. Between nodes links bind: their queues serve messages to other
        peers first, so that the last message has the blocks to itself."""
        parts = self.parts
        if parts is None or parts.protocol == "LL" or not (block.first and block.both and parts.part):
            return 0
        through = block.both if self.collective in ("all_to_all", "send_recv") else block.first
        alone = service(parts.first, block.first) + service(parts.part - parts.first, through)
        if self.communicator.nodes > 1:
            alone += -(-parts.part // parts.sent) * (block.hop + block.net)
        copied = 0.0 if parts.rounds else through / block.first
        others = (
            0 if self.communicator.nodes > 1 or self.collective == "send_recv" else self.communicator.ranks - 2 + copied
        )
        return round(self.piece * PS_PER_S / (alone * max(1.0, parts.channels * (1 + others) / parts.most / uneven)))

    def _copied_ps(self, block: BlockCosts) -> int:
        """Return the time in ps in which a block copies the rank's message to itself and cannot send; 0 unless blocks
        serve peers one after the other."""
        parts = self.parts
        if not (parts and parts.rounds and parts.channels * self.communicator.ranks > parts.most):
            return 0
        return 0 if self.collective == "send_recv" or self.in_place else service(parts.part, block.first)

    @property
    def _credits(self) -> dict[str, int]:
        """Return the engine parameter `slots` as a dictionary: the number of a message's pieces that its buffers hold.
        It is empty on one node."""
        if self.parts is None or self.communicator.nodes == 1 or self.collective == "send_recv":  # of one peer
            return {}
        return {"slots": max(1, figures().steps * self.parts.sent * self.parts.channels // max(1, self.handed))}

    @property
    def _split(self) -> float:
        """Factor on the time of a tree's blocks in LL, because the ways up and down share a block's threads. In NCCL 70
        % of the threads reduce upwards, and 30 % broadcast downwards, which takes 1 / 0.3 times as long. In the
        simulation one receiver does both in turn, each in half of that time."""
        return 1 / 0.3 / 2 if self.schedule == "chain_tree" else 1.0

    def _handled(self, block: BlockCosts, nbytes: int) -> int:
        """Return a block's time for `nbytes` in ps; 0 if the links set the time (not LL, or LL over PCIe)."""
        if self.kind != "LL" or self.by_lines:
            return 0
        return lines_ps(block, self.threads, nbytes, self._stores)
