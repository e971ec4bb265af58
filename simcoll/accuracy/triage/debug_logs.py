"""NCCL's debug logs (NCCL_DEBUG=INFO or WARN), and what kernels and launchers write beside them, as findings.

Lines that the table of cases knows are causes, echoes or harmless. What no single line says follows from facts: see
`configuration`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from simcoll.accuracy.triage import configuration, tables
from simcoll.accuracy.triage.findings import Case, Evidence, Finding, Where
from simcoll.accuracy.triage.given_files import GivenFile
from simcoll.accuracy.triage.machine_of_log import device_tree, machine_of, networks_of, of_cloud
from simcoll.formats.debug_logs.line_cases import Role, Seen, case_of, first_of
from simcoll.formats.debug_logs.log_facts import LogFacts, Source, collect, transports
from simcoll.formats.debug_logs.log_lines import lines

KIND: Final = "debug log"
_MARKS: Final = re.compile(
    rb"NCCL (?:INFO|WARN|ERROR|version|DIAG)|NVRM: Xid|ACSCtl|mlx5_core|[nN]ccl\w*Error|NET/OFI|=== System"
)
_HOST: Final = re.compile(  # of syslog, nccl-tests, Open MPI and UCX
    r"([\w.\-]{1,253})(?: kernel|: Test (?:CUDA|NCCL) failure)|"
    r"(?:^| )\[([A-Za-z][\w.\-]{0,252}):[0-9]{2,}(?: *:[0-9]+)?\]"
)
_EARLY: Final = 400  # lines that show whether a text without such a mark has a line of the table
SLOWER: Final = 2.0  # times as long, from which a setting is a finding without a measured time: a convention
MOST: Final = 40  # rows of a list in the summary
_AT_THE_END: Final = "Processes that end one after the other, after a sound run, say so."


def looks(file: GivenFile) -> bool:
    """Return whether a file has lines of NCCL's debug output, or lines that the table of cases knows."""
    if file.is_pickle:
        return False
    if _MARKS.search(file.data):
        return True
    if file.data[:1] in (b"{", b"<") or b"\0" in file.data[:1000]:
        return False
    text = file.data[: 200 * _EARLY].decode(errors="replace")
    return any(case_of(line) for line, _ in zip(lines(text), range(_EARLY), strict=False))


def read(files: Sequence[GivenFile], case: Case) -> Iterator[Finding]:
    """Yield what logs say: causes, their echoes, harmless lines, and whether the communicator was set up."""
    facts = LogFacts(measured=tables.KIND in case.present)
    for file in files:
        collect(facts, file.text(), file.name)
        file.forget()
    case.notes["networks"] = networks_of(facts)
    if case.machine is None:
        case.machine, case.nodes, case.said_by = machine_of(facts)
    case.notes["NICs are known"] = of_cloud(networks_of(facts)) or device_tree(facts).nic > 0
    case.details["log"] = summary(facts)
    found = list(_of_lines(facts))
    stopped = any(finding.role == "cause" and not finding.slows for finding in found)
    yield from found
    if not stopped:
        yield from _of_calls(facts)
        yield from _of_start(facts)
    case.notes["logs calls"] = bool(facts.calls or facts.tuning)
    settings = configuration.settings(facts, case.machine, case.on is not None)
    case.notes["settings"], case.notes["excluded"] = settings, configuration.excluded(facts)
    if tables.KIND not in case.present:
        yield from (setting.finding for setting in settings if setting.blamed)
        judged = " Whether it costs time, a table of nccl-tests shows."
        for setting in settings:
            if not setting.blamed:
                yield _by_prediction(setting, facts, case) or setting.as_remark(judged)
    if facts.nccl_lines and _is_complete(facts):
        yield Finding("healthy", _sound(facts), "sound", evidence=tuple(_shown(facts)))


def _by_prediction(setting: configuration.Setting, facts: LogFacts, case: Case) -> Finding | None:
    """Return a setting as a finding if it should make large calls SLOWER times as long, and no table shows times."""
    ranks, nodes = max(facts.sizes.values(), default=0), facts.nodes or len({*facts.hosts.values()}) or 1
    if not setting.sets or case.machine is None or ranks < 2 * nodes or setting.finding.role != "cause":
        return None
    for collective in ("all_reduce", "all_gather"):
        usual, under = (tables.time_us(collective, 2**30, ranks, nodes, case, sets) for sets in ((), setting.sets))
        if usual and under and under >= SLOWER * usual:
            longer = f"It should make an {collective} of 1 GiB {under / usual:.2g} times as long."
            return replace(setting.finding, text=f"{setting.finding.text} {longer}")
    return None


