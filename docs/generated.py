"""Tables of the pages that the code knows better: `make docs` writes them into the Markdown, between two comments.

In a page: `<!-- generated: NAME ARGUMENT -->`, the table, `<!-- end -->`. NAME is a key of `TABLES` below.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import json
import re
import shlex
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import click
import yaml

import simcoll
from simcoll import api, errors
from simcoll.accuracy.diagnosis import hypotheses
from simcoll.cli._group import cli
from simcoll.config.yaml_tree import field_texts, models
from simcoll.explanation import what_if
from simcoll.explanation.explained_run import explained_run
from simcoll.formats.measured.measured_row import COLUMNS, REQUIRED, MeasuredRow
from simcoll.prediction.result_rows import KINDS, TEXTS, UNITS
from simcoll.scenario import scenario_files
from simcoll.scenario.profile import Profile
from simcoll.scenario.scenario import Scenario
from simcoll.schedule import registry
from simcoll.schedule.collectives import COLLECTIVES
from simcoll.topology.topology_builder import load_system
from simcoll.units import format_duration, format_size

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
BETWEEN: Final = re.compile(r"(<!-- generated: ([\w-]+)(?: ([^\n]*?))? -->\n).*?(<!-- end -->)", re.S)
_HOLDS = {str: "text", int: "whole number", float: "number", bool: "`true` or `false`", dict: "mapping"}


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
    head = ("algorithm", "what it does", "takes", "messages", "closed form on a full mesh")
    parts = []
    for name, entries in registry.ALGORITHMS.items():
        rows = []
        for entry in entries.values():
            options = [f"`{key}={'|'.join(values)}`" for key, values in entry.options.items()]
            takes = ", ".join(["groups"] * entry.uses_groups + options)
            forms = (f"`{form}`" if form else "" for form in (entry.messages, entry.cost))
            rows.append((f"`{entry.name}`", entry.help, takes, *forms))
        parts.append(f"### {name}\n\nWhat it promises: {COLLECTIVES[name].summary}.\n\n{_table(head, rows)}")
    return "\n".join(parts)


@functools.cache
def _schema() -> tuple[dict[str, Any], dict[str, str]]:
    """The JSON Schemas of all models by name, and the heading of each: `topology.link` is that of Cable."""
    found = {"Scenario": Scenario.model_json_schema(by_alias=True), "Profile": Profile.model_json_schema(by_alias=True)}
    definitions = {name: model for root in found.values() for name, model in root["$defs"].items()}
    headings = {"Scenario": "a scenario"}
    _find(found["Scenario"], "", definitions, headings)
    headings["Profile"] = "a profile"
    _find(found["Profile"], "", definitions, headings)
    return {**definitions, **found}, headings


@functools.cache
def _pages() -> dict[str, str]:
    """The page that shows each model, by the model's name."""
    shown = {}
    for page in PAGES:
        for names in re.findall(r"<!-- generated: keys (.*?) -->", page.read_text(encoding="utf-8")):
            shown.update(dict.fromkeys(names.split(), page.name))
    return shown


def _link(name: str, text: str) -> str:
    """A link to the table of a model."""
    heading = re.sub(r"[^\w -]", "", _schema()[1][name].lower()).replace(" ", "-")
    return f"[{text}]({_pages()[name]}#{heading})"


def keys(names: str) -> str:
    """The keys of models: the meaning of each, its values and its default."""
    return "\n".join(map(_keys, names.split()))


def _find(model: dict[str, Any], path: str, definitions: dict[str, Any], headings: dict[str, str]) -> None:
    """Enter the heading of each model below a model, in the order of the keys: first of the models that are next."""
    entered = {}
    for key, value in model.get("properties", {}).items():
        place = f"{path}.{key}".lstrip(".")
        for name in dict.fromkeys(re.findall(r"#/\$defs/(\w+)", json.dumps(value))):
            if name not in headings:
                kinds = _kinds(definitions[name])
                headings[name] = f"Template {kinds}" if kinds else f"`{place}`"
                entered[name] = place
    for name, place in entered.items():
        _find(definitions[name], place, definitions, headings)


