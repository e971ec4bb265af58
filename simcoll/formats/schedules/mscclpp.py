"""MSCCL++'s execution plans (JSON): what each thread block of each GPU puts, gets, copies and reduces, and how they
wait for each other. Chunks of input, output and scratch buffers; semaphores of channels, barriers within a GPU.

Read are one-sided copies and reductions and their packet forms, in which whoever reads a packet waits for it. What a
group of thread blocks does together, each its share, is done when the last of them does it. A pipelined loop is its
body, once with whole chunks. Loads and stores by a switch (`glre`, `glres`, `gstore`, `gstorepkt`) are what NVLink
SHARP does: the switch, an agent of the schedule, adds up what the ranks of a group hold and gives the sum to whoever
loads, and sends what one of them stores to all.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from simcoll.config import json_text
from simcoll.config.import_log import ImportLog
from simcoll.errors import Diagnostic, InputError, Place, ScheduleError
from simcoll.formats.schedules import _thread_order
from simcoll.formats.schedules._buffers import BufferSlots
from simcoll.formats.schedules._mscclpp_plan import (
    COPIES,
    CURE,
    ODD,
    READS_PACKETS,
    REDUCES,
    SIGNALS,
    SWITCHED,
    WAITS,
    PlanFile,
    ThreadBlock,
    Wrong,
    in_words,
    parsed,
    whole,
    wrong_at,
)
from simcoll.formats.schedules._text import THREADS
from simcoll.formats.schedules._thread_order import RecordedTransfers
from simcoll.schedule.ir import Schedule

BufferRange = tuple[int, str, int]  # rank, buffer, chunk
_Side = list[tuple[list[tuple[int, int]], int]]  # each chunk of it: its slots, and the switch's agent or -1


@dataclass
class _Shares:
    """An operation that a group of thread blocks does: of how many, where the first does it, how many have done it."""

    size: int
    where: str
    done: int = 0


def looks(text: str) -> bool:
    """Whether a JSON text has a plan's keys."""
    return '"gpus"' in text and '"threadblocks"' in text and '"ops"' in text


def read(text: str, source: str, asked: str | None, notes: ImportLog) -> Schedule:
    """The proved schedule of a plan; `asked` names its collective where the file has another name for it.

    Raises InputError: with the operation that cannot be mapped, or when the plan does not do what its collective
    promises.
    """
    wrong = functools.partial(wrong_at, source)
    document = json_text.mapping(text, source, CURE)
    if '"inputChunks"' in text or '"ctype"' in text:
        raise wrong("", "a plan in MSCCL++'s older form", "make it anew with an MSCCL++ that writes input_chunks")
    try:
        plan = parsed(document, asked, wrong)
        names = Counter(op["name"] for block in plan.blocks for op in block.ops)
        steps = ", ".join(f"{count} {name}" for name, count in names.items())
        notes.read.append(f"{plan.collective} of {plan.n} GPUs, {plan.n_chunks} chunks, operations: {steps}")
        notes.assume(THREADS)
        truth, simpler = {"alias": plan.in_place, "order": 0}, [{"alias": True, "order": 0}] * (not plan.in_place)
        schedule = _thread_order.proved(lambda form: _played(plan, form, wrong), truth, simpler, len(plan.blocks))
    except ScheduleError as error:
        cure = "the plan does not do what its collective promises"
        raise InputError([Diagnostic.of(error, "", Place(source, 1, 1), cure=cure)]) from None
    except ODD as error:
        raise wrong("", f"not a plan: {in_words(error)}", CURE) from None
    notes.read.append(f"proved: {schedule.n_steps} steps, {schedule.messages} messages")
    return schedule


# --- playing it ---


