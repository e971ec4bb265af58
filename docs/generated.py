"""What pages say that the code knows better: made anew whenever they are built, so that it cannot go stale.

In a page: a directive `generated` with the name of a function of this module, and its arguments.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import io
import json
import re
import shlex
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from simcoll import api
from simcoll.accuracy.diagnosis import hypotheses
from simcoll.cli import main
from simcoll.config.field_texts import field_texts, models
from simcoll.explanation import what_if
from simcoll.explanation.explained_run import explained_run
from simcoll.formats.measured.measured_row import COLUMNS, REQUIRED, MeasuredRow
from simcoll.prediction.result_rows import KINDS, TEXTS, UNITS
from simcoll.scenario import loading
from simcoll.scenario.profile import Profile
from simcoll.scenario.scenario import Scenario
from simcoll.schedule import registry
from simcoll.schedule.collectives import COLLECTIVES
from simcoll.topology.systems import load_system
from simcoll.units import format_duration, format_size

ROOT = Path(__file__).parents[1]
_HOLDS = {str: "text", int: "whole number", float: "number", bool: "`true` or `false`", dict: "mapping"}


def printed(command: str) -> str:
    """A command of simcoll, and what it prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = main(shlex.split(command)[1:])
    if status:
        raise ValueError(f"{command} ended with {status}")
    return f"````console\n$ {command}\n{out.getvalue().strip()}\n````\n"


def factors() -> str:
    """nccl-tests' factor from algbw to busbw of every collective."""
    forms = {
        "2(n−1)/n": lambda n: Fraction(2 * (n - 1), n),
        "(n−1)/n": lambda n: Fraction(n - 1, n),
        "1": lambda n: Fraction(1),
        "0": lambda n: Fraction(0),
    }
    rows = []
    for name, contract in COLLECTIVES.items():
        (form,) = (text for text, form in forms.items() if all(form(n) == contract.busbw(n) for n in (2, 3, 8, 1024)))
        rows.append((f"`{name}`", contract.summary, form, f"{float(contract.busbw(8)):g}"))
    return _table(("collective", "what it promises", "factor", "at 8 ranks"), rows)


def algorithms() -> str:
    """Every algorithm of every collective."""
    head = ("algorithm", "what it does", "takes", "closed form on a full mesh")
    parts = []
    for name, entries in registry.ALGORITHMS.items():
        rows = []
        for entry in entries.values():
            options = [f"`{key}={'|'.join(values)}`" for key, values in entry.options.items()]
            takes = ", ".join(["groups"] * entry.uses_groups + options)
            rows.append((f"`{entry.name}`", entry.help, takes, f"`{entry.cost}`" if entry.cost else ""))
        parts.append(f"### {name}\n\nWhat it promises: {COLLECTIVES[name].summary}.\n\n{_table(head, rows)}")
    return "\n".join(parts)


@functools.cache
def _schema() -> tuple[dict[str, Any], dict[str, str]]:
    """The JSON Schema of scenarios and profiles by model, and where each model stands: `topology.link` of Cable."""
    found = {"Scenario": Scenario.model_json_schema(by_alias=True), "Profile": Profile.model_json_schema(by_alias=True)}
    definitions = {name: model for root in found.values() for name, model in root["$defs"].items()}
    places = {"Scenario": "a scenario"}
    _find(found["Scenario"], "", definitions, places)
    places["Profile"] = "a profile"
    _find(found["Profile"], "", definitions, places)
    return {**definitions, **found}, places


def keys(names: str) -> str:
    """The keys of models, by name: meaning, what may be written, default. Above each table stands what the model is."""
    schemas, places = _schema()
    return "\n".join(_keys(name, places, schemas[name]) for name in names.split())


def _find(model: dict[str, Any], path: str, definitions: dict[str, Any], places: dict[str, str]) -> None:
    """Where each model may stand, by name, in the order of the keys."""
    for key, value in model.get("properties", {}).items():
        place = f"{path}.{key}".lstrip(".")
        for name in dict.fromkeys(re.findall(r"#/\$defs/(\w+)", json.dumps(value))):
            if name not in places:
                template = definitions[name]["properties"].get("template", {})
                kinds = [template["const"]] if "const" in template else template.get("enum", [])
                which = ", ".join(f"`{kind}`" for kind in kinds)
                places[name] = f"Template {which}" if kinds else f"`{place}`"
                _find(definitions[name], place, definitions, places)


