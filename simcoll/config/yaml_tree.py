"""Read YAML 1.2 files as trees in which every value and key has its place (file, line and column).

`read` returns such a tree of `Node`s; `assign` sets a key of the tree, e.g. for `--set`. `validate` passes the plain
values to a pydantic model and converts its errors into diagnostics with places and fixes.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Self, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Tag, ValidationError, model_validator

from simcoll.config import input_files
from simcoll.errors import Diagnostic, InputError, Place, did_you_mean
from simcoll.units import MOST_DIGITS

MAX_FILE_BYTES: Final = 16 * 2**20  # to bound memory; a YAML file of simcoll is far smaller
MOST_KEPT: Final = 4 * 2**20  # bytes; the tree of a larger file is not cached
T = TypeVar("T")
_FILES: Final = (".yaml", ".yml", ".json", ".xml")  # suffixes of files to which a file of simcoll may refer


class WrittenFloat(float):
    """A number together with its text in the file, because YAML reads the releases `2.3` and `2.30` as one number."""

    text: str


@dataclass(frozen=True, eq=False)  # compared by identity, as caches are keyed by trees
class Node:
    """A value with its place in a file; `keys` are the places of a mapping's keys."""

    value: Any  # dict[str, Node], list[Node] or a scalar
    place: Place
    keys: Mapping[str, Place] = field(default_factory=dict)
    broken: bool = False  # its mistake is already reported

    def plain(self) -> Any:
        """Return the value without places, for pydantic."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value

    def get(self, key: str) -> Node | None:
        """Return the child at `key`; None if this node is no mapping or lacks the key."""
        return self.value.get(key) if isinstance(self.value, dict) else None


def located(value: Any, place: Place) -> Node:
    """Convert plain values into a tree of `Node`s, all with the same place."""
    if isinstance(value, dict):
        return Node({key: located(child, place) for key, child in value.items()}, place, dict.fromkeys(value, place))
    if isinstance(value, list):
        return Node([located(child, place) for child in value], place)
    return Node(value, place)


# Parsing and checking a file takes 10 to 60 ms, NCCL's graph search up to 6 s; each point needs some twenty files.
@functools.lru_cache(maxsize=256)
def _answer(ask: Callable[..., Any], of: tuple[Hashable, ...]) -> Any:
    return ask(*of)


def once(ask: Callable[..., T], *of: Hashable) -> T:
    """Return the result of `ask(*of)`, cached by `of`. If it depends on a file, `of` must contain the file's text, as
    the file may change."""
    answer: T = _answer(ask, of)
    return answer


# --- text to trees ---

MAX_NODES: Final = 200_000  # limits files with aliases, which are small on disk and may expand to a huge tree

_Base: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Yaml12(_Base):  # type: ignore[misc]  # libyaml's loader if built, else the Python one
    """A loader for YAML 1.2: `on` and `12:30` are strings, `1e9` is a number, `0o17` is octal, `017` is 17."""

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


def _float(loader: Any, node: yaml.ScalarNode) -> WrittenFloat:
    number = WrittenFloat(loader.construct_yaml_float(node))
    number.text = node.value
    return number


_Yaml12.add_constructor("tag:yaml.org,2002:int", _integer)
_Yaml12.add_constructor("tag:yaml.org,2002:float", _float)


def _parsed(text: str, source: str) -> tuple[Node, Sequence[Diagnostic]]:
    """Return the tree of a text and its recoverable mistakes; raises InputError for other mistakes."""
    mistakes: list[Diagnostic] = []
    try:
        loader = _Yaml12(text)
        try:
            root = loader.get_single_node()
            tree = _locate(loader, root, source, mistakes, itertools.count()) if root else None
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = Place(source, mark.line + 1, mark.column + 1) if mark else Place(source, 1, 1)
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise InputError(
            [Diagnostic(f"not YAML: {problem}", "check indentation, colons and quotes", "", place)]
        ) from None
    except RecursionError:
        raise InputError(f"{source}: nested too deeply", "flatten the file") from None
    return tree or Node({}, Place(source, 1, 1)), tuple(mistakes)


def _locate(loader: Any, node: yaml.Node, source: str, errors: list[Diagnostic], visits: Iterator[int]) -> Node:
    if next(visits) > MAX_NODES:
        raise InputError(f"{source}: more than {MAX_NODES} values once aliases are expanded", "write a smaller file")
    place = _place(node, source)
    if isinstance(node, yaml.CollectionNode) and node.tag not in ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
        errors.append(Diagnostic(f"YAML tag {node.tag} is not supported", "write plain YAML", "", place))
    if isinstance(node, yaml.MappingNode):
        children: dict[str, Node] = {}
        keys: dict[str, Place] = {}
        for key_node, value_node in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.value == "<<" and not key_node.style:
                cure = "write the keys themselves, or an alias (*name) for a whole value"
                mistake = Diagnostic("YAML 1.2 has no merge key '<<'", cure, "", _place(key_node, source))
                raise InputError([mistake])  # missing keys would cause further errors
            key, key_place = str(loader.construct_object(key_node, deep=True)), _place(key_node, source)
            if key in keys:
                first = keys[key]
                problem = f"key {key!r} stands twice (first in line {first.line}, column {first.column})"
                errors.append(Diagnostic(problem, "keep one of them", key, key_place))
                continue
            keys[key] = key_place
            children[key] = _locate(loader, value_node, source, errors, visits)
        return Node(children, place, keys)
    if isinstance(node, yaml.SequenceNode):
        return Node([_locate(loader, child, source, errors, visits) for child in node.value], place)
    if node.tag in _NUMBERS and len(node.value) > MOST_DIGITS:
        problem = f"a number of {len(node.value)} digits"
        errors.append(Diagnostic(problem, f"write one of at most {MOST_DIGITS}", "", place))
        return Node(None, place, broken=True)
    try:
        return Node(loader.construct_object(node, deep=True), place)
    except (yaml.YAMLError, ValueError):
        errors.append(Diagnostic(f"YAML tag {node.tag} is not supported", "write plain YAML", "", place))
        return Node(None, place, broken=True)


_NUMBERS: Final = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def _place(node: yaml.Node, source: str) -> Place:
    return Place(source, node.start_mark.line + 1, node.start_mark.column + 1)


def parse(text: str, source: str, errors: list[Diagnostic] | None = None) -> Node:
    """Return the tree of a YAML text; `source` names the text in messages. For `errors` see `read`."""
    return _checked(*once(_parsed, text, source), errors)


def _checked(tree: Node, mistakes: Sequence[Diagnostic], errors: list[Diagnostic] | None) -> Node:
    if errors is not None:
        errors += mistakes
    elif mistakes:
        raise InputError(mistakes)
    return tree


def shipped(kind: str) -> Path:
    """Return the folder of shipped `topologies`, `scenarios` or `measured`, in a checkout or an installed wheel."""
    package = Path(__file__).parents[1]
    in_wheel = package / "shipped" / kind
    if in_wheel.is_dir():
        return in_wheel
    return package.parent / ("validation/measured" if kind == "measured" else kind)


_SHIPPED: Final = (str(Path(__file__).parents[1]), str(shipped("topologies")), str(shipped("scenarios")))


def read(path: Path, name: str | None = None, errors: list[Diagnostic] | None = None) -> Node:
    """Return the tree of a YAML file. A text that names a file in the same folder (`topology: machine.yaml`) is
    replaced by that file's path. Raises InputError if the file is missing, too large, not YAML, or has a key twice. If
    `errors` is given, recoverable mistakes are appended to it instead."""
    source = name or str(path)
    data = input_files.bytes_of(path, "give the path of a YAML file", MAX_FILE_BYTES, "split the file", source)
    text = input_files.decoded(data, source)
    parsed = once(_parsed, text, source) if len(data) <= MOST_KEPT else _parsed(text, source)
    tree = _checked(*parsed, errors)
    folder = path.parent
    return tree if folder == Path() or str(path).startswith(_SHIPPED) else _with_files(tree, folder)


def _with_files(tree: Node, folder: Path) -> Node:
    """Replace each text that names a file in `folder` by the file's path. Without such a text, return the same object,
    because caches are keyed by trees."""
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
    except (OSError, ValueError):  # not a possible file name
        return tree


def put(tree: Node, path: str, value: Node, place: Place | None = None) -> Node:
    """Return the tree with a value set at a dotted path; missing keys are created. If the path leads through a list of
    mappings, the value is set in each. New keys get `place`, by default the value's place. Raises InputError if the
    path leads through a scalar or a list of scalars."""
    return _put(tree, path.split("."), value, place or value.place)


def _put(tree: Node, keys: Sequence[str], value: Node, place: Place) -> Node:
    if not keys:
        return value
    if isinstance(tree.value, list) and all(isinstance(child.value, dict) for child in tree.value):
        return Node([_put(child, keys, value, place) for child in tree.value], tree.place, tree.keys)
    if tree.value is not None and not isinstance(tree.value, dict):
        problem = f"{keys[0]!r} cannot be set: its parent is not a mapping"
        raise InputError(problem, "set the parent instead", place)
    children: dict[str, Node] = dict(tree.value or {})
    children[keys[0]] = _put(children.get(keys[0], Node(None, place)), keys[1:], value, place)
    return Node(children, tree.place, {**tree.keys, keys[0]: tree.keys.get(keys[0], place)})


def over(below: Node, above: Node) -> Node:
    """Merge two mappings recursively; if both have a value at a key, the value of `above` counts."""
    if not isinstance(below.value, dict) or not isinstance(above.value, dict):
        return above
    both = {key: over(below.value[key], child) if key in below.value else child for key, child in above.value.items()}
    return Node({**below.value, **both}, above.place, {**below.keys, **above.keys})


# --- assignments by options ---


class OptionValue(str):
    """An assignment `PATH=VALUE` that stems from an option such as `--profile`; messages name the option."""

    option: str

    def __new__(cls, path: str, value: str, option: str) -> Self:
        """Return the assignment `path=value`, which the user wrote as `option value`."""
        made = super().__new__(cls, f"{path}={value}")
        made.option = option
        return made


def condition(text: str, option: str = "--where") -> tuple[str, str]:
    """Split a condition such as `ranks=8,16` into the column and the texts of its values. Raises InputError for other
    forms and several columns."""
    column, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not column:
        raise InputError(f"{option} {text!r} is not COL=VALUE", f"write e.g. {option} ranks=8")
    parts = re.split(r",(?=\s*[\w.]+\s*=)(?![^()]*\))", text)  # in `swing(ports=one,by=2)` there is no column
    if len(parts) > 1:
        cure = " ".join(f"{option} {part.strip()}" for part in parts)
        raise InputError(f"{option} {text!r} names several columns", f"give each by itself: {cure}")
    return column, values


def sources(assignments: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each assignment with its name in messages: the option that it stems from, or `--set[N]` with N from 1."""
    count = itertools.count(1)
    for each in assignments:
        yield each, each.option if isinstance(each, OptionValue) else f"--set[{next(count)}]"