class _PlanExecution:
    """A plan under way: signals sent and not yet waited for, semaphores, packets that have come."""

    def __init__(self, plan: PlanFile, alias: bool, wrong: Wrong):
        self.plan, self.wrong = plan, wrong
        self.where = BufferSlots(plan, alias)
        self.moves = RecordedTransfers()
        self.signals: Counter[tuple[int, int, str, int]] = Counter()
        self.semaphores = Counter(plan.semaphores)
        self.packets: set[tuple[int, int]] = set()
        self.shares: dict[Hashable, _Shares] = {}  # of what groups of thread blocks do
        self.spare = itertools.count(self.where.spare)
        self.agents = {ranks: plan.n + k for k, ranks in enumerate(plan.switch_groups)}

    def step(self, block: ThreadBlock) -> bool:
        """Do the next operation of a thread block; False if it has to wait."""
        op = block.ops[block.done]
        name, kind = op["name"], str(op.get("channel_type"))
        if name in WAITS:
            needed = Counter((peer, block.gpu, kind, which) for peer, which in self._ways(block, op, kind))
            if any(self.signals[way] < count for way, count in needed.items()):
                return False
            self.signals -= needed
        elif name == "sem_acquire":
            wanted = Counter((block.gpu, whole(i, 2**20)) for i in op["semaphore_ids"])
            if any(self.semaphores[key] < count for key, count in wanted.items()):
                return False
            self.semaphores -= wanted
        elif name == "sem_release":
            self.semaphores.update((block.gpu, whole(i, 2**20)) for i in op["semaphore_ids"])
        elif name == "barrier":
            return self._barrier(block, op)
        elif name in COPIES | REDUCES:
            src, dst = self._pieces(block, op, "src_buff", kind), self._pieces(block, op, "dst_buff", kind)
            if name in READS_PACKETS and not self._came(src):
                return False
            if not self._is_whole(block, op, (src, dst)):
                return True
            (self._copy if name in COPIES else self._reduce)(block, op, src, dst)
        elif name in SWITCHED:
            sides = self._switched_sides(block, op)
            if self._is_whole(block, op, sides):
                self._switched(block, op, *sides)
        if name in SIGNALS:
            self.signals.update((block.gpu, peer, kind, which) for peer, which in self._ways(block, op, kind))
        return True

    def _is_whole(self, block: ThreadBlock, op: Mapping[str, Any], moved: object) -> bool:
        """Whether all thread blocks of the group that does an operation have come to it; what it has `moved` says which
        operations of its blocks are one, as each block has its own list of channels."""
        group = next((value for key, value in op.items() if key.startswith("tbg")), None)
        if group is None:
            return True
        size = whole(next((value for key, value in group.items() if key.endswith("size")), "no tbg_size"), 2**20)
        earlier = block.ops[: block.done].count(op)
        key = (block.gpu, op["name"], size, earlier, repr(moved))
        shares = self.shares.setdefault(key, _Shares(size, f"{block.where}.ops.{block.done}"))
        shares.done += 1
        return shares.done >= size

    def check_groups(self) -> None:
        """Raise InputError where fewer thread blocks came to an operation than do it together."""
        for shares in self.shares.values():
            if shares.done < shares.size:
                problem = f"{shares.size} thread blocks do this together, and {shares.done} come to it"
                raise self.wrong(shares.where, problem, CURE)

    def _ways(self, block: ThreadBlock, op: Mapping[str, Any], kind: str) -> list[tuple[int, int]]:
        return [block.peers[kind][whole(i, 2**20)] for i in op.get("channel_ids", [])]

    def _barrier(self, block: ThreadBlock, op: Mapping[str, Any]) -> bool:
        """Passed when as many thread blocks of the GPU as it says have come to it."""
        block.arrived = True
        same = [
            waiting
            for waiting in self.plan.blocks
            if waiting.gpu == block.gpu
            and waiting.arrived
            and waiting.done < len(waiting.ops)
            and waiting.ops[waiting.done].get("barrier_id") == op.get("barrier_id")
        ]
        if len(same) < whole(op.get("num_threadblocks", 1), 2**20):
            return False
        for waiting in same:
            waiting.arrived = False
            if waiting is not block:
                waiting.done += 1
        return True

    def _pieces(self, block: ThreadBlock, op: Mapping[str, Any], key: str, kind: str) -> list[list[BufferRange]]:
        """The chunks of each buffer that an operation names."""
        pieces = []
        for entry in op.get(key, []):
            first, size = whole(entry["index"], 2**31), whole(entry.get("size", 1), _thread_order.MOST_TRANSFERS)
            if "buffer_id" in entry:
                rank, buffer = block.remote[kind][whole(entry["buffer_id"], 2**20)]
            else:
                rank, buffer = block.gpu, str(entry["type"])[:1]
            if buffer not in "ios":
                raise self.wrong(block.where, f"buffer {buffer!r} in {op['name']}", "buffers are i, o and s")
            pieces.append([(rank, buffer, first + i) for i in range(size)])
        return pieces

    def _slot(self, piece: BufferRange) -> tuple[int, int]:
        rank, buffer, chunk = piece
        return rank, self.where.slot(rank, buffer, chunk)

    def _came(self, pieces: list[list[BufferRange]]) -> bool:
        return all(self._slot(p) in self.packets for chunks in pieces for p in chunks if p[1] == "s")

    def _move(self, src: tuple[int, int], dst: tuple[int, int], reduce: bool) -> None:
        if src != dst:
            self.moves.write(self.moves.read(*src), *dst, reduce)
        self.packets.add(dst)

    def _copy(
        self, block: ThreadBlock, op: Mapping[str, Any], src: list[list[BufferRange]], dst: list[list[BufferRange]]
    ) -> None:
        src = src * len(dst) if len(src) == 1 else src
        if [len(chunks) for chunks in src] != [len(chunks) for chunks in dst]:
            raise self.wrong(f"{block.where}.ops.{block.done}", f"{op['name']} of sizes that differ", CURE)
        for source, target in zip(itertools.chain(*src), itertools.chain(*dst), strict=True):
            self._move(self._slot(source), self._slot(target), False)

    def _reduce(
        self, block: ThreadBlock, op: Mapping[str, Any], src: list[list[BufferRange]], dst: list[list[BufferRange]]
    ) -> None:
        """The sum of all sources into the first destination of this GPU, or into scratch; from there to the others."""
        if not src or not dst or len({len(chunks) for chunks in (*src, *dst)}) != 1:
            raise self.wrong(f"{block.where}.ops.{block.done}", f"{op['name']} of sizes that differ", CURE)
        for k in range(len(src[0])):
            sources, targets = [self._slot(chunks[k]) for chunks in src], [self._slot(chunks[k]) for chunks in dst]
            own = next((t for t in targets if t[0] == block.gpu), None) or (block.gpu, next(self.spare))
            if own not in sources:
                self._move(sources.pop(0), own, False)
            else:
                sources.remove(own)
            for source in sources:
                self._move(source, own, True)
            for target in targets:
                self._move(own, target, False)

    def _switched_sides(self, block: ThreadBlock, op: Mapping[str, Any]) -> tuple[_Side, _Side]:
        """The two ends of a load or a store by a switch."""
        loads, stores = op["name"] in ("glre", "glres"), op["name"] != "glre"
        sources = self._joined(block, op, "src_buff") if loads else self._local(block, op, "src_buff")
        targets = self._joined(block, op, "dst_buff") if stores else self._local(block, op, "dst_buff")
        return sources, targets

    def _switched(self, block: ThreadBlock, op: Mapping[str, Any], sources: _Side, targets: _Side) -> None:
        """A load or a store by a switch: loaded into registers, which are a spare slot, or stored from them."""
        loads, stores = op["name"] in ("glre", "glres"), op["name"] != "glre"
        if len(sources) != len(targets):
            raise self.wrong(f"{block.where}.ops.{block.done}", f"{op['name']} of sizes that differ", CURE)
        for (source, source_agent), (target, target_agent) in zip(sources, targets, strict=True):
            held = source[0]
            if loads:
                added = (source_agent, next(self.spare))
                for place in source:
                    self._move(place, added, True)
                held = (block.gpu, next(self.spare)) if stores else target[0]
                self._move(added, held, False)
            if stores:
                sent = (target_agent, next(self.spare))
                self._move(held, sent, False)
                for place in target:
                    self._move(sent, place, False)

    def _joined(self, block: ThreadBlock, op: Mapping[str, Any], key: str) -> _Side:
        """Each chunk on the switch's side: its slots at the ranks that the switch joins, and the switch's agent."""
        chunks = []
        for entry in op[key]:
            ranks, buffer = block.switches[whole(entry["switch_channel_id"], 2**20)]
            first, size = whole(entry["index"], 2**31), whole(entry.get("size", 1), _thread_order.MOST_TRANSFERS)
            pieces = [[self._slot((rank, buffer, i)) for rank in ranks] for i in range(first, first + size)]
            chunks += [(places, self.agents[ranks]) for places in pieces]
        return chunks

    def _local(self, block: ThreadBlock, op: Mapping[str, Any], key: str) -> _Side:
        """Each chunk on the GPU's side: its slot, and no agent."""
        pieces = itertools.chain(*self._pieces(block, op, key, "switch"))
        return [([self._slot(piece)], -1) for piece in pieces]


