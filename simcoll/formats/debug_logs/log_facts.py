"""Collect what logs of NCCL say of a communicator: release, network, links and their transports, channels, environment.

Each fact keeps the line that says it. Facts of several logs (one a rank, say) are collected in one `LogFacts`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from simcoll.formats.debug_logs.line_cases import MOST_SHAPES, CaseCounter, LineCase, case_of, shape
from simcoll.formats.debug_logs.log_lines import RANK_LIST, VARIABLE, VERSION, LogLine, lines

GPU: Final = re.compile(
    r"\b((?:NVIDIA |Tesla |AMD |Instinct |GeForce )+(?:RTX )?[A-Z]{1,3}[0-9]{1,4}[\w .+/-]{0,30}?)(?=[\"',;)|\]]|  |$)"
)
MOST_CALLS: Final = 200_000  # calls of which the arguments are compared


class Source(NamedTuple):
    """A line of a log, and the file's name."""

    file: str
    line: LogLine


class Link(NamedTuple):
    """How a host's ranks reach others: `way` is P2P, SHM or NET/…; `sends` is None for both directions; `gdr`: whether
    the NIC reads or writes the GPU's memory (GPUDirect RDMA)."""

    host: str
    way: str
    sends: bool | None
    gdr: bool
    nic: str


@dataclass
class LogFacts:
    """What logs say. Mappings from what was said to the first line that says it."""

    versions: dict[str, dict[str, Source]] = field(default_factory=dict)  # host → version
    networks: dict[str, dict[str, Source]] = field(default_factory=dict)  # host → name, e.g. IB, Socket, AWS Libfabric
    nics: dict[str, dict[str, Source]] = field(default_factory=dict)  # host → NICs that NCCL uses
    env: dict[str, dict[str, dict[str, Source]]] = field(default_factory=dict)  # variable → value → host
    gpus: dict[str, Source] = field(default_factory=dict)  # names of GPUs
    links: Counter[Link] = field(default_factory=Counter)
    first_link: dict[Link, Source] = field(default_factory=dict)
    looped: dict[tuple[str, str], Source] = field(default_factory=dict)  # network links whose ends are on one host
    said: dict[str, dict[str, Source]] = field(default_factory=lambda: defaultdict(dict))  # remark → host
    channels: dict[str, tuple[int, Source]] = field(default_factory=dict)  # coll, nvls, p2p → number of channels
    started: dict[str, dict[int, Source]] = field(default_factory=lambda: defaultdict(dict))  # group → rank
    completed: dict[str, dict[int, Source]] = field(default_factory=lambda: defaultdict(dict))
    sizes: dict[str, int] = field(default_factory=dict)  # group → number of ranks
    hosts: dict[int, str] = field(default_factory=dict)  # rank of the largest group → host
    ranks: dict[tuple[str, str, str], int] = field(default_factory=dict)  # host, process, device → rank
    listed: dict[tuple[str, str], int] = field(default_factory=dict)  # host, device → rank, of nccl-tests' list
    nodes: int | None = None
    local_ranks: int | None = None
    rings: int | None = None
    tuning: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # collective, algorithm, protocol
    tuned_us: list[tuple[str, int, str, str, float]] = field(default_factory=list)  # NCCL's own predicted times
    calls: dict[tuple[str, int], dict[tuple[str, ...], tuple[int, Source]]] = field(default_factory=dict)
    call_sizes: set[int | None] = field(default_factory=set)  # ranks of the calls' communicators
    system: list[Source] = field(default_factory=list)  # lines of the tree `=== System`
    cases: dict[str, CaseCounter] = field(default_factory=dict)  # by file
    nccl_lines: int = 0
    measured: bool = False  # whether a table beside the log shows that calls ran

    @property
    def several_nodes(self) -> bool:
        """Whether the communicator spans several nodes, as far as the log tells."""
        hosts = {*self.hosts.values()}
        by_links = self.nodes_unknown and any(link.way.startswith("NET/") for link in self.links)
        return (self.nodes or 0) > 1 or len(hosts) > 1 or by_links

    @property
    def nodes_unknown(self) -> bool:
        """Whether the log does not show how many nodes there are."""
        return self.nodes is None and not self.hosts

    def rank_of(self, line: LogLine) -> int | None:
        """Return the rank that wrote a line, if the log says it."""
        said = re.search(
            r"^\[Rank ([0-9]+)\]|(?:\[|^)rank ?([0-9]+)(?:\]|:)|^\[[0-9]+,([0-9]+)\]<", line.full
        )  # <: mpirun's
        if said:
            return int(said[1] or said[2] or said[3])
        host, device = line.host or "", line.device or ""
        return self.ranks.get((host, line.pid or "", device), self.listed.get((host, device)))


