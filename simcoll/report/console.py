"""Everything but result rows as text for the terminal: counts, proofs, lists, topologies, comparisons, fits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import simcoll
from simcoll.config import text_table
from simcoll.config.groups import grouped
from simcoll.formats.schedules.schedule_json import counts, sent_fraction
from simcoll.report.result_tables import few
from simcoll.report.verdicts import of_calibration, of_comparison, of_proofs
from simcoll.scenario.loading import shipped_scenarios
from simcoll.scenario.profile import costs_by_file, load_network, shipped_profiles
from simcoll.schedule import registry
from simcoll.schedule.collectives import COLLECTIVES
from simcoll.schedule.ir import Schedule
from simcoll.units import format_bandwidth


def counts_line(schedule: Schedule) -> str:
    """Steps, messages and what the busiest rank sends, in a sentence."""
    count, fraction = counts(schedule), sent_fraction(schedule)
    steps = f"{count['steps']} step{'s' * (count['steps'] != 1)}, {count['messages']} messages"
    what = f"{schedule.collective}/{schedule.algorithm} on {schedule.n} ranks"
    return f"{what}: {steps}, and the busiest rank sends {fraction} of the data."


def count_table(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Steps and speed-up in a sentence, counts and times by rank count."""
    first, last = rows[0], rows[-1]
    steps = f"{first['steps']} step{'s' * (first['steps'] != 1)}"
    if first["steps"] != last["steps"]:
        steps += f" on {first['ranks']} ranks to {last['steps']} on {last['ranks']}"
    gains = " to ".join(dict.fromkeys(str(row["speed-up"]) for row in (first, last)))
    head = text_table.wrapped(f"{name}: {steps}; {gains} times as fast as the plainest algorithm.", "  ")
    foot = "# time: 64 MiB on a star of 50 GB/s, 0.5 us links; speed-up: over the plainest algorithm there"
    return f"{head}\n{text_table.render(list(rows[0]), rows)}\n{text_table.wrapped(foot)}"


