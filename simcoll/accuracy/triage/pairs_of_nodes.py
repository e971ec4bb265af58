"""Measurements that decide where a slow part is: each node by itself, pairs of nodes, and one NIC at a time.

`commands` writes them for nccl-tests; `found` compares the tables that they gave. Tables of equal calls on equally many
nodes should agree; a node, a NIC or a pair whose tables are slower than the others is at fault.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Final, NamedTuple

from simcoll.accuracy import table_join
from simcoll.accuracy.triage.findings import Case, Confidence, Evidence, Finding, Where
from simcoll.config import yaml_tree
from simcoll.errors import InputError, visible
from simcoll.formats import measured
from simcoll.formats.debug_logs.log_lines import RANK_LIST, VARIABLE
from simcoll.schedule.collectives import COLLECTIVES

SLOW: Final = 0.85  # of the busbw of sound ones among equal measurements: runs differ by a few percent
FEWEST: Final = 3  # equal measurements of which one can be called slow
_NAMED: Final = re.compile(r"(?:^|[/\\])(?:node|pair|nic)\.([\w\-]+(?:\.[\w\-]+)*)\.(?:log|txt|out)(?:\.gz)?$")
MOST_PAIRS: Final = 16


class _Answer(NamedTuple):
    """The table of one measurement: its hosts, its only NIC if it had one, and its greatest busbw (GB/s)."""

    name: str
    hosts: tuple[str, ...]
    nic: str | None
    busbw: float
    call: tuple[str, int, int]  # collective, size, ranks


def commands(hosts: Sequence[str], gpus: int, nics: Sequence[str]) -> list[str]:
    """Return the commands of nccl-tests that tell apart a node, a cable or switch port, and a NIC, each with a file."""
    options = "-b 1G -e 1G -n 50 -w 10"
    names = list(map(visible, hosts)) if len(hosts) > 1 else ["NODE0", "NODE1", "NODE2", "NODE3"]

    def run(at: Sequence[str], file: str, extra: str = "", program: str = "all_reduce_perf") -> str:
        where = ",".join(f"{host}:{gpus}" for host in at)
        return f"mpirun -np {gpus * len(at)} -H {where} {extra}{program} {options} -g 1 > {file}"

    alone = [run([host], f"node.{host}.log") for host in names]
    others = [*names[1:], names[0]] if len(names) > 2 else names[1:]
    pairs = [run(pair, f"pair.{'.'.join(pair)}.log") for pair in zip(names, others, strict=False)][:MOST_PAIRS]
    pairs += [run(pair, f"pair.{'.'.join(pair)}.log") for pair in zip(names, names[2:], strict=False)][:MOST_PAIRS]
    two = names[:2]
    rails = [
        run(two, f"nic.{nic}.{'.'.join(two)}.log", f"-x NCCL_IB_HCA=={nic} ", "sendrecv_perf")
        for nic in nics or [f"mlx5_{number}" for number in range(gpus)]
    ]
    return [*alone, *pairs, *rails]


def found(texts: Mapping[str, str], case: Case) -> Iterator[Finding]:
    """Yield what at least three equal measurements on other nodes or NICs show; nothing if there are none."""
    answers = list(_answers(texts, case)) if len(texts) >= FEWEST else []
    kinds: dict[tuple[object, ...], list[_Answer]] = defaultdict(list)
    for answer in answers:
        kinds[len(answer.hosts), answer.nic is not None, answer.call].append(answer)
    compared = [group for group in kinds.values() if len({(a.hosts, a.nic) for a in group}) >= FEWEST]
    if not compared:
        return
    usual = {a.name: _usual(group) for group in compared for a in group}
    bad = [a for group in compared for a in group if a.busbw < SLOW * usual[a.name]]
    good = [a for group in compared for a in group if a not in bad]
    if not bad:
        said = {"count": len(good), "slow": 1 - SLOW}
        yield Finding.of("pairs agree", said, evidence=tuple(map(_shown, good[:4])))
        return
    yield _place(bad, good, usual)


def _usual(group: Sequence[_Answer]) -> float:
    """Return the busbw (GB/s) of sound ones among equal measurements: the median of the faster half."""
    rates = sorted((answer.busbw for answer in group), reverse=True)
    return statistics.median(rates[: len(rates) // 2])


def _place(bad: Sequence[_Answer], good: Sequence[_Answer], usual: Mapping[str, float]) -> Finding:
    """Return what the slow measurements have in common, and the good ones have not."""
    worst = min(bad, key=lambda answer: answer.busbw / usual[answer.name])
    rate = f"{worst.busbw:.3g} GB/s, and {usual[worst.name]:.3g} on others"

    def found(key: str, where: Where, at: str = "", sure: Confidence = "clear") -> Finding:
        shown = tuple(map(_shown, [*bad[:4], *good[:2]]))
        return Finding.of(key, {**asdict(where), "rate": rate, "at": at}, confidence=sure, where=where, evidence=shown)

    if alone := [answer for answer in bad if len(answer.hosts) == 1]:
        return found("node by itself", Where(alone[0].hosts[0]))
    if None not in {answer.nic for answer in bad}:
        hosts = set.intersection(*({*answer.hosts} for answer in bad))
        everywhere = not any(answer.nic == worst.nic for answer in good)
        one = next(iter(hosts)) if len(hosts) == 1 else None
        at = f" on {one}" if one and not everywhere else ", on its whole rail"
        return found("bad nic", Where(one, device=worst.nic), at)
    shared = [host for host in worst.hosts if all(host in answer.hosts for answer in bad)]
    innocent = {host for answer in good for host in answer.hosts}
    guilty = [host for host in shared if host not in innocent]
    if len(bad) > 1 and len(shared) == 1:
        guilty = shared
    if len(guilty) == 1:
        return found("bad node", Where(guilty[0]))
    where = Where(worst.hosts[0], peer=worst.hosts[-1])
    return found("bad link between nodes", where, sure="clear" if not guilty else "likely")


def _answers(texts: Mapping[str, str], case: Case) -> Iterator[_Answer]:
    given = table_join.defaults(dict(map(yaml_tree.condition, case.where)))
    for name, text in texts.items():
        hosts = tuple(dict.fromkeys(match["host"] for match in RANK_LIST.finditer(text)))
        if not hosts and (named := _NAMED.search(name)):
            parts = named[1].split(".")
            hosts = tuple(parts[1:] if "nic." in name else parts)
        listed = [value for variable, value in VARIABLE.findall(text) if variable == "NCCL_IB_HCA" and value]
        in_name = re.search(r"(?:^|[/\\])nic\.([\w\-]+)\.", name)
        nic = in_name[1] if in_name else listed[0].strip("=") if listed and "," not in listed[0] else None
        try:
            rows = measured.parse_measured(text, name, given, chosen=True)
        except InputError:
            continue
        best = max(rows, key=lambda row: row.size_bytes)
        factor = float(COLLECTIVES[best.collective].busbw(best.ranks)) if best.collective in COLLECTIVES else 1.0
        busbw = best.size_bytes * factor / best.time_us / 1e3
        if hosts:
            yield _Answer(name, hosts, nic, busbw, (best.collective, best.size_bytes, best.ranks))


def _shown(answer: _Answer) -> Evidence:
    nic = f" by {answer.nic}" if answer.nic else ""
    return Evidence.of(answer.name, None, f"{' and '.join(answer.hosts)}{nic}: {answer.busbw:.4g} GB/s")