def collect(facts: LogFacts, text: str, name: str) -> None:
    """Add what a log says to the facts; `name` is the file's."""
    counter = facts.cases.setdefault(name, CaseCounter())
    shapes: dict[str, tuple[LineCase | None, tuple[_Rule, ...]]] = {}  # lines that differ in numbers alone are one
    for line in lines(text):
        key = shape(line)
        case, rules = known = shapes.get(key) or (
            case_of(line),
            tuple(rule for rule in _RULES if rule.pattern.search(line.text)) if line.level else (),
        )
        if len(shapes) < MOST_SHAPES:
            shapes[key] = known
        if case:
            counter.add(line, case)
        if line.level is None:
            _other(facts, line, name)
        facts.nccl_lines += line.level is not None
        for rule in rules:
            if match := rule.pattern.search(line.text):
                rule.note(facts, match, Source(name, line))


def _other(facts: LogFacts, line: LogLine, name: str) -> None:
    """Note what lines say that are not NCCL's: nccl-tests' list of devices, names of GPUs, the release."""
    if " device " in line.text and (match := RANK_LIST.search(line.text)):
        facts.hosts[int(match["rank"])] = match["host"]
        if match["gpu"]:
            facts.listed[match["host"], match["device"]] = int(match["rank"])
            facts.gpus.setdefault(match["gpu"].strip(), Source(name, line))
    elif ("NVIDIA " in line.text or "Tesla " in line.text or "AMD " in line.text) and (gpu := GPU.search(line.text)):
        facts.gpus.setdefault(gpu[1].strip(), Source(name, line))
    elif " version" in line.text and (match := VERSION.search(line.text)):
        facts.versions.setdefault("", {}).setdefault(match[1], Source(name, line))


# --- one rule for each fact ---


class _Rule(NamedTuple):
    pattern: re.Pattern[str]
    note: Callable[[LogFacts, re.Match[str], Source], None]


def _of_host(what: str) -> Callable[[LogFacts, re.Match[str], Source], None]:
    """Return a note of a rule: the match's first group, by host."""

    def note(facts: LogFacts, match: re.Match[str], source: Source) -> None:
        getattr(facts, what).setdefault(source.line.host or "", {}).setdefault(match[1].strip(), source)

    return note


def _remark(name: str) -> Callable[[LogFacts, re.Match[str], Source], None]:
    def note(facts: LogFacts, match: re.Match[str], source: Source) -> None:
        facts.said[name].setdefault(source.line.host or "", source)

    return note


_NIC: Final = re.compile(r"\[[0-9]+\]([\w.\-]+)(?::[0-9]+)?/")


def _nics(facts: LogFacts, match: re.Match[str], source: Source) -> None:
    for nic in _NIC.findall(match[1]):
        facts.nics.setdefault(source.line.host or "", {}).setdefault(nic, source)


def _variable(facts: LogFacts, match: re.Match[str], source: Source) -> None:
    by_value = facts.env.setdefault(match[1], {})
    by_value.setdefault(match[2] or "", {}).setdefault(source.line.host or "", source)


def _group(facts: LogFacts, match: re.Match[str], source: Source) -> None:
    rank, count, device, identity, phase = int(match[1]), int(match[2]), match[3], match[4], match[5]
    group = identity or f"of {count} ranks"
    facts.sizes[group] = count
    {"START": facts.started, "COMPLETE": facts.completed}[phase][group].setdefault(rank, source)
    line = source.line
    key = line.host or "", line.pid or "", device
    largest = count == max(facts.sizes.values())
    if largest or key not in facts.ranks:
        facts.ranks[key] = rank
    if largest and line.host:
        facts.hosts[rank] = line.host


def _sizes(facts: LogFacts, match: re.Match[str], source: Source) -> None:
    nodes, local = int(match[2]), int(match[3])
    if facts.nodes is None or nodes > facts.nodes:
        facts.nodes = nodes
    facts.local_ranks = max(local, facts.local_ranks or 0)


def _link(facts: LogFacts, match: re.Match[str], source: Source) -> None:
    first, second, direction, way = int(match[1]), int(match[2]), match[3], match[4]
    host = source.line.host or ""
    kind, _, rest = way.partition("/")
    sends = None if direction is None else direction == "send"
    if kind == "NET":
        network, _, rest = rest.partition("/")
        kind = f"NET/{network}"
        ends = facts.hosts.get(first), facts.hosts.get(second)
        if ends[0] is not None and ends[0] == ends[1]:
            facts.looped.setdefault((host, kind), source)
    link = Link(host, kind, sends, "GDRDMA" in rest, rest.partition("/")[0] if kind.startswith("NET") else "")
    facts.links[link] += 1
    facts.first_link.setdefault(link, source)


def _channels(facts: LogFacts, match: re.Match[str], source: Source) -> None:
    for name, value in match.groupdict().items():
        if value is not None:
            facts.channels[name] = int(value), source


def _rings(facts: LogFacts, match: re.Match[str], source: Source) -> None:
    facts.rings = max(int(match[1]), facts.rings or 0)


