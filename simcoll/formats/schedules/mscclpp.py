"""Read MSCCL++'s execution plans (JSON): the puts, gets, copies and reductions of each thread block of each GPU. A plan
names chunks of input, output and scratch buffers. Blocks wait at semaphores, signals of channels, and barriers.

The reader supports one-sided copies and reductions, and their packet forms, in which the reader of a packet waits for
it. An operation that several thread blocks share is done when the last block comes to it. A pipelined loop is executed
once, with whole chunks. Loads and stores by a switch (`glre`, `glres`, `gstore`, `gstorepkt`) are NVLink SHARP. The
switch is an agent of the schedule: it sends a loading rank the sum of a group's buffers, and all ranks the stored data.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from simcoll.config import input_files
from simcoll.config.input_files import ImportLog
from simcoll.errors import InputError, Place, wrong
from simcoll.formats.schedules import thread_programs
from simcoll.formats.schedules.thread_programs import (
    MOST_RANKS,
    THREADS,
    BufferSlots,
    ImportedProgram,
    RecordedTransfers,
    plain,
)
from simcoll.schedule.collectives import collective
from simcoll.schedule.names import collective_named
from simcoll.schedule.schedule import Schedule

SIGNALS: Final = frozenset(("signal", "rlxsignal", "pws", "pwsf"))
WAITS: Final = frozenset(("wait", "rlxwait"))
COPIES: Final = frozenset(("put", "pws", "pwsf", "get", "copy", "ppkt", "rppkt", "cpkt", "upkt"))
REDUCES: Final = frozenset(("re", "res", "rre", "rres", "repkt", "respkt", "recpkt", "recspkt"))
READS_PACKETS: Final = frozenset(("rppkt", "upkt", "repkt", "respkt", "recpkt", "recspkt"))
SWITCHED: Final = frozenset(("glre", "glres", "gstore", "gstorepkt"))
NOTHING: Final = frozenset(("nop", "flush"))
SYNCS: Final = frozenset(("barrier", "sem_acquire", "sem_release"))
_KNOWN: Final = SIGNALS | WAITS | COPIES | REDUCES | SWITCHED | NOTHING | SYNCS
CURE: Final = "give an execution plan as MSCCL++'s language writes it"

SwitchGroup = tuple[tuple[int, ...], str]  # the ranks whose buffers a switch joins, and which buffer of each


BufferRange = tuple[int, str, int]  # rank, buffer, chunk
_Side = list[tuple[list[tuple[int, int]], int]]  # for each chunk: its (rank, slot) pairs, and the switch's agent or -1


@dataclass
class _Shares:
    """An operation of several thread blocks: their number, the first one's place in the file, the number that came."""

    size: int
    where: str
    done: int = 0


@dataclass(eq=False)
class ThreadBlock:
    """A thread block: its operations, and by channel type the peers of its channels and its remote buffers."""

    gpu: int
    number: int
    ops: list[Mapping[str, Any]]
    peers: Mapping[str, list[tuple[int, int]]]  # type → (peer, which of the channels to that peer)
    remote: Mapping[str, list[tuple[int, str]]]  # type → (rank, buffer)
    switches: list[SwitchGroup]
    where: str
    done: int = 0
    arrived: bool = False  # at a barrier


@dataclass
class PlanFile(ImportedProgram):
    """A plan: its thread blocks before their first operation, and its semaphores by GPU and number."""

    blocks: list[ThreadBlock] = field(default_factory=list)
    semaphores: Counter[tuple[int, int]] = field(default_factory=Counter)  # how often each may be acquired at first

    @property
    def switch_groups(self) -> list[tuple[int, ...]]:
        """The groups of ranks that a switch joins; agent n + k of the schedule is the switch of group k."""
        return list(dict.fromkeys(ranks for block in self.blocks for ranks, _ in block.switches))


def looks(text: str) -> bool:
    """Return whether a JSON text has a plan's keys."""
    return '"gpus"' in text and '"threadblocks"' in text and '"ops"' in text


