"""Read and write Chakra's execution traces: a file a rank, a graph of computations and collectives (`.et`, JSON), and
PyTorch's host traces (JSON), which have the calls of a rank alone.

Sources of the formats: mlcommons/chakra (schema/protobuf/et_def.proto, the converters), PyTorch's
ExecutionTraceObserver. Protobuf is read and written here: a message is a sequence of numbered fields.
"""

from __future__ import annotations

import heapq
import json
import re
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from simcoll.config.input_files import ImportLog
from simcoll.errors import InputError, Place, visible
from simcoll.formats.recordings.events import Event, Group, Interval, Recording, What, elements
from simcoll.formats.recordings.flight_recorder import collective_of
from simcoll.schedule.names import DTYPES, spellings

_CURE: Final = "give an execution trace as Chakra or PyTorch write it"
COMP, SEND, RECV, COLL = 4, 5, 6, 7
_TYPES: Final = ("INVALID", "METADATA", "MEM_LOAD", "MEM_STORE", "COMP", "COMM_SEND", "COMM_RECV", "COMM_COLL")
COLLECTIVES: Final = (  # by their numbers
    "all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter",
    "reduce_scatter", "barrier",
)  # fmt: skip
ROOTED: Final = ("reduce", "gather", "scatter", "broadcast")
VERSION: Final = "0.0.4"
_NAME: Final = 100  # characters of names that are kept
_DAMAGES: Final = (
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    AttributeError,
    OverflowError,
    RecursionError,
    struct.error,
)
_FIXED: Final = {3: "<d", 5: "<f", 19: "<I", 21: "<Q", 23: "<i", 25: "<q"}  # fields of attributes: how they are packed


@dataclass
class Node:
    """A node of a graph: `kind` as Chakra numbers types, the numbers of nodes that it waits for, its time in ns (None:
    not said)."""

    number: int
    name: str
    kind: int
    before: Sequence[int] = ()
    took: int | None = None
    attributes: dict[str, Any] = field(default_factory=dict)


