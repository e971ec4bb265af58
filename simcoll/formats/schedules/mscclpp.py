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
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

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
SWITCHED: Final = {  # the sides of an operation that a switch joins
    "glre": ("src_buff",),
    "glres": ("src_buff", "dst_buff"),
    "gstore": ("dst_buff",),
    "gstorepkt": ("dst_buff",),
}
MOVES: Final = COPIES | REDUCES | SWITCHED.keys()
NOTHING: Final = frozenset(("nop", "flush"))
SYNCS: Final = frozenset(("barrier", "sem_acquire", "sem_release"))
_KNOWN: Final = SIGNALS | WAITS | MOVES | NOTHING | SYNCS
CURE: Final = "give an execution plan as MSCCL++'s language writes it"


class Chunk(NamedTuple):
    """A chunk of a buffer at one rank, or at all ranks that a switch joins."""

    ranks: tuple[int, ...]
    buffer: str
    offset: int


RankSlot = tuple[int, int]
RankSlots = tuple[int, tuple[int, ...]]
Way = tuple[int, int, str, int]  # of a signal: the sender, the receiver, the channel's type and its number


class PlanOp(NamedTuple):
    """An operation of a plan. `src` and `dst` hold the chunks of its parts; `signals` are those that it waits for or
    sends. `share` identifies an operation that `sharing` thread blocks do together, else it is None."""

    name: str
    src: list[list[Chunk]]
    dst: list[list[Chunk]]
    signals: Counter[Way]
    semaphores: Counter[tuple[int, int]]
    barrier: tuple[object, int]  # its id, and the number of thread blocks that come to it
    share: Hashable
    sharing: int
    where: str


@dataclass(eq=False)
class ThreadBlock:
    """A thread block and its operations."""

    gpu: int
    ops: list[PlanOp] = field(default_factory=list)
    done: int = 0
    arrived: bool = False  # at a barrier


@dataclass
class PlanFile(ImportedProgram):
    """A plan: its thread blocks before their first operation, and its semaphores by GPU and number.

    The switch that joins the ranks `switches[k]` is agent n + k of the schedule (an agent is a switch that reduces).
    """

    blocks: list[ThreadBlock] = field(default_factory=list)
    semaphores: Counter[tuple[int, int]] = field(default_factory=Counter)  # how often each may be acquired at first
    switches: list[tuple[int, ...]] = field(default_factory=list)


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
        names = Counter(op.name for block in plan.blocks for op in block.ops)
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
    """Return in words how a file deviates from the form of a plan, given the error that reading it raised (see ODD)."""
    if isinstance(error, KeyError):
        return f"{str(error)[:60]} is missing"
    if isinstance(error, IndexError):
        return "it names a channel or a buffer that the plan does not list"
    return str(error)[:200] if isinstance(error, ValueError) else f"it has another form: {str(error)[:160]}"


@contextmanager
def _at(where: str) -> Iterator[None]:
    """Convert errors of the types `ODD` in the context into InputErrors that name the key `where`."""
    try:
        yield
    except ODD as error:
        raise wrong(where, in_words(error), CURE) from None


def whole(value: object, most: int) -> int:
    """Return `value` as a whole number from 0 to `most`; raises ValueError for anything else."""
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
            with _at(where):
                plan.blocks.append(_block(plan, gpu, tb, where))
        for i, semaphore in enumerate(gpu.get("semaphores", [])):
            plan.semaphores[gpu["id"], i] = whole(semaphore.get("init_value", 0), 2**20)
    return plan


def _block(plan: PlanFile, gpu: Mapping[str, Any], tb: Mapping[str, Any], where: str) -> ThreadBlock:
    n, block = plan.n, ThreadBlock(gpu["id"])
    every: dict[str, list[Any]] = {}  # by type of channel: the peer and the number of each, or what a switch joins
    for channel in gpu.get("channels", []):
        known = every.setdefault(str(channel["channel_type"]), [])
        if channel["channel_type"] == "switch":
            buffer = str(channel["buffer_type"])[:1]
            known += ((_members(group["ranks"], n), buffer) for group in channel["rank_groups"])
            continue
        for peer in channel.get("connected_to", []):
            rank = whole(peer, n - 1)
            known.append((rank, sum(known_peer == rank for known_peer, _ in known)))
    buffers = [((whole(b["rank"], n - 1),), str(b["type"])[:1]) for b in gpu.get("remote_buffers", [])]
    channels = {
        str(c["channel_type"]): [every.get(str(c["channel_type"]), [])[whole(i, 2**20)] for i in c["channel_ids"]]
        for c in tb.get("channels", [])
    }
    remote = {
        str(r["access_channel_type"]): [buffers[whole(i, 2**20)] for i in r["remote_buffer_ids"]]
        for r in tb.get("remote_buffer_refs", [])
    }
    plan.switches += (ranks for ranks, _ in channels.get("switch", ()) if ranks not in plan.switches)
    ops = [inner for op in tb.get("ops", []) for inner in (op["ops"] if op["name"] == "pipeline" else [op])]
    for i, op in enumerate(ops):
        kind, here = str(op.get("channel_type")), f"{where}.ops.{i}"
        if op["name"] not in _KNOWN or (kind == "switch" and op["name"] not in SWITCHED):
            cure = "read are put, get, copy, re, res, rre, rres, their packet forms, glre, glres and gstore"
            problem = f"operation {str(op['name'])[:40]!r} cannot be mapped to transfers of chunks"
            raise wrong(here, problem, cure)
        with _at(here):
            block.ops.append(_op(plan, block.gpu, op, channels, remote.get(kind, []), ops[:i].count(op), here))
    return block