def read(text: str, source: str, asked: str | None, notes: ImportLog) -> Schedule:
    """Return the proved schedule of a plan; `asked` names its collective if the file has another name for it.

    Raises InputError with the operation that cannot be mapped, and ScheduleError if the plan does not produce the
    collective's result.
    """
    document = input_files.json_mapping(text, source, CURE)
    try:
        if '"inputChunks"' in text or '"ctype"' in text:
            raise wrong("", "a plan in MSCCL++'s older form", "make it anew with an MSCCL++ that writes input_chunks")
        plan = _parsed(document, asked)
        names = Counter(op["name"] for block in plan.blocks for op in block.ops)
        steps = ", ".join(f"{count} {name}" for name, count in names.items())
        notes.read.append(f"{plan.collective} of {plan.n} GPUs, {plan.n_chunks} chunks, operations: {steps}")
        notes.assume(THREADS)
        truth, simpler = {"alias": plan.in_place, "order": 0}, [{"alias": True, "order": 0}] * (not plan.in_place)
        return thread_programs.proved(lambda form: _played(plan, form), truth, simpler, len(plan.blocks))
    except InputError as error:
        raise InputError([replace(each, place=Place(source, 1, 1)) for each in error.diagnostics]) from None
    except ODD as error:
        problem = f"not a plan: {in_words(error)}"
        raise InputError(problem, CURE, Place(source, 1, 1)) from None


# --- the file ---


ODD: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError)  # errors that a malformed file causes


def in_words(error: Exception) -> str:
    """Return in words how a file deviates from the form of a plan, given the error (see ODD)."""
    if isinstance(error, KeyError):
        return f"{str(error)[:60]} is missing"
    if isinstance(error, IndexError):
        return "it names a channel or a buffer that the plan does not list"
    return str(error)[:200] if isinstance(error, ValueError) else f"it has another form: {str(error)[:160]}"


