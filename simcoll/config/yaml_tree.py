"""YAML files as trees of located values: strict, YAML 1.2, and every complaint with file, line, column and cure.

`read` gives a `Node` tree in which every value and every key remembers its place;
`validate` hands plain values to a pydantic model and turns all its complaints into located diagnostics.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Tag, ValidationError, ValidationInfo, field_validator

from simcoll.config import input_files
from simcoll.config._node import Node as Node
from simcoll.config._node import WrittenFloat as WrittenFloat
from simcoll.config._node import located as located
from simcoll.config.decoding import decoded
from simcoll.errors import Diagnostic, InputError, Place, did_you_mean

MAX_FILE_BYTES: Final = 16 * 2**20  # bounds memory; a YAML file of simcoll is far smaller
MOST_KEPT: Final = 4 * 2**20  # of a large file, of which the last one is kept
_FILES: Final = (".yaml", ".yml", ".json", ".xml")  # ends of the names of files that files of simcoll name


_UNDERSCORES: Final = re.compile(r"[-+]?[0-9]+(_[0-9]+)+(\.[0-9]*)?([eE][-+]?[0-9]+)?")


class Model(BaseModel):
    """Base of everything that is read from a file: unknown keys are errors, values never change.

    Modules that every start loads define models without `from __future__ import annotations`: it makes annotations
    texts, and pydantic compiles each of them again.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, arbitrary_types_allowed=True, defer_build=True)

    @field_validator("*", mode="before")
    @classmethod
    def _number_without_underscores(cls, value: object, info: ValidationInfo) -> object:
        """Refuse `1_0`, which pydantic reads as 10."""
        if isinstance(value, str) and _UNDERSCORES.fullmatch(value):
            annotation = cls.model_fields[info.field_name or ""].annotation
            if _takes_numbers(annotation):
                raise ValueError(f"{value!r} is not a number; write it without _")
        return value

    also_called: ClassVar[Mapping[str, str]] = {}  # words that people write for a key of the file, and that key

    @classmethod
    def plain(cls) -> Self:
        """The model of an empty file. A call of the class would build what checks values, which takes milliseconds, and
        which pydantic builds once more for each model that has this one as a field."""
        made: Any = cls.model_construct()
        found: Self = made
        return found


M = TypeVar("M", bound=Model)

# one word, or several: a text that is no number, as it begins with a letter, or has one that numbers do not have; the
# spaces before it stand for what was written there, so that its column is right
_PLAIN: Final = re.compile(r"( *)((?:[A-Za-z][\w./ -]*|\d[\w. ]*[G-Zg-np-wyz_][\w. ]*)(?<! ))", re.ASCII)

TAG: Final = "<"  # what the names of a tagged union's branches begin with


def shipped(kind: str) -> Path:
    """The folder of shipped files (`topologies`, `scenarios`, `measured`), in a checkout or in an installed wheel."""
    package = Path(__file__).parents[1]
    in_wheel = package / "shipped" / kind
    if in_wheel.is_dir():
        return in_wheel
    return package.parent / ("validation/measured" if kind == "measured" else kind)


_SHIPPED: Final = (str(Path(__file__).parents[1]), str(shipped("topologies")), str(shipped("scenarios")))


def read(path: Path, name: str | None = None, errors: list[Diagnostic] | None = None) -> Node:
    """Read one YAML document. A text in it that names a file beside it (`topology: machine.yaml`) is that file.

    Raises InputError if the file is missing, too large, not YAML, or has a key twice; mistakes after which reading can
    go on are collected in `errors` where that is given.
    """
    source = name or str(path)
    data = input_files.bytes_of(path, "give the path of a YAML file", MAX_FILE_BYTES, "split the file", source)
    making = _kept if len(data) <= input_files.MAX_KEPT_BYTES else _kept_last if len(data) <= MOST_KEPT else _parsed
    tree = _checked(*making(decoded(data, source), source), errors)
    folder = path.parent
    return tree if folder == Path() or str(path).startswith(_SHIPPED) else _with_files(tree, folder)


