"""MSCCL++'s execution plans as their files have them: thread blocks, their operations, channels and buffers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from simcoll.errors import Diagnostic, InputError, Place
from simcoll.formats.schedules import _thread_order
from simcoll.formats.schedules._buffers import ImportedProgram
from simcoll.formats.schedules._text import plain
from simcoll.schedule.collectives import collective
from simcoll.schedule.names import collective_named

MOST_RANKS: Final = 4096  # the proof and the steps of more take too much memory and time
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


@dataclass(eq=False)
class ThreadBlock:
    """A thread block: its operations, and the peers of its channels and remote buffers, by type."""

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
    """A plan: its thread blocks, all at their first operation, and its semaphores by GPU and number."""

    blocks: list[ThreadBlock] = field(default_factory=list)
    semaphores: Counter[tuple[int, int]] = field(default_factory=Counter)  # how often each may be acquired at first

    @property
    def switch_groups(self) -> list[tuple[int, ...]]:
        """The groups of ranks that a switch joins; the agent n + k of the schedule serves group k."""
        return list(dict.fromkeys(ranks for block in self.blocks for ranks, _ in block.switches))


Wrong = Callable[[str, str, str], InputError]


def wrong_at(source: str, path: str, problem: str, cure: str) -> InputError:
    """The complaint about a file, to be raised."""
    return InputError([Diagnostic(problem, cure, path, Place(source, 1, 1))])


ODD: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError)  # what comes of a file of another form


def in_words(error: Exception) -> str:
    """The expectation of a plan's form that failed."""
    if isinstance(error, KeyError):
        return f"{str(error)[:60]} is missing"
    if isinstance(error, IndexError):
        return "it names a channel or a buffer that is not listed"
    return str(error)[:200] if isinstance(error, ValueError) else f"it has another form: {str(error)[:160]}"


def whole(value: object, most: int) -> int:
    """A number from 0 to `most`; raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{str(value)[:40]!r} is no whole number from 0 to {most}")
    return value


def parsed(document: Mapping[str, Any], asked: str | None, wrong: Wrong) -> PlanFile:
    """The plan of a document; `asked` names its collective where the file has another name for it.

    Raises what `wrong` makes, with the place within the plan, and errors of `ODD` where there is none to name.
    """
    name = collective_named(asked or str(document["collective"]))
    if name is None or name == "barrier" or collective(name).rooted:
        said = str(asked or document["collective"])[:40]
        raise wrong("collective", f"{said!r} is no collective of such plans", "say which with --collective NAME")
    gpus = list(document["gpus"])
    n = len(gpus)
    if sorted(whole(gpu["id"], MOST_RANKS) for gpu in gpus) != list(range(n)) or not n:
        raise wrong("gpus", f"{n} GPUs that are not numbered from 0", CURE)
    keys = {"i": "input_chunks", "o": "output_chunks", "s": "scratch_chunks"}
    sizes = {b: max(whole(gpu.get(key, 0), _thread_order.MOST_PLACES) for gpu in gpus) for b, key in keys.items()}
    n_chunks = max(sizes["i"], sizes["o"], 1)
    if n_chunks % collective(name).blocks(n):
        raise wrong("gpus", f"{n_chunks} chunks of {n} GPUs", f"{name} needs a multiple of {n}")
    plan = PlanFile(
        plain(str(document.get("name", "")), "imported"), name, n, n_chunks, bool(document.get("inplace")), sizes
    )
    for gpu in gpus:
        for number, tb in enumerate(gpu.get("threadblocks", [])):
            where = f"gpus.{gpu['id']}.threadblocks.{number}"
            try:
                plan.blocks.append(_block(gpu, tb, n, where, wrong))
            except ODD as error:
                raise wrong(where, in_words(error), CURE) from None
        for i, semaphore in enumerate(gpu.get("semaphores", [])):
            plan.semaphores[gpu["id"], i] = whole(semaphore.get("init_value", 0), 2**20)
    return plan


def _block(gpu: Mapping[str, Any], tb: Mapping[str, Any], n: int, where: str, wrong: Wrong) -> ThreadBlock:
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
    """The ranks of a switch's group, which are all different."""
    members = tuple(sorted(whole(rank, n - 1) for rank in ranks))
    if len(members) < 2 or len(set(members)) < len(members):
        raise ValueError(f"a switch joins two or more ranks, not {str(ranks)[:40]}")
    return members
