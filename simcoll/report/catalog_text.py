"""Text for the terminal: lists of what simcoll ships, and descriptions of topologies."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simcoll.config import text_table
from simcoll.report.result_tables import few
from simcoll.scenario.profile import load_network, shipped_profiles
from simcoll.scenario.scenario import SYNTHESIZED
from simcoll.scenario.scenario_files import shipped_scenarios
from simcoll.schedule import registry
from simcoll.schedule.collectives import COLLECTIVES
from simcoll.synthesis import synthesize
from simcoll.units import format_bandwidth
from simcoll.workload import compute, models
from simcoll.workload.workload_keys import templates


def listing(kind: str) -> str:
    """Return the text of `simcoll list` for a kind of things, e.g. algorithms."""
    listings: dict[str, Callable[[], str]] = {
        "algorithms": _algorithms,
        "collectives": lambda: _columns((c.name, c.summary) for c in COLLECTIVES.values()),
        "topologies": _topologies,
        "systems": _topologies,
        "scenarios": _scenarios,
        "profiles": lambda: _columns((name, load_network(name).description) for name in shipped_profiles()),
        "models": _models,
        "gpus": _gpus,
        "templates": lambda: _columns(templates().items()),
    }
    return listings[kind]()


def _columns(pairs: Any) -> str:
    table = list(pairs)
    width = max(len(name) for name, _ in table)
    return "\n".join(_listed(name, width, text) for name, text in table)


def _listed(name: str, width: int, text: str) -> str:
    """Return a name with a text beside it, wrapped to the terminal's width; a single line if stdout is no terminal."""
    if not sys.stdout.isatty():
        return f"{name:<{width}}  {text}"
    return text_table.wrapped(f"{name:<{width}}  {text}", " " * (width + 2))


def _algorithms() -> str:
    parts = []
    for which, entries in registry.ALGORITHMS.items():
        parts.append(f"{which}: {COLLECTIVES[which].summary}")
        parts += [_listed(f"  {entry.name}", 23, f"{entry.help}{_more(entry)}") for entry in entries.values()]
        parts += (
            [_listed(f"  {SYNTHESIZED}", 23, "made for the network, as `simcoll synthesize` does")]
            if which in synthesize.COLLECTIVES
            else []
        )
    return "\n".join(parts)


def _more(entry: registry.Algorithm) -> str:
    """Return a note on an algorithm: whether it takes groups, its options, its cost formula on a full mesh."""
    notes = ["takes groups"] if entry.uses_groups else []
    notes += [f"{key}={'|'.join(_short(values))}" for key, values in entry.options.items()]
    notes += [f"cost {entry.cost}"] if entry.cost else []
    return f" [{'; '.join(notes)}]" if notes else ""


def _short(values: Sequence[str]) -> Sequence[str]:
    return values if len(values) <= 6 else [*values[:3], "…", values[-1]]


def _topologies() -> str:
    from simcoll.topology.machine_files import shipped_systems
    from simcoll.topology.topology_builder import load_system

    return _columns((name, load_system(name).description) for name in shipped_systems())


def _scenarios() -> str:
    def first_comment(text: str) -> str:
        return next((line.lstrip("# ") for line in text.splitlines() if line.startswith("#")), "")

    return _columns((name, first_comment(path.read_text("utf-8"))) for name, path in shipped_scenarios().items())


def _models() -> str:
    whole = models.transformers()
    named = {name: f"{each.parameters / 1e9:.4g} B parameters; {each.source}" for name, each in whole.items()}
    tensors = {name: models.load_model(name) for name in models.models() if name not in whole}
    more = {name: f"{each.parameters / 1e6:.4g} M parameters; {each.source}" for name, each in tensors.items()}
    return _columns({**named, **more}.items())


def _gpus() -> str:
    def described(name: str, gpu: compute.Gpu) -> str:
        peaks = ", ".join(f"{dtype} {peak / 1e12:g}" for dtype, peak in gpu.peak.items())
        sizes = f"{gpu.memory / 1e9:g} GB at {gpu.hbm / 1e9:g} GB/s"
        return f"{gpu.text}: dense TFLOP/s {peaks}; {sizes}; times {compute.compute_of(name).label}"

    return _columns((name, described(name, gpu)) for name, gpu in compute.gpus().items())


def topology_text(system: Mapping[str, Any]) -> str:
    """Return a system's devices, links and bisection bandwidth as text."""
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
