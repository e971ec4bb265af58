"""Sum up rows of results in a sentence, e.g. `ring LL, 12 us; fitted to 132 rows; NVLink is 53% busy`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from simcoll.config.grouping import grouped
from simcoll.prediction.result_rows import ResultRow, swept
from simcoll.scenario.profile import described_transport, load_profile
from simcoll.topology.machine_files import shipped_systems
from simcoll.topology.topology_builder import load_system
from simcoll.units import format_bandwidth, format_duration, short_size, size_in

Name = Callable[[ResultRow], str]  # returns a name that distinguishes a row from the others
TIE: Final = 1.005  # times that differ by less than half a percent are equal
_KINDS: Final = {"nvswitch": "NVLink", "pcie_switch": "PCIe"}  # link kinds, by the device at an end
DEEPEP: Final = ("deepep", "low-latency")  # executors that are kernels of DeepEP
FITTED_KERNELS: Final = "fitted to rows of DeepEP's kernels"
_SHOWN: Final = 4  # most ranges of sizes in a sentence, and most machines with a sentence each
# Points that differ in one of these columns (or a size, or a swept key without a column) are different questions. The
# keys in _KEYS may have no effect.
_WHERE: Final = ("collective", "topology", "nodes", "ranks", "profile", "dtype", "op", "root", "in_place", "engine")
_KEYS: Final = {"library_version": "library_version", "seed": "seed"}


def of_rows(rows: Sequence[ResultRow]) -> str:
    """Return the answer in words, one sentence per machine: the time of a single point, the fastest algorithm by size,
    or the range of many times; then the names of points without an answer."""
    good = [row for row in rows if row.status == "ok"]
    if not good:
        return f"No answer: {rows[0].status}" if rows else "No answer: there is no point."
    without = list(dict.fromkeys(_point(row) or _asked(row) for row in rows if row.status != "ok"))
    answer = f"{_of_answers(good)}{_without_effect(good)}"
    if not without:
        return answer
    named = ", ".join(without if len(without) <= _SHOWN else [*without[: _SHOWN - 1], "…"])
    lacking = len(rows) - len(good)
    return f"{answer} {lacking} of {len(rows)} points {'has' if lacking == 1 else 'have'} no answer: {named}."


def unanswered(rows: Iterable[ResultRow]) -> list[str]:
    """Return one line for each reason why points have no time: `algorithm: status`, or of a workload `tp 4: status`."""
    return list(dict.fromkeys(f"{_point(row) or row.algorithm}: {row.status}" for row in rows if row.status != "ok"))


def _point(row: ResultRow) -> str:
    """Return the swept keys of a workload's point in words, e.g. `tp 4`; empty without them."""
    return ", ".join(said(key, row[key]) for key in swept([row])) if row.workload else ""


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
        rate = f", algbw {format_bandwidth(1e9 * row.algbw_GBps)}" if row.algbw_GBps else ""
        used = busiest(row.binding_link, row.binding_busy)
        return f"{ran(row)}, {took(row.time_us)}{_interval(row)}{rate}{_paths(row)}; {trust}; {used}."
    places = grouped(good, lambda row: tuple(str(row.get(name)) for name in _places(good)))
    name = _named(places)
    names = list(dict.fromkeys(map(name, good)))
    if len(places) == 1 and len(names) > 1:
        return f"{_fastest(good, name)}; {trust}."
    if len(places) == 1 and len({row.size_bytes for row in good}) == len(good):
        low, high = (max(good, key=lambda row: sign * (row.size_bytes or 0)) for sign in (-1, 1))
        ends = f"{took(low.time_us)} at {_size(low)} to {took(high.time_us)} at {_size(high)}"
        rate = f" (algbw {format_bandwidth(1e9 * high.algbw_GBps)})" if high.algbw_GBps else ""
        return f"{names[0]}: {ends}{rate}; {trust}."
    whose = f"{names[0]}, {len(good)} points" if len(names) == 1 else f"{len(good)} points"
    return f"{whose}: {_span(good, name)}; {_most_wins(places, name)}{trust}."


