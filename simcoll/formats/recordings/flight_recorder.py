"""Read dumps of PyTorch's flight recorder: a pickle or JSON for each rank, written when a job hangs or on demand.

A pickle can run code and fill the memory of who reads it. So its instructions are checked first: only those that build
dict, list, tuple, str, int, float, bool and None are let through, with sizes that the file can hold.

Source of the format: PyTorch, torch/csrc/distributed/c10d/FlightRecorder.hpp and FlightRecorderDetail.hpp.
"""

from __future__ import annotations

import gc
import io
import json
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final, NoReturn

from simcoll.config import input_files
from simcoll.errors import InputError, visible
from simcoll.formats.recordings.events import Event, Group, Recording, Shapes, What
from simcoll.schedule.names import collective_named, squashed

_CURE: Final = "give a dump as PyTorch writes it (pickle or JSON)"
_CONTAINERS: Final = 4_000_000  # in a pickle, to bound memory; a dump of 20,000 calls with 60 frames has 1,400,000
_VALUES: Final = 20_000_000  # sizes and frames that are visited: in a pickle many lists may be one
_FRAMES: Final = 256  # of a call, of which the user's is sought
_AT_ONCE: Final = 1 << 20  # bytes
_NAME: Final = 200  # characters of names that are kept


def _sized(instruction: bytes, width: int, longest: int) -> bytes:
    """Return a pattern of an instruction, the little-endian length of `width` bytes, and data of up to `longest`."""
    lengths = (n.to_bytes(width, "little") for n in range(longest + 1))
    return instruction + b"(?:" + b"|".join(re.escape(n) + b".{%d}" % n[0] for n in lengths) + b")"


# Instructions of pickle protocols 2 to 5 that build plain values; longer texts are skipped by `_checked`. The numbers
# of memo entries are below 2^21: a larger one alone would make Python fill gigabytes.
_PLAIN: Final = re.compile(
    rb"(?:[hqK].|[\]})(eusatN\x85-\x89\x94]|[rj]..[\x00-\x1f]\x00|M..|J.{4}|G.{8}|\x95.{8}|\x80.|%b|%b|%b)*+"
    % (_sized(rb"X", 4, 63), _sized(rb"\x8c", 1, 63), _sized(rb"\x8a", 1, 9)),
    re.DOTALL,
)
_TEXTS: Final = {b"\x8c": 1, b"X": 4, b"\x8d": 8}  # instruction -> bytes of the length that precedes a text