def _op(
    plan: PlanFile,
    gpu: int,
    op: Mapping[str, Any],
    channels: Mapping[str, list[Any]],
    remote: list[Any],
    earlier: int,
    where: str,
) -> PlanOp:
    """Return an operation of a GPU. `channels` are those of its thread block, `remote` the buffers that it can name;
    `earlier` counts the equal operations before it."""
    name, kind, slots = op["name"], str(op.get("channel_type")), BufferSlots(plan, True)

    def part(key: str, entry: Mapping[str, Any]) -> list[Chunk]:
        if key in SWITCHED.get(name, ()):
            ranks, buffer = channels["switch"][whole(entry["switch_channel_id"], 2**20)]
        elif "buffer_id" in entry:
            ranks, buffer = remote[whole(entry["buffer_id"], 2**20)]
        else:
            ranks, buffer = (gpu,), str(entry["type"])[:1]
        if buffer not in "ios":
            raise ValueError(f"buffer {buffer!r} is none of i, o and s")
        first, size = whole(entry["index"], 2**31), whole(entry.get("size", 1), thread_programs.MOST_TRANSFERS)
        for rank in ranks[: bool(size)]:
            slots.slot(rank, buffer, first + size - 1)  # raises ValueError if the buffer is smaller
        return [Chunk(ranks, buffer, first + i) for i in range(size)]

    moves = name in MOVES
    src, dst = ([part(key, entry) for entry in op.get(key, []) if moves] for key in ("src_buff", "dst_buff"))
    if name in COPIES and len(src) == 1:
        src = src * len(dst)
    sizes = [list(map(len, side)) for side in (src, dst)]
    if name in SWITCHED:
        fits = sum(sizes[0]) == sum(sizes[1])
    else:
        fits = sizes[0] == sizes[1] if name in COPIES else bool(src and dst) and len({*sizes[0], *sizes[1]}) == 1
    if moves and not fits:
        raise ValueError(f"{name} has parts of different sizes")
    named = [channels[kind][whole(i, 2**20)] for i in op.get("channel_ids", []) if name in SIGNALS | WAITS]
    ways = ((gpu, peer, kind, which) if name in SIGNALS else (peer, gpu, kind, which) for peer, which in named)
    semaphores = ((gpu, whole(i, 2**20)) for i in op.get("semaphore_ids", []))
    barrier = op.get("barrier_id"), whole(op.get("num_threadblocks", 1), 2**20)
    group = next((value for key, value in op.items() if key.startswith("tbg")), None)
    share, sharing = None, 1
    if moves and group is not None:  # blocks have their own lists of channels, so the chunks identify the operation
        sharing = whole(next((value for key, value in group.items() if key.endswith("size")), "no tbg_size"), 2**20)
        share = (gpu, name, sharing, earlier, repr((src, dst)))
    return PlanOp(name, src, dst, Counter(ways), Counter(semaphores), barrier, share, sharing, where)


def _members(ranks: list[object], n: int) -> tuple[int, ...]:
    """Return the ranks of a switch's group, which must all differ."""
    members = tuple(sorted(whole(rank, n - 1) for rank in ranks))
    if len(members) < 2 or len(set(members)) < len(members):
        raise ValueError(f"a switch joins two or more ranks, not {str(ranks)[:40]}")
    return members


# --- execution ---


