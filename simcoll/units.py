"""Parse and format quantities with units. No other module of simcoll parses or formats units.

In simcoll's code a size is an int of bytes, a bandwidth an int of B/s, a duration an int of picoseconds. In files and
options a quantity is a text with a case-sensitive unit. `b` is a bit and `B` a byte; `k M G T` are decimal,
`Ki Mi Gi Ti` binary. A number without its unit is an error; only 0 needs no unit.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any, Final, Literal

Unit = Literal["size", "bandwidth", "duration", "share", "byte_time"]

PS_PER_S: Final = 10**12
MOST_DIGITS: Final = 300  # of a number in a text; longer ones are refused

_PREFIX: Final = {
    "": 1,
    **{letter: 1000**i for i, letter in enumerate("kMGT", 1)},
    "K": 1000,
    **{f"{letter}i": 1024**i for i, letter in enumerate("KMGT", 1)},
}
_BITS: Final = {f"{p}{unit}": Fraction(f, 8) for p, f in _PREFIX.items() for unit in ("b", "bit")}
_BYTES: Final = {f"{p}B": Fraction(f) for p, f in _PREFIX.items()}
_TIMES: Final = {
    "ps": 1,
    "ns": 10**3,
    "us": 10**6,
    "µs": 10**6,
    "μs": 10**6,
    "ms": 10**9,
    "s": 10**12,
    "min": 60 * 10**12,
    "h": 3600 * 10**12,
}

_UNITS: Final[dict[Unit, dict[str, Fraction]]] = {
    "size": {**_BYTES, **_BITS},
    "bandwidth": {
        **{f"{unit}/s": f for unit, f in {**_BYTES, **_BITS}.items()},
        **{f"{p}{unit}ps": f * Fraction(1, 8 if unit == "b" else 1) for p, f in _PREFIX.items() for unit in ("b", "B")},
    },
    "duration": {unit: Fraction(f) for unit, f in _TIMES.items()},
    "share": {"%": Fraction(1, 100)},
    "byte_time": {f"{unit}/B": Fraction(f) for unit, f in _TIMES.items()},
}
_EXAMPLE: Final[dict[Unit, str]] = {
    "size": "'64 MiB'",
    "bandwidth": "'50 GB/s' or '400 Gb/s' (one direction)",
    "duration": "'1.5 us'",
    "share": "'20 %'",
    "byte_time": "'1.3 ps/B'",
}
_UNIT_LIST: Final[dict[Unit, str]] = {
    "size": "B, KiB, MiB, GiB, TiB, kB, MB, GB, TB",
    "bandwidth": "B/s, MB/s, GB/s, GiB/s, Mb/s, Gb/s, Gbps, …",
    "duration": "ps, ns, us, ms, s, min, h",
    "share": "%",
    "byte_time": "ps/B, ns/B",
}
_NAME: Final[dict[Unit, str]] = {
    "size": "size",
    "bandwidth": "bandwidth",
    "duration": "duration",
    "share": "share",
    "byte_time": "time per byte",
}
_MOST: Final[dict[Unit, str]] = {"bandwidth": "4611686 TB/s", "duration": "4611686 s"}  # 2**62: sums stay in 64 bits
# at most three digits of exponent: larger ones are beyond all quantities, and take seconds to write out
_QUANTITY: Final = re.compile(
    r"\s*([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)\s*((?![eE][+-]?[0-9])[^\s\d_].*?)?\s*"
)


def parse(text: object, kind: Unit) -> int:
    """Return a quantity (`text`) as an integer of bytes, B/s or ps, rounded to the nearest; halves are rounded up.

    Raises ValueError with the text "problem; what to write instead".

    >>> parse("400 Gb/s", "bandwidth"), parse("64 MiB", "size"), parse("1.5 us", "duration")
    (50000000000, 67108864, 1500000)
    """
    return int(parse_exact(text, kind) + Fraction(1, 2))


def parse_exact(text: object, kind: Unit) -> Fraction:
    """Return a quantity as an exact fraction, without the rounding of `parse`; shares and times per byte need it."""
    name, example = _NAME[kind], _EXAMPLE[kind]
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise ValueError(f"{'nothing' if text is None else repr(text)} is not a {name}; write e.g. {example}")
    if is_zero(text):
        return Fraction(0)
    if not isinstance(text, str):
        raise ValueError(f"{text} has no unit; write e.g. {example}")
    return _of_text(text, kind)


def _of_text(text: str, kind: Unit) -> Fraction:
    name, example = _NAME[kind], _EXAMPLE[kind]
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a {name}; write e.g. {example}")
    if len(match[1]) > MOST_DIGITS:  # Python refuses to convert more than 4300 digits
        raise ValueError(f"a number of {len(match[1])} digits is not a {name}; write e.g. {example}")
    number, unit = Fraction(match[1]), match[2]
    if unit is None:
        raise ValueError(f"{text!r} has no unit; write e.g. {example}")
    if unit not in _UNITS[kind]:
        raise ValueError(f"{unit!r} is no unit of a {name}; {_cure_of_unit(match[1], unit, kind)}")
    if number < 0:
        raise ValueError(f"{text!r} is negative; a {name} is at least 0")
    if kind in _MOST and number * _UNITS[kind][unit] > 2**62:
        raise ValueError(f"{text!r} is too large; write at most '{_MOST[kind]}'")
    return number * _UNITS[kind][unit]


def is_zero(value: object) -> bool:
    """Return whether a value is a 0 that needs no unit.

    >>> is_zero(0), is_zero("0"), is_zero("0 B"), is_zero(False)
    (True, True, False, False)
    """
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value)
        return match is not None and match[2] is None and float(match[1]) == 0
    return isinstance(value, int | float) and not isinstance(value, bool) and value == 0


def _cure_of_unit(number: str, unit: str, kind: Unit) -> str:
    """Return the fix for an unknown unit, e.g. to write KiB for K: nccl-tests means powers of two by K, M and G."""
    if kind == "size" and unit.upper() in ("K", "M", "G", "T"):
        return f"write '{number} {unit.upper()}iB', which nccl-tests means by {unit}"
    return f"units: {_UNIT_LIST[kind]}"


def int_of(text: str) -> int:
    """Parse a text as a whole number. Raises ValueError for all other texts. These include `1_0` and digits of other
    scripts, which Python's `int` accepts."""
    if not in_plain_digits(text):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def float_of(text: str) -> float:
    """Parse a text as a number. Raises ValueError for all other texts. These include `1_0` and digits of other scripts,
    which Python's `float` accepts."""
    if not in_plain_digits(text):
        raise ValueError(f"{text!r} is not a number")
    return float(text)