def _with_files(tree: Node, folder: Path) -> Node:
    """The tree with the paths of files of this folder that it names by their names there; itself if it names none, as
    what is made of trees is kept by these."""
    if isinstance(tree.value, dict):
        named = {key: _with_files(child, folder) for key, child in tree.value.items()}
        return tree if all(map(operator.is_, named.values(), tree.value.values())) else replace(tree, value=named)
    if isinstance(tree.value, list):
        listed = [_with_files(child, folder) for child in tree.value]
        return tree if all(map(operator.is_, listed, tree.value)) else replace(tree, value=listed)
    if not (isinstance(tree.value, str) and tree.value.endswith(_FILES)):
        return tree
    try:
        return replace(tree, value=str(beside)) if (beside := folder / tree.value).is_file() else tree
    except (OSError, ValueError):  # what no file can be called
        return tree


def parse(text: str, source: str, errors: list[Diagnostic] | None = None) -> Node:
    """Parse YAML text; `source` names it in errors."""
    return _checked(*_parsed(text, source), errors)


def _checked(tree: Node, mistakes: Sequence[Diagnostic], errors: list[Diagnostic] | None) -> Node:
    if errors is not None:
        errors += mistakes
    elif mistakes:
        raise InputError(mistakes)
    return tree


def _parsed(text: str, source: str) -> tuple[Node, Sequence[Diagnostic]]:
    """The tree, and the mistakes after which reading can go on; raises InputError for others."""
    if (plain := _PLAIN.fullmatch(text)) and plain[2].lower() not in ("true", "false", "null"):
        return Node(plain[2], Place(source, 1, plain.end(1) + 1)), ()
    from simcoll.config import _yaml_text

    return _yaml_text.parsed(text, source)


_kept_last = functools.lru_cache(maxsize=1)(_parsed)  # a prediction asks some ten times for the file of its machine
_kept = functools.lru_cache(maxsize=64)(_parsed)  # trees never change; a sweep asks for the same files at each point


def put(tree: Node, path: str, value: Node, place: Place | None = None) -> Node:
    """The tree with a value at a dotted path, in each of a list of mappings on its way; missing keys are created;
    `place` (default: the value's) is where the keys were written. Raises InputError where the path runs through
    another value than these."""
    return _put(tree, path.split("."), value, place or value.place)


def _put(tree: Node, keys: Sequence[str], value: Node, place: Place) -> Node:
    if not keys:
        return value
    if isinstance(tree.value, list) and all(isinstance(child.value, dict) for child in tree.value):
        return Node([_put(child, keys, value, place) for child in tree.value], tree.place, tree.keys)
    if tree.value is not None and not isinstance(tree.value, dict):
        problem = f"{keys[0]!r} cannot be set: its parent is not a mapping"
        raise InputError([Diagnostic(problem, "set the parent instead", "", place)])
    children: dict[str, Node] = dict(tree.value or {})
    children[keys[0]] = _put(children.get(keys[0], Node(None, place)), keys[1:], value, place)
    return Node(children, tree.place, {**tree.keys, keys[0]: tree.keys.get(keys[0], place)})


def over(below: Node, above: Node) -> Node:
    """The tree of two mappings: `above` counts where both have a value, key by key of mappings within."""
    if not isinstance(below.value, dict) or not isinstance(above.value, dict):
        return above
    both = {key: over(below.value[key], child) if key in below.value else child for key, child in above.value.items()}
    return Node({**below.value, **both}, above.place, {**below.keys, **above.keys})


# --- validation ---------------------------------------------------------------------------------------------------


class BelowError(ValueError):
    """A mistake that stands at some `path` below the value that was checked, not at this."""

    def __init__(self, path: Sequence[str | int], problem: str):
        self.path = tuple(path)
        super().__init__(problem)


class MisplacedKeyError(BelowError):
    """A key that does not go with others: the mistake stands at the key, not at its value."""