class _PlanExecution:
    """The state of an executed plan: pending signals, semaphores, and packets that have arrived."""

    def __init__(self, plan: PlanFile, alias: bool):
        self.plan = plan
        self.where = BufferSlots(plan, alias)
        self.moves = RecordedTransfers()
        self.signals = Counter[Way]()
        self.semaphores = Counter(plan.semaphores)
        self.packets = set[RankSlot]()
        self.shares = Counter[Hashable]()  # thread blocks that came to an operation that several share
        self.spare = itertools.count(self.where.spare)
        self.agents = {ranks: plan.n + k for k, ranks in enumerate(plan.switches)}

    def step(self, block: ThreadBlock) -> bool:
        """Do the next operation of a thread block; return False if it has to wait."""
        op = block.ops[block.done]
        if op.name in WAITS:
            if not op.signals <= self.signals:
                return False
            self.signals -= op.signals
        elif op.name == "sem_acquire":
            if not op.semaphores <= self.semaphores:
                return False
            self.semaphores -= op.semaphores
        elif op.name == "sem_release":
            self.semaphores += op.semaphores
        elif op.name == "barrier":
            return self._barrier(block, op)
        elif op.name in MOVES:
            if op.name in READS_PACKETS and not self._came(op.src):
                return False
            self.shares[op.share] += 1
            if op.share is not None and self.shares[op.share] < op.sharing:
                return True  # the last of the thread blocks does it
            move = self._copy if op.name in COPIES else self._reduce if op.name in REDUCES else self._switched
            move(block, op)
        if op.name in SIGNALS:
            self.signals += op.signals
        return True

    def _barrier(self, block: ThreadBlock, op: PlanOp) -> bool:
        """Return whether the required number of thread blocks of the GPU have come to a barrier."""
        block.arrived = True
        same = [
            waiting
            for waiting in self.plan.blocks
            if waiting.gpu == block.gpu
            and waiting.arrived
            and waiting.done < len(waiting.ops)
            and waiting.ops[waiting.done].barrier[0] == op.barrier[0]
        ]
        if len(same) < op.barrier[1]:
            return False
        for waiting in same:
            waiting.arrived = False
            if waiting is not block:
                waiting.done += 1
        return True

    def _slots(self, chunk: Chunk) -> list[RankSlot]:
        return [(rank, self.where.slot(rank, chunk.buffer, chunk.offset)) for rank in chunk.ranks]

    def _came(self, parts: list[list[Chunk]]) -> bool:
        return all(self._slots(c)[0] in self.packets for part in parts for c in part if c.buffer == "s")

    def _move(self, src: RankSlots, dst: RankSlots, reduce: bool) -> None:
        if src != dst:
            self.moves.write(self.moves.read(*src), *dst, reduce)
        self.packets.update((dst[0], slot) for slot in dst[1])

    def _run(self, part: list[Chunk]) -> RankSlots:
        """Return the slots of a part, all of one rank."""
        places = [self._slots(chunk)[0] for chunk in part]
        return places[0][0], tuple(slot for _, slot in places)

    def _copy(self, block: ThreadBlock, op: PlanOp) -> None:
        for source, target in zip(op.src, op.dst, strict=True):
            if source:
                self._move(self._run(source), self._run(target), False)

    def _reduce(self, block: ThreadBlock, op: PlanOp) -> None:
        """Sum all sources into the first destination on this GPU, or into scratch, and copy the sum to the others."""
        if not op.src[0]:
            return
        sources, targets = ([self._run(part) for part in side] for side in (op.src, op.dst))
        own = next((target for target in targets if target[0] == block.gpu), None)
        own = own or (block.gpu, tuple(itertools.islice(self.spare, len(op.src[0]))))
        if own not in sources:
            self._move(sources.pop(0), own, False)
        else:
            sources.remove(own)
        for source in sources:
            self._move(source, own, True)
        for target in targets:
            self._move(own, target, False)

    def _switched(self, block: ThreadBlock, op: PlanOp) -> None:
        """Load data through a switch into registers (an extra slot of the schedule), or store data from registers."""
        for source, target in zip(itertools.chain(*op.src), itertools.chain(*op.dst), strict=True):
            held = self._slots(source)[0]
            if "src_buff" in SWITCHED[op.name]:
                added = (self.agents[source.ranks], next(self.spare))
                for place in self._slots(source):
                    self._move(_one(place), _one(added), True)
                held = (block.gpu, next(self.spare)) if op.name == "glres" else self._slots(target)[0]
                self._move(_one(added), _one(held), False)
            if "dst_buff" in SWITCHED[op.name]:
                sent = (self.agents[target.ranks], next(self.spare))
                self._move(_one(held), _one(sent), False)
                for place in self._slots(target):
                    self._move(_one(sent), _one(place), False)


def _one(place: RankSlot) -> RankSlots:
    return place[0], (place[1],)


def _played(plan: PlanFile, form: Mapping[str, int]) -> Schedule:
    """Execute a plan in the variant `form`; return the schedule of its transfers."""
    run = _PlanExecution(plan, bool(form["alias"]))
    for block in plan.blocks:
        block.arrived = False
    stuck = thread_programs.execute(plan.blocks, run.step, form["order"])
    for op in (op for block in plan.blocks for op in block.ops[: block.done]):
        if op.share is not None and (came := run.shares[op.share]) < op.sharing:
            raise wrong(op.where, f"{op.sharing} thread blocks share this operation, but only {came} reach it", CURE)
    if stuck:
        op = stuck.ops[stuck.done]
        raise wrong(op.where, f"{op.name} waits here for ever", "mend what it waits for")
    streams = bool(run.agents)  # a switch adds word by word, so that later transfers need not wait for whole chunks
    return run.where.schedule(run.moves, agents=len(run.agents), pipelined=streams)
