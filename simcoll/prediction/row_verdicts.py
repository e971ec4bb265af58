"""The answer that rows are, in one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from simcoll.config.groups import grouped
from simcoll.prediction.result_rows import ResultRow, swept
from simcoll.scenario.profile import load_profile
from simcoll.scenario.profile_titles import between
from simcoll.topology.machine_files import shipped_systems
from simcoll.topology.systems import load_system
from simcoll.units import format_bandwidth, format_duration, short_size, size_in

TIE: Final = 1.005  # times nearer than half a percent are equal
_KINDS: Final = {"nvswitch": "NVLink", "pcie_switch": "PCIe"}  # of links, by the device at an end
_SHOWN: Final = 4  # ranges of sizes in a sentence, and machines with one each


def of_rows(rows: Sequence[ResultRow]) -> str:
    """The time of a point, the fastest algorithm at each size, or the span of many points; a sentence a machine. Then
    what has no answer."""
    good = [row for row in rows if row.status == "ok"]
    if not good:
        return f"No answer: {rows[0].status}" if rows else "No answer: there is no point."
    without = list(dict.fromkeys(_asked(row) for row in rows if row.status != "ok"))
    if not without:
        return _of_answers(good)
    named = ", ".join(without if len(without) <= _SHOWN else [*without[: _SHOWN - 1], "…"])
    lacking = len(rows) - len(good)
    return (
        f"{_of_answers(good)} {lacking} of {len(rows)} points {'has' if lacking == 1 else 'have'} no answer: {named}."
    )


def unanswered(rows: Iterable[ResultRow]) -> list[str]:
    """A line for each reason that a point has no time."""
    return list(dict.fromkeys(f"{row.algorithm}: {row.status}" for row in rows if row.status != "ok"))


def _of_answers(good: Sequence[ResultRow]) -> str:
    machines = grouped(good, lambda row: row.topology)
    if 1 < len(machines) <= _SHOWN:
        return " ".join(
            f"{name}: {_of_answers(of).replace('Fastest: ', 'fastest ', 1)}" for name, of in machines.items()
        )
    trust = trusted(dict.fromkeys(row.profile for row in good if row.profile), good)
    if good[0].workload:
        return f"{_steps(good)}; {trust}."
    if len(good) == 1:
        row = good[0]
        rate = f", {format_bandwidth(1e9 * row.algbw_GBps)}" if row.algbw_GBps else ""
        used = busiest(row.binding_link, row.binding_busy)
        return f"{ran(row)}, {took(row.time_us)}{_interval(row)}{rate}; {trust}; {used}."
    places = grouped(good, lambda row: tuple(str(row.get(name)) for name in _places(good)))
    if len(places) == 1 and len({row.asked for row in good}) > 1:
        return f"Fastest: {_winners(good)}; {trust}."
    first, last = min(good, key=_time), max(good, key=_time)
    if len({row.asked for row in good}) == 1 and len(places) == 1:
        low, high = (max(good, key=lambda row: sign * (row.size_bytes or 0)) for sign in (-1, 1))
        ends = f"{took(low.time_us)} at {_size(low)} to {took(high.time_us)} at {_size(high)}"
        rate = f" ({format_bandwidth(1e9 * high.algbw_GBps)})" if high.algbw_GBps else ""
        return f"{_asked(high)}: {ends}{rate}; {trust}."
    return f"{len(good)} points, {took(first.time_us)} to {took(last.time_us)}; {_most_wins(places)}{trust}."


def trusted(profiles: Iterable[str], rows: Sequence[ResultRow] = (), beside: Sequence[str] = ()) -> str:
    """The grounds for the times, and a better question where there is one; `beside` are transports of no row."""
    parts = []
    for name in profiles:
        profile = load_profile(name)
        better = _better(name, rows)
        hint = f" (--profile {better} is fitted)" if better else ""
        if profile.bound:
            parts.append(f"`{name}` is a bound, not a prediction{hint}")
        elif profile.calibration is None and profile.kernels is None:
            parts.append(f"`{name}` is fitted to nothing{hint}")
        else:
            about = profile.description.replace(" of the harness library", "")
            parts.append(" + ".join([about, *map(between, [*transports(name, rows), *beside])]))
    words = dict.fromkeys(row.confidence for row in rows if row.confidence)
    if "modelled" in words:
        parts.append("modelled in part" if len(words) > 1 else "modelled")
    elif "extrapolated" in words:
        parts.append("extrapolated" + (" in part" if len(words) > 1 else ""))
    return ", ".join(parts) or "fitted to nothing"


def transports(profile: str, rows: Iterable[ResultRow]) -> list[str]:
    """The transports between nodes of rows of a profile."""
    return sorted({row.transport for row in rows if row.profile == profile and row.transport})


def _better(name: str, rows: Sequence[ResultRow]) -> str | None:
    """The fitted profile of the system that rows are of, where another was asked for."""
    system = str(rows[0].topology).partition("/")[0] if rows else ""
    own = load_system(system).profile if system in shipped_systems() else None
    return own if own != name else None


def took(time_us: float | None) -> str:
    """A time as one says it."""
    return format_duration(round(1e6 * (time_us or 0)), digits=3)


def ran(row: ResultRow) -> str:
    """Algorithm, protocol and executor: `nvls Simple`, `ring LL as one kernel`, `own.json LL as one kernel`."""
    name = str(row.algorithm)
    protocol = f" {row.protocol}" if row.protocol not in (None, "none", "") else ""
    one = " as one kernel" if row.executor == "msccl" else " by sends and receives" if row.executor == "p2p" else ""
    return f"{Path(name).name if name.endswith('.json') else name}{protocol}{one}"


def _asked(row: ResultRow) -> str:
    return str(row.asked or row.algorithm)


def _time(row: ResultRow) -> float:
    return row.time_us or 0.0


def _size(row: ResultRow) -> str:
    return short_size(row.size_bytes or 0)


def _interval(row: ResultRow) -> str:
    if row.low_us is None or row.high_us is None:
        return ""
    low, high = took(row.low_us), took(row.high_us)
    if low.rpartition(" ")[2] == high.rpartition(" ")[2]:
        low = low.partition(" ")[0]
    return f" (90 %: {low} to {high})"


def busiest(link: str | None, busy: float | None) -> str:
    """Say how busy the busiest link is; only a path shows whether it binds, and `explain` follows that."""
    if link is None or busy is None:
        return "no link is used"
    if link == "host":
        return "the host's launches bind"
    kind = next((kind for end, kind in _KINDS.items() if end in link), "its busiest link")
    return f"{kind} is {busy:.0%} busy"


def _places(rows: Sequence[ResultRow]) -> list[str]:
    """Columns that make another question of a point, sizes aside."""
    return ["collective", "topology", "ranks", "nodes", "profile", "dtype", *swept(rows)]


def _plain(value: object) -> str:
    size = size_in(value)
    return str(value) if size is None else short_size(size)


def _best(rows: Sequence[ResultRow]) -> list[str]:
    """The fastest of some rows, and whatever ties with it."""
    least = min(map(_time, rows))
    return list(dict.fromkeys(_asked(row) for row in rows if _time(row) <= least * TIE))


def _tied(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{' or '.join(names)} (a tie)"


def _winners(rows: Sequence[ResultRow]) -> str:
    """`naive to 8 KiB, hierarchical to 4 MiB, auto from 32 MiB`."""
    sizes = sorted({row.size_bytes or 0 for row in rows})
    best = [(size, _tied(_best([row for row in rows if (row.size_bytes or 0) == size]))) for size in sizes]
    ranges = [(name, [size for size, _ in group]) for name, group in groupby(best, key=lambda each: each[1])]
    if len(ranges) == 1:
        top = [row for row in rows if (row.size_bytes or 0) == sizes[-1]]
        fastest = min(top, key=_time)
        slowest = max(map(_time, top)) / _time(fastest)
        where = f", {took(fastest.time_us)}" + (f" at {short_size(sizes[-1])}" if sizes[-1] else "")
        everywhere = "at every size " if len(sizes) > 1 else ""
        behind = f"; the slowest takes {slowest:.3g} times as long" if slowest > TIE else ""  # a tie has no slowest
        return f"{ranges[0][0]} {everywhere}".strip() + where + behind
    parts = [f"{name} to {short_size(held[-1])}" for name, held in ranges[:-1]]
    parts.append(f"{ranges[-1][0]} from {short_size(ranges[-1][1][0])}")
    return ", ".join(parts if len(parts) <= _SHOWN else [*parts[: _SHOWN - 1], "…", parts[-1]])


def _most_wins(places: Mapping[Any, Sequence[ResultRow]]) -> str:
    """The algorithm that is fastest at most points, alone or not; empty where only one was asked for."""
    wins: dict[str, int] = {}
    ties: set[str] = set()
    points = 0
    for rows in places.values():
        for alike in grouped(rows, lambda row: row.size_bytes).values():
            if len({row.asked for row in alike}) > 1:
                points += 1
                best = _best(alike)
                ties.update(best[1:] and best)
                for name in best:
                    wins[name] = wins.get(name, 0) + 1
    if not wins:
        return ""
    name = max(wins, key=lambda each: wins[each])
    how = "fastest or as fast as another" if name in ties else "fastest"
    return f"{name} is {how} at {wins[name]} of {points} questions; "


def _steps(rows: Sequence[ResultRow]) -> str:
    best = min(rows, key=_time)
    share = f"{(best.exposed_us or 0) / (best.step_us or 1):.1%}"
    exposed = f"{took(best.exposed_us)} of it exposed communication ({share})"
    took_step = f"{took(best.step_us)}, {exposed if best.exposed_us else 'with no communication exposed'}"
    named = "".join(
        f", {name.rsplit('.', 1)[-1].replace('_', ' ')} {_plain(best[name])}" for name in swept(rows) if best[name]
    )
    if len(rows) == 1:
        return f"A step takes {took_step}"
    slowest = max(map(_time, rows)) / _time(best)
    which = f"{best.algorithm}{named}" if len({row.algorithm for row in rows}) > 1 else named.removeprefix(", ")
    return f"{which or 'First'}: the shortest step takes {took_step}; the longest {slowest:.3g} times as long"