def assign(tree: Node, assignment: str, source: str) -> Node:
    """Return the tree with an assignment `PATH=VALUE` applied; VALUE is YAML, missing keys are created. `source` names
    the assignment in messages. Raises InputError if there is no `=`, or if the path leads through a value that is no
    mapping."""
    path, equals, text = assignment.partition("=")
    if not equals or not path.strip():
        raise InputError(f"{source}: {assignment!r} is not PATH=VALUE", "write e.g. --set model.sharing=fifo")
    before = 0 if isinstance(assignment, OptionValue) else len(path) + 1  # columns
    start = Place(source, 1, 1)
    try:
        value = parse(" " * before + text, source) if text.strip() else Node(None, start)
    except InputError as error:
        raise InputError(replace(d, place=Place(source, 1, before + 1)) for d in error.diagnostics) from None
    return put(tree, path.strip(), value, start)


# --- models ---


_UNDERSCORES: Final = re.compile(r"[-+]?[0-9]+(_[0-9]+)+(\.[0-9]*)?([eE][-+]?[0-9]+)?")


class Model(BaseModel):
    """Base class of models of files: unknown keys are errors, and instances are immutable.

    Modules that are loaded at every start define models without `from __future__ import annotations`. It would make
    annotations texts, which pydantic has to compile again.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=False,
        arbitrary_types_allowed=True,
        defer_build=True,
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _numbers_without_underscores(cls, values: object) -> object:
        """Refuse `1_0`, which pydantic reads as 10."""
        for key, value in values.items() if isinstance(values, dict) else ():
            field = cls.model_fields.get(key)
            if field and isinstance(value, str) and _UNDERSCORES.fullmatch(value) and _takes_numbers(field.annotation):
                raise BelowError([key], f"{value!r} is not a number; write it without _")
        return values

    also_called: ClassVar[Mapping[str, str]] = {}  # wrong key that users may write -> the right key, for messages

    @classmethod
    def plain(cls) -> Self:
        """Return the model with all defaults. Calling the class instead would build its validator, which takes
        milliseconds, and which pydantic builds again for each model that has this one as a field."""
        made: Any = cls.model_construct()
        found: Self = made
        return found


def models() -> dict[str, type[Model]]:
    """Return all subclasses of `Model`, by name."""
    return {model.__name__: model for model in _subclasses(Model)}


def field_texts(model: type[Model]) -> dict[str, str]:
    """Return the documentation string below each field of a model, by key, inherited fields included."""
    return {key: " ".join(info.description.split()) for key, info in model.model_fields.items() if info.description}


def _subclasses(model: type[Model]) -> Iterator[type[Model]]:
    for subclass in model.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


# --- validation ---

M = TypeVar("M", bound=Model)

TAG: Final = "<"  # first character of the tags of union members


class BelowError(ValueError):
    """A mistake at a `path` below the validated value, not at the value itself."""

    def __init__(self, path: Sequence[str | int], problem: str):
        self.path = tuple(path)
        super().__init__(problem)


class MisplacedKeyError(BelowError):
    """A key that contradicts other keys. The message gets the place of the key in the file, not of its value."""


def validate(model: type[M], trees: Sequence[Node], mistakes: Sequence[Diagnostic] = ()) -> list[M]:
    """Validate every tree as a `model`. Raises InputError with the given `mistakes` and the mistakes of all trees."""
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
    """Convert pydantic's errors about values that come from no file into diagnostics without places."""
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
            continue  # a default that depends on other keys, whose mistakes are reported
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
    """Return the fix if a list or range stands below a key that is not swept and takes single values only; else an
    empty text."""
    above = list(itertools.takewhile(lambda part: not part.isdigit(), path))
    several = isinstance(node.value, list) or (isinstance(node.value, dict) and "from" in node.value)
    if len(above) == len(path) or not several:
        return ""
    instead = f"list whole mappings of {above[-2]!r}" if len(above) > 1 else "write a file for each"
    return f"write one value: values below {above[-1]!r} cannot be swept; to compare several, {instead}"


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
    if kind.startswith("int") or kind in ("float_type", "float_parsing", "finite_number"):
        return f"{shown} is not a {'whole ' if kind.startswith('int') else ''}number; write e.g. 2"
    if kind.startswith(("greater_than", "less_than")):
        sign = {"greater_than": "above", "less_than": "below"}.get(kind)
        sign = sign or ("at least" if kind.startswith("greater") else "at most")
        limit = next(iter(context.values()))
        return f"{shown} is out of range; write a number {sign} {limit:g}"
    if kind == "multiple_of":
        return f"{shown} is no multiple of {context[kind]:g}; write one"
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
    """Return the keys that a model allows for the mapping at `location`."""
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
    """Return the member of a tagged union of models that has the given tag; None if there is none."""
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


# --- trees to text ---


def dump(value: Any, *, inline: bool = False) -> str:
    """Convert plain values to YAML text, keys in order; `inline` puts innermost lists and mappings on one line."""
    flow = None if inline else False
    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": 120, "default_flow_style": flow}
    return str(yaml.dump(value, Dumper=_Quoting, **options))


class _Quoting(yaml.SafeDumper):
    """A dumper that quotes each text that YAML 1.1 or 1.2 would not read as text, such as `9e47`."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [
            *yaml.SafeDumper.yaml_implicit_resolvers.get(first, []),
            *_Yaml12.yaml_implicit_resolvers.get(first, []),
        ]
        for first in {**yaml.SafeDumper.yaml_implicit_resolvers, **_Yaml12.yaml_implicit_resolvers}
    }


_Quoting.add_representer(WrittenFloat, lambda dumper, number: dumper.represent_float(float(number)))
