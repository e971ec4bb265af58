"""Run small distributed programs: mean, softmax, argmax, and scatter, gather and broadcast of data.

Each alternates local work with one or two of the library's collectives, and has the result that one process would have.
The data is a matrix of which each rank holds some columns (mean, softmax, argmax) or rows (gather, scatter).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import torch
import torch.distributed as dist

from simcoll.measurement.torch_backend._library_calls import ALL_GATHER
from simcoll.measurement.torch_backend._tensors import TYPES

Tensor: TypeAlias = torch.Tensor
COLUMNS: Final = 4  # a rank's share of a row: small, so that messages and not local work take the time
NEAR: Final = 64  # rounding errors of the dtype that a result may be off: sums are in another order


class ProgramPart(NamedTuple):
    """A part of a program: local work, or a collective."""

    local: bool
    run: Callable[[], object]


class RankSetting(NamedTuple):
    """A rank, the number of ranks, the root, and the elements of the buffer as `size` counts them."""

    rank: int
    world: int
    root: int
    elements: int
    dtype: str
    local_ns: int = 0


class SmallProgram:
    """A program on one rank of the default group, ready to run any number of times."""

    def __init__(self, template: str, setting: RankSetting):
        self._setting, self.answer = setting, torch.empty(0)
        self._pieces, self.expected = PROGRAMS[template](self, setting)

    def run(self) -> None:
        """Run once."""
        for piece in self._pieces:
            self._pause(piece)
            piece.run()

    def alone(self) -> list[int]:
        """Do the local work without communication; return ns of each part of it, in order."""
        took = []
        for piece in self._pieces:
            if piece.local:
                began = time.monotonic_ns()
                self._pause(piece)
                piece.run()
                took.append(time.monotonic_ns() - began)
        return took

    def buckets(self) -> None:
        """Return None: it has no buckets."""

    def complaint(self) -> str | None:
        """Run on all ranks and compare with one process; return a complaint, or None."""
        self.run()
        if self.answer.shape != self.expected.shape:
            return f"the result has shape {tuple(self.answer.shape)}, one process has {tuple(self.expected.shape)}"
        if not self.expected.numel():
            return None
        worst = float((self.answer.double() - self.expected.double()).abs().max())
        least = NEAR * torch.finfo(TYPES[self._setting.dtype]).eps * float(self.expected.abs().max())
        return f"the result is off by {worst:g} from that of one process" if worst > least else None

    def _pause(self, piece: ProgramPart) -> None:
        if piece.local and self._setting.local_ns:
            time.sleep(self._setting.local_ns / 1e9)


Made = tuple[list[ProgramPart], Tensor]  # the parts, and the result of one process


def _whole(s: RankSetting, rows: int, columns: int) -> Tensor:
    """Return the data of all ranks, the same on each."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(1)).to(TYPES[s.dtype])


def _local(run: Callable[[], object]) -> ProgramPart:
    return ProgramPart(True, run)


def _call(run: Callable[[], object]) -> ProgramPart:
    return ProgramPart(False, run)


def _mine(s: RankSetting, whole: Tensor) -> Tensor:
    return whole[:, s.rank * COLUMNS : (s.rank + 1) * COLUMNS]


def _mean(program: SmallProgram, s: RankSetting) -> Made:
    whole, total = _whole(s, s.elements, COLUMNS * s.world), torch.empty(s.elements, dtype=TYPES[s.dtype])
    mine = _mine(s, whole).contiguous()

    def divide() -> None:
        program.answer = total / whole.shape[1]

    pieces = [_local(lambda: torch.sum(mine, 1, out=total)), _call(lambda: dist.all_reduce(total)), _local(divide)]
    return pieces, whole.mean(1)


def _softmax(program: SmallProgram, s: RankSetting) -> Made:
    whole = _whole(s, s.elements, COLUMNS * s.world)
    mine = _mine(s, whole).contiguous()
    most, total = torch.empty(2, s.elements, dtype=TYPES[s.dtype])
    raised = torch.empty_like(mine)

    def raise_() -> None:
        torch.exp(mine - most[:, None], out=raised)
        torch.sum(raised, 1, out=total)

    def divide() -> None:
        program.answer = raised / total[:, None]

    pieces = [
        _local(lambda: torch.amax(mine, 1, out=most)),
        _call(lambda: dist.all_reduce(most, op=dist.ReduceOp.MAX)),
        _local(raise_),
        _call(lambda: dist.all_reduce(total)),
        _local(divide),
    ]
    return pieces, _mine(s, torch.softmax(whole, 1))


def _argmax(program: SmallProgram, s: RankSetting) -> Made:
    whole = _whole(s, s.elements, COLUMNS * s.world).mul(4).round()  # rounded, so that several are the largest
    mine = _mine(s, whole).contiguous()
    most, own = torch.empty(2, s.elements, dtype=TYPES[s.dtype])
    every, nowhere = torch.empty(s.world * s.elements, dtype=own.dtype), float(whole.shape[1])

    def find() -> None:
        there = mine == most[:, None]
        own.copy_(torch.where(there.any(1), there.to(torch.int8).argmax(1) + s.rank * COLUMNS, nowhere))

    def choose() -> None:
        program.answer = every.view(s.world, -1).amin(0)

    pieces = [
        _local(lambda: torch.amax(mine, 1, out=most)),
        _call(lambda: dist.all_reduce(most, op=dist.ReduceOp.MAX)),
        _local(find),
        _call(lambda: ALL_GATHER(every, own)),
        _local(choose),
    ]
    return pieces, (whole == whole.amax(1, keepdim=True)).to(torch.int8).argmax(1).to(own.dtype)


def _scatter(program: SmallProgram, s: RankSetting) -> Made:
    dataset = _whole(s, s.world, s.elements // s.world)
    got, blocks = torch.empty_like(dataset[0]), list(dataset) if s.rank == s.root else None

    def work() -> None:
        program.answer = got.square()

    return [_call(lambda: dist.scatter(got, blocks, src=s.root)), _local(work)], dataset[s.rank].square()


def _gather(program: SmallProgram, s: RankSetting) -> Made:
    samples = _whole(s, s.world, s.elements // s.world)
    own, every = torch.empty_like(samples[0]), torch.empty_like(samples)
    blocks = list(every) if s.rank == s.root else None

    def collect() -> None:
        dist.gather(own, blocks, dst=s.root)
        program.answer = every if s.rank == s.root else own

    def predicted() -> None:
        torch.tanh(samples[s.rank], out=own)

    expected = torch.tanh(samples)
    return [_local(predicted), _call(collect)], expected if s.rank == s.root else expected[s.rank]


def _broadcast(program: SmallProgram, s: RankSetting) -> Made:
    parameters = _whole(s, 1, s.elements)[0]
    held = parameters.clone() if s.rank == s.root else torch.zeros_like(parameters)

    def work() -> None:
        program.answer = held.square()

    return [_call(lambda: dist.broadcast(held, src=s.root)), _local(work)], parameters.square()


PROGRAMS: Final[dict[str, Callable[[SmallProgram, RankSetting], Made]]] = {
    "mean": _mean,
    "softmax": _softmax,
    "argmax": _argmax,
    "scatter": _scatter,
    "gather": _gather,
    "broadcast": _broadcast,
}
