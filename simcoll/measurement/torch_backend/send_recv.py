"""Run one rank's part of a program with send and receive.

A send waits only for the values that it reads, so transfers overlap wherever the schedule allows it. Receives of a step
are posted before the rank waits for its sends. Arrived values are reduced when the result is first read. Several
reductions into one place run in index order, so every run gives the same result. Values that do not follow each other
in memory are copied into one tensor before they are sent, and from one tensor after they have come.

Gloo distinguishes the messages of a pair of ranks by tag, which is the index of the transfer. NCCL has no tags: all
sends and receives of a step form one group, in which messages of a pair match in index order. Groups run in sequence.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import torch
import torch.distributed as dist
from numpy.typing import NDArray

from simcoll.measurement.program_of_rank import MemoryRange, Move, Part, SlotPlace, Stage, part_of
from simcoll.measurement.rank_tasks import IDLE, RankTask
from simcoll.measurement.torch_backend.library_calls import TYPES, Runner, to_numpy, to_tensor
from simcoll.schedule.collectives import OPERATORS, collective, cut_slots, promised

Tensor: TypeAlias = torch.Tensor
Post = Literal["overlapped", "grouped", "sends-first", "even-odd"]

# PyTorch names these functions as NumPy does; `avg` is a sum with one final scaling.
REDUCE: Final[dict[str, Callable[..., Any]]] = {op: getattr(torch, of.__name__) for op, of in OPERATORS.items()}


class TransferError(Exception):
    """A transfer that failed or took too long: its `index` in the program, and the backend's message (`said`)."""

    def __init__(self, index: int, said: str):
        super().__init__(said)
        self.index, self.said = index, said


@dataclass(slots=True)
class _Posted:
    """A transfer that was started; `work` is what to wait for, None if it is done."""

    index: int
    work: Any


@dataclass(frozen=True, slots=True)
class _Write:
    """A pending write to a place in memory. After `posted` is done, `staged` is copied or reduced into the place's
    memory `home`. `staged` is None if the message is received directly into `home`."""

    posted: _Posted
    staged: Tensor | None
    reduce: bool
    home: Tensor


