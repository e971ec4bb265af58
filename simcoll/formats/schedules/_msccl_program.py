"""An MSCCL program: what its thread blocks do, and the transfers that come of it when it is played."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from simcoll.config.xml_tree import Element
from simcoll.formats.schedules._buffers import BufferSlots, ImportedProgram
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
class MscclProgram(ImportedProgram):
    """The contents of the file, before it is played."""

    root: Element
    threads: dict[int, dict[int, Thread]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Thread]:
        return (thread for threads in self.threads.values() for thread in threads.values())


def played(program: MscclProgram, root: int, form: Mapping[str, int]) -> Schedule:
    """The schedule of a program that runs until all its thread blocks are done.

    `alias`: input and output are one buffer; `store`: what `rrs` only sends on is stored as well; `order`: which of
    those that the program leaves open, see `_Interpreter.finish`.
    """
    run = _Interpreter(program, form)
    run.finish()
    if any(run.ways.values()):
        src, dst, channel = next(way for way, sends in run.ways.items() if sends)
        problem = f"GPU {src} sends to {dst} on channel {channel} what is never received"
        program.root.wrong(problem, "let every send have its receive")
    return run.where.schedule(run.moves, root=root, pipelined=program.root.attributes.get("pipelined") == "1")


class _Interpreter:
    """A program as it is played: what its thread blocks have moved, and what is under way."""

    def __init__(self, program: MscclProgram, form: Mapping[str, int]):
        self.program, self.order, self.store = program, form["order"], bool(form["store"])
        self.where, self.moves = BufferSlots(program, bool(form["alias"])), RecordedTransfers()
        self.ways: PendingSends = {}
        for thread in program:
            thread.done = 0

    def finish(self) -> None:
        """Play until all thread blocks are done. Order 0: in rounds, each goes on to its next receive, then all receive
        once, so that what is there at the start is sent before anything is put over it. Order k: the k-th thread block
        is slow; it does a step only when no other can."""
        left = [thread for thread in self.program if thread.ops]
        slow = [thread for k, thread in enumerate(self.program, 1) if k == self.order]
        while left:
            others = [thread for thread in left if thread not in slow]
            if not self._round(others) and not any(self._step(thread) for thread in slow if thread in left):
                op = left[0].ops[left[0].done]
                problem = f"GPU {left[0].gpu}, thread block {left[0].number} waits here for ever"
                op.element.wrong(problem, "for a message that is never sent, or a step that is never done")
            left = [thread for thread in left if thread.done < len(thread.ops)]

    def _round(self, threads: Sequence[Thread]) -> bool:
        """Whether any thread block has done a step."""
        advanced = False
        for receiving in (None,) if self.order else (False, True):
            for thread in threads:
                while thread.done < len(thread.ops) and receiving in (None, thread.ops[thread.done].kind in RECEIVES):
                    if not self._step(thread):
                        break
                    advanced = True
                    if receiving:
                        break
            if advanced:
                break
        return advanced

    def _step(self, thread: Thread) -> bool:
        """Do the next step of a thread block; False if it has to wait."""
        op, gpu, moves = thread.ops[thread.done], thread.gpu, self.moves
        if op.deps is not None and self.program.threads[gpu][op.deps[0]].done <= op.deps[1]:
            return False
        slots = functools.partial(self._slots, thread, op)
        held = op.dst
        if op.kind in RECEIVES:
            queue = self.ways.get((thread.receive, gpu, thread.channel))
            if not queue:
                return False
            came = queue.popleft()
            if len(came) != op.chunks:
                op.element.wrong(f"receives {op.chunks} chunks, and {len(came)} are sent", "let both have the same cnt")
            if op.kind == "rrs":
                held = op.src if self.store else ("spare", 0)
            into = slots(held)
            reduces = op.kind not in ("r", "rcs")
            operand = slots(op.src) if reduces else into
            for number, slot in zip(came, into, strict=True):
                moves.write(number, gpu, slot, reduces and operand == into)
            for a, b in zip(operand, into, strict=True):
                moves.local(gpu, a, b, True)
        if op.kind in SENDS:
            sent = [moves.read(gpu, slot, op.hint) for slot in slots(op.src if op.kind == "s" else held)]
            self.ways.setdefault((gpu, thread.send, thread.channel), deque()).append(sent)
        elif op.kind in ("cpy", "re"):
            for a, b in zip(slots(op.src), slots(op.dst), strict=True):
                moves.local(gpu, a, b, op.kind == "re", op.hint)
        thread.done += 1
        return True

    def _slots(self, thread: Thread, op: MscclOp, place: BufferPlace) -> list[int]:
        buffer, offset = place
        if buffer == "spare":
            first = self.where.spare + thread.spare + sum(earlier.spares for earlier in thread.ops[: thread.done])
            return list(range(first, first + op.chunks))
        try:
            return [self.where.slot(thread.gpu, buffer, offset + i) for i in range(op.chunks)]
        except ValueError as error:
            op.element.wrong(str(error), "let offset and cnt fit")
