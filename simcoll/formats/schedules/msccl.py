"""Read MSCCL's XML: a program for each thread block of each GPU, which MSCCL's and RCCL's executors run.

Steps: `s` send; `r` receive; `rcs` receive, store and send on; `rrc` receive, reduce with src and store at dst; `rrs`
receive, reduce and send on without storing; `rrcs` also stores; `cpy` and `re` copy and reduce within the GPU; `nop`
waits. Buffers are `i`nput, `o`utput and `s`cratch; offsets and counts are in chunks. A message carries all `cnt` chunks
of a step. A step waits for the one before it in its thread block and for step `deps` of thread block `depid`.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from simcoll.config import xml_tree
from simcoll.config.input_files import ImportLog
from simcoll.config.xml_tree import Element
from simcoll.formats.schedules import thread_programs
from simcoll.formats.schedules.thread_programs import (
    MOST_RANKS,
    THREADS,
    BufferSlots,
    Hint,
    ImportedProgram,
    RecordedTransfers,
    plain,
)
from simcoll.schedule.collectives import collective
from simcoll.schedule.names import collective_named
from simcoll.schedule.schedule import Schedule

ROOT: Final = "algo"
_CURE: Final = "give a program as msccl-tools writes it"
RECEIVES: Final = frozenset(("r", "rcs", "rrc", "rrs", "rrcs"))
SENDS: Final = frozenset(("s", "rcs", "rrs", "rrcs"))
_TYPES: Final = {name: name for name in (*RECEIVES, *SENDS, "cpy", "re", "nop")}
_BUFFERS: Final = {"i": "i", "o": "o", "s": "s"}


_AT: Final = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})(\.1)?")  # step, row, and whether the row joins the row before it

BufferPlace = tuple[str, int]  # a buffer and an offset in it, in chunks
PendingSends = dict[tuple[int, int, int], deque[int]]  # transfers in flight, by sender, receiver and channel


class MscclOp(NamedTuple):
    """A step of a thread block; `deps` holds the thread block and the step that it waits for."""

    kind: str
    src: BufferPlace
    dst: BufferPlace
    chunks: int
    deps: tuple[int, int] | None
    hint: Hint | None
    element: Element


@dataclass(eq=False)
class Thread:
    """A thread block: its peers for sends and receives (-1: none), its channel and its steps."""

    gpu: int
    number: int
    send: int
    receive: int
    channel: int
    ops: list[MscclOp]
    done: int = 0


@dataclass
class MscclProgram(ImportedProgram):
    """The contents of an MSCCL file, before the program is executed."""

    root: Element
    threads: dict[int, dict[int, Thread]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Thread]:
        return (thread for threads in self.threads.values() for thread in threads.values())


def read(text: str, source: str, asked: str | None, notes: ImportLog) -> Schedule:
    """Return the proved schedule of an MSCCL program; `asked` names its collective if the file has another name for it.

    Raises InputError with line and column, and ScheduleError if the program does not produce the collective's result.
    """
    root = xml_tree.parse(text, source, root=ROOT, kind="MSCCL program", deepest=5, cure=_CURE)
    program = _program(root, asked)
    types = [op.kind for thread in program for op in thread.ops]
    counts = ", ".join(f"{types.count(kind)} {kind}" for kind in dict.fromkeys(types))
    notes.read.append(f"{program.collective} of {program.n} GPUs, {program.n_chunks} chunks, steps: {counts}")
    _tell(root, program, notes)
    truth = {"alias": program.in_place, "store": False, "order": 0}
    forms = [{"alias": a, "store": b, "order": 0} for a, b in itertools.product((True, False), repeat=2)]
    simpler = [form for form in forms[: forms.index(truth)] if form["alias"] or not truth["alias"]]

    def made(candidate: int) -> Schedule:
        build = functools.partial(_played, program, candidate)
        return thread_programs.proved(build, truth, simpler, sum(1 for _ in program))

    named = [root.whole("root", most=program.n - 1)] if "root" in root.attributes else None
    schedule = thread_programs.first_proved(made, named or thread_programs.roots(program.collective, program.n))
    if collective(program.collective).rooted:
        notes.read.append(f"root {schedule.root}")
    return schedule


def _tell(root: Element, program: MscclProgram, notes: ImportLog) -> None:
    if root.attributes.get("proto"):
        notes.assume(
            f"protocol {root.attributes['proto']} is not kept: a schedule has none, a scenario's `protocol` has"
        )
    notes.assume(THREADS)


# --- the file ---


def _program(root: Element, asked: str | None) -> MscclProgram:
    said = root.text("coll")
    name = collective_named(asked or said)
    if name is None or name == "barrier":
        root.wrong(f"coll={asked or said!r} is no collective of simcoll", "name it with --collective NAME")
    gpus = list(root.each("gpu"))
    n = root.whole("ngpus", str(len(gpus)), least=1, most=MOST_RANKS)
    ids = [gpu.whole("id", most=MOST_RANKS) for gpu in gpus]
    if sorted(ids) != list(range(n)):
        root.wrong(f"ngpus={n}, and ids of <gpu> are {ids[:8]}", "write one <gpu> for each id from 0")
    sizes = {b: max(gpu.whole(f"{b}_chunks", "0", most=thread_programs.MOST_PLACES) for gpu in gpus) for b in _BUFFERS}
    n_chunks = max(sizes["i"], sizes["o"]) or root.whole("nchunksperloop", least=1, most=thread_programs.MOST_PLACES)
    blocks = collective(name).blocks(n)
    if n_chunks % blocks:
        root.wrong(f"{n_chunks} chunks cannot be cut into {blocks} blocks", f"{name} needs a multiple of {blocks}")
    in_place = root.attributes.get("inplace", "0") == "1" or not (sizes["i"] and sizes["o"])
    program = MscclProgram(plain(root.attributes.get("name", ""), "imported"), name, n, n_chunks, in_place, sizes, root)
    for gpu, number in zip(gpus, ids, strict=True):
        for element in gpu.each("tb"):
            thread = _thread(element, number, n)
            if program.threads.setdefault(number, {}).setdefault(thread.number, thread) is not thread:
                element.wrong(f"thread block {thread.number} stands twice", "number them from 0")
    _check_deps(program)
    return program


def _thread(element: Element, gpu: int, n: int) -> Thread:
    send, receive = (element.whole(way, "-1", least=-1, most=n - 1) for way in ("send", "recv"))
    if gpu in (send, receive):
        element.wrong("sends to its own GPU, or receives from it", "copy with cpy")
    ops = [_op(step, i) for i, step in enumerate(element.each("step"))]
    for op in ops:
        if (op.kind in SENDS and send < 0) or (op.kind in RECEIVES and receive < 0):
            op.element.wrong(f"{op.kind!r} in a thread block without a peer for it", "give send or recv a rank")
    number = element.whole("id", most=2**20)
    return Thread(gpu, number, send, receive, element.whole("chan", "0", most=2**20), ops)


def _op(element: Element, index: int) -> MscclOp:
    kind = element.one_of("type", _TYPES)
    if element.whole("s", str(index)) != index:
        element.wrong(f"s={element.text('s')!r} is the step {index} of its thread block", "number steps from 0")
    depid, deps = (element.whole(name, "-1", least=-1) for name in ("depid", "deps"))
    waits = (depid, deps) if depid >= 0 else None
    if kind == "nop":
        return MscclOp(kind, ("i", 0), ("i", 0), 0, waits, None, element)
    src, dst = (
        (element.one_of(f"{side}buf", _BUFFERS), element.whole(f"{side}off", "0", least=-1)) for side in ("src", "dst")
    )
    count = element.whole("cnt", "1", least=1, most=thread_programs.MOST_TRANSFERS)
    at = _AT.fullmatch(element.attributes.get("at", ""))
    hint = Hint(int(at[1]), int(at[2]), bool(at[3])) if at else None
    return MscclOp(kind, src, dst, count, waits, hint, element)


def _check_deps(program: MscclProgram) -> None:
    for thread in program:
        for op in thread.ops:
            if op.deps is not None:
                awaited = program.threads[thread.gpu].get(op.deps[0])
                if awaited is None or not 0 <= op.deps[1] < len(awaited.ops):
                    op.element.wrong(
                        f"waits for step {op.deps[1]} of thread block {op.deps[0]}: no such step",
                        "mend depid and deps",
                    )


# --- execution ---


def _played(program: MscclProgram, root: int, form: Mapping[str, int]) -> Schedule:
    """Execute a program until all its thread blocks are done, and return the schedule of its transfers.

    `form` chooses a variant. `alias`: input and output are one buffer. `store`: `rrs` also stores its result. `order`:
    see `thread_programs.execute`.
    """
    run = _Interpreter(program, form)
    if stuck := thread_programs.execute(list(program), run.step, form["order"]):
        problem = f"GPU {stuck.gpu}, thread block {stuck.number} waits here for ever"
        stuck.ops[stuck.done].element.wrong(problem, "send the message, or mend the step, that it waits for")
    if any(run.ways.values()):
        src, dst, channel = next(way for way, sends in run.ways.items() if sends)
        problem = f"GPU {src} sends to {dst} on channel {channel}, but nobody receives it"
        program.root.wrong(problem, "add a receive for every send")
    return run.where.schedule(run.moves, root=root, pipelined=program.root.attributes.get("pipelined") == "1")


class _Interpreter:
    """The state of an executed program: the transfers recorded so far, and the data in flight."""

    def __init__(self, program: MscclProgram, form: Mapping[str, int]):
        self.program, self.store = program, bool(form["store"])
        self.where, self.moves = BufferSlots(program, bool(form["alias"])), RecordedTransfers()
        self.ways: PendingSends = {}
        self.spare = [
            itertools.count(self.where.spare) for _ in range(program.n)
        ]  # slots of results that are not stored

    def step(self, thread: Thread) -> bool:
        """Do the next step of a thread block; return False if it has to wait."""
        op, gpu, moves = thread.ops[thread.done], thread.gpu, self.moves
        if op.deps is not None and self.program.threads[gpu][op.deps[0]].done <= op.deps[1]:
            return False
        slots = functools.partial(self._slots, gpu, op)
        held: list[int] = []
        if op.kind in RECEIVES:
            queue = self.ways.get((thread.receive, gpu, thread.channel))
            if not queue:
                return False
            came = queue.popleft()
            if (sent := len(moves.read_slots[came])) != op.chunks:
                op.element.wrong(f"receives {op.chunks} chunks, and {sent} are sent", "give both the same cnt")
            if op.kind == "rrs" and not self.store:
                held = list(itertools.islice(self.spare[gpu], op.chunks))
            else:
                held = slots(op.src if op.kind == "rrs" else op.dst)
            reduces = op.kind not in ("r", "rcs")
            operand = slots(op.src) if reduces else held
            moves.write(came, gpu, held, reduces and operand == held)
            moves.local(gpu, operand, held, True)
        if op.kind in SENDS:
            number = moves.read(gpu, slots(op.src) if op.kind == "s" else held, op.hint)
            self.ways.setdefault((gpu, thread.send, thread.channel), deque()).append(number)
        elif op.kind in ("cpy", "re"):
            moves.local(gpu, slots(op.src), slots(op.dst), op.kind == "re", op.hint)
        return True

    def _slots(self, gpu: int, op: MscclOp, place: BufferPlace) -> list[int]:
        buffer, offset = place
        try:
            return [self.where.slot(gpu, buffer, offset + i) for i in range(op.chunks)]
        except ValueError as error:
            op.element.wrong(str(error), "mend offset or cnt")