def templates() -> str:
    """The templates of workloads: what each stands for."""
    schemas, places = _schema()
    rows = [
        (f"[{_names(schemas[name])}](#key-{name.lower()})", _about(name)) for name in places if _names(schemas[name])
    ]
    return _table(("template", "job"), rows)


def _names(model: dict[str, Any]) -> str:
    template = model["properties"].get("template", {})
    kinds = [template["const"]] if "const" in template else template.get("enum", [])
    return ", ".join(f"`{kind}`" for kind in kinds)


def _about(name: str) -> str:
    return " ".join(inspect.cleandoc(models()[name].__doc__ or "").split())


def changes(registry: str) -> str:
    """A table of code that maps names to texts, `module:NAME`: what each name means."""
    module, _, name = registry.partition(":")
    texts: dict[str, str] = getattr(importlib.import_module(module), name)
    return _table(("name", "meaning"), [(f"`{key}`", text) for key, text in texts.items()])


_WAYS = {  # studies of the report: fitted to, scored on
    "1-half": ("every second size", "the other sizes"),
    "2-to-8-ranks": ("2 and 4 ranks", "8 ranks"),
    "3-from-all-reduce": ("all-reduce", "the other collectives"),
    "4-both": ("all-reduce on 2 and 4 ranks", "the other collectives on 8"),
    "7-unknown-generation": ("another generation, only the launch anew", "all sizes above 512 B"),
    "5-large": ("8 to 32 MiB and 256 MiB", "64, 128 and 512 MiB"),
}


def accuracy() -> str:
    """Mean absolute errors of the last `make accuracy` by way of fitting and system; in brackets NCCL's tuner's."""
    report = (ROOT / "validation/accuracy/REPORT.md").read_text(encoding="utf-8")
    rows = []
    for study, way in _WAYS.items():
        section = report.split(f"## {study}: ")[1].split("\n## ")[0]
        table = section.split("| fit | rows | **simcoll** | NCCL's tuner |")[1].split("\n\n")[0]
        errors = re.findall(r"^\| [\w-]+, \w+ \| \d+ \| ([\d.]+) \| ([\d.]+) \|", table, re.M)
        rows.append((*way, *(f"{ours} ({tuner})" for ours, tuner in errors)))
    return _table(("fitted to", "scored on", "A100", "H100", "B200"), rows)


def hypotheses_tried() -> str:
    """What `simcoll diagnose` tries on the shipped systems, each family once; systems and kinds of links as one."""
    found: dict[str, str] = {}
    for system, many in (("hgx-h100", 1), ("hgx-h100", 2), ("l40s-pcie", 1)):
        keys = {"topology": {"system": system, "nodes": many}, "dtype": "float16", "algorithm": "auto"}
        profile = load_system(system).profile
        sizes = ["1 KiB", "4 MiB", "64 MiB"]
        calls = ["all_reduce", "all_gather", "all_to_all"]
        points = api.load({**keys, "profile": profile, "collective": calls, "size": sizes})
        scenarios = [point.scenario for point in points]
        kinds = {link.kind for link in load_system(system).links} | ({"cable"} if many > 1 else set())
        for family in hypotheses.candidates(scenarios, sorted(kinds - {"memory", "socket"})):
            name, text = family[0].family, family[0].text
            for kind in kinds:
                name, text = name.replace(f"slow {kind}", "slow KIND"), text.replace(f"kind {kind} ", "kind KIND ")
            if " with " in name:
                name, text = "HOW with NICS", "two of these at once: how data leave a node, and by which of its NICs"
            if name.startswith("like "):
                name, text = "like SYSTEM", "it was measured on another machine, one like that shipped system"
            found.setdefault(name, text)
    return _table(("hypothesis", "what is simulated"), [(f"`{name}`", text) for name, text in found.items()])


