"""YAML text to trees of located values, and plain values to YAML text: the one module that imports the YAML library."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import yaml

from simcoll.config._node import Node, WrittenFloat
from simcoll.errors import Diagnostic, InputError, Place
from simcoll.units import MOST_DIGITS

MAX_NODES: Final = 200_000  # an alias bomb is small on disk and huge when walked

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


def _float(loader: Any, node: yaml.ScalarNode) -> WrittenFloat:
    number = WrittenFloat(loader.construct_yaml_float(node))
    number.text = node.value
    return number


_Yaml12.add_constructor("tag:yaml.org,2002:int", _integer)
_Yaml12.add_constructor("tag:yaml.org,2002:float", _float)


def parsed(text: str, source: str) -> tuple[Node, Sequence[Diagnostic]]:
    """The tree, and the mistakes after which reading can go on; raises InputError for others."""
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
        errors.append(Diagnostic(f"a value of the kind {node.tag} is not understood", "write plain YAML", "", place))
    if isinstance(node, yaml.MappingNode):
        children: dict[str, Node] = {}
        keys: dict[str, Place] = {}
        for key_node, value_node in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.value == "<<" and not key_node.style:
                cure = "write the keys themselves, or an alias (*name) for a whole value"
                mistake = Diagnostic(
                    "'<<' merges no keys, as YAML 1.2 has none that do", cure, "", _place(key_node, source)
                )
                raise InputError([mistake])  # what the keys would have said is missing: all else would follow from that
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
        errors.append(Diagnostic(f"a value of the kind {node.tag} is not understood", "write plain YAML", "", place))
        return Node(None, place, broken=True)


_NUMBERS: Final = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def _place(node: yaml.Node, source: str) -> Place:
    return Place(source, node.start_mark.line + 1, node.start_mark.column + 1)


def dump(value: Any, *, inline: bool = False) -> str:
    """`yaml_tree.dump`."""
    flow = None if inline else False
    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": 120, "default_flow_style": flow}
    return str(yaml.dump(value, Dumper=_Quoting, **options))


class _Quoting(yaml.SafeDumper):
    """Quotes each text that is something else in YAML 1.1 or in 1.2, as `9e47` is."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [
            *yaml.SafeDumper.yaml_implicit_resolvers.get(first, []),
            *_Yaml12.yaml_implicit_resolvers.get(first, []),
        ]
        for first in {**yaml.SafeDumper.yaml_implicit_resolvers, **_Yaml12.yaml_implicit_resolvers}
    }


_Quoting.add_representer(WrittenFloat, lambda dumper, number: dumper.represent_float(float(number)))
