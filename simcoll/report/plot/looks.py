"""Colour and marker of a line: an algorithm has the same in every picture, ordered values go from dark to light.

Colours are Paul Tol's "muted" and "bright" schemes, distinct to colour-blind readers ("Colour schemes", SRON
technical note SRON/EPS/TN/09-002).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from matplotlib import colormaps
from matplotlib.colors import to_hex, to_rgb

INK: Final = "#222222"
GREY: Final = "#777777"
FAINT: Final = "#dddddd"

Marker = str | tuple[int, Literal[1], int]  # matplotlib's name, or (points, 1, angle) of a star


class Look(NamedTuple):
    """Colour and marker of an algorithm, in every plot."""

    color: str
    marker: Marker


# Members of a family are neighbours in colour and differ in marker; those that share a collective differ in both.
_KNOWN: Final = {
    "auto": Look("#DD1C1C", "o"),
    "ring": Look("#332288", "o"),
    "bidirectional_ring": Look("#4477AA", "H"),
    "ring_unchunked": Look("#88CCEE", "h"),
    "chain": Look("#225555", "s"),
    "tree": Look("#117733", "^"),
    "double_binary_tree": Look("#44AA99", "v"),
    "chain_tree": Look("#66AA55", "P"),
    "binomial": Look("#228833", "<"),
    "ring_by_dimension": Look("#6699CC", (8, 1, 0)),
    "hierarchical": Look("#882255", "D"),
    "hierarchical_leader": Look("#DD88AA", "d"),
    "hierarchical_tree": Look("#EE7733", ">"),
    "recursive_doubling": Look("#AA4499", "s"),
    "recursive_multiplying": Look("#771155", (4, 1, 0)),
    "swing": Look("#BB4400", (3, 1, 0)),
    "halving_doubling": Look("#9988DD", "p"),
    "recursive_halving": Look("#EE3377", "H"),
    "dissemination": Look("#9955AA", "8"),
    "pat": Look("#0099AA", "^"),
    "bruck": Look("#33BBEE", "d"),
    "reduce_scatter_gather": Look("#AA3377", "D"),
    "scatter_allgather": Look("#CC7722", "p"),
    "direct": Look("#999933", "P"),
    "all_pairs": Look("#663333", "<"),
    "two_shot": Look("#AA7744", (6, 1, 0)),
    "naive": Look("#777777", "X"),
    "nvls": Look("#DDAA33", "*"),
    "nvls_tree": Look("#997700", "8"),
}
LIGHTEST: Final = 0.88  # of viridis: what is lighter cannot be seen on white
_OTHERS: Final = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#EE7733", "#0077BB", "#BBBB77")
_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "p", "h", "<", ">", "d", "*")


def look(algorithm: str) -> Look:
    """Colour and marker of an algorithm; a variant, `name(option=…)` or `name, LL`, has another shade and marker.

    >>> look("ring"), look("ring, LL").color != look("ring").color
    (Look(color='#332288', marker='o'), True)
    """
    spec = algorithm.replace(" ", "")
    name = spec.split("(")[0].split(",")[0]
    base = _KNOWN.get(name) or _hashed(name)
    if spec == name:
        return base
    number = zlib.crc32(spec.encode())
    return variant(base, number // 1000, number)


def looks_of(names: Sequence[str], ordered: bool = False) -> dict[str, Look]:
    """A look for each name: an algorithm's own; of others the next that is free; `ordered` names darken to lighten."""
    if ordered and len(names) > 2:
        shades = colormaps["viridis"]
        steps = (LIGHTEST * number / (len(names) - 1) for number in range(len(names)))
        return {
            name: Look(to_hex(shades(step)), _MARKERS[number % len(_MARKERS)])
            for number, (name, step) in enumerate(zip(names, steps, strict=True))
        }
    unknown = [name for name in names if name.split("(")[0].split(",")[0] not in _KNOWN]
    if len(unknown) > len(_OTHERS):
        return {name: look(name) for name in names}
    taken = {look(name).marker for name in names if name not in unknown}
    markers = sorted(_MARKERS, key=taken.__contains__)  # first those that no known name beside them has
    free = dict(zip(unknown, map(Look, _OTHERS, markers), strict=False))
    return {name: free.get(name) or look(name) for name in names}


def variant(base: Look, shade: int, marker: int) -> Look:
    """One of five shades, with one of twelve other markers."""
    others = [each for each in _MARKERS if each != base.marker]
    return Look(_shade(base.color, shade), others[marker % len(others)])


def _hashed(name: str) -> Look:
    number = zlib.crc32(name.encode())
    return Look(_OTHERS[number % len(_OTHERS)], _MARKERS[number // 1000 % len(_MARKERS)])


def _shade(color: str, number: int) -> str:
    """The same colour in one of five tints, or shades where it is light: away from black and from white."""
    dark = contrast(color) == "white"
    toward, amount = 1.0 if dark else 0.0, 0.14 + 0.09 * (number % 5)
    red, green, blue = (part + (toward - part) * amount for part in to_rgb(color))
    return to_hex((red, green, blue))


def contrast(color: str) -> str:
    """Black or white, whichever reads better on `color`."""
    red, green, blue = to_rgb(color)
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.55 else INK