def templates() -> str:
    """The templates of workloads: the job that each stands for."""
    schemas, headings = _schema()
    rows = [(_link(name, kinds), _about(name)) for name in headings if (kinds := _kinds(schemas[name]))]
    return _table(("template", "job"), rows)


def _kinds(model: dict[str, Any]) -> str:
    """The values of the key `template` of a model; empty for other models."""
    template = model["properties"].get("template", {})
    kinds = [template["const"]] if "const" in template else template.get("enum", [])
    return ", ".join(f"`{kind}`" for kind in kinds)


def _about(name: str) -> str:
    return _first(models()[name])


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


def accuracy(studies: str = " ".join(_WAYS)) -> str:
    """Mean absolute errors of the last `make accuracy`, by study and system; in brackets those of NCCL's tuner."""
    report = (ROOT / "validation/accuracy/REPORT.md").read_text(encoding="utf-8")
    rows = []
    for study in studies.split():
        section = report.split(f"## {study}: ")[1].split("\n## ")[0]
        table = section.split("| fit | rows | **simcoll** | NCCL's tuner |")[1].split("\n\n")[0]
        errors = re.findall(r"^\| [\w-]+, \w+ \| \d+ \| ([\d.]+) \| ([\d.]+) \|", table, re.M)
        rows.append((*_WAYS[study], *(f"{ours} ({tuner})" for ours, tuner in errors)))
    return _table(("fitted to", "scored on", "A100", "H100", "B200"), rows)


def optima() -> str:
    """The networks whose optima are known, and these in GB/s; without the switch to which the formula of cuts does not
    apply."""
    known = yaml.safe_load((ROOT / "validation/synthesis.yaml").read_text(encoding="utf-8"))
    columns = ("all_gather", "one_tree", "plain", "all_reduce")
    head = (
        "network",
        "ranks",
        "all_gather",
        "of it with one tree a rank",
        "reduce_scatter, then all_gather",
        "all_reduce",
    )
    balanced = (each for each in known if each["name"] != "star8-unb")
    rows = ((each["name"], str(each["ranks"]), *(str(each.get(name, "")) for name in columns)) for each in balanced)
    return _table(head, rows)


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
    (one,) = scenario_files.load(name, assignments)
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


def _keys(name: str) -> str:
    schemas, headings = _schema()
    texts, rows, model = field_texts(models()[name]), [], schemas[name]
    for key, value in model["properties"].items():
        needed = key in model.get("required", ()) and (name, key) != ("Scenario", "collective")
        rows.append((f"`{key}`", texts.get(key, ""), _value(value), "needed" if needed else _default(value)))
    return f"### {headings[name]}\n\n{_about(name)}\n\n{_table(('key', 'meaning', 'value', 'default'), rows)}"


def _default(key: dict[str, Any]) -> str:
    value, example = key.get("default"), str((key.get("examples") or [""])[0])
    if value in (None, [], {}) or isinstance(value, dict):
        return ""
    if example.endswith("us") and isinstance(value, int):
        return f"`{format_duration(value)}`"
    return f"`{format_size(value)}`" if example.endswith("iB") and value else f"`{json.dumps(value)}`"


def _value(value: dict[str, Any]) -> str:
    """The values that a key takes, from its JSON Schema."""
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        if name == "Calibration":
            return "record that `simcoll calibrate` writes"
        return _link(name, _schema()[1][name])
    if "enum" in value:
        return ", ".join(f"`{choice}`" for choice in value["enum"])
    if "const" in value:
        return f"`{json.dumps(value['const'])}`"
    for union in ("anyOf", "oneOf"):
        if union in value:
            return " or ".join(dict.fromkeys(_value(part) for part in value[union] if part.get("type") != "null"))
    if value.get("type") == "array":
        inner = _value(value["items"]) if value.get("items") else ""
        return f"list of {inner}" if inner else "list"
    if value.get("type") == "object":
        inner = value.get("additionalProperties")
        return f"mapping to {_value(inner)}" if isinstance(inner, dict) else "mapping"
    example = f", e.g. `{value['examples'][0]}`" if value.get("examples") else ""
    words = {"string": "text", "integer": "whole number", "number": "number", "boolean": "`true` or `false`"}
    kinds = value.get("type", "")
    several = kinds if isinstance(kinds, list) else [kinds]
    return " or ".join(words.get(kind, "anything") for kind in several) + example


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines) + "\n"


