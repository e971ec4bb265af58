"""The data of one call as NCCL moves them: shares of channels, chunks, slices and messages.

All channels of a call do the same at the same time, so one of them is run, with its share of the data.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal

from simcoll.nccl import _p2p_messages
from simcoll.nccl.call_names import SCHEDULES
from simcoll.nccl.communicator import Communicator
from simcoll.nccl.kernel_costs import CostKind
from simcoll.nccl.protocols import chunk_bytes, figures, pat_chunk_bytes, slice_bytes, step_bytes, tree_chunk_bytes
from simcoll.nccl.symmetric_kernels import SYMMETRIC
from simcoll.schedule.names import NcclAlgorithm, Protocol

SLICE: Final = 32 << 10  # bytes, the least in Simple
LL_SLICE: Final = 64  # bytes, eight lines: smaller steps are run in one slice
LL_SLICES: Final = 8  # in which a step over PCIe is run, whose lines are handed on one by one
# What chains in Simple hand on at a time: as A100 do by nccl-tests; V100 hand on whole chunks.
CHAIN_PIECE: Final = 16 << 10
MOST_CHAIN_PIECES: Final = 1024  # in which they are run
MOST_PIECES: Final = 64  # in which a channel's share of a chain, or a message, is run, where it could be more
MOST_LOADED: Final = 256  # pieces in which a symmetric kernel is run, whose threads load and store at the same time
MOST_MESSAGES: Final = 4096  # pieces that a rank sends in all
P2P_PIECE: Final = 4 << 10  # bytes, to which NCCL aligns the parts of a message
NVLS_CHUNK: Final = 128 << 10  # bytes; the default of NCCL_NVLS_CHUNKSIZE
# Below so many chunks a channel and head: at most so many bytes each.
_NVLS_LESS: Final[tuple[tuple[int, int], ...]] = ((64, 64 << 10), (8, 32 << 10), (2, 16 << 10))
_NVLS_TREE_LESS: Final[tuple[tuple[int, int], ...]] = ((32, 256 << 10), (16, 128 << 10), (4, 64 << 10), (1, 32 << 10))


@dataclass(frozen=True)
class CallShape:
    """`nbytes` (the largest buffer of a rank) of a collective by so many `channels` of `threads` each; `limited`: other
    channels than NCCL would take by itself; `staged`: some ranks of a node hand on through the host's memory;
    `version`: the release of the tuner that chose it; `registered`: by a symmetric kernel, of which all blocks are one
    channel; `looped`: it is one of many, each of which a rank begins when it is done with that before, of so many
    `calls` where that is known; `by_itself`: NCCL takes this algorithm and protocol where it has the choice of all."""

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
    parts: _p2p_messages.MessageParts | None = None
    staged: bool = False
    version: str | None = None
    limited: bool = False
    registered: bool = False
    looped: bool = False
    calls: int | None = None
    by_itself: bool = field(default=True, compare=False)

    @cached_property
    def kind(self) -> CostKind:
        """Key of the cost block that applies."""
        return "P2P" if self.algorithm == "p2p" else "NVLS" if self.algorithm.startswith("nvls") else self.protocol

    @property
    def schedule(self) -> str:
        """The name of the schedule that is run."""
        return SCHEDULES[self.algorithm, self.collective]

    @property
    def name(self) -> str:
        """The name of the algorithm in scenarios, results and tables; see `names`. A symmetric kernel cannot be asked
        for by name."""
        if self.registered:
            return SYMMETRIC
        return self.schedule if self.algorithm == "p2p" else self.algorithm

    @cached_property
    def alike(self) -> int:
        """Number of units like the simulated one that run side by side: channels, or pairs of channels.

        Over several nodes a pair has two trees, one for each of its channels; on one node both are the same chain, and
        so are those of other pairs (NCCL's src/graph/connect.cc copies the channels, from memory): one is simulated. In
        LL the time is the block's own, so one channel is simulated, too, and half of its data goes by each tree.
        """
        two = self.communicator.nodes > 1 and self.protocol != "LL"
        paired = self.algorithm == "nvls_tree" or (self.algorithm == "tree" and two)
        return max(1, self.channels // 2) if paired else self.channels

    @cached_property
    def share(self) -> int:
        """Bytes of what is run, as many of each rank."""
        halves = self.schedule == "chain_tree" and self.communicator.nodes > 1  # not blocks, of which many are empty
        one = self.collective == "send_recv"  # message, of any number of elements
        grain = (2 if halves else 1 if one else self.communicator.ranks) * self.itemsize
        return max(1, -(-self.nbytes // (self.alike * grain))) * grain

    @property
    def piece(self) -> int:
        """Bytes of a rank's own block, of a message of send_recv, or of all heads of NVLS."""
        whole = self.kind == "NVLS" or self.collective == "send_recv"
        return self.share if whole else self.share // self.communicator.ranks

    @cached_property
    def step(self) -> int:
        """Bytes of one transfer of rings (a block), chains (everything) and trees (half), a chunk at most."""
        parts = {"chain": 1, "chain_tree": min(2, self.communicator.nodes)}.get(self.schedule, self.communicator.ranks)
        return min(self.share // parts, self.chunk)

    @cached_property
    def chunk(self) -> int:
        """The largest chunk; 0: everything."""
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
        """Parts of a ring's chunk; the next rank may use each as soon as it has come."""
        if self.schedule == "ring" and self.by_lines:
            return 1 if self.step <= LL_SLICE else LL_SLICES
        if self.schedule != "ring" or self.step <= SLICE:
            return 1
        key = self.collective, self.algorithm, self.protocol, self.communicator.buffer_bytes
        return self.chunk // slice_bytes(*key)  # type: ignore[arg-type]  # a ring's, so no p2p

    @property
    def steps(self) -> int:
        """Steps of the schedule of a tree over several nodes: up and down between nodes, and on their chains (tree) or
        to and from their switches (NVLSTree)."""
        comm = self.communicator
        return 2 * ((comm.nodes - 1).bit_length() + (2 if self.schedule == "nvls_tree" else comm.gpus - 1))

    @property
    def slots(self) -> int:
        """Messages of a connection that are on their way at most: steps of the buffer, of which slices take some."""
        key = self.collective, self.algorithm, self.protocol
        return figures().steps * step_bytes(self.protocol) // slice_bytes(*key)  # type: ignore[arg-type]  # no messages

    @property
    def message(self) -> int:
        """Bytes that a channel gives to a NIC at a time. In LL all of a channel's share goes by one tree, and lines
        that GPUs hand on one by one within a node go to the NIC together, when a step is full."""
        if self.schedule == "chain_tree" and self.protocol == "LL":
            return min(self.share, self.chunk)
        if self.schedule == "nvls_tree":
            return min(self.share // (2 * self.heads), self.chunk)
        return self.step // (1 if self.by_lines else self.slices)

    @property
    def aggregation(self) -> int:
        """Blocks that a message of PAT carries at most: as many as a step of the buffer holds, then over all steps."""
        comm, count = self.communicator, 1
        most, step = max(1, (1 << (comm.ranks - 1).bit_length()) // 2), step_bytes("Simple", comm.buffer_bytes)
        while count < most and step // (max(1, self.step) * count) >= 2:
            count *= 2
        return min(most, count * figures().steps)

    @property
    def options(self) -> str:
        """Option string for the schedule."""
        if self.schedule == "pat":
            return f"(aggregation={self.aggregation})"
        if self.collective == "all_to_all" and self.communicator.nodes > 1:
            return "(order=groups)"
        if self.schedule == "nvls_tree" and self.heads < self.communicator.gpus:
            return f"(heads={self.heads})"
        return f"(slices={self.slices})" if self.slices > 1 else ""

    @cached_property
    def handed(self) -> int:
        """The most bytes that are handed to the next rank at a time; 0: everything.

        With flags beside the data (LL, LL128) these are the bytes that the threads move at once.
        """
        if self.algorithm == "p2p":  # messages to all peers are on their way at once, and take turns chunk by chunk
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
        """Whether it is a chain whose calls overlap: a rank begins the next one when it is done."""
        return self.looped and self.schedule == "chain"

    @property
    def by_lines(self) -> bool:
        """Whether it is LL over PCIe, whose links are slow enough to limit it: there lines are handed on one by one."""
        return self.kind == "LL" and self.communicator.graphs["ring"].type_intra in ("PIX", "PXB", "PHB", "SYS")

    @property
    def heads(self) -> int:
        """The number of GPUs of a node at which NVLS puts sums together."""
        return len(self.communicator.heads)

    @property
    def moved(self) -> int:
        """Bytes that the threads of a block move at once."""
        return self.threads * figures().protocols[self.protocol].moved_a_thread

    @property
    def stay(self) -> float:
        """Share of a ring's channels that a GPU hands on within its node: those of a NIC leave it at another GPU."""
        comm = self.communicator
        leave = self.schedule == "ring" and comm.nodes > 1 and comm.gpus > 1
        return (comm.gpus - 1) / comm.gpus if leave else 1.0

    @property
    def rails(self) -> float:
        """NICs of a node over which what one channel stands for is spread."""
        return 1.0 if self.kind in ("NVLS", "P2P") else max(1.0, min(self.nics, self.alike))

    @property
    def on_wire(self) -> int:
        """Bytes of a message between nodes, flags counted."""
        return self._with_flags(self.sent)

    @property
    def rounds(self) -> int:
        """The number of times that a ring goes round: once more for what full chunks leave, however little that is."""
        return -(-self.piece // self.chunk) or 1

    @property
    def mean_on_wire(self) -> int:
        """The same on average over the rounds of a ring."""
        if self.schedule != "ring" or not self.step:
            return self.on_wire
        return self._with_flags(max(1, self.sent * self.piece // (self.rounds * self.step)))

    def _with_flags(self, nbytes: int) -> int:
        line = figures().protocols[self.protocol]
        return nbytes * line.line_bytes // line.data_bytes

    @property
    def sent(self) -> int:
        """Bytes of data of a message between nodes."""
        return self.parts.sent if self.parts else max(1, self.message)

    @property
    def blocks(self) -> float:
        """Thread blocks for which what is run stands."""
        return self.channels / self.alike

    @property
    def block_moves(self) -> float:
        """Bytes that a block sends, in all steps."""
        comm = self.communicator
        steps = comm.ring_steps(self.collective) / comm.ranks  # type: ignore[arg-type]  # messages have none
        return self.share / self.blocks * (steps if self.schedule == "ring" else 1.0)
