"""Values of a file with their places, and the cache of the trees of files that simcoll ships.

YAML takes a tenth of a second for the files that a prediction needs. Their trees are kept in the user's cache folder,
by the contents of the file; a tree that cannot be read, or is not whole, is made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from typing import Any, Final

from simcoll.config import cache_folder
from simcoll.dataclass import dataclass
from simcoll.errors import Place

_FORM: Final = b"1"  # of kept trees: another number where what is written here changes


class WrittenFloat(float):
    """A number of a file that knows its text: of releases, `2.3` and `2.30` are two."""

    text: str


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


# --- kept trees: [line, column, value]; of a mapping the value is {"keys": [[key, line, column, tree]]}, of a sequence
# {"list": [tree]}, of a number with a point {"float": text}


class _KeptNode(Node):
    """A tree of the cache: its parts are made when they are looked at."""

    def __init__(self, kept: list[Any], source: str):
        self.__dict__.update(kept=kept, source=source)

    def __getattr__(self, name: str) -> Any:
        if name not in ("value", "place", "keys"):
            raise AttributeError(name)
        line, column, value = self.kept
        keys = {}
        if isinstance(value, dict):
            keys = {key: Place(self.source, *at) for key, *at, _ in value.get("keys", ())}
            if "keys" in value:
                value = {key: _KeptNode(tree, self.source) for key, _, _, tree in value["keys"]}
            else:
                value = [_KeptNode(tree, self.source) for tree in value["list"]] if "list" in value else _number(value)
        self.__dict__.update(value=value, place=Place(self.source, line, column), keys=keys)
        return self.__dict__[name]

    def plain(self) -> Any:
        return _plain(self.kept)


def _number(value: Mapping[str, str]) -> WrittenFloat:
    number = WrittenFloat(value["float"])
    number.text = value["float"]
    return number


def _plain(kept: list[Any]) -> Any:
    value = kept[2]
    if not isinstance(value, dict):
        return value
    if "keys" in value:
        return {key: _plain(tree) for key, _, _, tree in value["keys"]}
    return [_plain(tree) for tree in value["list"]] if "list" in value else _number(value)


def _written(node: Node) -> list[Any]:
    value: Any = node.value
    if isinstance(value, dict):
        value = {"keys": [[key, *_spot(node.keys[key]), _written(child)] for key, child in value.items()]}
    elif isinstance(value, list):
        value = {"list": [_written(child) for child in value]}
    elif isinstance(value, WrittenFloat):
        value = {"float": value.text}
    return [*_spot(node.place), value]


def _spot(place: Place) -> tuple[int, int]:
    return place.line, place.column


def _file(text: str) -> str:
    return f"tree-{hashlib.sha256(_FORM + text.encode()).hexdigest()[:32]}.json"


def kept_tree(text: str, source: str) -> Node | None:
    """The tree of a text that was kept before; None if there is none."""
    with suppress(ValueError):
        if body := cache_folder.kept(_file(text)):
            return _KeptNode(json.loads(body), source)
    return None


def keep_tree(text: str, tree: Node) -> None:
    """Keep the tree of a text, where there is a folder for it."""
    cache_folder.keep(_file(text), json.dumps(_written(tree), separators=(",", ":")).encode())