def _paths(row: ResultRow) -> str:
    """Return what random routes cost: `; half of the draws of paths cost over 12 %, one in 20 over 30 %`."""
    if not row.even_paths_us:
        return ""
    half, most = (
        f"over {share:.0%}" if (share := (time or 0.0) / row.even_paths_us - 1) > 0.005 else "nothing"
        for time in (row.time_us_p50, row.time_us_p95)
    )
    if most == "nothing":
        return "; random paths cost nothing beside evenly spread messages"
    return f"; beside evenly spread messages, half of the draws of paths cost {half}, one in 20 {most}"


def _named(places: Mapping[Any, Sequence[ResultRow]]) -> Name:
    """Return a function that names rows, by the requested algorithm if that is unique, else by what ran."""
    alike = [(row.asked, row.size_bytes) for rows in places.values() for row in rows]
    once = sum(len({(row.asked, row.size_bytes) for row in rows}) for rows in places.values())
    return _asked if once == len(alike) else ran


def _span(rows: Sequence[ResultRow], name: Name) -> str:
    """Return the shortest and longest time with what differs between them: `325 us (1 node) to 453 us (2 nodes)`."""
    first, last = min(rows, key=_time), max(rows, key=_time)
    if _time(last) <= _time(first) * TIE:
        return f"each takes {took(first.time_us)}"
    columns = _differing([first, last], _places(rows))[:_SHOWN]
    named = name(first) != name(last)
    columns = columns if named or columns else _differing([first, last], ("protocol", "executor"))
    ends = []
    for row in (first, last):
        texts = [*([name(row)] if named else []), *(said(column, row.get(column)) for column in columns)]
        ends.append(took(row.time_us) + (f" ({', '.join(texts)})" if texts else ""))
    return " to ".join(ends)


def _differing(rows: Sequence[ResultRow], places: Sequence[str] = ()) -> list[str]:
    """Return the columns in which rows differ, among `places` (default: those that define a question) and the size.
    Columns that follow from others, such as ranks from nodes, are left out."""
    named = [each for each in (*(places or _places(rows)), "size_bytes") if len({str(r.get(each)) for r in rows}) > 1]
    follows = {"ranks": "nodes", "op": "collective", "root": "collective"}
    return [each for each in named if follows.get(each) not in named]


def said(column: str, value: Any) -> str:
    """Return a column's value in words, with the column's name if needed: `2 nodes`, `in place`, `seed 3`."""
    if column in ("nodes", "ranks"):
        return f"{value} {column if value != 1 else column[:-1]}"
    if column == "in_place":
        return "in place" if value else "out of place"
    plain = column in ("collective", "topology", "profile", "dtype", "op", "size_bytes")
    text = short_size(value or 0) if column == "size_bytes" else _plain(value)
    return text if plain else f"{column.rsplit('.', 1)[-1].replace('_', ' ')} {text}"


def _without_effect(rows: Sequence[ResultRow]) -> str:
    """Return a sentence that names the keys with several values in these rows whose values do not change any time."""
    keys = [*_KEYS, *swept(rows)]
    idle = [_KEYS.get(key, key) for key in keys if _is_idle(rows, key, [each for each in keys if each != key])]
    if not idle:
        return ""
    by_library = all(key.startswith("model.") for key in idle) and any(row.executor == "nccl" for row in rows)
    why = ": the library decides that by itself, and its variables stand under env" if by_library else ""
    return f" {' and '.join(idle)} {'changes' if len(idle) == 1 else 'change'} nothing here{why}."


def _is_idle(rows: Sequence[ResultRow], key: str, other_keys: Sequence[str]) -> bool:
    """Whether rows that differ only in this key always have equal times, and equal quantiles over draws."""
    others = [*_WHERE, *other_keys, "asked", "size_bytes"]

    def question(row: ResultRow) -> tuple[str, ...]:
        return tuple(str(row.get(name)) for name in others)

    tried = [grouped(alike, lambda row: str(row.get(key))).values() for alike in grouped(rows, question).values()]
    times = [
        {tuple(sorted((row.time_ps, row.time_us_p50 or 0.0, row.time_us_p95 or 0.0) for row in of)) for of in values}
        for values in tried
        if len(values) > 1
    ]
    return bool(times) and all(len(each) == 1 for each in times)