def whole(value: object, most: int) -> int:
    """Return a number from 0 to `most`; raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{str(value)[:40]!r} is no whole number from 0 to {most}")
    return value


def _parsed(document: Mapping[str, Any], asked: str | None) -> PlanFile:
    """Return the plan of a document; `asked` names its collective if the file has another name for it.

    Raises InputError with the key, or an error of the types `ODD` if the key is unknown.
    """
    name = collective_named(asked or str(document["collective"]))
    if name is None or name == "barrier" or collective(name).rooted:
        said = str(asked or document["collective"])[:40]
        raise wrong("collective", f"{said!r} is no collective of MSCCL++ plans", "name it with --collective NAME")
    gpus = list(document["gpus"])
    n = len(gpus)
    if sorted(whole(gpu["id"], MOST_RANKS) for gpu in gpus) != list(range(n)) or not n:
        raise wrong("gpus", f"the ids of {n} GPUs are not 0, 1, …", CURE)
    keys = {"i": "input_chunks", "o": "output_chunks", "s": "scratch_chunks"}
    sizes = {b: max(whole(gpu.get(key, 0), thread_programs.MOST_PLACES) for gpu in gpus) for b, key in keys.items()}
    n_chunks = max(sizes["i"], sizes["o"], 1)
    if n_chunks % collective(name).blocks(n):
        raise wrong("gpus", f"{n_chunks} chunks cannot be divided among {n} GPUs", f"{name} needs a multiple of {n}")
    plan = PlanFile(
        plain(str(document.get("name", "")), "imported"), name, n, n_chunks, bool(document.get("inplace")), sizes
    )
    for gpu in gpus:
        for number, tb in enumerate(gpu.get("threadblocks", [])):
            where = f"gpus.{gpu['id']}.threadblocks.{number}"
            try:
                plan.blocks.append(_block(gpu, tb, n, where))
            except ODD as error:
                raise wrong(where, in_words(error), CURE) from None
        for i, semaphore in enumerate(gpu.get("semaphores", [])):
            plan.semaphores[gpu["id"], i] = whole(semaphore.get("init_value", 0), 2**20)
    return plan


def _block(gpu: Mapping[str, Any], tb: Mapping[str, Any], n: int, where: str) -> ThreadBlock:
    number = whole(gpu["id"], MOST_RANKS)
    channels: dict[str, list[tuple[int, int]]] = {}
    switches: list[SwitchGroup] = []
    for channel in gpu.get("channels", []):
        if channel["channel_type"] == "switch":
            buffer = str(channel["buffer_type"])[:1]
            switches += ((_members(group["ranks"], n), buffer) for group in channel["rank_groups"])
            continue
        known = channels.setdefault(str(channel["channel_type"]), [])
        for peer in channel.get("connected_to", []):
            rank = whole(peer, n - 1)
            known.append((rank, sum(known_peer == rank for known_peer, _ in known)))
    buffers = [(whole(b["rank"], n - 1), str(b["type"])[:1]) for b in gpu.get("remote_buffers", [])]
    peers = {
        str(c["channel_type"]): [channels[str(c["channel_type"])][whole(i, 2**20)] for i in c["channel_ids"]]
        for c in tb.get("channels", [])
        if c["channel_type"] != "switch"
    }
    joined = [
        switches[whole(i, 2**20)]
        for c in tb.get("channels", [])
        if c["channel_type"] == "switch"
        for i in c["channel_ids"]
    ]
    remote = {
        str(r["access_channel_type"]): [buffers[whole(i, 2**20)] for i in r["remote_buffer_ids"]]
        for r in tb.get("remote_buffer_refs", [])
    }
    ops = [inner for op in tb.get("ops", []) for inner in (op["ops"] if op["name"] == "pipeline" else [op])]
    for i, op in enumerate(ops):
        if op["name"] not in _KNOWN or (str(op.get("channel_type")) == "switch" and op["name"] not in SWITCHED):
            cure = "read are put, get, copy, re, res, rre, rres, their packet forms, glre, glres and gstore"
            problem = f"operation {str(op['name'])[:40]!r} cannot be mapped to transfers of chunks"
            raise wrong(f"{where}.ops.{i}", problem, cure)
    return ThreadBlock(number, whole(tb["id"], 2**20), ops, peers, remote, joined, where)


def _members(ranks: list[object], n: int) -> tuple[int, ...]:
    """Return the ranks of a switch's group, which must all differ."""
    members = tuple(sorted(whole(rank, n - 1) for rank in ranks))
    if len(members) < 2 or len(set(members)) < len(members):
        raise ValueError(f"a switch joins two or more ranks, not {str(ranks)[:40]}")
    return members


# --- execution ---