def proof_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line a proof, and a count."""
    lines = [f"{row['collective']}/{row['algorithm']}, {row['ranks']} ranks: {_verdict(row)}" for row in rows]
    return "\n".join([of_proofs(rows), *lines])


def _verdict(row: Mapping[str, Any]) -> str:
    return f"{row['status']}: {row['reason']}" if row["reason"] else str(row["status"])


# --- what there is ---


def listing(kind: str) -> str:
    """The output of `simcoll list`."""
    listings: dict[str, Callable[[], str]] = {
        "algorithms": _algorithms,
        "collectives": lambda: _columns((c.name, c.summary) for c in COLLECTIVES.values()),
        "topologies": _topologies,
        "scenarios": _scenarios,
        "costs": _costs,
        "profiles": lambda: _columns((name, load_network(name).description) for name in shipped_profiles()),
    }
    return listings[kind]()


def _costs() -> str:
    """For each profile that is like another, how many costs which file writes, and their names."""
    parts = []
    for name in shipped_profiles():
        if load_network(name).like:
            files = costs_by_file(load_network(name))
            numbers = ", ".join(f"{len(costs)} of {file}" for file, costs in files.items())
            parts.append(
                f"{name}: {numbers}\n" + _columns((f"  {file}", " ".join(costs)) for file, costs in files.items())
            )
    return "\n\n".join(parts)


def _columns(pairs: Any) -> str:
    table = list(pairs)
    width = max(len(name) for name, _ in table)
    return "\n".join(_listed(name, width, text) for name, text in table)


def _listed(name: str, width: int, text: str) -> str:
    """A name and a text beside it, broken at the width of a terminal; a line for scripts."""
    if not sys.stdout.isatty():
        return f"{name:<{width}}  {text}"
    return text_table.wrapped(f"{name:<{width}}  {text}", " " * (width + 2))


def _algorithms() -> str:
    parts = []
    for which, entries in registry.ALGORITHMS.items():
        parts.append(f"{which}: {COLLECTIVES[which].summary}")
        parts += [_listed(f"  {entry.name}", 23, f"{entry.help}{_more(entry)}") for entry in entries.values()]
    return "\n".join(parts)


def _more(entry: registry.Algorithm) -> str:
    """Note whether an algorithm takes groups, its options, and its closed form on a full mesh."""
    notes = ["takes groups"] if entry.uses_groups else []
    notes += [f"{key}={'|'.join(_short(values))}" for key, values in entry.options.items()]
    notes += [f"cost {entry.cost}"] if entry.cost else []
    return f" [{'; '.join(notes)}]" if notes else ""


def _short(values: Sequence[str]) -> Sequence[str]:
    return values if len(values) <= 6 else [*values[:3], "…", values[-1]]


def _topologies() -> str:
    from simcoll.topology.machine_files import shipped_systems
    from simcoll.topology.systems import load_system

    return _columns((name, load_system(name).description) for name in shipped_systems())


def _scenarios() -> str:
    def first_comment(text: str) -> str:
        return next((line.lstrip("# ") for line in text.splitlines() if line.startswith("#")), "")

    return _columns((name, first_comment(path.read_text("utf-8"))) for name, path in shipped_scenarios().items())


def topology_text(system: Mapping[str, Any]) -> str:
    """Devices, links and bisection bandwidth."""
    nodes = f"{system['nodes']} node" + ("s" if system["nodes"] != 1 else "")
    lines = [f"{system['name']}: {len(system['ranks'])} ranks on {nodes}, routing {system['routing']}"]
    lines += ["devices", *(f"  {count:>6}  {kind}" for kind, count in system["devices"].items())]
    lines += ["links (each direction is one)"]
    for link in system["links"]:
        numbers = f"{format_bandwidth(1e9 * link['bandwidth_GBps']):>14}  {link['latency_us']:>6.4g} us"
        shown = f"  {link['count']:>6}  {link['kind']:<10}{numbers}  "
        names = [few(link["names"], most=most) for most in (2, 1)]
        names += [f"{link['names'][0]}, …"] * (link["count"] > 1)  # the line begins with their count
        lines += [shown + next((text for text in names if len(shown + text) <= text_table.width()), names[-1])]
    bisection = format_bandwidth(1e9 * system["bisection_GBps"])
    return "\n".join([*lines, f"bisection bandwidth {bisection} (one direction)"])


_ERRORS: Final = ("points", "mape", "median", "p95", "bias")


def comparison_table(document: Mapping[str, Any]) -> str:
    """Every point with its error, what intervals and ranking are worth, errors by region, and the summary."""
    columns = ["collective", "ranks", "size_bytes", "dtype", "algorithm", "protocol", "measured_us", "predicted_us"]
    held = document["intervals"]
    columns += ["low_us", "high_us"] if held else []
    spare = ("collective", "ranks", "dtype", "algorithm", "protocol", "low_us", "high_us")
    table, shared = text_table.fitted([*columns, "error"], document["points"], spare)
    warnings = [f"# warning: {line}" for line in document["warnings"]]
    parts = [text_table.wrapped(of_comparison(document), "  "), *warnings]
    parts += [*([f"# {shared}"] if shared else []), table, ""]
    if held:
        where = f"{held['coverage']:.1f} % of {held['points']} measured times"
        parts.append(f"# 90 % intervals hold {where}; mean width {held['width']:.1f} % of the prediction")
    parts += [_ranking_line(document["ranking"])] if document["ranking"] else []
    parts += [f"# {document['unmatched']} measured rows have no prediction"] if document.get("unmatched") else []
    if len(document["regions"]) > 1:
        parts += [text_table.render(["region", *_ERRORS], document["regions"]), ""]
    parts.append(text_table.render(["collective", "ranks", *_ERRORS], document["summary"]))
    return text_table.remarks_wrapped("\n".join(parts))


def _ranking_line(ranking: Mapping[str, Any]) -> str:
    order = "" if ranking["in_order"] is None else f", {ranking['in_order']:.1f} % of {ranking['pairs']} clear pairs"
    return (
        f"# order of algorithms at {ranking['groups']} points: Kendall's tau {ranking['tau']:.2f}{order} in order; "
        f"regret mean {ranking['regret_mean']:.1f} %, worst {ranking['regret_worst']:.1f} %"
    )


def calibration_table(document: Mapping[str, Any]) -> str:
    """Errors of the fit beside those of what could be asked without it, then remarks, and parameters with intervals."""
    errors = document["errors"]
    which = "held out" if "held_out" in errors else "fitted, as none is held out"
    count = document["beside"][-1]["points"]
    parts = [text_table.wrapped(of_calibration(document), "  ")]
    parts += [f"# simcoll {simcoll.__version__}: profile {document['profile']}, harness {document['harness']}; "
             f"fitted: {document['split']}", f"# errors on the {count} rows {which}:"]  # fmt: skip
    parts += [text_table.render(["predicted_by", *_ERRORS], document["beside"])]
    fitted = errors["fitted"]
    parts += [f"# on the {fitted['rows']} rows fitted: mape {fitted['mape']:.1f} %, bias {fitted['bias']:.1f} %"]
    parts += [f"# {note}" for note in document["notes"]]
    shown = [
        {"parameter": p["name"], "value": _quantity(p["value"], p), "from": p["low"], "to": p["high"]}
        for p in document["parameters"]
    ]
    parts += ["", text_table.render(["parameter", "value", "from", "to"], shown), "# from … to: 90 % intervals"]
    reasons = grouped(document["left"].items(), lambda item: item[1])
    parts += [f"# left as is: {few([name for name, _ in left], most=6)}: {why}" for why, left in reasons.items()]
    return "\n".join(parts)


def _quantity(value: float | None, parameter: Mapping[str, Any]) -> str:
    return "none" if value is None else f"{value:.4g} {parameter['unit']}"
