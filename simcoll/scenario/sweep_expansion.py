"""Expand lists and ranges of values: a file with sweeps becomes one tree for each combination."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Final

from simcoll import units
from simcoll.config.yaml_tree import Node
from simcoll.errors import Diagnostic, Place, did_you_mean

MAX_VARIANTS: Final = 100_000  # combinations of one file: a point takes 6 kB, so that more would fill a gigabyte
MAX_RANGE: Final = 10_000  # values of one range: ten for each pixel of a picture
_KEYS: Final = ("from", "to", "factor", "step")  # of a range
EXACT_TO: Final = 2**128  # larger denominators are rounded to it, as the digits of exact powers fill memory


def variants(tree: Node, natural_lists: frozenset[str], errors: list[Diagnostic]) -> list[Node]:
    """Return a tree for every combination of the listed values; the last key of the file varies fastest.

    Below a key of `natural_lists` a list is a value and not a sweep. A mapping with `from` and `to` is a range.
    Mistakes are appended to `errors`: an empty list, a range that does not grow or has more than MAX_RANGE values, and
    more than MAX_VARIANTS combinations.
    """
    return _variants(tree, natural_lists, "", errors)


def _variants(tree: Node, natural: frozenset[str], path: str, errors: list[Diagnostic]) -> list[Node]:
    if isinstance(tree.value, list):
        if not tree.value:
            errors.append(Diagnostic("the list is empty", "write at least one value", path, tree.place))
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


def differences(trees: Sequence[Node]) -> list[dict[str, object]]:
    """Return for each tree a dictionary of the values in which the trees differ, by dotted path."""
    leaves = [dict(_leaves(tree, "")) for tree in trees]
    paths = dict.fromkeys(path for of_tree in leaves for path in of_tree)
    varied = [path for path in paths if len({repr(of_tree.get(path)) for of_tree in leaves}) > 1]
    return [{path: of_tree[path] for path in varied if path in of_tree} for of_tree in leaves]


def _leaves(tree: Node, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(tree.value, dict):
        for key, child in tree.value.items():
            yield from _leaves(child, f"{path}.{key}" if path else key)
    else:
        yield path, tree.plain()


def _broken(tree: Node) -> Node:
    return Node(None, tree.place, tree.keys, broken=True)


def _range(tree: Node, path: str, errors: list[Diagnostic]) -> list[Node]:
    """Return the values of `{from: 1 KiB, to: 1 GiB, factor: 4}` or `{from: 1, to: 9, step: 2}`, both ends included."""
    before = len(errors)

    def wrong(problem: str, cure: str, key: str = "", place: Place = tree.place) -> None:
        errors.append(Diagnostic(problem, cure, f"{path}.{key}" if key else path, place))

    for key, place in tree.keys.items():
        if key not in _KEYS:
            wrong(f"unknown key {key!r} in a range", did_you_mean(key, _KEYS), key, place)
    if missing := [key for key in ("from", "to") if key not in tree.value]:
        wrong(f"a range needs {missing[0]!r}", "write `from` and `to`")
    if ("factor" in tree.value) == ("step" in tree.value):
        wrong("a range has either 'factor' or 'step'", "write e.g. {from: 1 KiB, to: 1 GiB, factor: 4}")
    if len(errors) > before:
        return [_broken(tree)]
    numbers: dict[str, tuple[Fraction, units.Unit | None]] = {}
    for key, child in tree.value.items():
        try:
            numbers[key] = _number(child.value)
        except ValueError as error:
            errors.append(Diagnostic.of(error, f"{path}.{key}", child.place))
    if len(errors) > before:
        return [_broken(tree)]
    (start, kind), (stop, stop_kind) = numbers["from"], numbers["to"]
    kind = stop_kind if units.is_zero(tree.value["from"].value) else kind  # 0 needs no unit
    growth = "factor" if "factor" in numbers else "step"
    pace, pace_kind = numbers[growth]
    where = tree.value[growth].place
    if kind != stop_kind:
        wrong("`from` and `to` have different kinds of units", "give both the same unit")
    elif growth == "factor" and (pace_kind is not None or pace <= 1):
        wrong(f"factor {pace} does not grow", "write a factor above 1", growth, where)
    elif growth == "step" and (pace_kind != kind or pace <= 0):
        wrong("the range does not grow", "write a step above 0", growth, where)
    elif stop < start or (growth == "factor" and start <= 0):
        problem = "the range is empty" if stop < start else "a range by factor cannot start at 0"
        wrong(problem, "write a `from` above 0 and at most `to`")
    if len(errors) > before:
        return [_broken(tree)]
    values, value = list[Fraction](), start
    while value <= stop:
        if len(values) == MAX_RANGE:
            wrong(f"a range of more than {MAX_RANGE} values", f"write a larger {growth}", growth, where)
            return [_broken(tree)]
        values.append(value)
        value = value * pace if growth == "factor" else value + pace
        if value.denominator > EXACT_TO:
            value = Fraction(round(value * EXACT_TO), EXACT_TO)
    whole = kind is not None or (start.denominator == 1 and pace.denominator == 1)
    return [Node(_ranged(value, kind, whole), tree.place) for value in values]


def _number(value: object) -> tuple[Fraction, units.Unit | None]:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not a number; write e.g. 8 or '64 MiB'")
    if isinstance(value, str):
        kind = units.kind_of(value)
        if kind is None:
            raise ValueError(f"{value!r} is not a quantity; write a number with a unit, e.g. '64 MiB'")
        return units.parse_exact(value, kind), kind
    if not math.isfinite(value):
        raise ValueError(f"{value} is infinite or not a number; write e.g. 8 or '64 MiB'")
    return Fraction(value).limit_denominator(10**9), None


def _ranged(value: Fraction, kind: units.Unit | None, whole: bool) -> object:
    if kind == "size":  # with a factor such as 1.5, sizes stay multiples of 8 B, which every dtype divides
        return f"{int(value) if value.denominator == 1 else int(value) // 8 * 8} B"
    if kind is not None:
        coarsest = {
            "bandwidth": "TB/s GB/s MB/s kB/s B/s",
            "duration": "s ms us ns ps",
            "share": "%",
            "byte_time": "ps/B",
        }
        for unit in coarsest[kind].split():
            number = value / units.parse_exact(f"1 {unit}", kind)
            if number.denominator == 1:
                return f"{int(number)} {unit}" if number else "0"
        return f"{float(number)!r} {unit}"
    return int(value) if whole else float(value)