def commands() -> str:
    """Each command with its options, as `--help` prints it."""
    context = click.Context(cli, info_name="simcoll", help_option_names=["-h", "--help"], terminal_width=100)
    known = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    return "\n".join(_help(name, command, context) for name, command in known.items() if command)


def _help(name: str, command: click.Command, above: click.Context) -> str:
    context = click.Context(command, info_name=name, parent=above)
    text = f"## {context.command_path.removeprefix('simcoll ')}\n\n```text\n{command.get_help(context)}\n```\n"
    below = command.commands if isinstance(command, click.Group) else {}
    return "\n".join([text, *(_help(each, below[each], context) for each in below)])


def names_of_python() -> str:
    """Every name of `import simcoll`: its arguments, its docstring, and the members of classes."""
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.SimcollError)]
    known = "".join(f"* `{kind.__name__}`: {_first(kind)}\n" for kind in kinds)
    entries = [_entry(name, getattr(simcoll, name)) for name in simcoll.__all__]
    return "\n".join([*entries, f"### Errors\n\nAll of them are a `SimcollError`, of `simcoll.errors`.\n\n{known}"])


def _entry(name: str, value: Any) -> str:
    parts = [f"### {name}"]
    made = vars(value).get("__init__") if inspect.isclass(value) and not dataclasses.is_dataclass(value) else value
    if inspect.isfunction(made):
        signature = inspect.signature(made)
        bare = [each.replace(annotation=each.empty) for each in signature.parameters.values() if each.name != "self"]
        line = f"`{name}{signature.replace(parameters=bare, return_annotation=signature.empty)}`"
        parts.append(re.sub(r"<function [^>]*( at \w+|>\S* at \w+)>", "…", line))
    parts.append(_docstring(value))
    if inspect.isclass(value):
        own = [each for each in value.__mro__ if each is value or each.__name__.startswith("_")]  # and private bases
        members = {key: each for kind in own for key, each in vars(kind).items()}
        about = {key: _first(each) for key, each in members.items() if key[0] != "_" and _has_text(value, key)}
        parts += ["\n".join(f"* `{key}`: {text}" for key, text in about.items())] * bool(about)
    return "\n\n".join(parts) + "\n"


def _has_text(owner: type, member: str) -> bool:
    """Whether a member is a method or a property, with a docstring of its own."""
    value = inspect.getattr_static(owner, member)
    kinds = property | functools.cached_property | classmethod | staticmethod
    return bool(value.__doc__) and (callable(value) or isinstance(value, kinds))


def _first(value: Any) -> str:
    """The first paragraph of a docstring, as one line."""
    return " ".join(_docstring(value).split("\n\n")[0].split())


def _docstring(value: Any) -> str:
    """The docstring of a value without its examples, which tests run."""
    return inspect.cleandoc(value.__doc__ or "").split("\n>>>")[0].strip()


TABLES: Final[dict[str, Callable[..., str]]] = {
    "accuracy": accuracy,
    "algorithms": algorithms,
    "columns": columns,
    "commands": commands,
    "factors": factors,
    "hypotheses": hypotheses_tried,
    "keys": keys,
    "measured-columns": measured_columns,
    "optima": optima,
    "python": names_of_python,
    "table": changes,
    "templates": templates,
    "what-ifs": what_ifs,
}


def filled(page: str) -> str:
    """The text of a page, its tables made anew."""

    def table(found: re.Match[str]) -> str:
        opening, name, argument, end = found.groups()
        return f"{opening}\n{TABLES[name](*([argument] if argument else [])).strip()}\n\n{end}"

    return BETWEEN.sub(table, page)


def main() -> None:
    """Write the tables of all pages."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (new := filled(text)) != text:
            page.write_text(new, encoding="utf-8")
            print(f"{page.relative_to(ROOT)}: its tables were made anew")


if __name__ == "__main__":
    main()
