"""Run the library's own collectives, to compare schedules with them. `Runner` is the base class of all runners."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from simcoll.measurement.rank_tasks import IDLE, RankTask
from simcoll.schedule.collectives import EXCHANGES, OPERATORS, cut_slots
from simcoll.schedule.names import DTYPES

Tensor: TypeAlias = torch.Tensor
Start = Callable[..., Any]  # called with `async_op`; if it is true, returns a work object to wait for
Buffers = tuple[list[Start], Tensor]  # the calls of a collective, and the tensor that holds the result

TYPES: Final[dict[str, torch.dtype]] = {row.name: getattr(torch, row.name) for row in DTYPES}
_OPERATORS: Final = {op: getattr(dist.ReduceOp, op.upper()) for op in OPERATORS}  # the library has our names
# The next two names depend on the version of torch.
ALL_GATHER: Final[Start] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
REDUCE_SCATTER: Final[Start] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def to_tensor(values: NDArray[Any], like: torch.Tensor) -> torch.Tensor:
    """Return the values as a tensor with the dtype and device of `like`."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(dtype=like.dtype, device=like.device)


def to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a tensor's values in host memory; bfloat16 as float32, since NumPy has no bfloat16."""
    host = tensor.detach().to("cpu")
    values: NDArray[Any] = (host.float() if host.dtype == torch.bfloat16 else host).numpy().copy()
    return values


class Runner:
    """A collective, ready to run on one rank. This base class does nothing; ranks that are in no group use it."""

    def fill(self, values: NDArray[Any]) -> None:
        """Copy `values` into the rank's buffer."""

    def run(self) -> None:
        """Run the collective once."""

    def often(self, calls: int) -> Callable[[], None]:
        """Return a function that runs the collective `calls` times in a row."""

        def runs() -> None:
            for _ in range(calls):
                self.run()

        return runs

    def close(self) -> None:
        """Release, before the library ends, objects for which it would wait."""

    def result(self) -> NDArray[Any]:
        """Return the values of this rank's result slots."""
        return np.zeros(0)

    def undone(self) -> int:
        """Return the index of the transfer that the GPU is running; IDLE for none, or inside a library's call."""
        return IDLE


class LibraryCall(Runner):
    """A library's collective on this rank's buffers, ready to run any number of times.

    `group` is the process group of the ranks `members`. `row` has the number of elements of each block that the rank
    sends, `column` of each block that it receives; they differ only for weighted all_to_all. With `in_place`, a rank's
    own block is a part of the whole buffer (all_gather, reduce_scatter). With `async_op` all calls (buckets) run at
    once, else each ends before the next begins.
    """

    def __init__(self, task: RankTask, rank: int, members: tuple[int, ...], group: Any, device: torch.device):
        cuts = cut_slots(task.schedule, task.elements, task.weights)
        blocks = [[cut.stop - cut.start for cut in cuts[member]] for member in members]
        self.rank, self.members, self.group, self.place = rank, members, group, members.index(rank)
        self.op, self.buckets, self.in_place = task.op, task.buckets, task.in_place
        self.root = members[task.schedule.root]
        self.row = self.column = blocks[self.place]
        if task.schedule.collective in EXCHANGES:
            self.column = [sent[self.place] for sent in blocks]
        self._async = task.async_op
        self.buffer = torch.zeros(sum(self.row), dtype=TYPES[task.dtype], device=device)
        self.second = self.buffer.new_zeros(max(sum(self.row), sum(self.column)))
        self._calls, self._answer = SHAPES[task.schedule.collective](self)

    def at_root(self, whole: Tensor) -> list[Tensor] | None:
        """Return the blocks of a buffer if this rank is the root, else None."""
        return list(torch.split(whole, self.row)) if self.rank == self.root else None

    def fill(self, values: NDArray[Any]) -> None:
        """Copy `values` into the rank's buffer; the collective ignores parts that the rank does not hold."""
        self.second.zero_()
        self.buffer.copy_(to_tensor(values, self.buffer))

    def run(self) -> None:
        """Call the library once, or once for each bucket."""
        works = []
        for call in self._calls:
            work = call(async_op=self._async)
            if self._async and work is not None:
                works.append(work)
        for work in works:
            work.wait()

    def result(self) -> NDArray[Any]:
        """Return the values of this rank's result slots, concatenated; undefined if there are none."""
        return to_numpy(self._answer)


