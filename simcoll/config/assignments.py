"""Keys of a tree set from outside, as `--set PATH=VALUE` and options of commands do."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Self

from simcoll.config.yaml_tree import Node, parse, put
from simcoll.errors import InputError, Place


class OptionValue(str):
    """An assignment that stands for an option with a name of its own, by which messages call it: `--profile`."""

    option: str

    def __new__(cls, path: str, value: str, option: str) -> Self:
        """The assignment `path=value`, written as `option value`."""
        made = super().__new__(cls, f"{path}={value}")
        made.option = option
        return made


def condition(text: str, option: str = "--where") -> tuple[str, str]:
    """Split `COL=V,V` into column and values. Raises InputError for text of another form, and for several columns."""
    column, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not column:
        raise InputError(f"{option} {text!r} is not COL=VALUE", f"write e.g. {option} ranks=8")
    parts = re.split(r",(?=\s*[\w.]+\s*=)(?![^()]*\))", text)  # of `swing(ports=one,by=2)` nothing is a column
    if len(parts) > 1:
        cure = " ".join(f"{option} {part.strip()}" for part in parts)
        raise InputError(f"{option} {text!r} names several columns", f"give each by itself: {cure}")
    return column, values


def sources(assignments: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Each assignment with what messages call it: the name of its option, or `--set[N]`, counted from 1."""
    count = itertools.count(1)
    for each in assignments:
        yield each, each.option if isinstance(each, OptionValue) else f"--set[{next(count)}]"


def assign(tree: Node, assignment: str, source: str) -> Node:
    """Apply one `PATH=VALUE`; the right side is YAML, missing keys are created. `source`: its name in messages.

    Raises InputError when there is no `=` or the path runs through a value that is not a mapping.
    """
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
