"""Quantities as keys of files hold them: how each is written, and the number in base units that it means.

Durations are ps, sizes bytes, bandwidths B/s; 0 stands for none, whole or per-peer.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated

from pydantic import BeforeValidator, Field, StrictInt, WithJsonSchema

from simcoll import units


def _size(value: object) -> int:
    return units.parse(value, "size")


def _size_or_nothing(value: object) -> int | None:
    return None if value is None else _size(value)


def _duration(value: object) -> int:
    return units.parse(value, "duration")


def _bandwidth_or_none(value: object) -> int:
    return 0 if value == "none" else units.parse(value, "bandwidth")


def _chunk(value: object) -> int:
    return 0 if value == "whole" else _size(value)


def _slots(value: object) -> int:
    if value == "none":
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{value!r} is no number of slots; write 1, 2, … or none")
    return value


def _channels(value: object) -> int:
    if value == "per-peer":
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{value!r} is no number of channels, which is at least 1; write 1, 2, … or per-peer")
    return value


def _gamma(value: object) -> int:
    """Kept as a bandwidth: floor(10¹² / (ps/B)); 0 is none."""
    if value == "none":
        return 0
    if isinstance(value, str) and units.kind_of(value) == "byte_time":
        per_byte = units.parse_exact(value, "byte_time")
        return int(Fraction(units.PS_PER_S) / per_byte) if per_byte else 0
    if isinstance(value, str) and units.kind_of(value) == "bandwidth":
        return units.parse(value, "bandwidth")
    raise ValueError(f"{value!r} is no cost of a reduction; write e.g. '1.3 ps/B' or '800 GB/s'")


def _text(*examples: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "examples": list(examples)})


Duration = Annotated[int, BeforeValidator(_duration), _text("1.5 us")]
Gamma = Annotated[int, BeforeValidator(_gamma), _text("1.3 ps/B", "800 GB/s", "none")]
BandwidthCap = Annotated[int, BeforeValidator(_bandwidth_or_none), _text("20 GB/s", "none")]
Chunk = Annotated[int, BeforeValidator(_chunk), _text("512 KiB", "whole")]
Size = Annotated[int | None, BeforeValidator(_size_or_nothing), _text("64 MiB")]
Slots = Annotated[
    int,
    BeforeValidator(_slots),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": "none"}]}),
]
Channels = Annotated[
    int,
    BeforeValidator(_channels),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": "per-peer"}]}),
]


def _share(value: object) -> float:
    return value if isinstance(value, float) else float(units.parse_exact(value, "share"))


Share = Annotated[
    float,
    BeforeValidator(_share),
    Field(ge=0),
    WithJsonSchema({"type": ["number", "string"], "examples": ["95 %"]}),
]

Count = Annotated[StrictInt, Field(ge=1)]