def evidence(source: Source) -> Evidence:
    """Return a line of a log as evidence."""
    return Evidence.of(source.file, source.line.number, source.line.full)


# --- lines that the table knows ---


def _of_lines(facts: LogFacts) -> Iterator[Finding]:
    by_case: dict[tuple[str, Role], list[tuple[str, Seen]]] = defaultdict(list)
    for name, counter in facts.cases.items():
        for seen in counter.seen.values():
            by_case[seen.case.cause, seen.case.role].append((name, seen))
    causes = [seen for (_, role), every in by_case.items() if role == "cause" for _, seen in every]
    timed = bool(causes) and all(seen.line.time is not None for seen in causes)
    for (cause, role), every in by_case.items():
        first = first_of(seen for _, seen in every)
        if first is None or not _holds(first, facts):
            continue
        files = {id(seen): name for name, seen in every}
        shown = sorted(every, key=lambda pair: pair[1] is not first)[:3]
        case, line = first.case, first.line
        place = first.place or next((seen.place for _, seen in every if seen.place), {})
        if line.host is None and len({id(seen.case) for _, seen in every}) == len(every):
            place = (
                dict(pair for _, seen in reversed(every) for pair in seen.place.items()) | place
            )  # RAS, in two lines
        ended = role == "echo" and _at_the_end(cause, facts)
        order = line.time if timed and line.time is not None else line.number
        yield Finding(
            cause,
            (_AT_THE_END if ended else case.text) + _where_else(first, [seen for _, seen in every]),
            "harmless" if ended else role,
            case.sure,
            case.cure,
            where=_where(facts, first, place),
            evidence=tuple(Evidence.of(files[id(seen)], seen.line.number, seen.line.full) for _, seen in shown),
            when=float(order),
            count=sum(seen.count for _, seen in every),
            slows=case.slows,
        )


def _where(facts: LogFacts, seen: Seen, place: dict[str, str]) -> Where:
    line = seen.line
    rank = int(place["rank"]) if place.get("rank", "").isdecimal() else facts.rank_of(line)
    other = _HOST.search(line.full)
    said = line.host or place.get("host") or (other and (other[1] or other[2]))
    host = said or facts.hosts.get(rank if rank is not None else -1)
    device = place.get("device") or (
        f"GPU {line.device}" if line.device and seen.case.class_ in ("gpu", "application") else None
    )
    return Where(host, rank, device, place.get("peer"), place.get("group"), place.get("call"))


def _where_else(first: Seen, every: Sequence[Seen]) -> str:
    hosts = {seen.line.host for seen in every} - {None, first.line.host}
    return f" Seen on {len(hosts)} more hosts." if hosts else ""


def _holds(seen: Seen, facts: LogFacts) -> bool:
    """Return whether a row that depends on the rest of the log is meant (its `only`)."""
    if seen.case.only == "sockets":
        return facts.several_nodes and any("Socket" in names for names in facts.networks.values())
    return not (seen.case.only and _is_complete(facts))


def _at_the_end(cause: str, facts: LogFacts) -> bool:
    """Return whether echoes come from processes that end in turn, after a sound run: nobody reports a cause, and all
    ranks that began their communicator completed it."""
    every = [seen for counter in facts.cases.values() for seen in counter.seen.values()]
    causes = any(seen.case.role == "cause" and _holds(seen, facts) for seen in every)
    others = any(seen.case.cause == "kernel hangs" for seen in every)
    remote = cause in ("remote process exited", "communicator aborted", "returned error")
    return remote and not causes and not others and _is_complete(facts) and bool(facts.completed)


# --- calls and the start of communicators ---


