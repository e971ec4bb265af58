"""The answer of a command in one sentence, with which its output begins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from simcoll.config.groups import grouped
from simcoll.prediction.result_rows import ResultRow, swept
from simcoll.scenario.profile import load_profile
from simcoll.scenario.profile_titles import between
from simcoll.topology.machine_files import shipped_systems
from simcoll.topology.systems import load_system
from simcoll.units import format_bandwidth, format_duration, short_size, size_in

BINDS: Final = 0.8  # share of the run for which a link must be busy to be called what binds
TIE: Final = 1.005  # times nearer than half a percent are equal
_KINDS: Final = {"nvswitch": "NVLink", "pcie_switch": "PCIe"}  # of links, by the device at an end
_SHOWN: Final = 4  # ranges of sizes in a sentence, and machines with one each
JsonAnswer = Mapping[str, Any]  # what a command prints with --json, or a part of it


def of_rows(rows: Sequence[ResultRow]) -> str:
    """The time of a point, the fastest algorithm at each size, or the span of many points; a sentence a machine."""
    good = [row for row in rows if row.status == "ok"]
    if not good:
        return f"No answer: {rows[0].status}" if rows else "No answer: there is no point."
    machines = grouped(good, lambda row: row.topology)
    if 1 < len(machines) <= _SHOWN:
        return " ".join(f"{name}: {of_rows(of).replace('Fastest: ', 'fastest ', 1)}" for name, of in machines.items())
    trust = trusted(dict.fromkeys(row.profile for row in good if row.profile), good)
    if good[0].workload:
        return f"{_steps(good)}; {trust}."
    if len(good) == 1:
        row = good[0]
        rate = f", {format_bandwidth(1e9 * row.algbw_GBps)}" if row.algbw_GBps else ""
        binds = _binds(row.binding_link, row.binding_busy)
        return f"{ran(row)}, {took(row.time_us)}{_interval(row)}{rate}; {trust}; {binds}."
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
    """Algorithm, protocol and executor: `NVLS Simple`, `Ring LL as one kernel`, `own.json LL as one kernel`."""
    named = str(row.algorithm).upper() if row.algorithm in ("nvls", "nvls_tree", "pat") else str(row.algorithm)
    protocol = f" {row.protocol}" if row.protocol not in (None, "none", "") else ""
    one = " as one kernel" if row.executor == "msccl" else " by sends and receives" if row.executor == "p2p" else ""
    shown = named if named.endswith(".json") else f"{named[:1].upper()}{named[1:]}"
    return f"{shown}{protocol}{one}"


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


def _binds(link: str | None, busy: float | None) -> str:
    if link is None or busy is None or busy < BINDS:
        return "no link binds"
    if link == "host":
        return "the host's launches bind"
    kind = next((kind for end, kind in _KINDS.items() if end in link), "the link")
    return f"{kind} binds ({link} is {busy:.0%} busy)"


def _places(rows: Sequence[ResultRow]) -> list[str]:
    """Columns that make another question of a point, sizes aside."""
    return ["collective", "topology", "ranks", "nodes", "profile", "dtype", *swept(rows)]


def _plain(value: object) -> str:
    size = size_in(value)
    return str(value) if size is None else short_size(size)


def _best(rows: Sequence[ResultRow]) -> str:
    """The fastest of some rows, and whatever ties with it."""
    least = min(map(_time, rows))
    return " = ".join(dict.fromkeys(_asked(row) for row in rows if _time(row) <= least * TIE))


def _winners(rows: Sequence[ResultRow]) -> str:
    """`naive to 8 KiB, hierarchical to 4 MiB, auto from 32 MiB`."""
    sizes = sorted({row.size_bytes or 0 for row in rows})
    best = [(size, _best([row for row in rows if (row.size_bytes or 0) == size])) for size in sizes]
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
                best = _best(alike).split(" = ")
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


# --- documents ---


def of_explanation(document: JsonAnswer) -> str:
    """The main causes of a point's time, the link that binds, and the change that would help most."""
    binds = _binds(document.get("binding_link"), document.get("binding_busy"))
    gains = [each for each in document["what_if"] if each["factor"] >= 1.05]
    best = max(gains, key=lambda each: float(each["factor"]), default=None)
    help_ = f"; if {best['change']}: {took(best['time_us'])}" if best else ""
    return f"{_what(document)} takes {took(document['time_us'])}: {_most(document, 2)}; {binds}{help_}."


def of_several(documents: Sequence[JsonAnswer]) -> str:
    """The shortest and the longest of several points, and what takes most of each."""
    ends = (min(documents, key=lambda d: float(d["time_us"])), max(documents, key=lambda d: float(d["time_us"])))
    said = [f"{_what(each)} {took(each['time_us'])} ({_most(each, 1)})" for each in ends]
    return f"{len(documents)} points, from {said[0]} to {said[1]}."


def _what(document: JsonAnswer) -> str:
    return str(document.get("workload") or document.get("algorithm"))


def _most(document: JsonAnswer, count: int) -> str:
    """The causes, with the kind of links where they lie on links, that take most of the time."""
    shares = Counter[tuple[str, str | None]]()
    for place in document["places"]:
        shares[place["cause"], place["kind"]] += place["share"]
    most = [(f"{cause} on {kind}" if kind else cause, share) for (cause, kind), share in shares.most_common(count)]
    return " and ".join(f"{cause} {share:.0%}" for cause, share in most)


