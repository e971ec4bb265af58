"""Result rows as text tables for the terminal: of collectives, of workloads, and of points with replications."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import simcoll
from simcoll import units
from simcoll.config import text_table
from simcoll.nccl.tuner_constants import unknown_first
from simcoll.prediction.result_rows import CHOSEN, ResultRow, dotted, swept
from simcoll.prediction.summary_sentence import DEEPEP, FITTED_KERNELS, of_rows, said, transports, unanswered
from simcoll.report.columns import separating, varying
from simcoll.scenario import caveats
from simcoll.scenario.profile import described, load_profile, titled
from simcoll.scenario.scenario import Scenario
from simcoll.scenario.scenario_files import Point
from simcoll.units import format_size, short_size

MOSTLY: Final = 0.8  # of the run: if the busiest link is busy for less, other things than links limit it
SIZE_CONVENTION: Final = (
    "size = largest buffer of a rank, as nccl-tests counts it (all_gather, reduce_scatter, gather, scatter: "
    "ranks × per-rank bytes); GB = 10^9 B"
)
_SPARE: Final = (  # if the table is too wide
    *("op", "workload", "nodes", "collective", "ranks", "executor", "confidence", "algbw_GBps", "bound_us"),
)


def run_table(rows: Sequence[ResultRow], points: Sequence[Scenario | Point] = ()) -> str:
    """Return the text for rows of collectives: their answer, a line for each row, and lines on the busiest links."""
    good, scenarios = [row for row in rows if row.status == "ok"], list(map(caveats.scenario_of, points))
    columns = ["size_bytes", "collective", "algorithm", "ranks", "nodes", "time_us", "algbw_GBps", "busbw_GBps"]
    judged = any(row.low_us is not None for row in rows)
    columns += ["bound_us", *(("low_us", "high_us", "confidence") if judged else ())]
    columns += [*_settings(good), *(name for name in dotted(good) if name.startswith(CHOSEN))]
    plain = [row for row in rows if row.executor not in DEEPEP]
    costs = [f"profile {values_of(plain, 'profile')}"] if plain else []
    costs += ["DeepEP's kernels"] if len(plain) < len(rows) else []
    facts = [f"topology {values_of(rows, 'topology')}", " and ".join(costs) or "profile -"]
    if good:  # refused rows have no real confidence
        facts[-1] += f" ({values_of(good, 'confidence')})"
        facts += [f"sharing {values_of(good, 'sharing')}{_chunks(scenarios)}"]
        facts += [f"type {values_of(good, 'dtype')}", f"engine {values_of(good, 'engine')}"]
    name = rows[0].scenario if rows else scenarios[0].name if scenarios else ""  # a share of a sweep may be empty
    head = [_title(name, rows), f"# {'   '.join(facts)}", f"# {SIZE_CONVENTION}"]
    shown = [{**row, "bound_us": row["lower_bound_us"]} for row in _with_asked(good)]
    table = text_table.fitted(columns, shown, _SPARE) if good else ("", "")
    return _text(rows, points, head, table, _busiest_lines(good))


def _text(
    rows: Sequence[ResultRow],
    points: Sequence[Scenario | Point],
    head: Sequence[str],
    table: tuple[str, str],
    more: Sequence[str] = (),
) -> str:
    """Return a text: the answer in a sentence, the `head`, a table whose columns differ between rows, and remarks."""
    body, shared = table
    unknown, others = unknown_first(caveats.notes(points))
    said_of = [f"# {text}" for text in (*unanswered(rows), *others)]
    lines = [line for line in (*head, shared and f"# {shared}", body, *said_of, *more) if line]
    wrapped = (text_table.wrapped(line) if line.startswith("#") else line for line in lines)
    answer = " ".join([*(f"{note}." for note in unknown), of_rows(rows)])
    return "\n".join([text_table.wrapped(answer, "  "), *wrapped])


def step_table(rows: Sequence[ResultRow], points: Sequence[Scenario | Point] = ()) -> str:
    """Return the text for rows of workloads: their answer, a line for each row, and one on the shortest step."""
    good = [row for row in rows if row.status == "ok"]
    training = any(row.mfu is not None for row in rows)
    idle = [name for name in ("waiting_us", "bubble_us", "wait_us") if any(row[name] for row in rows)]
    more = [name for name in ("interference_us", "optimizer_us") if training]
    times = ("step_us", "compute_us", *idle, *more, "exposed_us")
    columns = ("workload", "algorithm", "ranks", "nodes", "buckets", *times)
    if training:
        columns = ("ranks", "nodes", "mfu", "tokens_per_s_per_gpu", "memory_GB", *times)
    shown = [{**row, **{name: _short(row.get(name)) for name in swept(rows)}} for row in _with_asked(good)]
    columns_shown = [column for column in columns if any(row[column] is not None for row in good)]
    shared = "   ".join(
        f"{name} {values_of(good or rows, name)}" for name in ("topology", "profile", "sharing", "dtype")
    )
    waiting = (
        " + waiting (for other ranks' computations, as in a pipeline's bubble, or the host)"
        if "waiting_us" in times
        else ""
    )
    meaning = f"# step = compute (of the rank that computes most){waiting} + exposed (what communication adds)"
    if training:
        parts = [name.removesuffix("_us") for name in (*idle, *more)]
        whose = " of the stage that computes most" if "bubble_us" in idle else ""
        meaning = f"# step = {' + '.join(['compute', *parts, 'exposed'])}{whose}"
    head = [_title(rows[0].scenario, rows), f"# {shared}", meaning]
    table = text_table.fitted([*columns_shown, *swept(rows)], shown, _SPARE, times) if good else ("", "")
    return _text(rows, points, head, table)


def varied_table(rows: Sequence[ResultRow]) -> str:
    """Return the quantiles of each point with replications, and each cause's share of the delay; empty without them."""
    varied = _with_asked([row for row in rows if row.replications])
    good = [{**row, "due to": _shares(row["slowdown_shares"] or {})} for row in varied]
    columns = ["workload", "collective", "algorithm", "ranks", "size_bytes", "replications", "time_us"]
    columns += ["time_us_p50", "time_us_p95", "time_us_p99", "due to"]
    shown = [column for column in columns if any(row[column] for row in good)]
    if not good:
        return ""
    spare = ("collective", "ranks", "size_bytes", "workload", "replications")
    table, shared = text_table.fitted([*shown, *swept(good)], good, spare)
    lines = [f"# {shared}"] if shared else []
    if any("ecmp" in (row["slowdown_shares"] or {}) for row in good):
        lines.append(
            "# time: of the undisturbed run, routes by one fixed hash of each pair; quantiles: of drawn routes"
        )
    return "\n".join([*lines, table])