class _PlanExecution:
    """The execution of a plan: pending signals, semaphores, and arrived packets."""

    def __init__(self, plan: PlanFile, alias: bool):
        self.plan = plan
        self.where = BufferSlots(plan, alias)
        self.moves = RecordedTransfers()
        self.signals: Counter[tuple[int, int, str, int]] = Counter()
        self.semaphores = Counter(plan.semaphores)
        self.packets: set[tuple[int, int]] = set()
        self.shares: dict[Hashable, _Shares] = {}  # operations of groups of thread blocks
        self.spare = itertools.count(self.where.spare)
        self.agents = {ranks: plan.n + k for k, ranks in enumerate(plan.switch_groups)}

    def step(self, block: ThreadBlock) -> bool:
        """Do the next operation of a thread block; return False if it has to wait."""
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
        """Return whether all thread blocks of a group have come to their shared operation. Blocks have their own lists
        of channels. So the moved slots (`moved`) identify the operation."""
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
        """Raise InputError if fewer thread blocks came to an operation than share it."""
        for shares in self.shares.values():
            if shares.done < shares.size:
                problem = f"{shares.size} thread blocks share this operation, but only {shares.done} reach it"
                raise wrong(shares.where, problem, CURE)

    def _ways(self, block: ThreadBlock, op: Mapping[str, Any], kind: str) -> list[tuple[int, int]]:
        return [block.peers[kind][whole(i, 2**20)] for i in op.get("channel_ids", [])]

    def _barrier(self, block: ThreadBlock, op: Mapping[str, Any]) -> bool:
        """Return whether the required number of thread blocks of the GPU have come to a barrier."""
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
        """Return the chunks of each buffer that an operation names."""
        pieces = []
        for entry in op.get(key, []):
            first, size = whole(entry["index"], 2**31), whole(entry.get("size", 1), thread_programs.MOST_TRANSFERS)
            if "buffer_id" in entry:
                rank, buffer = block.remote[kind][whole(entry["buffer_id"], 2**20)]
            else:
                rank, buffer = block.gpu, str(entry["type"])[:1]
            if buffer not in "ios":
                raise wrong(block.where, f"buffer {buffer!r} in {op['name']}", "buffers are i, o and s")
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
            raise wrong(f"{block.where}.ops.{block.done}", f"{op['name']} has parts of different sizes", CURE)
        for source, target in zip(itertools.chain(*src), itertools.chain(*dst), strict=True):
            self._move(self._slot(source), self._slot(target), False)

    def _reduce(
        self, block: ThreadBlock, op: Mapping[str, Any], src: list[list[BufferRange]], dst: list[list[BufferRange]]
    ) -> None:
        """Sum all sources into the first destination on this GPU, or into scratch, and copy the sum to the others."""
        if not src or not dst or len({len(chunks) for chunks in (*src, *dst)}) != 1:
            raise wrong(f"{block.where}.ops.{block.done}", f"{op['name']} has parts of different sizes", CURE)
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
        """Return sources and targets of a load or a store by a switch."""
        loads, stores = op["name"] in ("glre", "glres"), op["name"] != "glre"
        sources = self._joined(block, op, "src_buff") if loads else self._local(block, op, "src_buff")
        targets = self._joined(block, op, "dst_buff") if stores else self._local(block, op, "dst_buff")
        return sources, targets

    def _switched(self, block: ThreadBlock, op: Mapping[str, Any], sources: _Side, targets: _Side) -> None:
        """Load by a switch into registers (an extra slot in the schedule), or store from them."""
        loads, stores = op["name"] in ("glre", "glres"), op["name"] != "glre"
        if len(sources) != len(targets):
            raise wrong(f"{block.where}.ops.{block.done}", f"{op['name']} has parts of different sizes", CURE)
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
        """Return each chunk on the switch's side: its slots at the ranks that the switch joins, and the agent."""
        chunks = []
        for entry in op[key]:
            ranks, buffer = block.switches[whole(entry["switch_channel_id"], 2**20)]
            first, size = whole(entry["index"], 2**31), whole(entry.get("size", 1), thread_programs.MOST_TRANSFERS)
            pieces = [[self._slot((rank, buffer, i)) for rank in ranks] for i in range(first, first + size)]
            chunks += [(places, self.agents[ranks]) for places in pieces]
        return chunks

    def _local(self, block: ThreadBlock, op: Mapping[str, Any], key: str) -> _Side:
        """Return each chunk on the GPU's side: its slot, and no agent."""
        pieces = itertools.chain(*self._pieces(block, op, key, "switch"))
        return [([self._slot(piece)], -1) for piece in pieces]


def _stepped(run: _PlanExecution, block: ThreadBlock) -> bool:
    """Do the next operation of a thread block; raises InputError with its place."""
    try:
        return run.step(block)
    except ODD as error:
        raise wrong(f"{block.where}.ops.{block.done}", in_words(error), CURE) from None


def _played(plan: PlanFile, form: Mapping[str, int]) -> Schedule:
    """Execute a plan; return its schedule. In order k the k-th thread block is slow: it runs only if no other can."""
    run = _PlanExecution(plan, bool(form["alias"]))
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
            raise wrong(path, f"{left[0].ops[left[0].done]['name']} waits here for ever", "mend what it waits for")
        slow.done += 1
    run.check_groups()
    streams = bool(run.agents)  # a switch adds word by word, so that later transfers need not wait for whole chunks
    return run.where.schedule(run.moves, agents=len(run.agents), pipelined=streams)
