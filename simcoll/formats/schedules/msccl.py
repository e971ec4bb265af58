"""MSCCL's XML: a program for each thread block of each GPU, which MSCCL's and RCCL's executors run.

Steps: `s` send, `r` receive, `rcs` receive, store and send on, `rrc` receive, reduce with src and store at dst, `rrs`
the same sent on and not stored, `rrcs` both, `cpy` and `re` copy and reduce within the GPU, `nop` waits. Buffers are
`i`nput, `o`utput and `s`cratch, offsets and counts in chunks. A step waits for the one before it in its thread block
and for step `deps` of thread block `depid`.
"""

from __future__ import annotations

import functools
import itertools
from typing import Final

from simcoll.config import xml_tree
from simcoll.config.import_log import ImportLog
from simcoll.config.xml_tree import Element
from simcoll.errors import Diagnostic, InputError, ScheduleError
from simcoll.formats.schedules import _thread_order
from simcoll.formats.schedules._msccl_program import RECEIVES, SENDS, MscclOp, MscclProgram, Thread, played
from simcoll.formats.schedules._text import THREADS, plain
from simcoll.formats.schedules._thread_order import Hint
from simcoll.schedule.collectives import collective
from simcoll.schedule.ir import Schedule
from simcoll.schedule.names import collective_named

ROOT: Final = "algo"
MOST_RANKS: Final = 4096  # the proof and the steps of more take too much memory and time
_CURE: Final = "give a program as msccl-tools writes it"
_TYPES: Final = {name: name for name in (*RECEIVES, *SENDS, "cpy", "re", "nop")}
_BUFFERS: Final = {"i": "i", "o": "o", "s": "s"}


def read(text: str, source: str, asked: str | None, notes: ImportLog) -> Schedule:
    """The proved schedule of an MSCCL program; `asked` names its collective where the file has another name for it.

    Raises InputError with line and column, or when the program does not do what its collective promises.
    """
    root = xml_tree.parse(text, source, root=ROOT, kind="MSCCL program", deepest=5, cure=_CURE)
    program = _program(root, asked)
    types = [op.kind for thread in program for op in thread.ops]
    counts = ", ".join(f"{types.count(kind)} {kind}" for kind in dict.fromkeys(types))
    notes.read.append(f"{program.collective} of {program.n} GPUs, {program.n_chunks} chunks, steps: {counts}")
    _tell(root, program, notes)
    roots = _roots(root, program)
    for candidate in roots:
        build = functools.partial(played, program, candidate)
        truth = {"alias": program.in_place, "store": False, "order": 0}
        forms = [{"alias": a, "store": b, "order": 0} for a, b in itertools.product((True, False), repeat=2)]
        simpler = [form for form in forms[: forms.index(truth)] if form["alias"] or not truth["alias"]]
        try:
            schedule = _thread_order.proved(build, truth, simpler, sum(1 for _ in program))
        except ScheduleError as error:
            if candidate != roots[-1]:
                continue
            cure = "the program does not do what its collective promises"
            raise InputError([Diagnostic.of(error, "", root.place, cure=cure)]) from None
        if collective(program.collective).rooted:
            notes.read.append(f"root {candidate}")
        notes.read.append(f"proved: {schedule.n_steps} steps, {schedule.messages} messages")
        return schedule
    raise AssertionError("there is always a root to try")


def _tell(root: Element, program: MscclProgram, notes: ImportLog) -> None:
    if root.attributes.get("proto"):
        notes.assume(
            f"protocol {root.attributes['proto']} is not kept: a schedule has none, a scenario's `protocol` has"
        )
    notes.assume(THREADS)
    if any(op.chunks > 1 for thread in program for op in thread.ops):
        notes.assume("steps of several chunks become a transfer a chunk")


def _roots(root: Element, program: MscclProgram) -> list[int]:
    """The ranks that may be the root: the one that the file names, else all, 0 first."""
    if "root" in root.attributes:
        return [root.whole("root", most=program.n - 1)]
    if not collective(program.collective).rooted:
        return [0]
    return list(range(min(program.n, 64)))


# --- the file ---


def _program(root: Element, asked: str | None) -> MscclProgram:
    said = root.text("coll")
    name = collective_named(asked or said)
    if name is None or name == "barrier":
        root.wrong(f"coll={asked or said!r} is no collective that is known here", "say which with --collective NAME")
    gpus = list(root.each("gpu"))
    n = root.whole("ngpus", str(len(gpus)), least=1, most=MOST_RANKS)
    ids = [gpu.whole("id", most=MOST_RANKS) for gpu in gpus]
    if sorted(ids) != list(range(n)):
        root.wrong(f"ngpus={n}, and GPUs {ids[:8]}", "let there be one <gpu> for each id from 0")
    sizes = {b: max(gpu.whole(f"{b}_chunks", "0", most=_thread_order.MOST_PLACES) for gpu in gpus) for b in _BUFFERS}
    n_chunks = max(sizes["i"], sizes["o"]) or root.whole("nchunksperloop", least=1, most=_thread_order.MOST_PLACES)
    blocks = collective(name).blocks(n)
    if n_chunks % blocks:
        root.wrong(f"{n_chunks} chunks cannot be cut into {blocks} blocks", f"{name} of {n} GPUs needs a multiple")
    in_place = root.attributes.get("inplace", "0") == "1" or not (sizes["i"] and sizes["o"])
    program = MscclProgram(plain(root.attributes.get("name", ""), "imported"), name, n, n_chunks, in_place, sizes, root)
    for gpu, number in zip(gpus, ids, strict=True):
        for element in gpu.each("tb"):
            thread = _thread(element, number, n)
            thread.spare = sum(earlier.spares for earlier in program.threads.get(number, {}).values())
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
    count = element.whole("cnt", "1", least=1, most=_thread_order.MOST_TRANSFERS)
    step, _, row = element.attributes.get("at", "").partition(".")
    short = len(step) < 10 and len(row) < 10
    hint = Hint(int(step), int(row)) if short and step.isdecimal() and row.isdecimal() else None
    return MscclOp(kind, src, dst, count, waits, hint, element)


def _check_deps(program: MscclProgram) -> None:
    for thread in program:
        for op in thread.ops:
            if op.deps is not None:
                awaited = program.threads[thread.gpu].get(op.deps[0])
                if awaited is None or not 0 <= op.deps[1] < len(awaited.ops):
                    op.element.wrong(f"waits for step {op.deps[1]} of thread block {op.deps[0]}", "there is none")
