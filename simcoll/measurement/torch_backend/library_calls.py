"""Run the library's own collectives, to compare schedules with them. `Runner` is the base class of all runners."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from simcoll.measurement.rank_tasks import IDLE
from simcoll.schedule.collectives import OPERATORS
from simcoll.schedule.names import DTYPES

Tensor: TypeAlias = torch.Tensor
Start = Callable[..., Any]  # called with `async_op`; if it is true, returns a work object to wait for
Buffers = tuple[list[Start], Tensor]  # the calls of a collective, and the tensor that holds the result

TYPES: Final[dict[str, torch.dtype]] = {row.name: getattr(torch, row.name) for row in DTYPES}
_OPERATORS: Final = {op: getattr(dist.ReduceOp, op.upper()) for op in OPERATORS}  # the library has our names
# The next two names depend on the version of torch.
ALL_GATHER: Final[Start] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER: Final[Start] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def to_tensor(values: NDArray[Any], like: torch.Tensor) -> torch.Tensor:
    """Return the values as a tensor with the dtype and device of `like`."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(dtype=like.dtype, device=like.device)


def to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a tensor's values in host memory; bfloat16 as float32, since NumPy has no bfloat16."""
    host = tensor.detach().to("cpu")
    values: NDArray[Any] = (host.float() if host.dtype == torch.bfloat16 else host).numpy().copy()
    return values


class Runner:
    """A collective, ready to run on one rank. This base class does nothing; ranks outside all groups use it."""

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
        """Release the library's references to the buffers."""

    def result(self) -> NDArray[Any]:
        """Return the values of this rank's result slots."""
        return np.zeros(0)

    def undone(self) -> int:
        """Return the index of the transfer that the GPU is running; IDLE for none, or inside a library's call."""
        return IDLE


@dataclass(frozen=True, eq=False)
class CallSetting:
    """A collective on one rank.

    `group` and `members` are the process group and its ranks; `root` is a global rank. `row` has the number of elements
    of each block that the rank sends, `column` of each block that it receives. They differ only for weighted
    all_to_all. With `in_place`, a rank's own block is a part of the whole buffer (all_gather, reduce_scatter).
    """

    group: Any
    members: Sequence[int]
    rank: int
    root: int
    op: str
    row: Sequence[int]
    column: Sequence[int]
    buckets: int = 1
    in_place: bool = False

    @property
    def place(self) -> int:
        """The rank's index in its group."""
        return list(self.members).index(self.rank)

    def at_root(self, whole: Tensor) -> list[Tensor] | None:
        """Return the blocks of a buffer if this rank is the root, else None."""
        return list(torch.split(whole, list(self.row))) if self.rank == self.root else None


class LibraryCall(Runner):
    """A library's collective on this rank's buffers, ready to run any number of times.

    With `async_op` all calls (buckets) run at once, else each ends before the next begins. With `registered` the
    buffers are registered with NCCL as windows of all ranks of the group.
    """

    def __init__(
        self,
        collective: str,
        setting: CallSetting,
        dtype: str,
        device: torch.device,
        async_op: bool,
        registered: bool = False,
    ):
        self._async = async_op
        self._window = Window(setting.group, device) if registered else None
        with self._window or contextlib.nullcontext():
            self._buffer = torch.zeros(sum(setting.row), dtype=TYPES[dtype], device=device)
            self._second = self._buffer.new_zeros(max(sum(setting.row), sum(setting.column)))
        self._calls, self._answer = SHAPES[collective](setting, self._buffer, self._second)

    def fill(self, values: NDArray[Any]) -> None:
        """Copy `values` into the rank's buffer; the collective ignores parts that the rank does not hold."""
        self._second.zero_()
        self._buffer.copy_(to_tensor(values, self._buffer))

    def run(self) -> None:
        """Call the library once, or once for each bucket."""
        works = []
        for call in self._calls:
            work = call(async_op=self._async)
            if self._async and work is not None:
                works.append(work)
        for work in works:
            work.wait()

    def close(self) -> None:
        """Undo the registration of the buffers."""
        if self._window:
            self._window.close()

    def result(self) -> NDArray[Any]:
        """Return the values of this rank's result slots, concatenated; undefined if there are none."""
        return to_numpy(self._answer)