def _stepped(run: _PlanExecution, block: ThreadBlock) -> bool:
    """Do the next operation of a thread block; raises InputError with its place."""
    try:
        return run.step(block)
    except ODD as error:
        raise run.wrong(f"{block.where}.ops.{block.done}", in_words(error), CURE) from None


def _played(plan: PlanFile, form: Mapping[str, int], wrong: Wrong) -> Schedule:
    """The schedule of a plan. In order k the k-th thread block is slow: it does an operation when no other can."""
    run = _PlanExecution(plan, bool(form["alias"]), wrong)
    for block in plan.blocks:
        block.done, block.arrived = 0, False
    slow = plan.blocks[form["order"] - 1] if form["order"] else None
    while True:
        before = sum(block.done for block in plan.blocks)
        for block in plan.blocks:
            while block is not slow and block.done < len(block.ops) and _stepped(run, block):
                block.done += 1
        if sum(block.done for block in plan.blocks) > before:
            continue
        left = [block for block in plan.blocks if block.done < len(block.ops)]
        if not left:
            break
        if slow not in left or not _stepped(run, slow):
            run.check_groups()
            path = f"{left[0].where}.ops.{left[0].done}"
            raise wrong(path, f"{left[0].ops[left[0].done]['name']} waits here for ever", "let what it waits for come")
        slow.done += 1
    run.check_groups()
    streams = bool(run.agents)  # a switch adds up word by word, and what follows need not wait for whole chunks
    return run.where.schedule(run.moves, agents=len(run.agents), pipelined=streams)