# --- protobuf ---


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place, and the place after it."""
    value = shift = 0
    while shift < 70:
        byte = data[at]
        at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
        if byte < 128:
            return value, at
    raise ValueError("a number of more than ten bytes")


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field of a message: an int, or bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire, length = tag & 7, {1: 8, 5: 4}.get(tag & 7, 0)
        if wire == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if wire == 2:
            length, at = _varint(data, at)
        if wire not in (1, 2, 5) or at + length > len(data):
            raise ValueError("the file ends too early, or is of another format")
        yield tag >> 3, data[at : at + length]
        at += length


def _messages(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        length, at = _varint(data, at)
        if at + length > len(data):
            raise ValueError("the file ends too early")
        yield data[at : at + length]
        at += length


def _attribute(data: bytes) -> tuple[str, Any]:
    name, value = "", None
    for number, given in _fields(data):
        if number == 1:
            name = given.decode()
        elif number in _FIXED:
            value = struct.unpack(_FIXED[number], given)[0]
        elif number in (15, 17):
            value = (given >> 1) ^ -(given & 1)
        elif number in (7, 9):
            value = given - (1 << 64) if given >= 1 << 63 else given
        elif number == 29:
            value = given.decode()
        elif number > 2:
            value = given
    return name, value


def _node(data: bytes) -> Node:
    node, before = Node(0, "", 0), list[int]()
    for number, value in _fields(data):
        if number == 1:
            node.number = value
        elif number == 2:
            node.name = value.decode("utf-8", "replace")
        elif number == 3:
            node.kind = value
        elif number in (4, 5):
            at = 0
            while isinstance(value, bytes) and at < len(value):  # packed
                one, at = _varint(value, at)
                before.append(one)
            before += [value] if isinstance(value, int) else []
        elif number == 7:
            node.took = 1000 * value
        elif number == 10:
            name, given = _attribute(value)
            node.attributes[name] = given
    node.before = before
    return node


def _number(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _number(number << 3) + _number(value)
    data = value.encode() if isinstance(value, str) else value
    return _number(number << 3 | 2) + _number(len(data)) + data


def dump(nodes: Sequence[Node]) -> bytes:
    """Return the graph of one rank as protobuf."""
    messages = [_field(1, VERSION)]
    for node in nodes:
        message = _field(1, node.number) if node.number else b""
        message += _field(2, node.name) + _field(3, node.kind)
        message += _field(5, b"".join(map(_number, node.before))) if node.before else b""
        message += _field(7, round((node.took or 0) / 1000)) if node.took else b""
        for name, value in node.attributes.items():
            which = 27 if isinstance(value, bool) else 9 if isinstance(value, int) else 29
            message += _field(10, _field(1, name) + _field(which, int(value) if which == 27 else value))
        messages.append(message)
    return b"".join(_number(len(message)) + message for message in messages)


# --- reading ---


def looks(data: bytes) -> bool:
    """Return whether bytes are an execution trace: protobuf that begins with a version, or JSON with its words."""
    if re.match(rb"[\x02-\x7f]\x0a[\x01-\x20][\w.+-]+", data):
        return True
    head = data[:65536]
    host = b'"nodes"' in head and b'"ctrl_deps"' in head
    return head.lstrip()[:1] == b"{" and (b'"workload_graph"' in head or host or b'"durationMicros"' in head)


def read(data: bytes, source: str, world: int, notes: ImportLog) -> Recording:
    """Return the recording of one rank of `world`. Raises InputError for a damaged file."""
    try:
        if data.lstrip()[:1] == b"{":
            said = [
                int(each)
                for each in re.findall(rb'"ngpus": *(\d{1,7})|group_size[\\\\]*": *(\d{1,7})', data)
                for each in each
                if each
            ]
            world, nodes = max(world, *said, 1), _json_nodes(data.decode("utf-8", "replace"), source)
        else:
            nodes = [*map(_node, [*_messages(data)][1:])]
        return Recording(source, None, intervals=_intervals(nodes, source, world, notes), world=world)
    except _DAMAGES as error:
        problem = f"{source}: a damaged execution trace: {visible(f'{type(error).__name__} {error}')[:200]}"
        raise InputError(problem, _CURE) from None


def _json_nodes(text: str, source: str) -> list[Node]:
    """Return the nodes of Chakra's JSON (one mapping with a graph, or a mapping a node), or of PyTorch's host trace."""
    found, at = list[dict[str, Any]](), 0
    while rest := re.compile(r"\s*").match(text, at):
        at = rest.end()
        if at >= len(text):
            break
        try:
            document, at = json.JSONDecoder().raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise InputError(f"not JSON: {error.msg}", _CURE, Place(source, error.lineno, error.colno)) from None
        found += document.get("workload_graph") or document.get("nodes") or [document]
        if "nodes" in document:
            return [*_host_nodes(found)]
    nodes = []
    for each in found:
        low = {key.lower().replace("_", ""): value for key, value in each.items()}
        if "id" not in low and "nodetype" not in low and "type" not in low:
            continue  # the head of a file
        kind = low.get("nodetype", low.get("type", 0))
        kind = _TYPES.index(kind.removesuffix("_NODE")) if isinstance(kind, str) else kind
        node = Node(int(low.get("id", 0)), str(low.get("name", "")), kind)
        node.before = [int(one) for key in ("ctrldeps", "datadeps") for one in low.get(key) or ()]
        took = low.get("runtime", low.get("durationmicros"))
        node.took = None if took is None else 1000 * int(took)
        for one in low.get("attr") or ():
            node.attributes[one["name"]] = next((value for key, value in one.items() if key.endswith("Val")), None)
        node.attributes |= {key: each[key] for key in each if key.startswith(("comm_", "is_cpu", "pg_name"))}
        nodes.append(node)
    return nodes


def _host_nodes(rows: Sequence[Mapping[str, Any]]) -> Iterator[Node]:
    """Yield the calls of a host trace. Older releases have no attributes for them: the name is among the inputs, and
    sizes are those of tensors."""
    for row in rows:
        if row["name"] != "record_param_comms":
            continue
        given = {one["name"]: one["value"] for one in row.get("attrs") or ()}
        inputs = row["inputs"]
        words = [value for value in inputs["values"] if isinstance(value, str)]
        name = given.get("collective_name") or next((word for word in words if collective_of(word) in COLLECTIVES), "")
        if collective_of(name) not in COLLECTIVES:
            continue  # waits, and messages, whose peers are not recorded
        item = max((tensor[4] for value in inputs["values"][:1] for tensor in value), default=0)
        size = item * elements(tuple(map(tuple, inputs["shapes"][0])))
        more = {"comm_size": size, "comm_type": COLLECTIVES.index(collective_of(name))}
        more |= {"pg_name": str(given["pg_name"])} if given.get("pg_name") else {}
        at = inputs["values"].index(name) if name in inputs["values"] else 0
        if at and type(root := inputs["values"][at - 1]) is int:  # of other collectives the rank
            more["root"] = root
        yield Node(int(row["id"]), name, COLL, (), 0, {"is_cpu_op": False, **more})


def _ordered(nodes: Sequence[Node], source: str) -> list[Node]:
    """Return nodes in an order in which each comes after those it waits for; of free ones the least number first."""
    known = {node.number: node for node in nodes}
    if len(known) < len(nodes):
        twice = next(number for number, count in Counter(node.number for node in nodes).items() if count > 1)
        raise InputError(f"{source}: two nodes have the number {twice}", _CURE)
    left = {number: len({*node.before} & known.keys()) for number, node in known.items()}
    later = defaultdict[int, list[int]](list)
    for number, node in known.items():
        for before in {*node.before} & known.keys():
            later[before].append(number)
    free = [number for number, count in left.items() if not count]
    heapq.heapify(free)
    order = list[Node]()
    while free:
        number = heapq.heappop(free)
        order.append(known[number])
        for other in later[number]:
            left[other] -= 1
            if not left[other]:
                heapq.heappush(free, other)
    if len(order) < len(nodes):
        stuck = sorted(number for number, count in left.items() if count)
        problem = f"{source}: {len(stuck)} nodes wait for each other in a circle, among them {stuck[0]}"
        raise InputError(problem, "remove a dependency")
    return order


def _intervals(nodes: Sequence[Node], source: str, world: int, notes: ImportLog) -> list[Interval]:
    found, places = list[Interval](), dict[int, int]()
    counted, groups, untimed = Counter[Group](), dict[str, Group](), 0
    for node in _ordered(nodes, source):
        given, call = node.attributes, None
        after = tuple(sorted({places[before] for before in node.before if before in places}))
        places[node.number] = len(found)
        took = round(given["duration_ps"] / 1e3) if "duration_ps" in given else node.took or 0
        if not 0 <= took <= 10**18:
            raise ValueError(f"node {node.number} takes {took} ns")
        kind = "host" if given.get("is_cpu_op") or node.kind < 2 else "copy" if node.kind in (2, 3) else "compute"
        kind = str(given.get("kind", kind))
        stream = str(given.get("stream", "host" if kind == "host" else "compute"))
        if node.kind in (SEND, RECV, COLL) and kind != "host":
            call = _call(node, world, groups, counted)
            kind, stream = "compute", str(given.get("stream", f"group {call.group}"))
        untimed += node.kind == COMP and node.took is None
        found.append(Interval(visible(node.name)[:_NAME] or "node", stream, took, after, call, kind))
    if untimed:
        notes.warn(f"{source}: {untimed} computations have no duration, but sizes or FLOPs at most: they take no time")
    return found


def _call(node: Node, world: int, groups: dict[str, Group], counted: Counter[Group]) -> Event:
    """Return the call of a node. Sizes are those of a rank's input."""
    given, name = node.attributes, str(node.attributes.get("pg_name", ""))
    everyone = tuple(range(world))
    ranks = tuple(sorted({int(rank) for rank in re.findall(r"\d+", str(given.get("pg_ranks", "")))}))
    group = groups.setdefault(name, Group(name or "all", "", ranks or (() if name else everyone)))
    size, types = int(given.get("comm_size") or 0), spellings(DTYPES, lambda row: row.torch)
    dtypes = tuple(filter(None, [types.get(str(given.get("comm_dtype")))]))
    counted[group] += 1
    if node.kind in (SEND, RECV):
        peers = int(given.get("comm_src") or 0), int(given.get("comm_dst") or 0)
        what = What("send" if node.kind == SEND else "recv", dtypes=dtypes, size=size, peers=peers)
        group = groups.setdefault("p2p", Group("p2p", "", tuple(range(max(world, *(peer + 1 for peer in peers))))))
    else:
        number = given.get("comm_type")
        if number is None:  # older converters leave it to the name
            guess = re.search(
                r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|barrier|reduce", node.name, re.I
            )
            number = (
                COLLECTIVES.index(collective_of(guess[0])) if guess and collective_of(guess[0]) in COLLECTIVES else 0
            )
        collective = COLLECTIVES[int(number)]
        n = len(group.ranks) or world
        root = int(given["root"]) if "root" in given and collective in ROOTED else None
        size *= n if collective in ("all_gather", "gather") else 1
        what = What(collective, dtypes=dtypes, size=size, root=root)
    return Event(group, counted[group], what, "", True, 0)
