"""What pages say that the code knows better: made anew whenever they are built, so that it cannot go stale.

In a page: a directive `generated` with the name of a function of this module, and its arguments.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
import shlex
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from simcoll.cli import main
from simcoll.formats.measured._rows import REQUIRED, MeasuredRow
from simcoll.prediction import result_rows
from simcoll.scenario.scenario import Scenario
from simcoll.schedule import registry
from simcoll.schedule.collectives import COLLECTIVES

_HOLDS = {str: "text", int: "whole number", float: "number", bool: "`true` or `false`"}


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


def keys() -> str:
    """Every key of a scenario and of what stands under it: what may be written, and the default."""
    schema = Scenario.model_json_schema(by_alias=True)
    places = {"": "a scenario"}
    _find(schema, "", schema["$defs"], places)
    parts = [_keys("", places, schema)]
    return "\n".join(parts + [_keys(name, places, schema["$defs"][name]) for name in places if name])


def _find(model: dict[str, Any], path: str, definitions: dict[str, Any], places: dict[str, str]) -> None:
    """Where each model may stand in a scenario, by name, in the order of the keys."""
    for key, value in model.get("properties", {}).items():
        place = f"{path}.{key}".lstrip(".")
        for name in dict.fromkeys(re.findall(r"#/\$defs/(\w+)", json.dumps(value))):
            if name not in places:
                template = definitions[name]["properties"].get("template", {})
                kinds = [template["const"]] if "const" in template else template.get("enum", [])
                which = " or ".join(f"`{kind}`" for kind in kinds)
                places[name] = f"`{place}`" + (f" of the template {which}" if kinds else "")
                _find(definitions[name], place, definitions, places)


def columns() -> str:
    """The columns of results.csv, in their order, and what each holds."""
    rows = [(f"`{column}`", _HOLDS[kind]) for column, kind in result_rows.kinds([]).items()]
    return _table(("column", "holds"), rows)


def measured_columns() -> str:
    """The columns of a measured table that have a meaning, and which of them a table must have."""
    columns = [f for f in dataclasses.fields(MeasuredRow) if f.name not in ("others", "place")]
    return _table(
        ("column", "holds", "needed"),
        [(f"`{f.name}`", _plain(str(f.type)), "yes" if f.name in REQUIRED else "") for f in columns],
    )


def _plain(kind: str) -> str:
    kinds: dict[str, type] = {"str": str, "int": int, "float": float}
    return _HOLDS[kinds[kind.removesuffix(" | None")]]


def _keys(name: str, places: dict[str, str], model: dict[str, Any]) -> str:
    rows = []
    for key, value in model["properties"].items():
        needed = key in model.get("required", ()) and (name or key != "collective")
        rows.append((f"`{key}`", _kind(value, places), "needed" if needed else _default(value.get("default"))))
    about = " ".join(model["description"].split()) if name else ""
    table = _table(("key", "what may be written", "default"), rows)
    return f"(key-{name.lower()})=\n### {places[name]}\n\n{about}\n\n{table}"


def _default(value: object) -> str:
    return "" if value in (None, [], {}) or isinstance(value, dict) else f"`{json.dumps(value)}`"


def _kind(value: dict[str, Any], places: dict[str, str]) -> str:
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
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