def in_plain_digits(text: str) -> bool:
    """Return whether a text is in ASCII and without `_`."""
    return text.isascii() and "_" not in text


def unboxed(value: Any) -> Any:
    """Return numbers and arrays of numpy, pandas and the like as Python numbers and lists; other values unchanged.

    >>> import numpy as np
    >>> unboxed(np.int64(8)), unboxed(np.arange(3)), unboxed("8")
    (8, [0, 1, 2], '8')
    """
    return value.tolist() if hasattr(value, "tolist") else value


def size_in(value: object) -> int | None:
    """Return the size in bytes of a text such as `64 MiB`; None for a value that is no size."""
    return parse(value, "size") if isinstance(value, str) and kind_of(value) == "size" else None


def kind_of(text: str) -> Unit | None:
    """Return the kind of quantity (`size`, `bandwidth`, …) that a text's unit belongs to; None for other texts."""
    match = _QUANTITY.fullmatch(text)
    unit = match[2] if match else None
    return next((kind for kind, units in _UNITS.items() if unit in units), None)


def format_size(nbytes: int) -> str:
    """Return the exact text of a size given in bytes, in the largest binary unit that divides it.

    >>> format_size(65536), format_size(1000)
    ('64 KiB', '1000 B')
    """
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if nbytes and nbytes % 1024**power == 0:
            return f"{nbytes // 1024**power} {unit}"
    return f"{nbytes} B"


def short_size(nbytes: int) -> str:
    """Return a short text of a size in bytes: exact in units of 1024 or 1000 if that is short, else with three digits.

    >>> short_size(6144), short_size(100_000_000), short_size(256_000), short_size(2**30 - 2**20 + 8)
    ('6 KiB', '100 MB', '256 kB', '1023 MiB')
    """
    power = next((power for power in (4, 3, 2, 1) if nbytes and nbytes % 1000**power == 0), 0)
    exact = [format_size(nbytes), f"{nbytes // 1000**power} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"]
    shortest = min(exact, key=len)
    if len(shortest) <= 8 and (nbytes < 10_000 or not shortest.endswith(" B")):
        return shortest
    power = int(math.log(nbytes, 1024))
    number = nbytes / 1024**power
    return f"{number:{'.3g' if number < 999.5 else '.0f'}} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def format_bandwidth(bytes_per_s: float) -> str:
    """Return the text of a bandwidth with at most four digits, in GB/s, or in a smaller unit if it is below 1 GB/s.

    >>> format_bandwidth(50_000_000_000), format_bandwidth(21_690)
    ('50 GB/s', '21.69 kB/s')
    """
    rounded = float(f"{bytes_per_s:.4g}")
    units = ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s"))
    factor, unit = next((each for each in units if rounded >= each[0]), units[-1])
    return f"{rounded / factor:.4g} {unit}"


def format_duration(ps: float, digits: int = 4) -> str:
    """Return the text of a duration given in ps, in the unit that keeps the number between 1 and 1000.

    >>> format_duration(1_500_000), format_duration(0)
    ('1.5 us', '0 us')
    """
    rounded = float(f"{ps:.{digits}g}")  # first: 999.96 us are 1 ms
    for limit, unit in ((10**12, "s"), (10**9, "ms"), (10**6, "us"), (10**3, "ns"), (1, "ps")):
        if rounded >= limit:
            return f"{rounded / limit:g} {unit}"
    return "0 us"


def format_count(count: int) -> str:
    """Return the text of a count: exact up to 999999, else three digits and a word such as `million`.

    >>> format_count(999_999), format_count(1_813_816_585)
    ('999999', '1.81 billion')
    """
    for limit, word in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million")):
        if count >= limit:
            return f"{count / limit:.3g} {word}"
    return str(count)


def exact_us(ps: int) -> str:
    """Return the text of a duration in ps as microseconds with six decimals, which is exact.

    >>> exact_us(1_234_567)
    '1.234567'
    """
    return f"{ps // 10**6}.{ps % 10**6:06d}"