def trusted(profiles: Iterable[str], rows: Sequence[ResultRow] = (), beside: Sequence[str] = ()) -> str:
    """Return in words which measurements the times are based on, and a better profile if there is one. `beside` names
    further profiles of messages between nodes."""
    by_kernels = {row.executor in DEEPEP for row in rows}
    parts = [FITTED_KERNELS] if True in by_kernels else []
    for name in profiles if by_kernels != {True} else ():
        profile = load_profile(name)
        better = _better(name, rows)
        hint = f" (--profile {better} is fitted)" if better else ""
        if profile.bound:
            parts.append(f"`{name}` is a bound, not a prediction{hint}")
        elif profile.calibration is None and profile.kernels is None:
            parts.append(f"`{name}` is fitted to nothing{hint}")
        else:
            about = profile.description.replace(" of the harness library", "")
            parts.append(" + ".join([about, *map(described_transport, [*transports(name, rows), *beside])]))
    chips = dict.fromkeys(row.never_fitted for row in rows if row.never_fitted)
    parts += [f"never fitted to {chip}" for chip in chips]
    words = dict.fromkeys(row.confidence for row in rows if row.confidence)
    if "modelled" in words:
        parts.append("modelled in part" if len(words) > 1 else "modelled")
    elif "extrapolated" in words:
        parts.append("extrapolated" + (" in part" if len(words) > 1 else ""))
    return ", ".join(parts) or "fitted to nothing"


def transports(profile: str, rows: Iterable[ResultRow]) -> list[str]:
    """Return the profiles of messages between nodes (by name) in those rows that use this GPU profile."""
    return sorted({row.transport for row in rows if row.profile == profile and row.transport})


def _better(name: str, rows: Sequence[ResultRow]) -> str | None:
    """Return the name of the profile that was fitted to the rows' system if `name` is another one, else None."""
    system = str(rows[0].topology).partition("/")[0] if rows else ""
    own = load_system(system).profile if system in shipped_systems() else None
    return own if own != name else None


def took(time_us: float | None) -> str:
    """Return a time as text with three digits, e.g. `12.3 us`."""
    return format_duration(round(1e6 * (time_us or 0)), digits=3)


def ran(row: ResultRow) -> str:
    """Return what ran, in words: `nvls Simple`, `ring LL as one kernel`, `own.json LL as one kernel`."""
    protocol = f" {row.protocol}" if row.protocol not in (None, "none", "") else ""
    one = " as one kernel" if row.executor == "msccl" else " by sends and receives" if row.executor == "p2p" else ""
    one = f" by {row.executor}" if row.executor in DEEPEP else one
    return f"{_file_named(str(row.algorithm))}{protocol}{one}"


def _file_named(algorithm: str) -> str:
    """Return the algorithm's name; of the path of a schedule file only the name of the file."""
    return Path(algorithm).name if algorithm.endswith(".json") else algorithm


def _asked(row: ResultRow) -> str:
    return _file_named(str(row.asked or row.algorithm))


def _time(row: ResultRow) -> float:
    return row.time_us or 0.0


def _size(row: ResultRow) -> str:
    return short_size(row.size_bytes or 0)


def _interval(row: Mapping[str, Any]) -> str:
    if row.get("low_us") is None or row.get("high_us") is None:
        return ""
    low, high = took(row["low_us"]), took(row["high_us"])
    if low.rpartition(" ")[2] == high.rpartition(" ")[2]:
        low = low.partition(" ")[0]
    return f" (90 %: {low} to {high})"


IDLE: Final = 0.005  # a smaller share would be written as 0%


def busiest(link: str | None, busy: float | None) -> str:
    """Say how busy the busiest link is. Only `explain` shows whether it is the bottleneck."""
    if link is None or busy is None:
        return "no link carries data"
    if link == "host":
        return "the host's launches bind"
    kind = next((kind for end, kind in _KINDS.items() if end in link), "its busiest link")
    return f"{kind} is {busy:.0%} busy" if busy >= IDLE else f"{kind} is hardly busy"


def _places(rows: Sequence[ResultRow]) -> list[str]:
    """Return the columns that define a question (machine, collective, swept keys, …) without the size."""
    return [*_WHERE, *_KEYS, *swept(rows)]


def _plain(value: object) -> str:
    size = size_in(value)
    return str(value) if size is None else short_size(size)


