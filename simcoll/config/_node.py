"""Values of a file with their places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simcoll.errors import Place


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