_ALGORITHMS: Final = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS: Final = ("LL", "LL128", "SIMPLE")


def _named(text: str, names: tuple[str, ...]) -> str:
    return names[int(text)] if text.isdecimal() and int(text) < len(names) else text


def _tuned(facts: LogFacts, match: re.Match[str], source: Source) -> None:
    algorithm, protocol = _named(match[3], _ALGORITHMS), _named(match[4], _PROTOCOLS)
    facts.tuning[match[1] or "", algorithm, protocol] += 1
    if match[5] and len(facts.tuned_us) < MOST_CALLS:
        facts.tuned_us.append((match[1] or "", int(match[2]), algorithm, protocol, float(match[5])))


def _best(facts: LogFacts, match: re.Match[str], source: Source) -> None:
    facts.tuning["", match[2], match[3]] += 1
    if len(facts.tuned_us) < MOST_CALLS:
        facts.tuned_us.append(("", 0, match[2], match[3], float(match[1])))


def _called(facts: LogFacts, match: re.Match[str], source: Source) -> None:
    """Note the arguments of a call, by communicator (its address in the process) and number of the call."""
    line, (name, number, count, kind, op, root, address, size) = source.line, match.groups()
    facts.call_sizes.add(int(size) if size else None)
    if name in ("Send", "Recv") or len(facts.calls) >= MOST_CALLS:
        return
    process = f"{line.host}:{line.pid}:{line.device}:{address}"
    said = name, count, kind, op, root
    seen = facts.calls.setdefault((process, int(number, 16)), {})
    times = seen.get(said, (0, source))
    seen[said] = times[0] + 1, times[1]


def _system(facts: LogFacts, match: re.Match[str], source: Source) -> None:
    if len(facts.system) < MOST_SHAPES:
        facts.system.append(source)


_RULES: Final = tuple(
    _Rule(re.compile(pattern), note)
    for pattern, note in (
        (VERSION.pattern, _of_host("versions")),
        (r"^Using network ([\w .+-]{1,40}\w)", _of_host("networks")),
        (r"^NET/IB\w* ?: Using (.*)", _nics),
        (r"^NET/IB\w* ?: No device found", _remark("no device")),
        (r"[Ff]ailed to open libibverbs", _remark("no libibverbs")),
        (r"NET/Plugin ?: .*(?:[Cc]ould not find|No plugin found)", _remark("no plugin")),
        (r"GPU Direct RDMA Enabled for", _remark("gdr on")),
        (r"GPU Direct RDMA Disabled for", _remark("gdr off")),
        (r"NVLS multicast support is not available", _remark("no nvls")),
        (r"NVLS multicast support is available", _remark("nvls")),
        (VARIABLE.pattern, _variable),
        (r"\brank ([0-9]+) nranks ([0-9]+) cudaDev ([0-9]+)(?: nvmlDev [0-9]+)?(?: busId \w+)?(?: commId (0x\w+))?.* - "
         r"Init (START|COMPLETE)", _group),
        (r"\bnRanks ([0-9]+) nNodes ([0-9]+) localRanks ([0-9]+)", _sizes),
        (r"^(?:Channel|Ring) [0-9]+(?:/[0-9]+)? : ([0-9]+)(?:\[\w*\])? -> ([0-9]+)(?:\[\w*\])? (?:\[(send|receive)\] )?"
         r"via (\S.{0,80})", _link),
        (r"(?P<coll>[0-9]+) coll channels, (?:[0-9]+ collnet channels, )?(?:(?P<nvls>[0-9]+) nvls channels, )?"
         r"(?P<p2p>[0-9]+) p2p channels", _channels),
        (r"^Channel [0-9]+/([0-9]+) : +[0-9]", _rings),
        (r"(?:^|\b(\w+): )([0-9]+) Bytes -> Algo (\w+) proto (\w+)(?: time ([0-9.]+))?", _tuned),
        (r"^Best tuning .*timeUs = ([0-9.]+),.*\.algo = (\w+), \.proto = (\w+)", _best),
        (r"^(\w+): opCount ([0-9a-f]+) .*count ([0-9]+) datatype ([0-9]+) op ([0-9]+) root ([0-9]+) comm (0x\w+)"
         r"(?: \[nranks=([0-9]+)\])?",
         _called),
        (r"^=== System|^ *\+? ?(?:CPU|GPU|NIC|NET(?=\[)|PCI|NVS|NVL|XGMI)[/\[]|^NET/IB ?: \[.* speed=[0-9]", _system),
    )
)  # fmt: skip


def transports(facts: LogFacts) -> Iterator[tuple[str, int]]:
    """Yield each way of links with the number of its lines, the most frequent first."""
    ways: Counter[str] = Counter()
    for link, count in facts.links.items():
        ways[link.way + ("/GDRDMA" if link.gdr else "")] += count
    yield from ways.most_common()