def _best(rows: Sequence[ResultRow], name: Name) -> list[str]:
    """Return the names of the fastest of some rows, and of those that are equally fast."""
    least = min(map(_time, rows))
    return list(dict.fromkeys(name(row) for row in rows if _time(row) <= least * TIE))


def _tied(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{' or '.join(names)} (a tie)"


def _fastest(rows: Sequence[ResultRow], name: Name) -> str:
    """Return the fastest algorithm by range of sizes. Where kernels that were only modelled are ahead of those with
    measured costs, both are named: their times do not compare."""
    known = [row for row in rows if row.confidence != "modelled"]
    least = {size: min(map(_time, of)) for size, of in grouped(known, _bytes).items()}
    ahead = [row for row in rows if row.confidence == "modelled" and _time(row) * TIE < least.get(_bytes(row), 0.0)]
    if not ahead:
        return f"Fastest: {_winners(rows, name)}"
    spans = (
        f"{names} at {' to '.join(dict.fromkeys(map(short_size, (sizes[0], sizes[-1]))))}"
        for names, sizes in _ranges(ahead, name)
    )
    return f"Fastest of what was measured: {_winners(known, name)}; modelled faster, never measured: {', '.join(spans)}"


def _bytes(row: ResultRow) -> int:
    return row.size_bytes or 0


def _ranges(rows: Sequence[ResultRow], name: Name) -> list[tuple[str, list[int]]]:
    """Return the names of the fastest rows, each with the neighbouring sizes at which they are."""
    sizes = sorted({_bytes(row) for row in rows})
    best = [(size, _tied(_best([row for row in rows if _bytes(row) == size], name))) for size in sizes]
    return [(names, [size for size, _ in group]) for names, group in groupby(best, key=lambda each: each[1])]


def _winners(rows: Sequence[ResultRow], name: Name) -> str:
    """Return the fastest algorithm by range of sizes: `naive to 8 KiB, hierarchical to 4 MiB, auto from 32 MiB`."""
    sizes, ranges = sorted({_bytes(row) for row in rows}), _ranges(rows, name)
    if len(ranges) == 1:
        top = [row for row in rows if (row.size_bytes or 0) == sizes[-1]]
        fastest = min(top, key=_time)
        slowest = max(map(_time, top)) / (_time(fastest) or 1.0)  # one rank takes no time
        where = f", {took(fastest.time_us)}" + (f" at {short_size(sizes[-1])}" if sizes[-1] else "")
        everywhere = "at every size " if len(sizes) > 1 else ""
        there = " there" if everywhere else ""
        behind = f"; the slowest{there} takes {slowest:.3g} times as long" if slowest > TIE else ""  # not for a tie
        return f"{ranges[0][0]} {everywhere}".strip() + where + behind
    parts = [f"{names} to {short_size(held[-1])}" for names, held in ranges[:-1]]
    parts.append(f"{ranges[-1][0]} from {short_size(ranges[-1][1][0])}")
    return ", ".join(parts if len(parts) <= _SHOWN else [*parts[: _SHOWN - 1], "…", parts[-1]])


def _most_wins(places: Mapping[Any, Sequence[ResultRow]], name: Name) -> str:
    """Return how often each algorithm is fastest, e.g. `tree is fastest at 2 of 3 questions, ring at 1 (4 nodes)`.
    Empty if all rows have one name."""
    every = [of for rows in places.values() for of in grouped(rows, lambda row: row.size_bytes).values()]
    questions = [alike for alike in every if len(set(map(name, alike))) > 1]
    if not questions:
        return ""
    best = [_best(alike, name) for alike in questions]
    wins = Counter(each for names in best for each in names)
    most = max(wins, key=lambda each: wins[each])
    tied = any(most in names and len(names) > 1 for names in best)
    won: dict[str, list[ResultRow]] = {most: []}  # one row of each question, by the fastest names
    for names, alike in zip(best, questions, strict=True):
        won.setdefault(most if most in names else _tied(names), []).append(alike[0])
    columns = _differing([row for alike in questions for row in alike])[:_SHOWN]
    others = sorted([names for names in won if names != most], key=lambda names: -len(won[names]))
    said_of = {names: f"{names} at {len(rows)}{_single(rows, columns)}" for names, rows in won.items()}
    shown = [said_of[names] for names in others]
    shown = shown if len(shown) < _SHOWN else [*shown[: _SHOWN - 2], "…"]
    how = "fastest or as fast as another" if tied else "fastest"
    where = _single(won[most], columns) if others else ""
    return f"{', '.join([f'{most} is {how} at {len(won[most])} of {len(questions)} questions{where}', *shown])}; "


def _single(rows: Sequence[ResultRow], columns: Sequence[str]) -> str:
    """Return what identifies a single row, in brackets, e.g. ` (4 nodes)`; empty for several rows."""
    texts = [said(column, rows[0].get(column)) for column in columns]
    return f" ({', '.join(texts)})" if len(rows) == 1 and texts else ""


def fits(memory: float, limit: float) -> str:
    """Return whether a step fits into a GPU's memory; both in GB.

    >>> fits(61, 80)
    'fits (61 of 80 GB)'
    """
    return f"{'fits' if memory <= limit else 'does not fit'} ({memory:.0f} of {limit:.0f} GB)"


def of_training(row: Mapping[str, Any]) -> str:
    """Return the answer for a training step: its time, MFU and memory, what idles, and what binds.

    >>> row = dict(step_us=11.8e6, mfu=0.41, memory_GB=61, memory_limit_GB=80, bubble_us=0.9e6, exposed_tp_us=0.6e6)
    >>> of_training(row)
    '11.8 s a step, 41 % MFU, fits (61 of 80 GB); bubble 8 %, exposed 5 %: pipeline binds'
    """
    step = row["step_us"] or 1
    lost = {name: sum(row.get(column) or 0 for column in columns) / step for name, columns in _LOSSES.items()}
    most = max(lost, key=lambda name: lost[name])
    binds = most if lost[most] >= _LITTLE else "computation"
    exposed = sum(row.get(f"exposed_{dimension}_us") or 0 for dimension in ("tp", "pp", "dp", "ep", "cp")) / step
    lost_in = {"bubble": "bubble_us", "waiting": "wait_us", "interference": "interference_us"}
    shares = {name: (row.get(column) or 0) / step for name, column in lost_in.items()} | {"exposed": exposed}
    parts = [f"{name} {100 * share:.0f} %" for name, share in shares.items() if share >= IDLE]
    memory = fits(row["memory_GB"], row["memory_limit_GB"])
    said_of = f"{', '.join(parts)}: {binds} binds" if parts else f"{binds} binds"
    return f"{took(row['step_us'])} a step{_interval(row)}, {100 * row['mfu']:.0f} % MFU, {memory}; {said_of}"


_LITTLE: Final = 0.05  # share of a step below which nothing but computation binds it
_LOSSES: Final = {  # what binds a step -> the columns of what it loses by that
    "pipeline": ("bubble_us", "wait_us", "exposed_pp_us"),
    "tensor parallelism": ("exposed_tp_us",),
    "data parallelism": ("exposed_dp_us", "interference_us"),
    "expert parallelism": ("exposed_ep_us",),
    "context parallelism": ("exposed_cp_us",),
}


def _steps(rows: Sequence[ResultRow]) -> str:
    best = min(rows, key=_time)
    if best.mfu is not None:
        said_of = of_training(best)
        return said_of if len(rows) == 1 else f"{len(rows)} steps: {_span(rows, _asked)}; the shortest: {said_of}"
    share = f"{(best.exposed_us or 0) / (best.step_us or 1):.1%}"
    exposed = f"{took(best.exposed_us)} is exposed communication ({share})"
    if best.waiting_us:
        waiting = f"{best.waiting_us / (best.step_us or 1):.1%}"
        exposed += f" and {took(best.waiting_us)} is waiting for other ranks or the host ({waiting})"
    if len(rows) == 1:
        said = f"of which {exposed}" if best.exposed_us or best.waiting_us else "with no communication exposed"
        return f"A step takes {took(best.step_us)}, {said}"
    of_shortest = exposed if best.exposed_us or best.waiting_us else "it exposes no communication"
    return f"{len(rows)} steps: {_span(rows, _asked)}; of the shortest {of_shortest}"