def _with_asked(rows: Sequence[ResultRow]) -> list[Mapping[str, Any]]:
    """Return rows with the algorithm as text: `auto → ring` if several names were requested, else the one that ran."""
    if not varying(rows, ["asked"]):
        return list(rows)
    return [{**row, "algorithm": row.algorithm if _by_name(row) else f"{row.asked} → {row.algorithm}"} for row in rows]


def _by_name(row: ResultRow) -> bool:
    return row.asked in (None, row.algorithm)


def _title(scenario: str | None, rows: Sequence[ResultRow]) -> str:
    others = [row for row in rows if row.executor not in DEEPEP]
    names = dict.fromkeys(row.profile for row in others if row.profile)
    about = [described(name, transports(name, others)) for name in names]
    about += [FITTED_KERNELS] if len(others) < len(rows) else []
    return f"# simcoll {simcoll.__version__}: {scenario}   {'; '.join(about)}"


def _shares(shares: Mapping[str, float]) -> str:
    return "  ".join(f"{cause} {share:.0%}" for cause, share in shares.items())


def _chunks(scenarios: Sequence[Scenario]) -> str:
    if scenarios and all(load_profile(scenario.profile).bound for scenario in scenarios):
        return "   chunk that serves best"
    chunks = sorted({scenario.params().chunk for scenario in scenarios})
    return "   chunk " + ", ".join(format_size(chunk) if chunk else "whole" for chunk in chunks) if chunks else ""


def _settings(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns, besides collective, algorithm, size and ranks, in which rows differ."""
    calls = ("executor", "protocol", "library_version", "in_place")
    named = ("topology", "profile", "dtype", "op", "root", *calls)
    return [*varying(rows, named), *swept(rows)]


def values_of(rows: Sequence[ResultRow], column: str) -> str:
    """Return the first three different values in a column as text, and how many there are in all."""
    values = list(dict.fromkeys(str(row[column]) for row in rows if row[column] is not None)) or ["-"]
    values = [titled(value) for value in values] if column == "profile" else values
    return ", ".join(values[:3]) + (f", … ({len(values)})" if len(values) > 3 else "")


def _busiest_lines(rows: Sequence[ResultRow]) -> list[str]:
    """Return a line on the busiest link of each algorithm at the largest size, and one for all that no link limits."""
    used = _with_asked([row for row in rows if row.binding_link])
    if not used:
        return []
    size, ranks = max((row["size_bytes"] or 0, row["ranks"] or 0) for row in used)
    largest = [row for row in used if ((row["size_bytes"] or 0), row["ranks"]) == (size, ranks)]
    keys = swept(rows)
    apart = ["algorithm", *separating(largest, ["collective", *_settings(largest)], ["algorithm"])]
    apart.sort(key=lambda column: column != "collective")
    busiest: dict[str, list[str]] = {}
    waiting = []
    for row in largest:
        values = {column: row.get(column) for column in apart if row.get(column) is not None}
        name = " ".join(said(key, value) if key in keys else str(value) for key, value in values.items())
        share = row["binding_busy"] or 0.0
        busiest.setdefault(str(row["binding_link"]), []).append(f"{name} {share:.0%}")
        waiting += [name] if round(share, 2) < MOSTLY else []
    links = [f"{link} ({few(names)} busy)" for link, names in busiest.items()]
    line = f"# busiest link at {short_size(size)}, {ranks} ranks: {few(links, '; ')}"
    idle = f"# below {MOSTLY:.0%}: latency, costs per message and the order of steps count, too: {few(waiting)}"
    return [line, idle] if waiting else [line]


def few(texts: Sequence[str], between: str = ", ", most: int = 5) -> str:
    """Return the first `most` texts, joined by `between`; if there are more, also the number of all texts."""
    return between.join(texts[:most]) + (f"{between}… ({len(texts)})" if len(texts) > most else "")


def _short(value: Any) -> Any:
    """Return a value as people write it: sizes with units, ranges of sizes too; other values stay."""
    size = units.size_in(value)
    return value if size is None else format_size(size)
