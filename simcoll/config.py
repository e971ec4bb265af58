"""YAML files as trees of located values: strict, YAML 1.2, and every complaint with file, line, column and cure.

The only module that knows YAML. `read` gives a `Node` tree in which every value and every key remembers its place;
`variants` multiplies out lists and ranges; `validate` hands plain values to a pydantic model and turns all its
complaints into located diagnostics.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from simcoll import units
from simcoll.errors import Diagnostic, InputError, Place, did_you_mean

MAX_FILE_BYTES: Final = 16 * 2**20
MAX_NODES: Final = 200_000  # an alias bomb is small on disk and huge when walked
MAX_VARIANTS: Final = 1_000_000

_Base: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Yaml12(_Base):  # type: ignore[misc]  # libyaml's loader where it was built, the Python one elsewhere
    """YAML 1.2 core schema: `on` and `12:30` are strings, `1e9` is a number, `0o17` is octal, `017` is 17."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
):
    _Yaml12.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), [*_first, ""] if _tag == "null" else list(_first)
    )


def _integer(loader: Any, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    return int(text, 0) if text[:2] in ("0o", "0x") else int(text)


_Yaml12.add_constructor("tag:yaml.org,2002:int", _integer)


class Model(BaseModel):
    """Base of everything that is read from a file: unknown keys are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, arbitrary_types_allowed=True)


M = TypeVar("M", bound=BaseModel)

TAG: Final = "<"  # what the names of a tagged union's branches begin with


@dataclass(frozen=True)
class Node:
    """A value with its place; mappings also know where each key stands."""

    value: Any  # dict[str, Node], list[Node] or a scalar
    place: Place
    keys: Mapping[str, Place] = field(default_factory=dict)
    broken: bool = False  # already complained about

    def plain(self) -> Any:
        """The value without places, as pydantic wants it."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value

    def get(self, key: str) -> Node | None:
        """The child at `key`, if this is a mapping that has it."""
        return self.value.get(key) if isinstance(self.value, dict) else None


def located(value: Any, place: Place) -> Node:
    """Plain values as a tree, all at one place."""
    if isinstance(value, dict):
        return Node({key: located(child, place) for key, child in value.items()}, place, dict.fromkeys(value, place))
    if isinstance(value, list):
        return Node([located(child, place) for child in value], place)
    return Node(value, place)


def shipped(kind: str) -> Path:
    """The folder of shipped files (`topologies`, `scenarios`, `measured`), in a checkout or in an installed wheel."""
    package = Path(__file__).parent
    in_wheel = package / "shipped" / kind
    if in_wheel.is_dir():
        return in_wheel
    return package.parent / ("validation/measured" if kind == "measured" else kind)


def read(path: Path, name: str | None = None, errors: list[Diagnostic] | None = None) -> Node:
    """Read one YAML document.

    Raises InputError if the file is missing, too large, not YAML, or has a key twice; mistakes after which reading can
    go on are collected in `errors` where that is given.
    """
    source = name or str(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(f"{source}: cannot be read: {error.strerror}", "give the path of a YAML file") from None
    if len(data) > MAX_FILE_BYTES:
        raise InputError(f"{source}: larger than {units.format_size(MAX_FILE_BYTES)}", "split the file")
    return parse(data.decode("utf-8", errors="replace"), source, errors)


def parse(text: str, source: str, errors: list[Diagnostic] | None = None) -> Node:
    """Parse YAML text; `source` names it in errors."""
    found: list[Diagnostic] = []
    try:
        loader = _Yaml12(text)
        try:
            root = loader.get_single_node()
            tree = _locate(loader, root, source, found, itertools.count()) if root else None
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = Place(source, mark.line + 1, mark.column + 1) if mark else Place(source, 1, 1)
        what = " ".join(str(getattr(error, "problem", None) or error).split())
        raise InputError([Diagnostic(f"not YAML: {what}", "check indentation, colons and quotes", "", place)]) from None
    except RecursionError:
        raise InputError(f"{source}: nested too deeply", "flatten the file") from None
    if errors is not None:
        errors += found
    elif found:
        raise InputError(found)
    return tree or Node({}, Place(source, 1, 1))


def _locate(loader: Any, node: yaml.Node, source: str, errors: list[Diagnostic], visits: Iterator[int]) -> Node:
    if next(visits) > MAX_NODES:
        raise InputError(f"{source}: more than {MAX_NODES} values once aliases are expanded", "write a smaller file")
    place = _place(node, source)
    if isinstance(node, yaml.CollectionNode) and node.tag not in ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
        errors.append(Diagnostic(f"a value of the kind {node.tag} is not understood", "write plain YAML", "", place))
    if isinstance(node, yaml.MappingNode):
        children: dict[str, Node] = {}
        keys: dict[str, Place] = {}
        for key_node, value_node in node.value:
            key, key_place = str(loader.construct_object(key_node, deep=True)), _place(key_node, source)
            if key in keys:
                first = keys[key]
                what = f"key {key!r} stands twice (first in line {first.line}, column {first.column})"
                errors.append(Diagnostic(what, "keep one of them", key, key_place))
                continue
            keys[key] = key_place
            children[key] = _locate(loader, value_node, source, errors, visits)
        return Node(children, place, keys)
    if isinstance(node, yaml.SequenceNode):
        return Node([_locate(loader, child, source, errors, visits) for child in node.value], place)
    try:
        value = loader.construct_object(node, deep=True)
    except (yaml.YAMLError, ValueError):
        errors.append(Diagnostic(f"a value of the kind {node.tag} is not understood", "write plain YAML", "", place))
        value = None
    return Node(value, place)


def _place(node: yaml.Node, source: str) -> Place:
    return Place(source, node.start_mark.line + 1, node.start_mark.column + 1)


def assign(tree: Node, option: str, index: int) -> Node:
    """Apply one `--set PATH=VALUE`; the right side is YAML, missing keys are created.

    Raises InputError when the option has no `=` or the path runs through a value that is not a mapping.
    """
    source = f"--set[{index}]"
    path, equals, text = option.partition("=")
    if not equals or not path.strip():
        raise InputError(f"{source}: {option!r} is not PATH=VALUE", "write e.g. --set model.sharing=fifo")
    try:
        value = parse(" " * (len(path) + 1) + text, source) if text.strip() else Node(None, Place(source, 1, 1))
    except InputError as error:
        raise InputError(replace(d, place=Place(source, 1, len(path) + 2)) for d in error.diagnostics) from None
    return _assigned(tree, path.strip().split("."), value, Place(source, 1, 1))


def _assigned(tree: Node, keys: Sequence[str], value: Node, place: Place) -> Node:
    if not keys:
        return value
    if tree.value is not None and not isinstance(tree.value, dict):
        what = f"{keys[0]!r} cannot be set: its parent is not a mapping"
        raise InputError([Diagnostic(what, "set the parent instead", "", place)])
    children: dict[str, Node] = dict(tree.value or {})
    children[keys[0]] = _assigned(children.get(keys[0], Node(None, place)), keys[1:], value, place)
    return Node(children, tree.place, {**tree.keys, keys[0]: tree.keys.get(keys[0], place)})


# --- lists and ranges ---------------------------------------------------------------------------------------------


def variants(tree: Node, natural_lists: frozenset[str], errors: list[Diagnostic]) -> list[Node]:
    """Every combination of the listed values, the last key of the file varying fastest.

    Below a key of `natural_lists` a list is a value and not a sweep. A mapping with `from` and `to` is a range.
    An empty list, a range that does not grow and more than MAX_VARIANTS combinations are entered in `errors`.
    """
    return _variants(tree, natural_lists, "", errors)


def _variants(tree: Node, natural: frozenset[str], path: str, errors: list[Diagnostic]) -> list[Node]:
    if isinstance(tree.value, list):
        if not tree.value:
            errors.append(Diagnostic("an empty list", "give at least one value", path, tree.place))
            return [_broken(tree)]
        return [v for i, child in enumerate(tree.value) for v in _variants(child, natural, f"{path}.{i}", errors)]
    if not isinstance(tree.value, dict):
        return [tree]
    if "from" in tree.value or ("to" in tree.value and "factor" in tree.value):
        return _range(tree, path, errors)
    axes = [
        [child] if key in natural else _variants(child, natural, f"{path}.{key}".strip("."), errors)
        for key, child in tree.value.items()
    ]
    count = 1
    for axis in axes:
        count *= len(axis)
    if count > MAX_VARIANTS:
        errors.append(Diagnostic(f"{count} combinations", f"keep below {MAX_VARIANTS}", path, tree.place))
        return [_broken(tree)]
    if count == 1:
        return [Node({k: a[0] for k, a in zip(tree.value, axes, strict=True)}, tree.place, tree.keys)]
    return [
        Node(dict(zip(tree.value, choice, strict=True)), tree.place, tree.keys) for choice in itertools.product(*axes)
    ]


def _broken(tree: Node) -> Node:
    return Node(None, tree.place, tree.keys, broken=True)


def _range(tree: Node, path: str, errors: list[Diagnostic]) -> list[Node]:
    """`{from: 1 KiB, to: 1 GiB, factor: 4}` or `{from: 1, to: 9, step: 2}`; both ends count."""
    before = len(errors)
    for key, place in tree.keys.items():
        if key not in ("from", "to", "factor", "step"):
            what = f"unknown key {key!r} in a range"
            errors.append(Diagnostic(what, did_you_mean(key, ("from", "to", "factor", "step")), f"{path}.{key}", place))
    missing = [key for key in ("from", "to") if key not in tree.value]
    if missing:
        errors.append(Diagnostic(f"a range without {missing[0]!r}", "give from and to", path, tree.place))
    if ("factor" in tree.value) == ("step" in tree.value):
        what = "a range has either 'factor' or 'step'"
        errors.append(Diagnostic(what, "write e.g. {from: 1 KiB, to: 1 GiB, factor: 4}", path, tree.place))
    if len(errors) > before:
        return [_broken(tree)]
    numbers: dict[str, tuple[Fraction, units.Kind | None]] = {}
    for key, child in tree.value.items():
        try:
            numbers[key] = _number(child.value)
        except ValueError as error:
            errors.append(_diagnostic(str(error), f"{path}.{key}", child.place))
    if len(errors) > before:
        return [_broken(tree)]
    (start, kind), (stop, stop_kind) = numbers["from"], numbers["to"]
    how = "factor" if "factor" in numbers else "step"
    pace, pace_kind = numbers[how]
    where = tree.value[how].place
    if kind != stop_kind:
        errors.append(Diagnostic("from and to are of different kinds", "give both the same unit", path, tree.place))
    elif how == "factor" and (pace_kind is not None or pace <= 1):
        errors.append(Diagnostic(f"factor {pace} does not grow", "write a factor above 1", f"{path}.factor", where))
    elif how == "step" and (pace_kind != kind or pace <= 0):
        errors.append(Diagnostic("a step that does not grow", "write a step above 0", f"{path}.step", where))
    elif stop < start or (how == "factor" and start <= 0):
        what = "the range is empty" if stop < start else "a range by factor cannot start at 0"
        errors.append(Diagnostic(what, "let from be above 0 and at most to", path, tree.place))
    elif how == "step" and (stop - start) / pace > MAX_VARIANTS:
        errors.append(Diagnostic("a range of too many values", f"keep below {MAX_VARIANTS}", path, tree.place))
    if len(errors) > before:
        return [_broken(tree)]
    values, value = [], start
    while value <= stop:
        values.append(value)
        value = value * pace if how == "factor" else value + pace
    whole = kind is not None or (start.denominator == 1 and pace.denominator == 1)
    return [Node(_ranged(value, kind, whole), tree.place) for value in values]


def _number(value: object) -> tuple[Fraction, units.Kind | None]:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not a number; write e.g. 8 or '64 MiB'")
    if isinstance(value, str):
        kind = units.kind_of(value)
        if kind is None:
            raise ValueError(f"{value!r} is not a quantity; write a number with a unit, e.g. '64 MiB'")
        return units.parse_exact(value, kind), kind
    return Fraction(value).limit_denominator(10**9), None


def _ranged(value: Fraction, kind: units.Kind | None, whole: bool) -> object:
    if kind == "size":  # a range by a broken factor still has sizes that every dtype divides
        return f"{int(value) if value.denominator == 1 else int(value) // 8 * 8} B"
    if kind is not None:
        base = {"bandwidth": "B/s", "duration": "ps", "share": "%", "byte_time": "ps/B"}[kind]
        number = value * 100 if kind == "share" else value
        return f"{float(number)!r} {base}" if number.denominator != 1 else f"{int(number)} {base}"
    return int(value) if whole else float(value)


# --- validation ---------------------------------------------------------------------------------------------------


def validate(model: type[M], trees: Sequence[Node], mistakes: Sequence[Diagnostic] = ()) -> list[M]:
    """Every tree as a `model`; raises InputError with all mistakes of all trees, and those made before, each once."""
    found: list[M] = []
    errors: dict[tuple[Place | None, str], Diagnostic] = {(d.place, d.what): d for d in mistakes}
    for tree in trees:
        try:
            found.append(model.model_validate(tree.plain()))
        except ValidationError as error:
            for diagnostic in _located(error, model, tree):
                errors.setdefault((diagnostic.place, diagnostic.what), diagnostic)
    if errors:
        raise InputError(sorted(errors.values(), key=lambda d: (d.place is None, d.place)))
    return found


def _located(error: ValidationError, model: type[BaseModel], tree: Node) -> Iterator[Diagnostic]:
    details = error.errors(include_url=False)
    unknown = {detail["loc"] for detail in details if detail["type"] == "extra_forbidden"}
    for detail in details:
        node, place, path = tree, tree.place, []
        for part in detail["loc"]:
            children = node.value
            if isinstance(children, dict) and str(part) in children:
                node, place = children[str(part)], node.keys.get(str(part), node.place)
            elif isinstance(children, list) and isinstance(part, int) and part < len(children):
                node, place = children[part], children[part].place
            elif str(part).startswith(TAG):
                continue  # the branch of a union, not a key of the file
            path.append(str(part))
        if node.broken:
            continue
        if detail["type"] == "missing" and any(loc[:-1] == detail["loc"][:-1] for loc in unknown):
            continue  # a misspelt key is one mistake, and its own line says what was meant
        where = place if detail["type"] in ("extra_forbidden", "missing") else node.place
        text = _wording(detail)
        if detail["type"] == "extra_forbidden":
            text += f"; {did_you_mean(path[-1], _keys_at(model, detail['loc'][:-1]))}"
        yield _diagnostic(text, ".".join(path), where)


def _wording(detail: Any) -> str:
    kind, value, context = detail["type"], detail.get("input"), detail.get("ctx", {})
    shown = "nothing" if value is None else repr(value) if isinstance(value, str | int | float) else "this"
    if kind == "extra_forbidden":
        return f"unknown key {detail['loc'][-1]!r}"
    if kind == "missing":
        return f"missing key {detail['loc'][-1]!r}; add it"
    if kind == "literal_error":
        choices = re.findall(r"\w[\w-]*", context["expected"].replace(" or ", ","))
        return f"{shown} is not known; {did_you_mean(str(value), choices)}"
    if kind.startswith("int") or kind in ("float_type", "float_parsing"):
        return f"{shown} is not a {'whole ' if kind.startswith('int') else ''}number; write e.g. 2"
    if kind.startswith(("greater_than", "less_than")):
        sign = {"greater_than": "above", "less_than": "below"}.get(kind)
        sign = sign or ("at least" if kind.startswith("greater") else "at most")
        limit = next(iter(context.values()))
        return f"{shown} is out of range; write a number {sign} {limit:g}"
    if kind.startswith("bool"):
        return f"{shown} is neither true nor false; write true or false"
    if kind == "string_type":
        return f"{shown} is not a text; write a name, in quotes if it looks like a number"
    if kind in ("list_type", "tuple_type"):
        return f"{shown} is not a list; write [a, b, …]"
    if kind in ("dict_type", "model_type", "model_attributes_type"):
        return f"{shown} is not a mapping; write {{key: value}}"
    if kind.startswith("union_tag"):
        return f"{shown} is of the wrong kind; write {context['discriminator']}"
    return str(detail["msg"]).removeprefix("Value error, ")


def _diagnostic(text: str, path: str, place: Place) -> Diagnostic:
    what, _, cure = text.partition("; ")
    return Diagnostic(what, cure, path, place)


def _keys_at(model: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    """The keys that the mapping at `location` may have."""
    for part in location:
        for name, info in model.model_fields.items():
            if part in (name, info.alias):
                model = next(_models_in(info.annotation), model)
    return [info.alias or name for name, info in model.model_fields.items()]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def dump(value: Any) -> str:
    """Plain values as YAML text, keys in the order given."""
    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120))