def of_recommendations(documents: Sequence[JsonAnswer]) -> str:
    """The choices of the first question for its smallest and its largest sizes, and how many more there are."""
    first = documents[0]
    choices = first["ranges"]
    text = choices[0]["choice"]
    if "workload" in first:
        text += f", {took(choices[0]['time_us'])}"
    elif len(choices) > 1:
        last = f"{choices[-1]['choice']} from {short_size(choices[-1]['from_bytes'])} on"
        between_them = f", {len(choices) - 2} more between" if len(choices) > 2 else ""
        text += f" to {short_size(choices[0]['to_bytes'])}, {last}{between_them}"
    questions = len(documents) - 1
    more = f" ({questions} more question{'s' * (questions > 1)} below)" if questions else ""
    theirs = {each.get("executor") == "msccl" for each in choices}  # a fit is of NCCL's own kernels
    modelled = "" if True not in theirs else ", modelled in part" if False in theirs else ", modelled"
    by = [first["transport"]] if "transport" in first else []
    return f"Take {text}{more}; {trusted([first['profile']], beside=by)}{modelled}."


def of_comparison(document: JsonAnswer) -> str:
    """The mean error, and where it is worst."""
    total = document["summary"][-1]
    worst = max(document["points"], key=lambda point: abs(float(point["error"])))
    size = f", {short_size(worst['size_bytes'])}" if worst.get("size_bytes") else ""
    held = document["intervals"]
    inside = f"; 90 % intervals hold {held['coverage']:.0f} % of the points" if held else ""
    where = f"{worst['collective']} on {worst['ranks']}{size}"
    most = f"{100 * abs(worst['error']):.0f} % ({where})"
    points = f"{total['points']} points" if total["points"] > 1 else "1 point"
    return f"Predictions are off by {total['mape']:.1f} % in the mean over {points}, at worst by {most}{inside}."


def of_diagnosis(document: JsonAnswer) -> str:
    """Healthy, or what is off and what explains it."""
    off = [region for region in document["regions"] if region["off"]]
    points = sum(region["points"] for region in document["regions"])
    if document["verdict"] == "healthy":
        single = [point for point in document["points"] if point["single"]]
        again = f", but for {len(single)} to be measured again" if single else ""
        as_expected = f"{points} points are" if points > 1 else "1 point is"
        return f"Healthy: {as_expected} as {document['system']} should be by {document['profile']}{again}."
    worst = max(off, key=lambda region: float(region["distance"]))
    how = "times scatter" if worst["factor"] is None else f"{worst['factor']:.2f} times as long as expected"
    how += f", but others {worst['contrary_factor']:.2f} times" if worst["contrary_factor"] is not None else ""
    where = f"{worst['collective']} on {worst['ranks']}, {worst['region']}, {how}"
    if document["verdict"] is None:
        if only_faster(off):
            return f"Faster than expected, which is a finding and no fault: {where}."
        return f"Off, and nothing that was tried explains it: {where}."
    return f"Off: {where}; {explanation(document)} explains it best."


def only_faster(regions: Sequence[JsonAnswer]) -> bool:
    """Whether regions that are off hold points that are too fast, and none that is too slow."""
    return all(
        region["factor"] is not None and region["factor"] < 1 and region["contrary_factor"] is None
        for region in regions
    )


def explanation(document: JsonAnswer) -> str:
    """The best hypothesis, and those that explain a diagnosis as well, with their values."""
    best, *others = document["hypotheses"]
    good = [best, *(each for each in others if each["hypothesis"] in document["also"])]
    *named, last = (f"{each['hypothesis']} {each['value']}".strip() for each in good)
    return f"{', '.join(named)} or {last}" if named else last


def of_calibration(document: JsonAnswer) -> str:
    """The numbers of fitted parameters and rows, and the error on rows that were not fitted."""
    errors = document["errors"]
    fit, scored = errors["fitted"], errors.get("held_out")
    tail = f", {scored['mape']:.1f} % on {scored['rows']} rows that were not fitted" if scored else ""
    count = len(document["parameters"])
    named = "1 parameter" if count == 1 else f"{count} parameters"
    done = f"{named} fitted to {fit['rows']} rows" if count else f"nothing is changed by {fit['rows']} rows"
    return f"{document['profile']}: {done}, off by {fit['mape']:.1f} %{tail}."


def of_tuner(document: JsonAnswer) -> str:
    """The choices of NCCL for an all-reduce, by size."""
    chosen = [each for each in document["choice"] if each["collective"] == "all_reduce"] or document["choice"]
    ranges = [(name, list(group)) for name, group in groupby(chosen, lambda c: f"{c['algorithm']} {c['protocol']}")]
    parts = [f"{name} to {short_size(group[-1]['size_bytes'])}" for name, group in ranges[:-1][:_SHOWN]]
    parts += ["…"] * (len(ranges) - 1 > _SHOWN) + [f"{ranges[-1][0]} from {short_size(ranges[-1][1][0]['size_bytes'])}"]
    library = f"{str(document['library']).upper()} {document['version']}"
    return f"{library} chooses for {chosen[0]['collective']} on {document['ranks']} ranks: {', '.join(parts)}."


def of_proofs(rows: Sequence[JsonAnswer]) -> str:
    """The number of schedules that are proved, and one that is wrong."""
    wrong = [row for row in rows if row["status"] == "wrong"]
    proved = sum(row["status"] == "proved" for row in rows)
    if wrong:
        first = f"{wrong[0]['collective']}/{wrong[0]['algorithm']}"
        return f"Wrong: {first} does not do what {wrong[0]['collective']} promises."
    return f"{proved} of {len(rows)} proved"


def of_dry_run(lines: Sequence[str]) -> str:
    """The length of a rehearsal."""
    return f"Nothing was run: {len(lines)} lines of what every rank would do."