class Exchange(Runner):
    """A rank's part of a task's program, ready to run any number of times.

    `post` tells how the transfers of a step are started. Before each wait, `waits(index)` is called with the index of
    the awaited transfer, so that a watching process can name it.
    """

    def __init__(
        self,
        task: RankTask,
        rank: int,
        device: torch.device,
        post: Post,
        waits: Callable[[int], None] = lambda index: None,
    ):
        schedule = task.schedule
        assert task.program is not None
        self.part = part = part_of(task.program, rank, task.nbytes, task.itemsize, task.weights)
        self.memory = torch.zeros(part.elements, dtype=TYPES[task.dtype], device=device)
        self._post, self._reduce, self._waits = post, REDUCE[task.op], waits
        self._promised = [part.left[slot] for slot in promised(schedule, rank)]
        members = next((len(group) for group in schedule.groups if rank in group), 0)
        self._divisor = members if task.op == "avg" and collective(schedule.collective).reduces else 0
        cuts = cut_slots(schedule, task.elements, task.weights)
        self._cuts = cuts.get(rank, [slice(0)] * schedule.n_chunks)  # the range of each slot in the rank's values
        self._groups: list[tuple[int, Any]] = []
        self._nothing = self.memory.new_zeros(2)  # contents of an empty message: sent, received
        self._staged = {
            move.index: self.memory.new_zeros(move.count)
            for stage in part.stages
            for moves in (stage.receives, stage.locals, stage.sends)
            for move in moves
            if (move.span is None if moves is stage.sends else not move.direct)
        }
        self._ops = [self._operations(stage) for stage in part.stages]
        self._writes: dict[SlotPlace, list[_Write]] = {}
        self._reads: dict[SlotPlace, list[_Posted]] = {}

    def fill(self, values: NDArray[Any]) -> None:
        """Copy `values` into the slots that are defined before the first step."""
        self.memory.zero_()
        for span, cut in zip(self.part.held, self._cuts, strict=True):
            if span.count:
                self._view(span).copy_(to_tensor(values[cut], self.memory))

    def result(self) -> NDArray[Any]:
        """Return the contents of the result slots, concatenated."""
        return to_numpy(torch.cat([self.memory[:0], *map(self._view, self._promised)]))

    def undone(self) -> int:
        """Return the first unfinished transfer of the last run, IDLE if none. Only groups on a GPU are tracked."""
        return next((index for index, work in self._groups if not work.is_completed()), IDLE)

    def run(self) -> None:
        """Run the rank's part once. Raises TransferError."""
        self._writes, self._reads, self._groups = {}, {}, []
        step = self._blocking if self._post in ("sends-first", "even-odd") else self._batched
        for stage, ops in zip(self.part.stages, self._ops, strict=True):
            fresh = step(stage, *ops)
            if stage.locals:  # without local moves the receives are in order
                fresh.sort(key=lambda pair: pair[1].posted.index)
            for place, write in fresh:
                self._writes.setdefault(place, []).append(write)
        for place in list(self._writes):
            self._settle(place)
        for place in list(self._reads):
            self._release(place)
        if self._divisor:
            self._divide()
        self._waits(IDLE)

    # --- a step ---

    def _batched(
        self, stage: Stage, receives: list[dist.P2POp], sends: list[dist.P2POp]
    ) -> list[tuple[SlotPlace, _Write]]:
        for move in stage.receives:
            if move.direct:
                self._vacate(move.parts)
        if self._post == "overlapped":
            come = self._start(receives, stage.receives)
            go = []
            for move, op in zip(stage.sends, sends, strict=True):  # one by one, so no send waits for another's data
                self._pack(move)
                go += self._start([op], (move,))
        else:
            for move in stage.sends:
                self._pack(move)
            works = self._start(receives + sends, stage.receives + stage.sends)
            come, go = works[: len(receives)], works[len(receives) :]
        for move, work in zip(stage.sends, go, strict=True):
            posted = _Posted(move.index, work)
            for place, _ in move.parts:
                self._reads.setdefault(place, []).append(posted)
        fresh = [self._written(move, work) for move, work in zip(stage.receives, come, strict=True)]
        return [*itertools.chain(*fresh, *map(self._local, stage.locals))]

    def _start(self, ops: list[dist.P2POp], moves: tuple[Move, ...]) -> list[Any]:
        """Post operations as one batch; return a work object for each operation. Several may share one object."""
        if not ops:
            return []
        try:
            works = dist.batch_isend_irecv(ops)
        except RuntimeError as error:
            raise TransferError(moves[0].index, str(error)) from None
        if self._post == "grouped":
            self._groups.append((moves[0].index, works[0]))
        return works if len(works) == len(ops) else [works[0]] * len(ops)

    def _blocking(
        self, stage: Stage, receives: list[dist.P2POp], sends: list[dist.P2POp]
    ) -> list[tuple[SlotPlace, _Write]]:
        """Run the sends, then the receives, one at a time; with `even-odd` odd ranks receive first."""
        fresh: list[tuple[SlotPlace, _Write]] = []
        turned = self._post == "even-odd" and self.part.rank % 2 == 1
        for going in (False, True) if turned else (True, False):
            for move, op in zip(*((stage.sends, sends) if going else (stage.receives, receives)), strict=True):
                if going:
                    self._pack(move)
                elif move.direct:
                    self._vacate(move.parts)
                self._waits(move.index)
                try:
                    (dist.send if going else dist.recv)(op.tensor, op.peer, tag=op.tag)
                except RuntimeError as error:
                    raise TransferError(move.index, str(error)) from None
                if not going:
                    fresh += self._written(move, None)
        return [*fresh, *itertools.chain(*map(self._local, stage.locals))]

    def _pack(self, move: Move) -> None:
        """Finish all writes to the places that a move sends. Copy their values together if they lie apart."""
        self._gather(move.parts, self._staged.get(move.index))

    def _gather(self, parts: tuple[Part, ...], into: Tensor | None) -> None:
        for place, _ in parts:
            self._settle(place)
        if into is not None:
            for (_, span), values in zip(parts, _pieces(into, parts), strict=True):
                values.copy_(self._view(span))

    def _written(self, move: Move, work: Any) -> list[tuple[SlotPlace, _Write]]:
        posted, staged = _Posted(move.index, work), self._staged.get(move.index)
        values = [None] * len(move.parts) if staged is None else _pieces(staged, move.parts)
        return [
            (place, _Write(posted, value, move.reduce, self._view(span)))
            for (place, span), value in zip(move.parts, values, strict=True)
        ]

    def _local(self, move: Move) -> list[tuple[SlotPlace, _Write]]:
        """Copy or reduce within the rank if the move is direct. Else store the values and return the pending writes."""
        self._gather(move.sources, self._staged.get(move.index))
        if not move.direct:
            return self._written(move, None)
        for (place, span), (_, source) in zip(move.parts, move.sources, strict=True):
            self._settle(place) if move.reduce else self._vacate(((place, span),))
            self._put(place, self._view(span), self._view(source), move.reduce)
        return []

    # --- pending writes and reads ---

    def _settle(self, place: SlotPlace) -> None:
        """Finish all writes to a place, so that it holds its newest value."""
        for write in self._writes.pop(place, ()):
            self._wait(write.posted)
            if write.staged is not None:
                self._put(place, write.home, write.staged, write.reduce)

    def _put(self, place: SlotPlace, home: Tensor, value: Tensor, reduce: bool) -> None:
        self._release(place)
        if value.numel():
            self._reduce(home, value, out=home) if reduce else home.copy_(value)

    def _vacate(self, parts: tuple[Part, ...]) -> None:
        """Prepare places for overwriting: wait for all transfers to them and from them."""
        for place, _ in parts:
            for write in self._writes.pop(place, ()):
                self._wait(write.posted)
            self._release(place)

    def _release(self, place: SlotPlace) -> None:
        """Wait until all sends that read a place are done."""
        for posted in self._reads.pop(place, ()):
            self._wait(posted)

    def _wait(self, posted: _Posted) -> None:
        work, posted.work = posted.work, None  # only once: gloo's second wait for a work never ends
        if work is None:
            return
        self._waits(posted.index)
        try:
            work.wait()
        except RuntimeError as error:
            raise TransferError(posted.index, str(error)) from None

    def _divide(self) -> None:
        for span in self._promised:
            home = self._view(span)
            if home.is_floating_point():
                home.div_(self._divisor)
            else:
                torch.div(home, self._divisor, rounding_mode="floor", out=home)

    # --- made once ---

    def _view(self, span: MemoryRange) -> Tensor:
        return self.memory[span.start : span.start + span.count]

    def _operations(self, stage: Stage) -> tuple[list[dist.P2POp], list[dist.P2POp]]:
        receives = [self._operation(dist.irecv, move, 1) for move in stage.receives]
        return receives, [self._operation(dist.isend, move, 0) for move in stage.sends]

    def _operation(self, kind: Callable[..., Any], move: Move, empty: int) -> dist.P2POp:
        if not move.count:
            tensor = self._nothing[empty : empty + 1]
        elif move.index in self._staged:
            tensor = self._staged[move.index]
        else:
            assert move.span is not None  # else it is staged
            tensor = self._view(move.span)
        return dist.P2POp(kind, tensor, move.peer, tag=move.index)


def _pieces(values: Tensor, parts: tuple[Part, ...]) -> Sequence[Tensor]:
    """Return the values of each part in a tensor that holds those of all parts, one after the other."""
    found: Sequence[Tensor] = values.split([span.count for _, span in parts])
    return found