def _of_calls(facts: LogFacts) -> Iterator[Finding]:
    """Yield ranks whose calls differ from those of the others, if each process has one communicator in the COLL log."""
    by_number: dict[int, dict[tuple[str, ...], list[tuple[str, Source]]]] = defaultdict(lambda: defaultdict(list))
    addresses: dict[str, set[str]] = defaultdict(set)
    for (process, number), said in facts.calls.items():
        device, _, address = process.rpartition(":")
        addresses[device].add(address)
        if len(said) == 1:
            arguments, (_, source) = next(iter(said.items()))
            by_number[number][arguments].append((device, source))
    sizes = {*facts.call_sizes, *facts.sizes.values()} - {None}
    if any(len(each) > 1 for each in addresses.values()) or sizes != {len(addresses)}:
        return  # several communicators, several runs in one log, or not all ranks
    for number in sorted(by_number):
        ways = by_number[number]
        if len(ways) > 1:
            few, many = min(ways.values(), key=len), max(ways, key=lambda key: len(ways[key]))
            line = few[0][1].line
            names = "name", "count", "type", "op", "root"
            other = next(key for key in ways if ways[key] is few)
            differs = ", ".join(n for n, a, b in zip(names, other, many, strict=True) if a != b)
            told = {"one": other[0], "other": many[0], "number": number, "differs": differs}
            where = Where(line.host, facts.rank_of(line), call=f"{other[0]} {number:x}")
            shown = evidence(few[0][1]), evidence(ways[many][0][1])
            yield Finding.of("unlike calls", told, where=where, evidence=shown, when=line.number)
            return


def _of_start(facts: LogFacts) -> Iterator[Finding]:
    """Yield communicators that some ranks began and did not complete, and ranks that did not begin."""
    for group, began in facts.started.items():
        done, count = facts.completed.get(group, {}), facts.sizes[group]
        missing = sorted(set(range(count)) - began.keys() - done.keys())
        waiting = sorted(began.keys() - done.keys())
        source = next(iter(began.values()))
        if waiting and (done or (missing and len(missing) < count / 2)):
            late = missing if missing and not done else waiting
            named = ", ".join(map(str, late[:8])) + (", …" if len(late) > 8 else "")
            what = "never began" if late is missing else "did not complete"
            said = {"ranks": named, "n": count, "what": what}
            where = Where(facts.hosts.get(late[0]), late[0], group=group)
            yield Finding.of("rank never joined", said, where=where, evidence=(evidence(source),))
        elif waiting and not missing:
            where = Where(group=group)
            yield Finding.of("start not completed", {"n": count}, where=where, evidence=(evidence(source),))


def _is_complete(facts: LogFacts) -> bool:
    """Return whether communicators that were begun were completed, or links were connected; old logs say neither."""
    begun = {(group, rank) for group, ranks in facts.started.items() for rank in ranks}
    done = {(group, rank) for group, ranks in facts.completed.items() for rank in ranks}
    return bool(done or facts.links or facts.calls or facts.tuning or facts.measured) if not begun else begun <= done


# --- what a log says, in short ---


def _sound(facts: LogFacts) -> str:
    ways = ", ".join(f"{way} ({count})" for way, count in transports(facts))
    count = max(facts.sizes.values(), default=0)
    of = f"{count} ranks" if count else "the ranks"
    return f"Nothing in the log is wrong: {of} set up their communicator{f'; links via {ways}' if ways else ''}."


def _shown(facts: LogFacts) -> Iterator[Evidence]:
    for done in list(facts.completed.values())[:1]:
        yield from map(evidence, list(done.values())[:1])
    yield from map(evidence, list(facts.first_link.values())[:2])


def summary(facts: LogFacts) -> dict[str, object]:
    """Return the facts of logs for the JSON document."""
    return {
        "versions": sorted({version for said in facts.versions.values() for version in said}),
        "networks": sorted({name for said in facts.networks.values() for name in said}),
        "nics": {host: list(nics) for host, nics in facts.nics.items()},
        "gpus": list(facts.gpus),
        "ranks": max(facts.sizes.values(), default=None),
        "nodes": facts.nodes or len({*facts.hosts.values()}) or None,
        "local_ranks": facts.local_ranks,
        "channels": {name: count for name, (count, _) in facts.channels.items()},
        "rings": facts.rings,
        "transports": dict(transports(facts)),
        "gpudirect": [
            {"host": link.host, "nic": link.nic, "sends": link.sends, "gdr": link.gdr, "links": count}
            for link, count in facts.links.items()
            if link.way.startswith("NET")
        ],
        "environment": {name: list(values) for name, values in facts.env.items()},
        "tuning": [[*key, count] for key, count in facts.tuning.most_common(MOST)],
        "nccl_predicts_us": [list(each) for each in facts.tuned_us[:MOST]],
        "system": [source.line.text for source in facts.system],
    }