class Window:
    """Memory of NCCL's allocator: tensors made inside the context are registered when it ends.

    The pool of `torch.cuda.MemPool` takes its memory from the backend's allocator, and the backend registers the
    segments of the pool. All ranks of the group must make their windows in the same order.
    """

    def __init__(self, group: Any, device: torch.device):
        self._device = device
        self._backend = (group or dist.group.WORLD)._get_backend(device)
        self._pool = torch.cuda.MemPool(self._backend.mem_allocator)
        self._inside = contextlib.ExitStack()

    def __enter__(self) -> None:
        self._inside.enter_context(torch.cuda.use_mem_pool(self._pool, self._device))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._inside.close()
        if kind is None:
            self._backend.register_mem_pool(self._pool, True)  # True: as windows; torch's stubs lack this argument

    def close(self) -> None:
        """Undo the registration; call this before the memory is freed."""
        torch.cuda.synchronize(self._device)
        self._backend.deregister_mem_pool(self._pool)


class GraphCall(LibraryCall):
    """A library's collective whose calls in a row are replayed from a CUDA graph."""

    def __init__(self, *how: Any):
        super().__init__(*how)
        self._graphs: dict[int, Any] = {}

    def often(self, calls: int) -> Callable[[], None]:
        """Return a function that replays a graph of `calls` calls; the graph is captured once."""
        if calls not in self._graphs:
            self.run()  # makes NCCL connect, as it cannot during the capture
            torch.cuda.synchronize(self._buffer.device)
            graph = torch.cuda.CUDAGraph()
            # Threads of torch ask whether earlier calls are over; without "thread_local" that would end the capture.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                super().often(calls)()
            self._graphs[calls] = graph
        replay: Callable[[], None] = self._graphs[calls].replay
        return replay

    def close(self) -> None:
        """Drop the graphs, then undo the registration of the buffers."""
        self._graphs.clear()
        super().close()


def _on_one_tensor(call: Start, s: CallSetting, buffer: Tensor) -> Buffers:
    return [partial(call, part, group=s.group) for part in torch.tensor_split(buffer, s.buckets)], buffer


def _all_reduce(s: CallSetting, buffer: Tensor, second: Tensor) -> Buffers:
    return _on_one_tensor(partial(dist.all_reduce, op=_OPERATORS[s.op]), s, buffer)


def _reduce(s: CallSetting, buffer: Tensor, second: Tensor) -> Buffers:
    return _on_one_tensor(partial(dist.reduce, dst=s.root, op=_OPERATORS[s.op]), s, buffer)


def _broadcast(s: CallSetting, buffer: Tensor, second: Tensor) -> Buffers:
    return _on_one_tensor(partial(dist.broadcast, src=s.root), s, buffer)


def _all_gather(s: CallSetting, buffer: Tensor, second: Tensor) -> Buffers:
    mine, whole = torch.split(buffer, list(s.row))[s.place], buffer if s.in_place else second
    return [partial(ALL_GATHER, whole, mine, group=s.group)], whole


def _reduce_scatter(s: CallSetting, buffer: Tensor, second: Tensor) -> Buffers:
    out = torch.split(buffer, list(s.row))[s.place] if s.in_place else second[: s.row[s.place]]
    return [partial(_REDUCE_SCATTER, out, buffer, op=_OPERATORS[s.op], group=s.group)], out


def _gather(s: CallSetting, buffer: Tensor, second: Tensor) -> Buffers:
    mine = torch.split(buffer, list(s.row))[s.place]
    return [partial(dist.gather, mine, s.at_root(second), s.root, group=s.group)], second


def _scatter(s: CallSetting, buffer: Tensor, second: Tensor) -> Buffers:
    out = second[: s.row[s.place]]
    return [partial(dist.scatter, out, s.at_root(buffer), s.root, group=s.group)], out


def _all_to_all(s: CallSetting, buffer: Tensor, second: Tensor) -> Buffers:
    out = second[: sum(s.column)]
    return [partial(dist.all_to_all_single, out, buffer, list(s.column), list(s.row), group=s.group)], out


def _barrier(s: CallSetting, buffer: Tensor, second: Tensor) -> Buffers:
    where = [buffer.device.index] if buffer.is_cuda else None  # without the index gloo would run it, on processors
    return [partial(dist.barrier, group=s.group, device_ids=where)], buffer


def _send_recv(s: CallSetting, buffer: Tensor, second: Tensor) -> Buffers:
    following = s.members[(list(s.members).index(s.root) + 1) % len(s.members)]
    if following == s.root or s.rank not in (s.root, following):
        return [], buffer
    peer = following if s.rank == s.root else s.root

    def call(*, async_op: bool) -> Any:
        if s.rank == s.root:
            return dist.isend(buffer, peer) if async_op else dist.send(buffer, peer)
        return dist.irecv(buffer, peer) if async_op else dist.recv(buffer, peer)

    return [call], buffer


SHAPES: Final[dict[str, Callable[[CallSetting, Tensor, Tensor], Buffers]]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "barrier": _barrier,
    "send_recv": _send_recv,
}
