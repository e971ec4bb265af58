"""An MSCCL program: what its thread blocks do, and the transfers that come of it when it is played."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from simcoll.config.xml_tree import Element
from simcoll.formats.schedules._buffers import BufferSlots
from simcoll.formats.schedules._thread_order import Hint, RecordedTransfers
from simcoll.schedule.ir import Schedule

RECEIVES: Final = frozenset(("r", "rcs", "rrc", "rrs", "rrcs"))
SENDS: Final = frozenset(("s", "rcs", "rrs", "rrcs"))
BufferPlace = tuple[str, int]  # a buffer and an offset in it, in chunks
PendingSends = dict[tuple[int, int, int], deque[list[int]]]  # what is under way, by sender, receiver and channel


class MscclOp(NamedTuple):
    """A step of a thread block; `deps`: thread block and step to be waited for."""

    kind: str
    src: BufferPlace
    dst: BufferPlace
    chunks: int
    deps: tuple[int, int] | None
    hint: Hint | None
    element: Element

    @property
    def spares(self) -> int:
        """Scratch that it needs where it may not store what it sends on."""
        return self.chunks if self.kind == "rrs" else 0


@dataclass(eq=False)
class Thread:
    """A thread block: where it sends to and receives from (-1: nowhere), over which channel, and what it does."""

    gpu: int
    number: int
    send: int
    receive: int
    channel: int
    ops: list[MscclOp]
    done: int = 0
    spare: int = 0  # of the scratch that the steps of a GPU need of their own, where this one's begins

    @property
    def spares(self) -> int:
        """Scratch that its steps need."""
        return sum(op.spares for op in self.ops)


@dataclass
class MscclProgram:
    """The contents of the file, before it is played."""

    root: Element
    name: str
    collective: str
    n: int
    n_chunks: int
    in_place: bool
    sizes: Mapping[str, int]  # chunks of each buffer, the most of any GPU
    threads: dict[int, dict[int, Thread]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Thread]:
        return (thread for threads in self.threads.values() for thread in threads.values())


# --- playing it ---


def played(program: MscclProgram, root: int, form: Mapping[str, int]) -> Schedule:
    """The schedule of a program that runs until all its thread blocks are done.

    `alias`: input and output are one buffer; `store`: what `rrs` only sends on is stored as well; `order`: which of
    those that the program leaves open, see `_run`.
    """
    where, moves = (
        BufferSlots(program.collective, program.n, program.n_chunks, program.sizes, bool(form["alias"])),
        RecordedTransfers(),
    )
    ways: PendingSends = {}
    for thread in program:
        thread.done = 0
    _run(program, where, moves, ways, form)
    if any(ways.values()):
        src, dst, channel = next(way for way, sends in ways.items() if sends)
        problem = f"GPU {src} sends to {dst} on channel {channel} what is never received"
        program.root.wrong(problem, "let every send have its receive")
    where.copy_out(moves)
    return moves.schedule(
        collective=program.collective,
        algorithm=program.name,
        n=program.n,
        n_chunks=program.n_chunks,
        root=root,
        pipelined=program.root.attributes.get("pipelined") == "1",
    )


def _run(
    program: MscclProgram, where: BufferSlots, moves: RecordedTransfers, ways: PendingSends, form: Mapping[str, int]
) -> None:
    """Until all thread blocks are done. Order 0: in rounds, each goes on to its next receive, then all receive once, so
    that what is there at the start is sent before anything is put over it. Order k: the k-th thread block is slow; it
    does a step only when no other can."""
    left = [thread for thread in program if thread.ops]
    slow = [thread for k, thread in enumerate(program, 1) if k == form["order"]]
    while left:
        others = [thread for thread in left if thread not in slow]
        if not _round(program, others, where, moves, ways, form) and not _one(program, slow, where, moves, ways, form):
            op = left[0].ops[left[0].done]
            problem = f"GPU {left[0].gpu}, thread block {left[0].number} waits here for ever"
            op.element.wrong(problem, "for a message that is never sent, or a step that is never done")
        left = [thread for thread in left if thread.done < len(thread.ops)]


def _one(
    program: MscclProgram,
    threads: list[Thread],
    where: BufferSlots,
    moves: RecordedTransfers,
    ways: PendingSends,
    form: Mapping[str, int],
) -> bool:
    """Whether the first of some thread blocks, if there is one, has done a step."""
    if not threads or threads[0].done == len(threads[0].ops):
        return False
    done = _step(program, threads[0], where, moves, ways, bool(form["store"]))
    threads[0].done += done
    return done


def _round(
    program: MscclProgram,
    threads: list[Thread],
    where: BufferSlots,
    moves: RecordedTransfers,
    ways: PendingSends,
    form: Mapping[str, int],
) -> bool:
    """Whether any thread block has done a step."""
    advanced = False
    for receiving in (None,) if form["order"] else (False, True):
        for thread in threads:
            while thread.done < len(thread.ops) and receiving in (None, thread.ops[thread.done].kind in RECEIVES):
                if not _step(program, thread, where, moves, ways, bool(form["store"])):
                    break
                thread.done += 1
                advanced = True
                if receiving:
                    break
        if advanced:
            break
    return advanced


def _step(
    program: MscclProgram, thread: Thread, where: BufferSlots, moves: RecordedTransfers, ways: PendingSends, store: bool
) -> bool:
    """Do the next step of a thread block; False if it has to wait."""
    op, gpu = thread.ops[thread.done], thread.gpu
    if op.deps is not None and program.threads[gpu][op.deps[0]].done <= op.deps[1]:
        return False
    slots = functools.partial(_slots, thread, op, where)
    held = op.dst
    if op.kind in RECEIVES:
        queue = ways.get((thread.receive, gpu, thread.channel))
        if not queue:
            return False
        came = queue.popleft()
        if len(came) != op.chunks:
            op.element.wrong(f"receives {op.chunks} chunks, and {len(came)} are sent", "let both have the same cnt")
        if op.kind == "rrs":
            held = op.src if store else ("spare", 0)
        into = slots(held)
        reduces = op.kind not in ("r", "rcs")
        operand = slots(op.src) if reduces else into
        _land(moves, came, gpu, into, reduces and operand == into)
        for a, b in zip(operand, into, strict=True):
            moves.local(gpu, a, b, True)
    if op.kind in SENDS:
        out = slots(op.src if op.kind == "s" else held)
        sent = [moves.read(gpu, slot, op.hint) for slot in out]
        ways.setdefault((gpu, thread.send, thread.channel), deque()).append(sent)
    elif op.kind in ("cpy", "re"):
        for a, b in zip(slots(op.src), slots(op.dst), strict=True):
            moves.local(gpu, a, b, op.kind == "re", op.hint)
    return True


def _slots(thread: Thread, op: MscclOp, where: BufferSlots, place: BufferPlace) -> list[int]:
    if place[0] == "spare":
        before = sum(earlier.spares for earlier in thread.ops[: thread.done])
        first = where.spare + thread.spare + before
        return list(range(first, first + op.chunks))
    buffer, offset = place
    try:
        return [where.slot(thread.gpu, buffer, offset + i) for i in range(op.chunks)]
    except ValueError as error:
        op.element.wrong(str(error), "let offset and cnt fit")


def _land(moves: RecordedTransfers, came: list[int], gpu: int, into: list[int], reduce: bool) -> None:
    for number, slot in zip(came, into, strict=True):
        moves.write(number, gpu, slot, reduce)