class _Plain(pickle.Unpickler):
    """An unpickler that knows no class and no function."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, pid: object) -> NoReturn:
        raise pickle.UnpicklingError("a reference to another file")


def _checked(data: bytes, source: str) -> bytes:
    """Return a pickle whose instructions all build plain values; raises InputError for any other."""
    at, size = 0, len(data)
    if sum(map(data.count, (b"}", b"]", b")", b"\x85", b"\x86", b"\x87", b"t"))) > _CONTAINERS + size // 8:
        raise InputError(f"{source}: a pickle of more than {_CONTAINERS} lists and mappings", "give a smaller dump")
    while at < size:
        at = _PLAIN.match(data, at).end()  # type: ignore[union-attr]
        instruction = data[at : at + 1]
        if instruction == b".":
            return data
        width = _TEXTS.get(instruction)
        if width is None:
            break
        at += 1 + width + int.from_bytes(data[at + 1 : at + 1 + width], "little")
    if at >= size:
        raise InputError(f"{source}: the pickle ends too early", "copy the file once more")
    problem = f"a pickle with the instruction {data[at : at + 1]!r} at byte {at}, which no dump has: it could run code"
    raise InputError(f"{source}: {problem}; nothing of it was executed", _CURE)


def looks(data: bytes) -> bool:
    """Return whether bytes are a pickle, or a JSON text with the keys of a dump."""
    if data[:1] == b"\x80":
        return True
    return data[:64].lstrip().startswith(b"{") and b'"entries"' in data and b'"pg_config"' in data


def read(data: bytes, source: str) -> Recording:
    """Return the recording in a dump. Raises InputError if it is damaged, or holds anything but plain values."""
    collects = gc.isenabled()
    gc.disable()  # the values of a dump have no cycles, and there are many
    try:
        dump = _loaded(data, source)
        return _Reader(source, dump, b"coalesced" in data).recording()
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise InputError(
            f"{source}: a damaged dump: {visible(str(error))[:_NAME]}", "copy the file once more"
        ) from None
    finally:
        if collects:
            gc.enable()


def _loaded(data: bytes, source: str) -> dict[str, Any]:
    if data[:1] != b"\x80":
        return input_files.json_mapping(data.decode("utf-8", "replace"), source, _CURE)
    try:
        dump = _Plain(io.BufferedReader(io.BytesIO(_checked(data, source)), _AT_ONCE)).load()
    except (pickle.UnpicklingError, EOFError, IndexError, MemoryError) as error:
        raise InputError(f"{source}: a damaged pickle: {visible(str(error))[:_NAME]}", _CURE) from None
    if not isinstance(dump, dict) or not isinstance(dump.get("entries", []), list):
        raise InputError(f"{source}: a pickle, but no dump of the flight recorder", _CURE)
    return dump


_RANK: Final = re.compile(r"rank[_-]?(\d{1,7})(?!\d)|(?<!\d)(\d{1,7})(?=(?:\.[A-Za-z]+)*$)", re.IGNORECASE)


def rank_of(source: str) -> int | None:
    """Return the rank that the name of a dump says; None if it says none.

    >>> rank_of("dumps/nccl_trace_rank_12"), rank_of("trace_3.json.gz"), rank_of("rank7/dump.pickle"), rank_of("dump")
    (12, 3, 7, None)
    """
    path = PurePath(source)
    for name in (path.name, path.parent.name):
        if found := list(_RANK.finditer(name)):
            return int(found[-1][1] or found[-1][2])
    return None


# What PyTorch adds to the names of collectives, in small letters. Calls with uneven parts are compared by name alone.
_TAILS: Final = re.compile(r"(?:base|v?single|intotensor|tensor|coalesced|barrier|oop|v)+$")


def collective_of(name: str) -> str:
    """Return the collective that PyTorch calls `name`; the name itself if simcoll has no such collective.

    >>> collective_of("_ALLGATHER_BASE"), collective_of("reduce_scatter_tensor_coalesced"), collective_of("coalesced")
    ('all_gather', 'reduce_scatter', 'coalesced')
    """
    return collective_named(name) or collective_named(_TAILS.sub("", squashed(name))) or name[:_NAME]


_P2P: Final = re.compile(r"(send|recv) (\d+)(->|<-)(\d+)$")
_INSIDE: Final = re.compile(  # files of torch and of Python itself
    r"(?:^|[\\/])torch[\\/](?:_\w+|autograd|cuda|distributed|fx|multiprocessing|nn|optim|utils)[\\/.]"
    r"|[\\/]lib[\\/]python[\d.]+[\\/](?!site-packages|dist-packages)|^<"
)


class _Reader:
    """Reads the entries of one dump. Equal groups, calls and places become one object, for speed and memory.

    Types are checked before values are hashed or printed: a tuple within tuples may be small and print without end.
    """

    def __init__(self, source: str, dump: Mapping[str, Any], coalesced: bool):
        self.source, self.dump, self.coalesced = source, dump, coalesced
        self.entries: Sequence[Any] = dump.get("entries") or []
        self.config: Mapping[str, Any] = dump.get("pg_config") or {}
        self.left = _VALUES
        self.groups: dict[tuple[str, str], Group] = {}
        self.newest: dict[Group, Mapping[str, Any]] = {}  # the last entry of each group
        self.whats: dict[tuple[object, ...], What] = {}
        self.places: dict[tuple[str, int], str] = {}
        self.inside: dict[str, bool] = {}  # file -> whether it is of torch or Python

    def recording(self) -> Recording:
        """Return the recording; raises TypeError and its like for values of other types than dumps have."""
        status = self.dump.get("pg_status") or {}
        events = list(self._events(status))
        named = {_text(entry.get("pg_id", "")): group for group, entry in self.newest.items()}
        reached = {}
        for key, of_group in status.items():
            last = int(of_group.get("last_enqueued_collective", -1))
            if last >= 0 and (group := named.get(key) or self._configured(key)):
                reached[group] = last
        first = _whole(self.entries[0].get("record_id")) if self.entries else 0
        return Recording(self.source, rank_of(self.source), events, first == 0, reached)

    def _configured(self, key: str) -> Group | None:
        """Return the group that `pg_config` has under a key; None for gloo's, which have no names there."""
        config = self.config.get(key) or {}
        ranks = config.get("ranks", "[]")  # text, JSON inside
        ranks = json.loads(ranks) if isinstance(ranks, str) else ranks
        if not all(type(rank) is int for rank in ranks):
            raise TypeError("ranks are no whole numbers")
        if not ranks:
            return None
        pair = _text(config.get("name") or key), _text(config.get("desc", ""))
        return self.groups.setdefault(pair, Group(*pair, tuple(sorted(set(ranks)))))

    def _group(self, entry: Mapping[str, Any]) -> Group:
        name, description = entry["process_group"]
        key = (name, description) if type(name) is type(description) is str else (_text(name), _text(description))
        found = self.groups.get(key)
        if found is None:
            known = (self._configured(name) or self._configured(_text(entry.get("pg_id", "")))) if name else None
            ranks = known.ranks if known and known.name == name else ()
            found = self.groups[key] = Group(key[0][:_NAME], key[1][:_NAME], ranks)
        return found

    def _events(self, status: Mapping[str, Any]) -> Iterator[Event]:
        finished = self._coalesced_ends() if self.coalesced else frozenset()
        for entry in self.entries:
            group = self._group(entry)
            self.newest[group] = entry
            p2p, number = _number(entry)
            done = _is_done(entry) or (group, p2p, number) in finished
            if not done and not p2p and entry.get("op_id") == number:  # no point-to-point call was counted
                of_group = status.get(_text(entry.get("pg_id", ""))) or {}
                done = number <= int(of_group.get("last_completed_collective", -1))  # a text in JSON
            yield Event(
                group, number, self._what(entry), self._place(entry.get("frames") or ()), done,
                _whole(entry.get("time_created_ns")), _whole(entry.get("time_discovered_started_ns")),
                _whole(entry.get("time_discovered_completed_ns")), 1e3 * float(entry.get("duration_ms") or 0), p2p,
            )  # fmt: skip

    def _coalesced_ends(self) -> set[tuple[Group, bool, int]]:
        """Return the finished calls whose parts were recorded singly, and whose end was recorded as `coalesced`."""
        return {
            (self._group(entry), *_number(entry))
            for entry in self.entries
            if _text(entry["profiling_name"]).endswith("coalesced") and _is_done(entry)
        }

    def _what(self, entry: Mapping[str, Any]) -> What:
        name = _text(entry["profiling_name"])
        dtypes = *(entry.get("input_dtypes") or ()), *(entry.get("output_dtypes") or ())
        self.left -= len(dtypes)
        for dtype in dtypes:
            if type(dtype) is not str:
                raise TypeError("a type of data is no text")
        inputs, outputs = self._shapes(entry.get("input_sizes")), self._shapes(entry.get("output_sizes"))
        key = (name, inputs, outputs, dtypes)
        found = self.whats.get(key)
        if found is None:
            plain, dtypes = name.split(":", 1)[-1], tuple(dict.fromkeys(dtypes))
            if p2p := _P2P.match(plain):
                one, other = int(p2p[2]), int(p2p[4])
                found = What(p2p[1], inputs, outputs, dtypes, (one, other) if p2p[3] == "->" else (other, one))
            else:
                found = What(collective_of(plain), inputs, outputs, dtypes)
            self.whats[key] = found
        return found

    def _shapes(self, given: Any) -> Shapes:
        shapes = tuple([tuple(shape) for shape in given or ()])
        self.left -= len(shapes)
        for shape in shapes:
            self.left -= len(shape)
            for size in shape:
                if type(size) is not int:
                    raise TypeError("a size is no whole number")
        if self.left < 0:
            raise ValueError(f"more than {_VALUES} sizes")
        return shapes

    def _place(self, frames: Sequence[Any]) -> str:
        """Return `file:line` of the innermost frame that is not of torch or Python, else of the innermost frame."""
        chosen = None
        for frame in frames[:_FRAMES]:
            file = frame["filename"]
            if type(file) is not str:
                raise TypeError("the name of a file is no text")
            inside = self.inside.get(file)
            if inside is None:
                inside = self.inside[file] = bool(_INSIDE.search(file))
            if not inside:
                chosen = frame
                break
        if chosen is None:
            if not frames:
                return ""
            chosen = frames[0]
        key = _text(chosen["filename"]), _whole(chosen["line"])
        place = self.places.get(key)
        if place is None:
            place = self.places[key] = f"{key[0]}:{key[1]}"
        return place


def _text(value: Any) -> str:
    if type(value) is str:
        return value if len(value) <= _NAME else value[-_NAME:]
    if type(value) is int:
        return str(value)
    raise TypeError(f"a {type(value).__name__} where a text is expected")


def _whole(value: Any) -> int:
    if type(value) is int:
        return value
    if value is None:
        return 0
    raise TypeError(f"a {type(value).__name__} where a whole number is expected")


def _number(entry: Mapping[str, Any]) -> tuple[bool, int]:
    """Return whether an entry is of a point-to-point call, which old dumps do not say, and the number of the call."""
    p2p = entry.get("is_p2p")
    if p2p is True or (p2p is None and _text(entry["profiling_name"]).split(":")[-1].startswith(("send", "recv"))):
        return True, _whole(entry.get("p2p_seq_id"))
    return False, _whole(entry.get("collective_seq_id", entry.get("seq_id")))


def _is_done(entry: Mapping[str, Any]) -> bool:
    return entry.get("state") == "completed" or entry.get("retired") is True