class GraphCall(LibraryCall):
    """A library's collective whose repeated calls are replayed from a CUDA graph."""

    def __init__(self, *how: Any):
        super().__init__(*how)
        self._graphs: dict[int, Any] = {}

    def often(self, calls: int) -> Callable[[], None]:
        """Return a function that replays a graph of `calls` calls; the graph is captured once."""
        if calls not in self._graphs:
            self.run()  # makes NCCL connect, as it cannot during the capture
            torch.cuda.synchronize(self.buffer.device)
            graph = torch.cuda.CUDAGraph()
            # Threads of torch ask whether earlier calls are over; without "thread_local" that would end the capture.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                super().often(calls)()
            self._graphs[calls] = graph
        replay: Callable[[], None] = self._graphs[calls].replay
        return replay

    def close(self) -> None:
        """Drop the graphs, for which NCCL would wait at its end."""
        self._graphs.clear()


def _on_one_tensor(call: Start, c: LibraryCall) -> Buffers:
    return [partial(call, part, group=c.group) for part in torch.tensor_split(c.buffer, c.buckets)], c.buffer


def _all_reduce(c: LibraryCall) -> Buffers:
    return _on_one_tensor(partial(dist.all_reduce, op=_OPERATORS[c.op]), c)


def _reduce(c: LibraryCall) -> Buffers:
    return _on_one_tensor(partial(dist.reduce, dst=c.root, op=_OPERATORS[c.op]), c)


def _broadcast(c: LibraryCall) -> Buffers:
    return _on_one_tensor(partial(dist.broadcast, src=c.root), c)


def _all_gather(c: LibraryCall) -> Buffers:
    mine, whole = torch.split(c.buffer, c.row)[c.place], c.buffer if c.in_place else c.second
    return [partial(ALL_GATHER, whole, mine, group=c.group)], whole


def _reduce_scatter(c: LibraryCall) -> Buffers:
    out = torch.split(c.buffer, c.row)[c.place] if c.in_place else c.second[: c.row[c.place]]
    return [partial(REDUCE_SCATTER, out, c.buffer, op=_OPERATORS[c.op], group=c.group)], out


def _gather(c: LibraryCall) -> Buffers:
    mine = torch.split(c.buffer, c.row)[c.place]
    return [partial(dist.gather, mine, c.at_root(c.second), c.root, group=c.group)], c.second


def _scatter(c: LibraryCall) -> Buffers:
    out = c.second[: c.row[c.place]]
    return [partial(dist.scatter, out, c.at_root(c.buffer), c.root, group=c.group)], out


def _all_to_all(c: LibraryCall) -> Buffers:
    out = c.second[: sum(c.column)]
    return [partial(dist.all_to_all_single, out, c.buffer, c.column, c.row, group=c.group)], out


def _barrier(c: LibraryCall) -> Buffers:
    where = [c.buffer.device.index] if c.buffer.is_cuda else None  # without the index gloo would run it, on processors
    return [partial(dist.barrier, group=c.group, device_ids=where)], c.buffer


def _send_recv(c: LibraryCall) -> Buffers:
    following = c.members[(c.members.index(c.root) + 1) % len(c.members)]
    if following == c.root or c.rank not in (c.root, following):
        return [], c.buffer
    peer = following if c.rank == c.root else c.root

    def call(*, async_op: bool) -> Any:
        if c.rank == c.root:
            return dist.isend(c.buffer, peer) if async_op else dist.send(c.buffer, peer)
        return dist.irecv(c.buffer, peer) if async_op else dist.recv(c.buffer, peer)

    return [call], c.buffer


SHAPES: Final[dict[str, Callable[[LibraryCall], Buffers]]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "moe_dispatch": _all_to_all,
    "moe_combine": _all_to_all,
    "barrier": _barrier,
    "send_recv": _send_recv,
}