def validate(model: type[M], trees: Sequence[Node], mistakes: Sequence[Diagnostic] = ()) -> list[M]:
    """Every tree as a `model`; raises InputError with all mistakes of all trees, and those made before, each once."""
    models: list[M] = []
    errors: dict[tuple[Place | None, str], Diagnostic] = {(d.place, d.what): d for d in mistakes}
    for tree in trees:
        try:
            models.append(model.model_validate(tree.plain()))
        except ValidationError as error:
            for diagnostic in _located(error, model, tree):
                errors.setdefault((diagnostic.place, diagnostic.what), diagnostic)
    if errors:
        raise InputError(sorted(errors.values(), key=lambda d: (d.place is None, d.place)))
    return models


def mistakes(error: ValidationError, model: type[Model], values: Mapping[str, Any]) -> list[Diagnostic]:
    """The mistakes that pydantic found in values that stand in no file, in the words for files."""
    return [replace(each, place=None) for each in _located(error, model, located(dict(values), Place("", 1, 1)))]


def _located(error: ValidationError, model: type[Model], tree: Node) -> Iterator[Diagnostic]:
    details = error.errors(include_url=False)
    unknown = {detail["loc"] for detail in details if detail["type"] == "extra_forbidden"}
    for detail in details:
        node, place, path = tree, tree.place, []
        misplaced = detail.get("ctx", {}).get("error")
        for part in (*detail["loc"], *(misplaced.path if isinstance(misplaced, BelowError) else ())):
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
            continue  # a misspelt key is one mistake, reported at the misspelt key
        if detail["type"] == "default_factory_not_called":
            continue  # a default that follows from other keys, whose own mistakes are reported
        of_key = detail["type"] in ("extra_forbidden", "missing") or isinstance(misplaced, MisplacedKeyError)
        where = place if of_key else node.place
        text = _wording(detail)
        if detail["type"] == "extra_forbidden":
            other, known = model.also_called.get(".".join(path)), _keys_at(model, detail["loc"][:-1])
            text += f"; write {other!r}" if other else f"; {did_you_mean(path[-1], known)}"
        elif not of_key and (cure := _unswept(path, node)):
            text = f"{text.partition('; ')[0]}; {cure}"
        yield Diagnostic.of(text, ".".join(path), where)


def _unswept(path: Sequence[str], node: Node) -> str:
    """The cure for a list or a range where one value stands below a list, whose items are one value: none is swept."""
    above = list(itertools.takewhile(lambda part: not part.isdigit(), path))
    several = isinstance(node.value, list) or (isinstance(node.value, dict) and "from" in node.value)
    if len(above) == len(path) or not several:
        return ""
    instead = f"list whole mappings of {above[-2]!r}" if len(above) > 1 else "write a file for each"
    return f"write one value: nothing below {above[-1]!r} is swept; to compare several, {instead}"


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


def _keys_at(model: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    """The keys that the mapping at `location` may have."""
    inside: Any = model
    for part in location:
        for name, info in model.model_fields.items():
            if part in (name, info.alias):
                inside = info.annotation
        if str(part).startswith(TAG):
            inside = _branch(inside, part)
        model = next(_models_in(inside), model)
    return [info.alias or name for name, info in model.model_fields.items()]


def _branch(annotation: Any, tag: str | int) -> Any:
    """The member of a tagged union that has the tag; None if there is none."""
    arguments = get_args(annotation)
    if any(isinstance(argument, Tag) and argument.tag == tag for argument in arguments):
        return arguments[0]
    return next(filter(None, (_branch(argument, tag) for argument in arguments)), None)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _takes_numbers(annotation: Any) -> bool:
    return annotation in (int, float) or any(map(_takes_numbers, get_args(annotation)))


def dump(value: Any, *, inline: bool = False) -> str:
    """Plain values as YAML text, keys in the order given; `inline`: the innermost lists and mappings on one line."""
    from simcoll.config import _yaml_text

    return _yaml_text.dump(value, inline=inline)