def what_ifs(point: str) -> str:
    """What `simcoll explain` tries on a point: a scenario and assignments. Nothing is simulated with the changes."""
    name, *assignments = shlex.split(point)
    (one,) = loading.load(name, assignments)
    tried = [change for change, _ in what_if.changes(explained_run(one)) if not change.startswith("algorithm ")]
    return "".join(f"* {change}\n" for change in [*tried, "every other algorithm that serves"])


def columns() -> str:
    """The columns of results.csv, in their order: type, unit and meaning of each."""
    rows = [(f"`{column}`", _HOLDS[kind], UNITS[column], TEXTS[column]) for column, kind in KINDS.items()]
    return _table(("column", "holds", "unit", "meaning"), rows)


def measured_columns() -> str:
    """The columns of a measured table that have a meaning, and which of them a table must have."""
    columns = [f for f in dataclasses.fields(MeasuredRow) if f.name in COLUMNS]
    return _table(
        ("column", "holds", "needed"),
        [(f"`{f.name}`", _plain(str(f.type)), "yes" if f.name in REQUIRED else "") for f in columns],
    )


def _plain(kind: str) -> str:
    kinds: dict[str, type] = {"str": str, "int": int, "float": float}
    return _HOLDS[kinds[kind.removesuffix(" | None")]]


def _keys(name: str, places: dict[str, str], model: dict[str, Any]) -> str:
    texts, rows = field_texts(models()[name]), []
    for key, value in model["properties"].items():
        needed = key in model.get("required", ()) and (name, key) != ("Scenario", "collective")
        default = "needed" if needed else _default(value)
        rows.append((f"`{key}`", texts.get(key, ""), _kind(value, places), default))
    table = _table(("key", "meaning", "value", "default"), rows)
    return f"(key-{name.lower()})=\n### {places[name]}\n\n{_about(name)}\n\n{table}"


def _default(key: dict[str, Any]) -> str:
    value, example = key.get("default"), str((key.get("examples") or [""])[0])
    if value in (None, [], {}) or isinstance(value, dict):
        return ""
    if example.endswith("us") and isinstance(value, int):
        return f"`{format_duration(value)}`"
    return f"`{format_size(value)}`" if example.endswith("iB") and value else f"`{json.dumps(value)}`"


def _kind(value: dict[str, Any], places: dict[str, str]) -> str:
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        if name == "Calibration":
            return "record that `simcoll calibrate` writes"
        return f"[{places[name]}](#key-{name.lower()})"
    if "enum" in value:
        return ", ".join(f"`{choice}`" for choice in value["enum"])
    if "const" in value:
        return f"`{json.dumps(value['const'])}`"
    for union in ("anyOf", "oneOf"):
        if union in value:
            return " or ".join(
                dict.fromkeys(_kind(part, places) for part in value[union] if part.get("type") != "null")
            )
    if value.get("type") == "array":
        inner = _kind(value["items"], places) if value.get("items") else ""
        return f"list of {inner}" if inner else "list"
    if value.get("type") == "object":
        inner = value.get("additionalProperties")
        return f"mapping to {_kind(inner, places)}" if isinstance(inner, dict) else "mapping"
    example = f", e.g. `{value['examples'][0]}`" if value.get("examples") else ""
    words = {"string": "text", "integer": "whole number", "number": "number", "boolean": "`true` or `false`"}
    kinds = value.get("type", "")
    several = kinds if isinstance(kinds, list) else [kinds]
    return " or ".join(words.get(kind, "anything") for kind in several) + example


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines) + "\n"


class Generated(SphinxDirective):
    """`{generated} NAME ARGUMENT`: the Markdown that a function of this module gives."""

    required_arguments = 1
    final_argument_whitespace = True
    MAKERS: ClassVar = {
        "printed": printed,
        "factors": factors,
        "algorithms": algorithms,
        "keys": keys,
        "templates": templates,
        "table": changes,
        "hypotheses": hypotheses_tried,
        "accuracy": accuracy,
        "what-ifs": what_ifs,
        "columns": columns,
        "measured-columns": measured_columns,
    }

    def run(self) -> list[nodes.Node]:
        """The nodes of the text."""
        name, _, argument = self.arguments[0].partition(" ")
        return self.parse_text_to_nodes(
            self.MAKERS[name](*([argument] if argument else [])), allow_section_headings=True
        )


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("generated", Generated)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
